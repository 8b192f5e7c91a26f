//! Numbers of requests, blocks and latencies by tier, for live views.

use serde::Serialize;
use std::collections::BTreeMap;
use tiercel_actors::{EngineStatus, SequenceState, Snapshot};
use tiercel_config::EngineSettings;
use tiercel_device::Tier;
use tiercel_policy::blocks::{OwnedBlocks, PoolMap};
use tiercel_policy::slo::{GroupReport, WindowReport};
use utoipa::ToSchema;

/// Tiers that requests can have.
pub(super) const TIERS: [Tier; 3] = [Tier::Premium, Tier::Standard, Tier::Background];

/// Requests and latencies of a tier. A choice counts as a request.
#[derive(Default, Serialize, ToSchema)]
pub(crate) struct LiveTier {
    /// Requests without a first token.
    queued: u32,
    /// Requests that wait for their first blocks.
    waiting: u32,
    /// Requests whose prompt is being computed.
    prefill: u32,
    /// Requests that send tokens.
    decode: u32,
    /// Requests that are preempted, or are being preempted.
    preempted: u32,
    /// Preempted requests whose blocks are being copied back.
    resuming: u32,
    /// Requests of all states that an operator paused.
    paused: u32,
    /// Requests of all states whose first token is expected after its deadline.
    late: u32,
    /// Latencies by metric: `ttft`, `tpot` and `e2e`.
    slo: BTreeMap<&'static str, LiveSlo>,
}

/// A latency metric of a tier in the sliding window.
#[derive(Default, Serialize, ToSchema)]
struct LiveSlo {
    /// Latency target in effect, ms; null without a target.
    #[schema(required)]
    target_ms: Option<f64>,
    /// Latencies in the window.
    samples: u64,
    /// Share of the requests that met their own targets, from 0 to 1.
    compliance: f64,
    /// 1 - the 99th percentile of latency / target: negative above the target.
    headroom: f64,
    p50_ms: f64,
    p99_ms: f64,
    /// Requests past their target whose latency is not known yet.
    overdue: u64,
}

/// Blocks of a pool. Each block counts once: as free, as cached, or under its owner as held or in transit.
#[derive(Serialize, ToSchema)]
pub(crate) struct LivePool {
    total: u32,
    /// Free blocks without content.
    free: u32,
    /// Free blocks whose content can still be found.
    cached: u32,
    /// Blocks by the tier of their owner: `premium`, `standard`, `background`, and `other` for the server's own
    /// requests, for requests that have just arrived, and for copies that are no request's.
    owners: BTreeMap<&'static str, LiveBlocks>,
}

/// Blocks of the requests of a tier in a pool.
#[derive(Serialize, ToSchema)]
struct LiveBlocks {
    /// Device pool: blocks in block tables. Host pool: blocks that are pinned for preempted requests.
    held: u32,
    /// Of the held blocks of the device pool, those that the host pool has copies of that were made ahead of need.
    mirrored: u32,
    /// Blocks that are the source or destination of a copy.
    in_transit: u32,
    /// Blocks that are reserved for the tier, whether or not the tier uses them.
    reserved: u32,
}

/// Counts the requests of a snapshot by tier, and adds the latencies.
pub(super) fn tiers(
    snapshot: &Snapshot,
    status: &EngineStatus,
    slo: &[GroupReport],
) -> BTreeMap<&'static str, LiveTier> {
    let mut tiers: [LiveTier; Tier::ALL.len()] = Default::default();
    for view in &snapshot.sequences {
        let tier = &mut tiers[view.tier.index()];
        *match view.state {
            SequenceState::Waiting => &mut tier.waiting,
            SequenceState::Prefill => &mut tier.prefill,
            SequenceState::Decode => &mut tier.decode,
            SequenceState::Preempted => &mut tier.preempted,
            SequenceState::Resuming => &mut tier.resuming,
        } += 1;
        tier.paused += u32::from(view.paused);
        tier.late += u32::from(view.late);
    }
    let mut of = |tier: Tier| LiveTier {
        queued: status.queued[tier.index()],
        slo: latencies(tier, status, slo),
        ..std::mem::take(&mut tiers[tier.index()])
    };
    TIERS.map(|tier| (tier.name(), of(tier))).into()
}

fn latencies(
    tier: Tier,
    status: &EngineStatus,
    slo: &[GroupReport],
) -> BTreeMap<&'static str, LiveSlo> {
    let targets = status.targets.of(tier);
    let report = slo.iter().find(|report| report.tier == tier && report.tenant.is_none());
    let of = |target_ms, window: fn(&GroupReport) -> WindowReport| match report.map(window) {
        Some(window) => LiveSlo {
            target_ms,
            samples: window.samples,
            compliance: window.compliance,
            headroom: window.headroom,
            p50_ms: window.p50_ms,
            p99_ms: window.p99_ms,
            overdue: window.overdue,
        },
        None => LiveSlo { target_ms, compliance: 1.0, headroom: 1.0, ..LiveSlo::default() },
    };
    BTreeMap::from([
        ("ttft", of(targets.ttft_ms, |report| report.ttft)),
        ("tpot", of(targets.tpot_ms, |report| report.tpot)),
        ("e2e", of(targets.e2e_ms, |report| report.e2e)),
    ])
}

/// Returns the number of blocks of a pool of `total` blocks that the settings reserve for each tier.
pub(super) fn reserved(settings: &EngineSettings, total: u32) -> [u32; Tier::ALL.len()] {
    let percent = settings.reservation.blocks_percent();
    percent.map(|percent| (f64::from(total) * percent / 100.0) as u32)
}

/// Returns the blocks of a pool by owner.
pub(super) fn pool(map: &PoolMap, reserved: &[u32; Tier::ALL.len()]) -> LivePool {
    let blocks = |of: OwnedBlocks, reserved| {
        let OwnedBlocks { held, mirrored, in_transit } = of;
        LiveBlocks { held, mirrored, in_transit, reserved }
    };
    let (system, others) = (map.of(Tier::System), map.of_others());
    let other = OwnedBlocks {
        held: system.held + others.held,
        mirrored: system.mirrored + others.mirrored,
        in_transit: system.in_transit + others.in_transit,
    };
    let tiers = TIERS.map(|tier| (tier.name(), blocks(map.of(tier), reserved[tier.index()])));
    let owners = tiers.into_iter().chain([("other", blocks(other, 0))]).collect();
    LivePool { total: map.total, free: map.free, cached: map.cached, owners }
}
