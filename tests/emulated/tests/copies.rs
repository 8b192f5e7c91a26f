//! Tests of block copies on an emulated GPU: the directions are independent, copies that sequences wait for go first,
//! copies wait for the steps of their fence, and a fault costs one batch or, if the device is lost, every batch.
#![allow(clippy::unwrap_used, reason = "tests state what must hold")]

use std::sync::mpsc;
use tiercel_device::{
    BlockId, CopyBatch, CopyDirection, CopyDone, CopyEngine, CopyError, CopyId, CopyPair,
    CopyThread, HostBlockId, QueuedCopier, StepId,
};
use tiercel_emulated::{BYTES_PER_US, EmulatedCopies, EmulatedDriver, Fault};
use tiercel_gpu::cuda::{CudaCopier, CudaKv, DevicePtr, Driver};

use CopyDirection::{In, Out};

const BLOCKS: u32 = 64;
const HOST_BLOCKS: u32 = 64;
/// KV cache of the tests. The emulated GPU copies a part of a block at each call of `has_ended`, so that a batch of
/// many blocks is in flight for long.
const KV: CudaKv = CudaKv {
    at: DevicePtr(0),
    blocks: BLOCKS,
    block_size: 16,
    layers: 16,
    kv_heads: 4,
    head_dim: 64,
    q8: false,
};

/// Emulated GPU whose KV block `n` holds bytes of the value `n`, and the copier of its blocks.
fn opened(fault: Option<Fault>) -> (EmulatedDriver, CudaKv, CudaCopier<EmulatedCopies>) {
    let mut driver = EmulatedDriver::new(1 << 28);
    if let Some(fault) = fault {
        driver = driver.with_fault(fault);
    }
    let mut kv = KV;
    let bytes = kv.block_bytes();
    kv.at = driver.allocate(BLOCKS as usize * bytes).unwrap();
    for block in 0..BLOCKS {
        write(&mut driver, kv, block, block as u8);
    }
    driver.wait().unwrap();
    let copies = driver.copies(HOST_BLOCKS as usize * bytes).unwrap();
    (driver, kv, CudaCopier::new(copies, kv, HOST_BLOCKS))
}

fn write(driver: &mut EmulatedDriver, kv: CudaKv, block: u32, value: u8) {
    let bytes = vec![value; kv.block_bytes()];
    driver.upload(kv.at.offset(block as usize * bytes.len()), &bytes).unwrap();
}

/// Returns the value of the bytes of a KV block; `None` if they are not all the same.
fn value(driver: &mut EmulatedDriver, kv: CudaKv, block: u32) -> Option<u8> {
    let mut bytes = vec![0; kv.block_bytes()];
    driver.download(kv.at.offset(block as usize * bytes.len()), &mut bytes).unwrap();
    bytes.iter().all(|byte| *byte == bytes[0]).then_some(bytes[0])
}

/// Makes a batch of copies between each device block and the host block of the same pair.
fn batch(id: u64, direction: CopyDirection, pairs: &[(u32, u32)]) -> CopyBatch {
    let pair = |(device, host): &(u32, u32)| CopyPair {
        device: BlockId(*device),
        host: HostBlockId(*host),
    };
    CopyBatch::needed(CopyId(id), direction, pairs.iter().map(pair).collect())
}

/// Copy thread on an emulated GPU, and the answers to its batches.
struct Bench {
    device: CopyThread,
    answers: (mpsc::Sender<CopyDone>, mpsc::Receiver<CopyDone>),
}

impl Bench {
    fn new(copier: CudaCopier<EmulatedCopies>) -> Bench {
        Bench { device: CopyThread::start(copier).unwrap(), answers: mpsc::channel() }
    }

    fn submit(&mut self, batch: CopyBatch) {
        let tx = self.answers.0.clone();
        self.device.submit(batch, Box::new(move |done| tx.send(done).unwrap())).unwrap();
    }

    fn answer(&self) -> (u64, Result<(), CopyError>) {
        let done = self.answers.1.recv().unwrap();
        (done.id.0, done.result)
    }
}

#[test]
fn a_swap_in_ends_while_a_long_swap_out_is_in_flight() {
    let (_driver, _, copier) = opened(None);
    let mut bench = Bench::new(copier);
    let many: Vec<(u32, u32)> = (0..60).map(|block| (block, block)).collect();
    bench.submit(batch(1, Out, &many));
    bench.submit(batch(2, Out, &[(60, 60)]));
    bench.submit(batch(3, In, &[(62, 62)]));
    assert_eq!([1, 2, 3].map(|_| bench.answer()), [3, 1, 2].map(|id| (id, Ok(()))));
}

