//! Writes what an engine's recorder has kept as the lines of a recording file.

use std::collections::HashMap;
use tiercel_actors::recording::{Asked, RecordedEnd, RecordedSequence, Recording};
use tiercel_config::SloTargets;
use tiercel_policy::blocks::Salt;
use tiercel_workload::{Outcome, RecordedRequest, Seen, Targets};

/// Returns the recorded sequences as they stand in a file. Tenants are numbered in the order in which they appear.
pub fn lines(recording: &Recording) -> Vec<RecordedRequest> {
    let mut tenants: HashMap<Salt, u32> = HashMap::new();
    let mut number_of = |salt: Salt| {
        let next = tenants.len() as u32;
        *tenants.entry(salt).or_insert(next)
    };
    let rows = (0..).zip(recording.sequences());
    rows.map(|(number, row)| line(number, row, number_of(row.asked.tenant))).collect()
}

fn line(number: u32, row: &RecordedSequence, tenant: u32) -> RecordedRequest {
    let Asked { targets, .. } = row.asked;
    RecordedRequest {
        at_us: row.arrival_us,
        before: row.before,
        id: row.origin.as_ref().map(|origin| origin.id.clone()),
        choice: row.origin.as_ref().map_or(0, |origin| origin.choice),
        tier: row.asked.tier,
        priority: row.asked.priority,
        tenant,
        share: row.asked.weight.get(),
        prompt_tokens: row.asked.prompt_tokens,
        begins_like: row.shared.map(|shared| (shared.number, shared.tokens)),
        max_tokens: row.asked.max_tokens,
        targets: (targets != SloTargets::default()).then(|| stated(targets)),
        may_tighten: row.asked.may_tighten,
        max_wait_ms: row.asked.max_wait_ms,
        returning: row.asked.returning,
        constrained: row.asked.constrained,
        seen: Seen {
            outcome: row.end.map_or(Outcome::Live, |(end, _)| outcome(end)),
            end_us: row.end.map(|(_, at_us)| at_us),
            first_us: row.progress.first_us,
            last_us: row.progress.last_us,
            output_tokens: row.progress.tokens,
            cached_tokens: row.progress.cached_tokens,
            preemptions: row.progress.preemptions,
        },
        number,
        text: [].into(),
    }
}

/// Converts latency targets to the form of workload files.
pub fn stated(targets: SloTargets) -> Targets {
    Targets {
        ttft_ms: targets.ttft_ms,
        ttft_ms_per_token: targets.ttft_ms_per_token,
        ttft_prompt_tokens: targets.ttft_prompt_tokens,
        ttft_ms_per_token_fewer: targets.ttft_ms_per_token_fewer,
        tpot_ms: targets.tpot_ms,
        e2e_ms: targets.e2e_ms,
    }
}

fn outcome(end: RecordedEnd) -> Outcome {
    match end {
        RecordedEnd::Stop => Outcome::Stop,
        RecordedEnd::Length => Outcome::Length,
        RecordedEnd::Refused => Outcome::Refused,
        RecordedEnd::TurnedAway => Outcome::TurnedAway,
        RecordedEnd::Left => Outcome::Left,
        RecordedEnd::Failed => Outcome::Failed,
    }
}
