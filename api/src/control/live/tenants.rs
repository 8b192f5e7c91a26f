//! Live requests, memory and usage of tenants, for live views.

use serde::Serialize;
use std::collections::HashMap;
use std::sync::Arc;
use tiercel_actors::{PartyUsage, SequenceState, SequenceView, Snapshot, UsageReport};
use tiercel_policy::blocks::Salt;
use utoipa::ToSchema;

/// Most tenants in a document.
const TENANTS_MAX: usize = 16;

/// Live requests of a tenant, the memory that these requests hold, and the usage of the tenant. A choice counts as a
/// request.
#[derive(Debug, PartialEq, Serialize, ToSchema)]
pub(crate) struct LiveTenant {
    /// Name of the tenant.
    #[schema(value_type = String)]
    tenant: Arc<str>,
    #[serde(flatten)]
    live: LiveUse,
    /// Tokens and device time that the tenant used since the start of the server. Null for a tenant without an account
    /// of its own; only the first 64 tenants have accounts of their own.
    #[schema(required)]
    used: Option<Used>,
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

/// Tokens and device time that a tenant used since the start of the server, in all tiers.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, ToSchema)]
struct Used {
    /// Prompt tokens of choices that have started.
    prompt_tokens: u64,
    output_tokens: u64,
    /// Device time, s.
    device_s: f64,
    /// Tenant's share of the device time of the last minute, 0 to 1.
    recent_share: f64,
}

impl Used {
    fn add(&mut self, usage: &PartyUsage, recent_us: f64) {
        self.prompt_tokens += usage.prompt_tokens;
        self.output_tokens += usage.output_tokens;
        self.device_s += usage.device_us / 1e6;
        if recent_us > 0.0 {
            self.recent_share += usage.recent_device_us / recent_us;
        }
    }
}

/// Returns the first tenants in this order: most blocks held, then most live requests, then most device time used. Also
/// returns the number of all tenants with live requests or an account. `name` returns the name of a tenant.
pub(super) fn tenants(
    snapshot: &Snapshot,
    usage: &UsageReport,
    name: impl Fn(Salt) -> Arc<str>,
) -> (Vec<LiveTenant>, usize) {
    let mut found: HashMap<Salt, (LiveUse, Option<Used>)> = HashMap::new();
    for view in &snapshot.sequences {
        found.entry(view.tenant).or_default().0.add(view);
    }
    let recent_us: f64 = usage.tiers.iter().map(|tier| tier.recent_device_us).sum();
    for row in &usage.tenants {
        if let Some(tenant) = row.tenant {
            let (_, used) = found.entry(tenant).or_default();
            used.get_or_insert_default().add(&row.usage, recent_us);
        }
    }
    let total = found.len();
    let mut most: Vec<_> = found.into_iter().collect();
    most.sort_unstable_by(|(a, (live_a, used_a)), (b, (live_b, used_b))| {
        let live = |of: &LiveUse| (of.device_blocks, of.waiting + of.running + of.preempted);
        let device_s = |used: &Option<Used>| used.map_or(0.0, |used| used.device_s);
        let by_time = device_s(used_b).total_cmp(&device_s(used_a));
        live(live_b).cmp(&live(live_a)).then(by_time).then(a.cmp(b))
    });
    most.truncate(TENANTS_MAX);
    let tenant = |(salt, (live, used))| LiveTenant { tenant: name(salt), live, used };
    (most.into_iter().map(tenant).collect(), total)
}

#[cfg(test)]
mod tests {
    use super::*;
    use tiercel_actors::Request;
    use tiercel_simulation::{Laboratory, request, simulate};

    #[test]
    fn the_tenants_with_the_most_are_shown_and_all_are_counted() {
        simulate(async |clock| {
            let mut laboratory = Laboratory::tiny(clock.clone());
            laboratory.settings.scheduler.max_num_seqs = 1;
            let engine = laboratory.start();
            let of_tenant = |number: u8, prompt, max_tokens| {
                engine.submit(Request { salt: Salt([number; 16]), ..request(prompt, max_tokens) })
            };
            let mut past = of_tenant(99, &[1; 40], 9).await.unwrap();
            while past.next().await.is_some() {}
            let mut kept = Vec::new();
            for number in 0..20_u8 {
                let requests = if number == 7 { 3 } else { 1 };
                for _ in 0..requests {
                    kept.push(of_tenant(number, &[1; 40], 90).await.unwrap());
                }
            }
            kept[0].next().await;
            let snapshot = engine.snapshot(0).await.unwrap();
            let usage = engine.status().await.unwrap().usage;
            let name = |salt: Salt| format!("t{}", salt.0[0]).into();
            let (shown, total) = tenants(&snapshot, &usage, name);
            assert_eq!((shown.len(), total), (TENANTS_MAX, 21));
            assert_eq!((&*shown[0].tenant, shown[0].live.running), ("t0", 1), "it has blocks");
            assert!(shown[0].live.device_blocks > 0);
            assert_eq!((&*shown[1].tenant, shown[1].live.waiting), ("t7", 3));

            let nobody = Snapshot { sequences: Vec::new(), ..(*snapshot).clone() };
            let (shown, _) = tenants(&nobody, &usage, name);
            assert_eq!((&*shown[0].tenant, shown[0].live), ("t99", LiveUse::default()));
            let used = shown[0].used.unwrap();
            assert_eq!((used.prompt_tokens, used.output_tokens), (40, 9));
            assert!(used.device_s > 0.0, "{used:?}");
            let shares: f64 = shown.iter().filter_map(|of| of.used).map(|of| of.recent_share).sum();
            assert!((shares - 1.0).abs() < 1e-9, "{shares}");
        });
    }
}
