//! Output lengths with which recorded sequences are replayed.

use crate::recording::form::{Outcome, RecordedRequest};
use std::collections::BTreeMap;
use tiercel_device::Tier;

/// Returns the output length with which each sequence is replayed, tokens, a final stop token included. A sequence that
/// did not complete gets the mean length of the sequences of its tier that arrived and completed during the recording,
/// or `max_tokens` if there are none; but more tokens than the server made for it, and at most `max_tokens`. A sequence
/// that was live when the recording began gets only the rest of its output.
pub(super) fn lengths(requests: &[RecordedRequest]) -> Vec<u32> {
    let mut sums: BTreeMap<Tier, (u64, u64)> = BTreeMap::new();
    for request in requests.iter().filter(|request| request.before.is_none()) {
        if let Some(tokens) = completed(request) {
            let sum = sums.entry(request.tier).or_default();
            *sum = (sum.0 + u64::from(tokens), sum.1 + 1);
        }
    }
    let mean = |tier: Tier| {
        let (tokens, count) = sums.get(&tier).copied().filter(|sum| sum.1 > 0)?;
        u32::try_from(tokens.div_ceil(count)).ok()
    };
    let length = |request: &RecordedRequest| {
        let before = request.before.unwrap_or(0);
        let whole = completed(request).unwrap_or_else(|| {
            let more_than_it_had = request.seen.output_tokens.saturating_add(1);
            let most = request.max_tokens.max(1);
            mean(request.tier).unwrap_or(most).max(more_than_it_had).min(most)
        });
        whole.saturating_sub(before).max(1)
    };
    requests.iter().map(length).collect()
}

/// Returns the output length of a sequence that completed, a final stop token included.
fn completed(request: &RecordedRequest) -> Option<u32> {
    let tokens = request.seen.output_tokens;
    match request.seen.outcome {
        Outcome::Length => Some(tokens.max(1)),
        Outcome::Stop => Some(tokens.saturating_add(1).min(request.max_tokens.max(1))),
        Outcome::Refused
        | Outcome::TurnedAway
        | Outcome::Left
        | Outcome::Failed
        | Outcome::Live => None,
    }
}
