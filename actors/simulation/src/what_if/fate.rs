//! What became of each recorded request: as the server measured it, or as a replay did.

use crate::outcome::{Outcome, Totals};
use crate::record::{Ending, Record};
use crate::traffic::Seen;
use serde::{Deserialize, Serialize};
use std::sync::Arc;
use tiercel_device::{Tier, Timestamp};
use tiercel_workload::{
    Outcome as RecordedOutcome, Planned, RecordedRequest, Recording, Workload, arrivals, seconds,
};

/// How a request ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FateKind {
    /// The output is complete.
    Completed,
    /// The request was refused on arrival.
    Refused,
    /// The request was turned away before its first token.
    TurnedAway,
    /// The request ended with an error.
    Failed,
    /// The client left.
    Left,
    /// The request was live at the end of the recording.
    Unfinished,
}

/// What became of a request.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Fate {
    /// How the request ended.
    pub ending: FateKind,
    /// Time to first token, ms; for a request without one, the time that it waited. `None` if it was refused, turned
    /// away or failed.
    pub ttft_ms: Option<f64>,
    /// Time from arrival to the last token, ms; for a request whose client left, until the client left; for an
    /// unfinished request, until the end of the recording. `None` if the request was refused, turned away or failed.
    pub e2e_ms: Option<f64>,
}

/// Outcome of a recording as measured, or of a replay.
#[derive(Debug, Clone, PartialEq)]
pub struct Replayed {
    /// Counts and latencies by tier.
    pub outcome: Outcome,
    /// What became of each sequence that counts, with the number of the sequence in the recording.
    pub fates: Vec<(u32, Fate)>,
}

impl Replayed {
    pub(crate) fn of(
        workload: &Workload,
        seen: &Seen,
        totals: &Totals,
        end: Timestamp,
    ) -> Replayed {
        let counted = seen.records.iter().filter(|record| record.planned.counts());
        let mut fates: Vec<(u32, Fate)> = counted
            .filter_map(|record| {
                let number = record.planned.recorded.as_ref()?.number;
                Some((number, fate(record, end)))
            })
            .collect();
        fates.sort_unstable_by_key(|(number, _)| *number);
        Replayed { outcome: Outcome::of(workload, seen, totals, end), fates }
    }
}

fn fate(record: &Record, end: Timestamp) -> Fate {
    let latencies = record.latencies(end);
    let ending = match record.ending {
        Ending::Completed => FateKind::Completed,
        Ending::Refused => FateKind::Refused,
        Ending::TurnedAway => FateKind::TurnedAway,
        Ending::Failed => FateKind::Failed,
        Ending::Left(_) => FateKind::Left,
        Ending::Unfinished => FateKind::Unfinished,
    };
    Fate { ending, ttft_ms: latencies.ttft_ms, e2e_ms: latencies.e2e_ms }
}

/// Returns what the server measured, computed in the same way as the outcome of a replay.
pub fn measured(recording: &Recording) -> Replayed {
    let workload = &recording.workload;
    let mut seen =
        Seen { class_tokens_in_window: vec![0; workload.classes.len()], ..Seen::default() };
    for (index, class) in workload.classes.iter().enumerate() {
        for planned in arrivals(workload, index) {
            let Some(recorded) = planned.recorded.clone() else { continue };
            let before = recorded.before.unwrap_or(0);
            let tokens = u64::from(recorded.seen.output_tokens.saturating_sub(before));
            seen.tokens_in_window[class.tier.index()] += tokens;
            seen.class_tokens_in_window[index] += tokens;
            seen.records.push(record(planned, class.tier, &recorded));
        }
    }
    let end = Timestamp(seconds(workload.duration_s));
    let mut replayed = Replayed::of(workload, &seen, &Totals::default(), end);
    let preemptions: u32 = seen.records.iter().map(|record| record.preemptions).sum();
    replayed.outcome.preemptions_per_min = f64::from(preemptions) / (workload.duration_s / 60.0);
    replayed.outcome.steps = u64::from(recording.header.steps);
    replayed
}

/// Makes the record of a sequence as the server measured it.
fn record(planned: Planned, tier: Tier, recorded: &Arc<RecordedRequest>) -> Record {
    let due = Timestamp(recorded.at_us);
    let seen = &recorded.seen;
    let mut record = Record::new(planned, tier, due);
    record.first = seen.first_us.map(Timestamp);
    record.last = seen.last_us.map_or(due, Timestamp);
    record.tokens = seen.output_tokens;
    record.preemptions = seen.preemptions;
    record.ending = match seen.outcome {
        RecordedOutcome::Stop => {
            // Count the stop token that ended the output, as replays do.
            record.tokens += 1;
            record.last = seen.end_us.map_or(record.last, Timestamp);
            record.first = record.first.or(seen.end_us.map(Timestamp));
            Ending::Completed
        }
        RecordedOutcome::Length => Ending::Completed,
        RecordedOutcome::Refused => Ending::Refused,
        RecordedOutcome::TurnedAway => Ending::TurnedAway,
        RecordedOutcome::Failed => Ending::Failed,
        RecordedOutcome::Left => Ending::Left(seen.end_us.map_or(record.last, Timestamp)),
        RecordedOutcome::Live => Ending::Unfinished,
    };
    record
}
