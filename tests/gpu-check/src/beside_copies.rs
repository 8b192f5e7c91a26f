//! Measures decode steps, as the engine runs them, while KV blocks that the steps do not use are copied out and in
//! without a pause.

use crate::CheckError;
use crate::link::Range;
use crate::pace::{self, Pace};
use crate::report::Report;
use std::sync::atomic::{AtomicBool, Ordering};
use tiercel_device::{
    BlockId, Clock, CopyBatch, CopyDirection, CopyError, CopyId, CopyPair, HostBlockId,
    QueuedCopier,
};
use tiercel_gpu::Ops;
use tiercel_model::runner::ModelRunner;

/// Maximum by which copies that run at the same time may lengthen decode steps, percent.
const MOST_ADDED: f64 = 5.0;

/// Measures decode steps with two in flight alone, and beside copies of the blocks `range`. The runner has run the
/// steps of [`pace::measure_pace`].
pub(crate) fn measure_beside_copies<O: Ops + 'static>(
    runner: &mut ModelRunner<O>,
    pace: Pace,
    mut copier: impl QueuedCopier,
    range: Range,
    judged: bool,
    report: &mut Report,
) -> Result<(), CheckError> {
    let alone_us = pace::run_queued(runner, pace, 0)?;
    let stop = AtomicBool::new(false);
    let (beside_us, bytes_per_s) = std::thread::scope(|scope| {
        let copying = scope.spawn(|| copy_until(&stop, &mut copier, range));
        let beside_us = pace::run_queued(runner, pace, 1);
        stop.store(true, Ordering::Relaxed);
        (beside_us, copying.join())
    });
    let beside_us = beside_us?;
    let bytes_per_s =
        bytes_per_s.map_err(|_| CopyError::Failed("the copier panicked".into()))??;
    let what = format!("decode of {} beside copies at {:.1} GB/s", pace.seqs, bytes_per_s / 1e9);
    report.measured(&what, format!("{:.2} ms, alone {:.2}", beside_us / 1e3, alone_us / 1e3));
    let added = 100.0 * (beside_us / alone_us - 1.0);
    match judged {
        true => report.at_most(&format!("{what}: longer by"), added, MOST_ADDED, "%"),
        false => report.measured(&format!("{what}: longer by"), format!("{added:.0} %")),
    }
    Ok(())
}

/// Copies KV blocks out and in until `stop` is set; returns the copy rate, bytes/s.
fn copy_until(
    stop: &AtomicBool,
    copier: &mut impl QueuedCopier,
    Range { first, blocks, block_bytes }: Range,
) -> Result<f64, CheckError> {
    let (clock, mut bytes) = (Clock::wall(), 0.0);
    let start = clock.now();
    while !stop.load(Ordering::Relaxed) {
        for direction in [CopyDirection::Out, CopyDirection::In] {
            let pair = |i| CopyPair { device: BlockId(first + i), host: HostBlockId(i) };
            let pairs = (0..blocks).map(pair).collect();
            copier.copy(&CopyBatch::needed(CopyId(1), direction, pairs))?;
            bytes += f64::from(blocks) * block_bytes as f64;
        }
    }
    Ok(bytes / clock.now().since_us(start).max(1) as f64 * 1e6)
}
