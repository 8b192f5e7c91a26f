//! Checks that KV blocks survive a copy to the host pool and back to other blocks, and measures the copy rate.

use crate::CheckError;
use crate::report::Report;
use tiercel_device::{
    BlockId, Clock, CopyBatch, CopyDirection, CopyId, CopyPair, HostBlockId, QueuedCopier,
};
use tiercel_gpu::cuda::{CudaCopier, CudaKv, DevicePtr, Driver};

/// Number of bytes in a measured copy between device and host memory, before the division by `scale`.
const MEASURED_BYTES: usize = 1 << 30;
const REPEATS: usize = 5;
/// Goal for a copy out and a copy in at once: their time as a share of their time one after the other, percent. 50 %
/// would be without loss; 62.5 % are 80 % of the link's full duplex.
const MOST_TOGETHER: f64 = 62.5;

/// Checks that KV blocks survive copies to host memory and back, and measures the bandwidth: blocks of an 8B-shape
/// model copied one by one, against one long copy. `scale` divides the number of bytes.
///
/// # Errors
/// [`CheckError`] if something could not be run at all.
pub fn check_copies<D: Driver>(
    open: &dyn Fn() -> Result<D, CheckError>,
    scale: usize,
    report: &mut Report,
) -> Result<(), CheckError> {
    round_trip(open()?, report)?;
    let block = CudaKv {
        at: DevicePtr::default(),
        blocks: 0,
        block_size: 16,
        layers: 32,
        kv_heads: 8,
        head_dim: 128,
        q8: false,
    };
    let blocks = (MEASURED_BYTES / scale / block.block_bytes()).max(4) as u32;
    let mut driver = open()?;
    let mut kv = CudaKv { blocks, ..block };
    kv.at = driver.allocate(blocks as usize * kv.block_bytes())?;
    driver.upload(kv.at, &vec![1; kv.block_bytes()])?;
    driver.wait()?;
    let copies = driver.copies(blocks as usize * kv.block_bytes())?;
    let mut copier = CudaCopier::new(copies, kv, blocks);
    for direction in [CopyDirection::Out, CopyDirection::In] {
        let whole = bytes_per_s(&mut copier, direction, blocks, 1, kv.block_bytes())?;
        // Give neighbouring device blocks host blocks that are not neighbours, so that the copier cannot merge them and
        // copies each block by itself.
        let scattered = bytes_per_s(&mut copier, direction, blocks, blocks - 1, kv.block_bytes())?;
        let what = format!("copies {direction:?}");
        report.measured(&format!("{what}, one long one"), format!("{:.1} GB/s", whole / 1e9));
        report.measured(&format!("{what}, block by block"), format!("{:.1} GB/s", scattered / 1e9));
        let share = 100.0 * scattered / whole;
        if scale == 1 {
            report.at_least(&format!("{what}, of the link"), share, 90.0, "%");
        }
    }
    both_ways(&mut copier, blocks, scale == 1, report)
}

/// Copies half of the blocks out and the other half in: one after the other, and both at once.
fn both_ways(
    copier: &mut impl QueuedCopier,
    blocks: u32,
    judged: bool,
    report: &mut Report,
) -> Result<(), CheckError> {
    let half = blocks / 2;
    let out = batch(CopyDirection::Out, (0..half).map(|block| (block, block)));
    let back = batch(CopyDirection::In, (half..2 * half).map(|block| (block, block)));
    let clock = Clock::wall();
    let (mut apart_us, mut together_us) = (u64::MAX, u64::MAX);
    for _ in 0..REPEATS {
        let start = clock.now();
        copier.copy(&out)?;
        copier.copy(&back)?;
        apart_us = apart_us.min(clock.now().since_us(start).max(1));
        let start = clock.now();
        copier.begin(&out)?;
        copier.begin(&back)?;
        copier.end(CopyDirection::Out)?;
        copier.end(CopyDirection::In)?;
        together_us = together_us.min(clock.now().since_us(start).max(1));
    }
    let what = "copies both ways at once, of their time one after the other";
    let share = 100.0 * together_us as f64 / apart_us as f64;
    match judged {
        true => report.at_most(what, share, MOST_TOGETHER, "%"),
        false => report.measured(what, format!("{share:.0} %")),
    }
    Ok(())
}

fn batch(direction: CopyDirection, pairs: impl Iterator<Item = (u32, u32)>) -> CopyBatch {
    let pair = |(device, host)| CopyPair { device: BlockId(device), host: HostBlockId(host) };
    CopyBatch::needed(CopyId(1), direction, pairs.map(pair).collect())
}

fn round_trip<D: Driver>(mut driver: D, report: &mut Report) -> Result<(), CheckError> {
    let at = DevicePtr::default();
    let mut kv =
        CudaKv { at, blocks: 6, block_size: 16, layers: 3, kv_heads: 2, head_dim: 80, q8: false };
    let bytes = kv.block_bytes();
    kv.at = driver.allocate(6 * bytes)?;
    let content: Vec<u8> = (0..6 * bytes).map(|i| (i * 31 + i / bytes * 7) as u8).collect();
    driver.upload(kv.at, &content)?;
    driver.wait()?;
    let copies = driver.copies(4 * bytes)?;
    let mut copier = CudaCopier::new(copies, kv, 4);
    copier.copy(&batch(CopyDirection::Out, [(0, 2), (1, 3), (4, 0)].into_iter()))?;
    driver.upload(kv.at, &vec![0; 6 * bytes])?;
    driver.wait()?;
    copier.copy(&batch(CopyDirection::In, [(5, 2), (2, 3), (3, 0)].into_iter()))?;
    let mut found = vec![0; 6 * bytes];
    driver.download(kv.at, &mut found)?;
    let block = |from: &[u8], block: usize| from[block * bytes..(block + 1) * bytes].to_vec();
    let moved = [(0, 5), (1, 2), (4, 3)]
        .iter()
        .all(|(from, to)| block(&content, *from) == block(&found, *to));
    let others = [0, 1, 4].iter().all(|other| block(&found, *other).iter().all(|byte| *byte == 0));
    report.holds("blocks come back from the host pool to other device blocks", moved && others);
    Ok(())
}

/// Copies `blocks` KV blocks between device and host a few times and returns the highest copy rate, bytes/s. Device
/// block `i` is paired with host block `i * stride` modulo the number of blocks.
fn bytes_per_s(
    copier: &mut impl QueuedCopier,
    direction: CopyDirection,
    blocks: u32,
    stride: u32,
    block_bytes: usize,
) -> Result<f64, CheckError> {
    let clock = Clock::wall();
    let pairs =
        (0..blocks).map(|i| (i, (u64::from(i) * u64::from(stride) % u64::from(blocks)) as u32));
    let batch = batch(direction, pairs);
    let mut best_us = u64::MAX;
    for _ in 0..REPEATS {
        let start = clock.now();
        copier.copy(&batch)?;
        best_us = best_us.min(clock.now().since_us(start).max(1));
    }
    Ok(f64::from(blocks) * block_bytes as f64 / best_us as f64 * 1e6)
}