#[test]
fn a_batch_keeps_its_own_link_busy_for_its_bytes_alone() {
    let (_driver, kv, mut copier) = opened(None);
    let block_us = (kv.block_bytes() / BYTES_PER_US) as u64;
    copier.begin(&batch(1, Out, &[(0, 0), (1, 1), (2, 2)])).unwrap();
    copier.begin(&batch(2, Out, &[(3, 3)])).unwrap();
    copier.begin(&batch(3, In, &[(9, 9), (8, 7)])).unwrap();
    assert_eq!(copier.end(In), Ok(2 * block_us));
    assert!(!copier.has_ended(Out), "the copies out have made no headway while the test waited");
    assert_eq!((copier.end(Out), copier.end(Out)), (Ok(3 * block_us), Ok(block_us)));
}

#[test]
fn copies_that_sequences_wait_for_overtake_queued_copies_ahead_of_need() {
    for direction in [Out, In] {
        let (_driver, _, copier) = opened(None);
        let mut bench = Bench::new(copier);
        // The first batch is long, so that all others are queued before it ends.
        let many: Vec<(u32, u32)> = (0..50).map(|block| (block, block)).collect();
        bench.submit(batch(1, direction, &many));
        for (id, ahead_of_need) in [(2, true), (3, true), (4, false), (5, false)] {
            let block = 50 + id as u32;
            let one = batch(id, direction, &[(block, block)]);
            bench.submit(CopyBatch { ahead_of_need, ..one });
        }
        let ids = [1, 2, 3, 4, 5].map(|_| bench.answer().0);
        assert_eq!(ids, [1, 4, 5, 2, 3], "{direction:?}");
    }
}

#[test]
fn a_copy_reads_a_block_only_when_the_step_that_writes_the_block_has_ended() {
    let (mut driver, kv, mut copier) = opened(None);
    for (slot, step, block) in [(0, 1, 5), (1, 2, 6)] {
        driver.begin_step(slot, StepId(step)).unwrap();
        write(&mut driver, kv, block, 200 + block as u8);
        driver.send_back(slot, kv.at, 4).unwrap();
    }
    copier.begin(&CopyBatch { after: StepId(1), ..batch(1, Out, &[(5, 0)]) }).unwrap();
    copier.begin(&CopyBatch { after: StepId(2), ..batch(2, Out, &[(6, 1)]) }).unwrap();
    assert!((0..100).all(|_| !copier.has_ended(Out)), "step 1 is in flight");
    driver.receive(0, &mut [0; 4]).unwrap();
    copier.end(Out).unwrap();
    assert!((0..100).all(|_| !copier.has_ended(Out)), "step 2 is in flight");
    driver.receive(1, &mut [0; 4]).unwrap();
    copier.end(Out).unwrap();
    copier.copy(&batch(3, In, &[(10, 0), (11, 1)])).unwrap();
    assert_eq!([10, 11].map(|block| value(&mut driver, kv, block)), [Some(205), Some(206)]);
}

#[test]
fn a_copy_waits_for_no_step_outside_its_fence_and_for_none_that_has_ended() {
    let (mut driver, kv, mut copier) = opened(None);
    for (slot, step) in [(0, 1), (1, 2), (0, 3)] {
        driver.begin_step(slot, StepId(step)).unwrap();
        driver.send_back(slot, kv.at, 4).unwrap();
        if step < 3 {
            driver.receive(slot, &mut [0; 4]).unwrap();
        }
    }
    // Step 3 is in flight.
    for after in [0, 1, 2] {
        let copied = copier.copy(&CopyBatch { after: StepId(after), ..batch(1, Out, &[(1, 1)]) });
        assert!(copied.is_ok(), "after step {after}");
    }
}

#[test]
fn a_refused_copy_costs_its_batch_alone() {
    let (mut driver, kv, copier) = opened(Some(Fault::Copy(1)));
    let mut bench = Bench::new(copier);
    // The host blocks are no neighbours, so that each block is a copy; the second is refused.
    bench.submit(batch(1, Out, &[(0, 4), (1, 2), (2, 0)]));
    bench.submit(batch(2, Out, &[(7, 7)]));
    let (id, refused) = bench.answer();
    assert!(id == 1 && matches!(&refused, Err(CopyError::Failed(why)) if why.contains("made-up")));
    assert_eq!(bench.answer(), (2, Ok(())));
    bench.submit(batch(3, In, &[(9, 7)]));
    assert_eq!(bench.answer(), (3, Ok(())));
    drop(bench);
    assert_eq!(value(&mut driver, kv, 9), Some(7));
}

#[test]
fn a_device_that_is_lost_at_a_copy_answers_every_batch_with_the_cause() {
    let (mut driver, _, copier) = opened(Some(Fault::LostCopy(1)));
    let mut bench = Bench::new(copier);
    bench.submit(batch(1, Out, &[(0, 0)]));
    assert_eq!(bench.answer(), (1, Ok(())));
    for (id, direction) in [(2, Out), (3, Out), (4, In), (5, Out)] {
        bench.submit(batch(id, direction, &[(id as u32, id as u32)]));
    }
    let lost =
        |(_, result)| matches!(result, Err(CopyError::DeviceLost(why)) if why.contains("made-up"));
    assert!((0..4).all(|_| lost(bench.answer())));
    assert!(driver.wait().is_err(), "steps are lost too");
}
