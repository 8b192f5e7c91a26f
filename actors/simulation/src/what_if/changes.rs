//! Which requests fare otherwise under another policy.

use crate::what_if::fate::{Fate, FateKind};
use serde::{Deserialize, Serialize};
use std::sync::Arc;
use tiercel_device::Tier;
use tiercel_workload::Recording;

/// Most requests that are listed for a policy.
const LISTED: usize = 20;
/// Change of a TTFT, ms, above which it counts, if it is also more than a tenth of the TTFT under the settings in
/// force.
const LEAST_MS: f64 = 10.0;

/// Requests that fare otherwise under a policy than under the settings in force; both are simulated.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Changes {
    /// Number of requests with a shorter TTFT, by more than a tenth and more than 10 ms.
    pub sooner: u64,
    /// Number of requests with a longer TTFT, by more than a tenth and more than 10 ms.
    pub later: u64,
    /// Number of requests that complete under the policy, but not under the settings in force.
    pub completed_more: u64,
    /// Number of requests that complete under the settings in force, but not under the policy.
    pub completed_less: u64,
    /// At most 20 requests that fare otherwise: first the requests that end in another way, then the other ones; within
    /// both groups, the requests with the largest change of the TTFT come first.
    pub largest: Vec<RequestChange>,
}

/// A request that fares otherwise.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct RequestChange {
    /// Number of the sequence in the recording, from 0.
    pub number: u32,
    /// Id of the request in its response.
    pub id: Option<Arc<str>>,
    /// Number of the choice within the request.
    pub choice: u32,
    /// Tier of the request.
    pub tier: Tier,
    /// Time of the arrival, seconds after the recording began.
    pub at_s: f64,
    /// Number of prompt tokens.
    pub prompt_tokens: u32,
    /// Fate under the settings in force.
    pub in_force: Fate,
    /// Fate under the policy.
    pub policy: Fate,
}

impl Changes {
    pub(crate) fn of(
        recording: &Recording,
        in_force: &[(u32, Fate)],
        policy: &[(u32, Fate)],
    ) -> Changes {
        let mut changes = Changes {
            sooner: 0,
            later: 0,
            completed_more: 0,
            completed_less: 0,
            largest: Vec::new(),
        };
        let mut ranked: Vec<(bool, f64, RequestChange)> = Vec::new();
        // Both replays send the same sequences, in the order of their numbers.
        for ((number, before), (other, after)) in in_force.iter().zip(policy) {
            debug_assert_eq!(number, other);
            let Some(request) = recording.requests.get(*number as usize) else { continue };
            let by_ms = changes.count(before, after);
            let otherwise = before.ending != after.ending;
            if otherwise || by_ms != 0.0 {
                let change = RequestChange {
                    number: *number,
                    id: request.id.clone(),
                    choice: request.choice,
                    tier: request.tier,
                    at_s: request.at_us as f64 / 1e6,
                    prompt_tokens: request.prompt_tokens,
                    in_force: *before,
                    policy: *after,
                };
                ranked.push((otherwise, by_ms.abs(), change));
            }
        }
        ranked.sort_by(|a, b| b.0.cmp(&a.0).then(b.1.total_cmp(&a.1)));
        changes.largest = ranked.into_iter().take(LISTED).map(|(.., change)| change).collect();
        changes
    }

    /// Counts a request, and returns the change of its TTFT, ms.
    fn count(&mut self, before: &Fate, after: &Fate) -> f64 {
        let completed = |fate: &Fate| u64::from(fate.ending == FateKind::Completed);
        self.completed_more += completed(after).saturating_sub(completed(before));
        self.completed_less += completed(before).saturating_sub(completed(after));
        let (Some(from), Some(to)) = (before.ttft_ms, after.ttft_ms) else { return 0.0 };
        let by_ms = to - from;
        if by_ms.abs() > LEAST_MS && by_ms.abs() > 0.1 * from {
            self.sooner += u64::from(by_ms < 0.0);
            self.later += u64::from(by_ms > 0.0);
        }
        by_ms
    }
}
