//! What tenants have in the engine, for live views.

use crate::live::LiveRequests;
use serde::Serialize;
use std::cmp::Reverse;
use std::collections::HashMap;
use tiercel_actors::{SequenceState, SequenceView, Snapshot};
use tiercel_device::SeqId;
use tiercel_policy::blocks::Salt;
use utoipa::ToSchema;

/// Most tenants in a document.
const TENANTS_MAX: usize = 16;

/// Live requests of a tenant, and the memory that they have. A choice counts as a request.
#[derive(Debug, PartialEq, Eq, Serialize, ToSchema)]
pub(crate) struct LiveTenant {
    /// Name of the tenant.
    #[schema(value_type = String)]
    tenant: std::sync::Arc<str>,
    #[serde(flatten)]
    live: LiveUse,
}

/// Numbers of a tenant's live requests.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, ToSchema)]
struct LiveUse {
    /// Requests that wait for their first blocks.
    waiting: u32,
    /// Requests that hold blocks.
    running: u32,
    /// Requests that are preempted.
    preempted: u32,
    /// KV blocks of the device pool in the requests' block tables; a shared block counts for each of them.
    device_blocks: u32,
    /// KV blocks of the host pool that are pinned for the requests.
    host_blocks: u32,
    /// Output tokens of the live requests so far.
    output_tokens: u64,
}

impl LiveUse {
    fn add(&mut self, view: &SequenceView) {
        match view.state {
            SequenceState::Waiting => self.waiting += 1,
            SequenceState::Prefill | SequenceState::Decode => self.running += 1,
            SequenceState::Preempted | SequenceState::Resuming => self.preempted += 1,
        }
        self.device_blocks += view.blocks.device;
        self.host_blocks += view.blocks.host;
        self.output_tokens += u64::from(view.output_tokens);
    }
}

/// Returns the tenants that hold the most blocks, then those with the most requests, and the number of all tenants with
/// live requests.
pub(super) fn tenants(snapshot: &Snapshot, live: &LiveRequests) -> (Vec<LiveTenant>, usize) {
    let mut found: HashMap<Salt, (SeqId, LiveUse)> = HashMap::new();
    for view in &snapshot.sequences {
        // Remember the latest sequence of the tenant: it is the most likely to be live still, so that its request tells
        // the tenant's name.
        let (seq, of) = found.entry(view.tenant).or_insert((view.seq, LiveUse::default()));
        *seq = view.seq;
        of.add(view);
    }
    let total = found.len();
    let mut most: Vec<(SeqId, LiveUse)> = found.into_values().collect();
    let requests = |of: &LiveUse| of.waiting + of.running + of.preempted;
    most.sort_unstable_by_key(|(seq, of)| (Reverse((of.device_blocks, requests(of))), *seq));
    most.truncate(TENANTS_MAX);
    let named = live.of(most.iter().map(|(seq, _)| *seq));
    let tenant = |(seq, live): (SeqId, LiveUse)| {
        let tenant = named.get(&seq)?.tenant.clone();
        Some(LiveTenant { tenant, live })
    };
    (most.into_iter().filter_map(tenant).collect(), total)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::live::LiveRequest;
    use std::sync::Arc;
    use tiercel_actors::Request;
    use tiercel_device::Tier;
    use tiercel_simulation::{Laboratory, request, simulate};

    #[test]
    fn the_tenants_with_the_most_are_shown_and_all_are_counted() {
        simulate(async |clock| {
            let mut laboratory = Laboratory::tiny(clock.clone());
            laboratory.settings.scheduler.max_num_seqs = 1;
            let engine = laboratory.start();
            let live = Arc::<LiveRequests>::default();
            let mut kept = Vec::new();
            for number in 0..20_u8 {
                let requests = if number == 7 { 3 } else { 1 };
                for _ in 0..requests {
                    let salt = Salt([number; 16]);
                    let stream =
                        engine.submit(Request { salt, ..request(&[1; 40], 90) }).await.unwrap();
                    let tenant = format!("t{number}").into();
                    let sequences = vec![stream.seq()];
                    let named =
                        LiveRequest { tenant, sequences, ..LiveRequest::of_tier(Tier::Standard) };
                    kept.push((live.enter(named), stream));
                }
            }
            kept[0].1.next().await;
            let snapshot = engine.snapshot(0).await.unwrap();
            let (shown, total) = tenants(&snapshot, &live);
            assert_eq!((shown.len(), total), (TENANTS_MAX, 20));
            assert_eq!((&*shown[0].tenant, shown[0].live.running), ("t0", 1), "it has blocks");
            assert!(shown[0].live.device_blocks > 0);
            assert_eq!((&*shown[1].tenant, shown[1].live.waiting), ("t7", 3));
        });
    }
}
