//! The document that live views poll. Its size is bounded, whatever the number of requests and tenants.

use super::rows::LiveRow;
use super::tenants::{LiveTenant, tenants};
use super::tiers::{LivePool, LiveTier, pool, reserved, tiers};
use crate::boot::{App, Serving};
use crate::http::ApiError;
use actix_web::web::Bytes;
use serde::Serialize;
use std::collections::BTreeMap;
use tiercel_actors::{EngineHandle, EngineStatus, Resource, Snapshot, Work};
use tiercel_device::{Tier, Timestamp};
use tiercel_policy::blocks::BlockMap;
use tiercel_policy::slo::GroupReport;
use utoipa::ToSchema;

/// Largest document, bytes. If the requests that are to be shown do not fit, the last ones are left out.
const BYTES_MAX: usize = 64 << 10;

/// What live views show: the state of the server at one moment.
#[derive(Serialize, ToSchema)]
pub(crate) struct LiveDocument<'a> {
    /// Version of the server.
    version: &'static str,
    /// Name of the served model.
    model: &'a str,
    device: &'a str,
    /// When the model was loaded, seconds since 1970; another value means that the server was started again.
    started_unix_s: u64,
    /// Time of the engine's clock, ms. All times of requests count on this clock.
    engine_ms: f64,
    /// Step that was planned last.
    step: u64,
    /// `ready` or `draining`.
    stage: &'static str,
    /// Time left until the deadline of the drain, ms; null while the server does not drain.
    #[schema(required)]
    deadline_in_ms: Option<u64>,
    counters: LiveCounters,
    step_time: LiveStepTime,
    engine: LiveEngine,
    /// Pressure level of each resource: `none`, `warning` or `critical`.
    pressure: BTreeMap<&'static str, &'static str>,
    /// Requests and latencies by tier: `premium`, `standard` and `background`.
    tiers: BTreeMap<&'static str, LiveTier>,
    /// Blocks of both pools: `device` and `host`.
    pools: BTreeMap<&'static str, LivePool>,
    /// The first 16 tenants in this order: most blocks held, then most live requests, then most device time used.
    tenants: Vec<LiveTenant>,
    /// Number of tenants that have live requests or an account.
    tenants_total: usize,
    /// At most 64 live choices: those that have blocks or are preempted, then the first of the line.
    requests: Vec<LiveRow>,
    /// Number of live choices.
    requests_total: usize,
}

/// Counters since the start of the server, which only grow. A choice counts as a request.
#[derive(Serialize, ToSchema)]
struct LiveCounters {
    steps: u64,
    failed_steps: u64,
    /// Prompt tokens that steps computed, and tokens that they computed again after preemptions.
    prefill_tokens: u64,
    /// Output tokens that steps sampled.
    output_tokens: u64,
    /// Preemptions whose blocks were saved in the host pool.
    swaps: u64,
    /// Preemptions whose blocks were given up.
    recomputes: u64,
    /// Preemptions that ended the request.
    drops: u64,
    /// Tokens to compute again because of preemptions.
    recomputed_tokens: u64,
    /// Blocks copied between the pools.
    copied_blocks: u64,
    prefix_query_tokens: u64,
    prefix_hit_tokens: u64,
}

/// Durations of the latest steps, at most 512, ms; null before the first one.
#[derive(Serialize, ToSchema)]
struct LiveStepTime {
    /// Number of these steps.
    steps: usize,
    #[schema(required)]
    last_ms: Option<f64>,
    #[schema(required)]
    p50_ms: Option<f64>,
    #[schema(required)]
    p99_ms: Option<f64>,
}

/// Requests in the engine, and its limits.
#[derive(Serialize, ToSchema)]
struct LiveEngine {
    /// Requests in the server, waiting or running.
    requests: u32,
    max_requests: u32,
    running: u32,
    preempted: u32,
    /// Slots of a step.
    max_num_seqs: u32,
    /// Tokens of a KV block.
    block_size: u32,
}

/// What the actors answered.
pub(super) struct Parts {
    pub(super) blocks: BlockMap,
    pub(super) work: Work,
    pub(super) slo: Vec<GroupReport>,
    pub(super) status: EngineStatus,
    pub(super) now: Timestamp,
}

/// A snapshot, and the requests of it that are shown.
pub(super) struct Shown<'a> {
    pub(super) snapshot: &'a Snapshot,
    pub(super) requests: Vec<LiveRow>,
}

