//! What the end of a request means for admission's queues and for the SloMonitor's latency windows.

use tiercel_device::Timestamp;
use tiercel_policy::admission::Left;
use tiercel_policy::scheduler::{EndReport, RequestFault};
use tiercel_policy::slo::Observation;

/// Returns what the end of a request means for its latency targets. A request whose client left or did not read, that a
/// shutdown or its own constraint ended, or that was cancelled, misses no target that it had not missed before; one
/// that the model or the device failed, or that was dropped or turned away, misses its targets.
pub(crate) fn ending(report: &EndReport, now: Timestamp) -> Observation {
    match &report.outcome {
        Some(Ok(_)) => {}
        None
        | Some(Err(
            RequestFault::Stalled
            | RequestFault::ShuttingDown
            | RequestFault::Cancelled
            | RequestFault::Constraint(_),
        )) => {
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

#[cfg(test)]
mod tests {
    use super::*;
    use tiercel_device::{SeqId, Tier};
    use tiercel_policy::scheduler::{FinishReason, Usage};

    fn report(completion_tokens: u32) -> EndReport {
        EndReport {
            seq: SeqId(1),
            tier: Tier::Standard,
            outcome: Some(Ok(FinishReason::Stop)),
            usage: Usage { completion_tokens, ..Usage::default() },
            arrival: Timestamp(1_000),
            first_token_at: Some(Timestamp(3_000)),
            last_token_at: Some(Timestamp(15_000)),
        }
    }

    #[test]
    fn the_time_per_token_is_the_mean_after_the_first_and_needs_two_tokens() {
        let finished = |tokens| ending(&report(tokens), Timestamp(16_500));
        // (15 ms - 3 ms) / (4 - 1 tokens) = 4 ms per token; the request took 16.5 ms - 1 ms in all.
        let of_four = Observation::Finished { tpot_ms: Some(4.0), e2e_ms: 15.5 };
        assert_eq!(finished(4), of_four);
        assert_eq!(finished(2), Observation::Finished { tpot_ms: Some(12.0), e2e_ms: 15.5 });
        assert_eq!(finished(1), Observation::Finished { tpot_ms: None, e2e_ms: 15.5 });
    }

    #[test]
    fn only_ends_that_the_server_is_to_blame_for_miss_targets() {
        let gone = |outcome| match ending(&EndReport { outcome, ..report(4) }, Timestamp(20_000)) {
            Observation::Gone { broken } => broken,
            other => panic!("{other:?}"),
        };
        assert!(!gone(None) && !gone(Some(Err(RequestFault::Stalled))));
        assert!(gone(Some(Err(RequestFault::Dropped))));
    }

    #[test]
    fn a_request_that_was_told_a_retry_time_was_turned_away() {
        let left = |fault| left(&EndReport { outcome: Some(Err(fault)), ..report(0) });
        let retry_after_ms = 7;
        let told = Left::TurnedAway { retry_after_ms };
        assert_eq!(left(RequestFault::TurnedAway { retry_after_ms }), told);
        let impatient = |stated| RequestFault::OutOfPatience {
            tier: Tier::Standard,
            patience_ms: 1,
            stated,
            retry_after_ms,
        };
        assert_eq!(left(impatient(false)), told);
        assert_eq!(left(impatient(true)), Left::Ended, "its client was told no retry time");
        assert_eq!(left(RequestFault::Dropped), Left::Ended);
    }
}
