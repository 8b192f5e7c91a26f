//! What the end of a request means for admission's queues and for the SloMonitor's latency windows.

use tiercel_device::Timestamp;
use tiercel_policy::admission::Left;
use tiercel_policy::scheduler::{EndReport, RequestFault};
use tiercel_policy::slo::Observation;

/// Returns what the end of a request means for its latency targets. A request whose client left or did not read, or
/// that a shutdown ended, misses no target that it had not missed before; one that failed, was dropped or was turned
/// away misses its targets.
pub(crate) fn ending(report: &EndReport, now: Timestamp) -> Observation {
    match &report.outcome {
        Some(Ok(_)) => {}
        None | Some(Err(RequestFault::Stalled | RequestFault::ShuttingDown)) => {
            return Observation::Gone { broken: false };
        }
        Some(Err(_)) => return Observation::Gone { broken: true },
    }
    let tpot_ms = match (report.first_token_at, report.last_token_at) {
        (Some(first), Some(last)) if report.usage.completion_tokens > 1 => {
            Some(last.since_ms(first) / f64::from(report.usage.completion_tokens - 1))
        }
        _ => None,
    };
    Observation::Finished { tpot_ms, e2e_ms: now.since_ms(report.arrival) }
}

/// Returns how a request that ended before its first token left admission's queue: turned away with a retry time, or
/// ended in another way. At the end of a patience that the request itself stated, its client is told no retry time.
pub(crate) fn left(report: &EndReport) -> Left {
    match &report.outcome {
        Some(Err(
            RequestFault::TurnedAway { retry_after_ms }
            | RequestFault::OutOfPatience { retry_after_ms, stated: false, .. },
        )) => Left::TurnedAway { retry_after_ms: *retry_after_ms },
        _ => Left::Ended,
    }
}