/// Returns the document as JSON.
///
/// # Errors
/// 503 while the model is loading.
pub(super) async fn json(
    app: &App,
    engine: &EngineHandle,
    parts: &Parts,
    shown: Shown<'_>,
) -> Result<Bytes, ApiError> {
    let serving = app.loaded()?;
    let settings = serving.settings.lock().await;
    let (reserved, max_num_seqs) =
        (reserved(&settings, parts.blocks.device.total), settings.scheduler.max_num_seqs);
    drop(settings);
    let status = &parts.status;
    let name = |salt| app.keys.tenant_name(salt);
    let (tenants, tenants_total) = tenants(shown.snapshot, &status.usage, name);
    let document = LiveDocument {
        version: env!("CARGO_PKG_VERSION"),
        model: name_of(serving),
        device: &engine.info().name,
        started_unix_s: serving.created_unix_s,
        engine_ms: parts.now.0 as f64 / 1e3,
        step: shown.snapshot.step.0,
        stage: app.stage().name(),
        deadline_in_ms: app.deadline_in_ms(),
        counters: counters(parts),
        step_time: step_time(&parts.work),
        engine: limits(engine, status, max_num_seqs),
        pressure: Resource::ALL.map(|of| of.name()).into_iter().zip(levels(status)).collect(),
        tiers: tiers(shown.snapshot, status, &parts.slo),
        pools: BTreeMap::from([
            ("device", pool(&parts.blocks.device, &reserved)),
            ("host", pool(&parts.blocks.host, &[0; Tier::ALL.len()])),
        ]),
        tenants,
        tenants_total,
        requests: shown.requests,
        requests_total: shown.snapshot.sequences.len(),
    };
    Ok(bounded(document))
}

/// Returns the first name of the model; it may be long, so at most its last 100 characters.
fn name_of(serving: &Serving) -> &str {
    let name = &serving.names[0];
    let cut = name.char_indices().rev().nth(99).map_or(0, |(at, _)| at);
    &name[cut..]
}

/// Writes the document as JSON. Leaves out the last requests while the document is too large.
fn bounded(mut document: LiveDocument<'_>) -> Bytes {
    loop {
        let json = serde_json::to_vec(&document).expect("the keys of the document are texts");
        if json.len() <= BYTES_MAX || document.requests.is_empty() {
            return json.into();
        }
        let fewer = document.requests.len() * 3 / 4;
        document.requests.truncate(fewer);
    }
}

fn levels(status: &EngineStatus) -> impl Iterator<Item = &'static str> {
    status.pressure.iter().map(|level| level.name())
}

fn limits(engine: &EngineHandle, status: &EngineStatus, max_num_seqs: u32) -> LiveEngine {
    LiveEngine {
        requests: status.places,
        max_requests: engine.settings().admission.max_requests,
        running: status.running,
        preempted: status.preempted,
        max_num_seqs,
        block_size: engine.info().block_size,
    }
}

fn counters(parts: &Parts) -> LiveCounters {
    let of = &parts.status.counters;
    LiveCounters {
        steps: of.steps,
        failed_steps: of.failed_steps,
        prefill_tokens: parts.work.prefill_tokens,
        output_tokens: parts.work.sampled_tokens,
        swaps: of.swaps.iter().sum(),
        recomputes: of.recomputes.iter().sum(),
        drops: of.drops.iter().sum(),
        recomputed_tokens: of.recomputed_tokens,
        copied_blocks: of.copied_blocks,
        prefix_query_tokens: of.prefix_query_tokens,
        prefix_hit_tokens: of.prefix_hit_tokens,
    }
}

fn step_time(work: &Work) -> LiveStepTime {
    let mut sorted = work.recent_us.clone();
    sorted.sort_unstable();
    let ms = |us: &u64| *us as f64 / 1e3;
    let quantile = |percent: usize| {
        sorted.get((sorted.len() * percent / 100).min(sorted.len().saturating_sub(1))).map(ms)
    };
    LiveStepTime {
        steps: sorted.len(),
        last_ms: work.recent_us.last().map(ms),
        p50_ms: quantile(50),
        p99_ms: quantile(99),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_of_step_times_are_those_of_the_latest_steps() {
        let work =
            Work { recent_us: (1..=200).rev().map(|ms| ms * 1_000).collect(), ..Work::default() };
        let found = step_time(&work);
        assert_eq!((found.steps, found.last_ms), (200, Some(1.0)));
        assert_eq!((found.p50_ms, found.p99_ms), (Some(101.0), Some(199.0)));
        let none = step_time(&Work::default());
        assert_eq!((none.steps, none.last_ms, none.p99_ms), (0, None, None));
    }
}
