//! Reports to admission and to the SloMonitor about the end of a request.

use tiercel_device::Timestamp;
use tiercel_policy::admission::Left;
use tiercel_policy::scheduler::{EndReport, RequestFault};
use tiercel_policy::slo::Observation;

/// Returns what the end of a request means for its latency targets. If the client left or did not read, or the server
/// was told to stop, the end misses no target that was not missed before.
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

/// Returns how a request without a first token left the queue when it ended.
pub(crate) fn left(report: &EndReport) -> Left {
    match &report.outcome {
        Some(Err(
            RequestFault::TurnedAway { retry_after_ms }
            | RequestFault::OutOfPatience { retry_after_ms, stated: false, .. },
        )) => Left::TurnedAway { retry_after_ms: *retry_after_ms },
        _ => Left::Ended,
    }
}
