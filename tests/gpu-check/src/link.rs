//! Measures the rate of KV block copies between device and host memory, against one large copy of as many bytes.

use crate::CheckError;
use crate::report::Report;
use tiercel_device::{
    BlockId, Clock, CopyBatch, CopyDirection, CopyId, CopyPair, HostBlockId, QueuedCopier,
};

/// Goal for copies of scattered KV blocks: their rate as a share of the rate of one large copy, percent.
const LINK_AIM: f64 = 90.0;
/// Maximum error of the predicted time to copy the blocks of one sequence in, percent. The prediction is bytes / rate
/// of a large copy.
const MOST_MISTAKEN: f64 = 20.0;
/// Number of repetitions of each measured copy. The fastest counts, because other traffic between host and GPU only
/// adds time.
const REPEATS: usize = 3;

/// Device blocks of a measured copy: `blocks` blocks from number `first` on. The copy uses as many host blocks, from
/// number 0 on.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Range {
    pub(crate) first: u32,
    pub(crate) blocks: u32,
    pub(crate) block_bytes: usize,
}

/// Measures block copies to the host and back, once with neighbouring blocks merged into one copy and once with every
/// block copied by itself; then the copy of one sequence of `sequence` blocks to the device.
pub(crate) fn measure_link(
    copier: &mut impl QueuedCopier,
    range: Range,
    sequence: u32,
    judged: bool,
    report: &mut Report,
) -> Result<(), CheckError> {
    let mut in_us = 0.0;
    for (way, direction) in [("out", CopyDirection::Out), ("in", CopyDirection::In)] {
        let whole_us = fastest_us(copier, direction, range, false)?;
        let blocks_us = fastest_us(copier, direction, range, true)?;
        let bytes = f64::from(range.blocks) * range.block_bytes as f64;
        let rate = |us: f64| format!("{:.1} GB/s", bytes / us / 1e3);
        report.measured(&format!("copies {way}, neighbours together"), rate(whole_us));
        report.measured(&format!("copies {way}, block by block"), rate(blocks_us));
        let share = 100.0 * whole_us / blocks_us;
        let what = format!("copies {way}, block by block: of the link's rate");
        match judged {
            true => report.at_least(&what, share, LINK_AIM, "%"),
            false => report.measured(&what, format!("{share:.0} %")),
        }
        in_us = whole_us;
    }
    let resume = Range { blocks: sequence.min(range.blocks), ..range };
    let found_us = fastest_us(copier, CopyDirection::In, resume, true)?;
    let predicted_us = in_us * f64::from(resume.blocks) / f64::from(range.blocks);
    let mistaken = 100.0 * (found_us / predicted_us - 1.0).abs();
    let what = format!("{} blocks of one sequence copied in", resume.blocks);
    let times = format!("{:.1} ms, predicted {:.1}", found_us / 1e3, predicted_us / 1e3);
    report.measured(&what, times);
    let what = format!("{what}: unlike the prediction by");
    match judged {
        true => report.at_most(&what, mistaken, MOST_MISTAKEN, "%"),
        false => report.measured(&what, format!("{mistaken:.0} %")),
    }
    Ok(())
}

fn fastest_us(
    copier: &mut impl QueuedCopier,
    direction: CopyDirection,
    range: Range,
    scattered: bool,
) -> Result<f64, CheckError> {
    let Range { first, blocks, .. } = range;
    // Host blocks in descending order are no neighbours in the order of the device blocks, so the copier copies each
    // block by itself.
    let host = |i: u32| if scattered { blocks - 1 - i } else { i };
    let pair = |i| CopyPair { device: BlockId(first + i), host: HostBlockId(host(i)) };
    let batch = CopyBatch::needed(CopyId(1), direction, (0..blocks).map(pair).collect());
    let clock = Clock::wall();
    let mut fastest = u64::MAX;
    for _ in 0..REPEATS {
        let start = clock.now();
        copier.copy(&batch)?;
        fastest = fastest.min(clock.now().since_us(start).max(1));
    }
    Ok(fastest as f64)
}
