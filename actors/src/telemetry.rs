//! Metrics of the engine, through the `metrics` facade. Metrics whose names begin with `vllm:` are those of vLLM, which
//! request routers scrape; in them, preempted requests count as waiting.

mod usage;

pub use usage::MICROSECOND_COUNTERS;
pub(crate) use usage::UsageMetrics;

use crate::messages::BlockUsage;
use crate::request::Refusal;
use crate::trace::Ending;
use metrics::{
    Unit, counter, describe_counter, describe_gauge, describe_histogram, gauge, histogram,
};
use tiercel_config::SloTargets;
use tiercel_device::{CopyDirection, DeviceInfo, StepBatch, StepTiming, Tier};
use tiercel_policy::pressure::{Resource, Transition};
use tiercel_policy::scheduler::{Census, CostError, Counters, EndReport};
use tiercel_policy::slo::{GroupReport, Observation, Retargeted, Targets, Unreachable};

/// Names and descriptions of the engine's counter metrics.
const COUNTERS: [(&str, &str); 11] = [
    ("tiercel_requests_total", "Requests that ended or were refused, by tier and outcome"),
    ("tiercel_generated_tokens_total", "Output tokens without stop tokens, by tier"),
    ("tiercel_prompt_tokens_total", "Prompt tokens of requests that ended, by tier"),
    ("tiercel_preemptions_total", "Preemptions, by tier and strategy (swap, recompute, drop)"),
    (
        "tiercel_swapped_bytes_total",
        "Bytes of KV blocks copied from the device pool to the host pool (out) and back (in)",
    ),
    ("tiercel_recomputed_tokens_total", "Tokens whose KV was computed again after a preemption"),
    (
        "tiercel_prefix_query_tokens_total",
        "Prompt tokens whose KV was looked up in the prefix cache",
    ),
    ("tiercel_prefix_hit_tokens_total", "Prompt tokens whose KV was found in the prefix cache"),
    ("tiercel_steps_total", "Steps of the model that completed"),
    ("tiercel_failed_steps_total", "Steps of the model that failed"),
    (
        "tiercel_postponed_draws_total",
        "Draws postponed to a later step, because the mask of their grammar was late",
    ),
];
/// Names and descriptions of the engine's gauge metrics.
const GAUGES: [(&str, &str); 15] = [
    ("tiercel_queue_depth", "Sequences waiting for their first start, by tier"),
    ("tiercel_running", "Sequences that hold KV blocks and may be in a step"),
    ("tiercel_waiting", "Sequences waiting for their first start, of all tiers"),
    (
        "tiercel_preempted",
        "Sequences that are preempted, including those whose blocks are being copied",
    ),
    (
        "tiercel_kv_usage_ratio",
        "Share of the KV blocks of the device pool and of the host pool in use, 0 to 1",
    ),
    (
        "tiercel_mirroring_lag_blocks",
        "Full KV blocks of possible victims that mirroring has not copied to the host pool yet; 0 with mirroring off",
    ),
    (
        "tiercel_slo_compliance_ratio",
        "Share of the latencies in the sliding window (slo.window_s) that met their target, 0 to 1",
    ),
    (
        "tiercel_cost_error_ratio",
        "Error of predicted step and copy times: recent mean of |predicted / observed - 1|",
    ),
    (
        "tiercel_pressure_level",
        "How near a resource is to its limit: 0 none, 1 warning, 2 critical (pressure.*)",
    ),
    (
        "tiercel_slo_target_seconds",
        "Latency target in effect, stated or derived from the device (auto), by tier and metric; NaN once a change has removed it",
    ),
    (
        "tiercel_slo_headroom_ratio",
        "1 - (99th percentile of latency / target) in the sliding window; negative above the target",
    ),
    (
        "tiercel_slo_overdue",
        "Requests past their target whose latency is not known yet, by tier and metric",
    ),
    (
        "tiercel_slo_window_seconds",
        "Percentiles (50, 90, 99) of the latencies in the sliding window (slo.window_s), by tier and metric",
    ),
    (
        "tiercel_tenant_slo_compliance_ratio",
        "Share of a tenant's latencies in the sliding window that met their target, 0 to 1; see slo.max_tenants",
    ),
    (
        "tiercel_tenant_slo_p99_seconds",
        "99th percentile of a tenant's latencies in the sliding window; see slo.max_tenants",
    ),
];
/// Names and descriptions of the engine's histogram metrics of durations, in seconds.
const DURATIONS: [(&str, &str); 5] = [
    ("tiercel_ttft_seconds", "Time to first token: from arrival to first output token"),
    ("tiercel_tpot_seconds", "Mean time per output token of a request, after the first"),
    ("tiercel_e2e_seconds", "End-to-end time: from arrival to last output token"),
    ("tiercel_step_seconds", "Duration of a step on the device"),
    ("tiercel_step_part_seconds", "Duration of a part of a step: planning, device or sampling"),
];

/// Names and descriptions of the gauge metrics that have the names of vLLM's.
const OF_VLLM: [(&str, &str); 4] = [
    ("vllm:cache_config_info", "Sizes of the KV cache, as labels"),
    ("vllm:num_requests_running", "Sequences that hold KV blocks and may be in a step"),
    ("vllm:num_requests_waiting", "Sequences that wait, preempted ones included"),
    ("vllm:kv_cache_usage_perc", "Share of the KV blocks of the device pool in use, 0 to 1"),
];

/// Registers the description of each metric. Must be called after the metrics recorder is installed.
pub fn describe() {
    for (name, text) in COUNTERS {
        describe_counter!(name, text);
    }
    for (name, text) in GAUGES {
        describe_gauge!(name, text);
    }
    for (name, text) in DURATIONS {
        describe_histogram!(name, Unit::Seconds, text);
    }
    describe_histogram!("tiercel_step_tokens", "Tokens computed in a step, decode and prefill");
    for (name, text) in OF_VLLM {
        describe_gauge!(name, text);
    }
    describe_counter!("vllm:num_preemptions_total", "Preemptions");
    usage::describe();
}

/// Sets the metrics of facts about the device, which never change, and zeros for metrics that should exist before their
/// first event.
pub(crate) fn device(info: &DeviceInfo) {
    gauge!("vllm:cache_config_info",
        "block_size" => info.block_size.to_string(),
        "num_gpu_blocks" => info.device_blocks.to_string(),
        "num_cpu_blocks" => info.host_blocks.to_string(),
        "device" => info.name.clone())
    .set(1.0);
    gauges(&Census::default(), &Counters::default());
    for tier in Tier::ALL {
        counter!("tiercel_generated_tokens_total", "tier" => tier.name()).increment(0);
        counter!("tiercel_prompt_tokens_total", "tier" => tier.name()).increment(0);
    }
    for direction in [CopyDirection::Out, CopyDirection::In] {
        copied(direction, 0);
    }
    for resource in Resource::ALL {
        gauge!("tiercel_pressure_level", "resource" => resource.name()).set(0.0);
    }
}

/// Counts the tokens of one step that went to clients, by tier. Called once per step, because looking up a counter
/// metric costs more than adding to it.
pub(crate) fn tokens(by_tier: [u64; Tier::ALL.len()]) {
    for (tier, count) in Tier::ALL.into_iter().zip(by_tier).filter(|(_, count)| *count > 0) {
        counter!("tiercel_generated_tokens_total", "tier" => tier.name()).increment(count);
    }
}

pub(crate) fn ended(report: &EndReport) {
    let outcome = Ending::of(report).name();
    let tier = report.tier.name();
    counter!("tiercel_requests_total", "tier" => tier, "outcome" => outcome).increment(1);
    counter!("tiercel_prompt_tokens_total", "tier" => tier)
        .increment(u64::from(report.usage.prompt_tokens));
}

pub(crate) fn refused(tier: Tier, why: &Refusal) {
    turned_away(
        tier,
        match why {
            Refusal::NeverFits(_) => "never_fits",
            Refusal::QueueFull { .. }
            | Refusal::ServerFull { .. }
            | Refusal::Late { .. }
            | Refusal::OutOfPatience { .. }
            | Refusal::OverShare { .. } => "refused",
            Refusal::ShuttingDown | Refusal::EngineStopped => "shutdown",
        },
    );
}

pub(crate) fn turned_away(tier: Tier, outcome: &'static str) {
    counter!("tiercel_requests_total", "tier" => tier.name(), "outcome" => outcome).increment(1);
}

pub(crate) fn latency(tier: Tier, what: Observation) {
    let tier = tier.name();
    match what {
        Observation::Promised(_) | Observation::Gone { .. } => {}
        Observation::FirstToken { ttft_ms } => {
            histogram!("tiercel_ttft_seconds", "tier" => tier).record(ttft_ms / 1000.0);
        }
        Observation::Finished { tpot_ms, e2e_ms } => {
            histogram!("tiercel_e2e_seconds", "tier" => tier).record(e2e_ms / 1000.0);
            if let Some(tpot_ms) = tpot_ms {
                histogram!("tiercel_tpot_seconds", "tier" => tier).record(tpot_ms / 1000.0);
            }
        }
    }
}

pub(crate) fn planned(batch: &StepBatch, planning_us: u64) {
    let tokens: usize = batch.slices.iter().map(|slice| slice.input.len()).sum();
    histogram!("tiercel_step_tokens").record(tokens as f64);
    part("planning", planning_us);
}

pub(crate) fn stepped(timing: &StepTiming) {
    histogram!("tiercel_step_seconds")
        .record((timing.forward_us + timing.sampling_us) as f64 / 1e6);
    part("device", timing.forward_us);
    part("sampling", timing.sampling_us);
}

fn part(name: &'static str, us: u64) {
    histogram!("tiercel_step_part_seconds", "part" => name).record(us as f64 / 1e6);
}

pub(crate) fn copied(direction: CopyDirection, bytes: u64) {
    let direction = match direction {
        CopyDirection::Out => "out",
        CopyDirection::In => "in",
    };
    counter!("tiercel_swapped_bytes_total", "direction" => direction).increment(bytes);
}

pub(crate) fn blocks(usage: &BlockUsage) {
    let device = ratio(usage.device_total - usage.device_free, usage.device_total);
    let host = ratio(usage.host_total - usage.host_free, usage.host_total);
    gauge!("tiercel_kv_usage_ratio", "memory" => "device").set(device);
    gauge!("tiercel_kv_usage_ratio", "memory" => "host").set(host);
    gauge!("vllm:kv_cache_usage_perc").set(device);
    gauge!("tiercel_mirroring_lag_blocks").set(usage.mirroring_lag);
}

fn ratio(part: u32, whole: u32) -> f64 {
    if whole == 0 { 0.0 } else { f64::from(part) / f64::from(whole) }
}

/// Reports that a resource changed its pressure level: sets the metric, and writes a line to the log for people.
pub(crate) fn pressure(transition: &Transition) {
    let Transition { resource, from, to, used_percent } = *transition;
    gauge!("tiercel_pressure_level", "resource" => resource.name()).set(f64::from(to as u8));
    let (resource, from, to) = (resource.name(), from.name(), to.name());
    tracing::info!(resource, from, to, used_percent, "pressure level changed");
}

pub(crate) fn cost_error(error: CostError) {
    gauge!("tiercel_cost_error_ratio", "of" => "step").set(error.step);
    gauge!("tiercel_cost_error_ratio", "of" => "copy").set(error.copy);
}

pub(crate) fn gauges(census: &Census, counters: &Counters) {
    let waiting: u32 = census.waiting.iter().sum();
    for tier in Tier::ALL {
        let i = tier.index();
        gauge!("tiercel_queue_depth", "tier" => tier.name()).set(census.waiting[i]);
        let by_strategy = [
            ("swap", counters.swaps[i]),
            ("recompute", counters.recomputes[i]),
            ("drop", counters.drops[i]),
        ];
        for (strategy, total) in by_strategy {
            counter!("tiercel_preemptions_total", "tier" => tier.name(), "strategy" => strategy)
                .absolute(total);
        }
    }
    gauge!("tiercel_running").set(census.running);
    gauge!("tiercel_waiting").set(waiting);
    gauge!("tiercel_preempted").set(census.preempted);
    gauge!("vllm:num_requests_running").set(census.running);
    gauge!("vllm:num_requests_waiting").set(waiting + census.preempted);
    counter!("vllm:num_preemptions_total").absolute(counters.preemptions());
    counter!("tiercel_recomputed_tokens_total").absolute(counters.recomputed_tokens);
    counter!("tiercel_prefix_query_tokens_total").absolute(counters.prefix_query_tokens);
    counter!("tiercel_prefix_hit_tokens_total").absolute(counters.prefix_hit_tokens);
    counter!("tiercel_steps_total").absolute(counters.steps);
    counter!("tiercel_failed_steps_total").absolute(counters.failed_steps);
    counter!("tiercel_postponed_draws_total").absolute(counters.postponed_draws);
}

/// Sets the metrics of the latency targets in effect.
pub(crate) fn targets(targets: &Targets) {
    for tier in [Tier::Premium, Tier::Standard, Tier::Background] {
        let SloTargets { ttft_ms, tpot_ms, e2e_ms, .. } = targets.of(tier);
        for (metric, target_ms) in [("ttft", ttft_ms), ("tpot", tpot_ms), ("e2e", e2e_ms)] {
            if let Some(ms) = target_ms {
                gauge!("tiercel_slo_target_seconds", "tier" => tier.name(), "metric" => metric)
                    .set(ms / 1000.0);
            }
        }
    }
}

/// Reports that the latency targets in effect changed: sets their metrics, and writes them to the log. The metric of a
/// target that is there no more becomes NaN.
pub(crate) fn retargeted(change: &Retargeted) {
    targets(&change.targets);
    let why = if change.by_operator { "an operator changed them" } else { "step times changed" };
    for tier in [Tier::Premium, Tier::Standard, Tier::Background] {
        let (before, after) = (change.before.of(tier), change.targets.of(tier));
        let pairs = [
            ("ttft", before.ttft_ms, after.ttft_ms),
            ("tpot", before.tpot_ms, after.tpot_ms),
            ("e2e", before.e2e_ms, after.e2e_ms),
        ];
        for (metric, _, _) in pairs.iter().filter(|(_, had, has)| had.is_some() && has.is_none()) {
            gauge!("tiercel_slo_target_seconds", "tier" => tier.name(), "metric" => *metric)
                .set(f64::NAN);
        }
        if before == after {
            continue;
        }
        let SloTargets { ttft_ms, tpot_ms, e2e_ms, .. } = after;
        let tier = tier.name();
        tracing::info!(tier, ttft_ms, tpot_ms, e2e_ms, why, "new latency targets are in effect");
    }
    change.unreachable.iter().for_each(unreachable);
}

/// Writes a warning about a stated latency target that the device misses even for a request that is alone.
pub(crate) fn unreachable(target: &Unreachable) {
    let Unreachable { setting, stated_ms, alone_ms, effective_ms } = target;
    tracing::warn!(
        "{setting} = {stated_ms} ms cannot be met: this device takes {alone_ms:.1} ms even for a request that is alone; the \
         target in effect is {effective_ms} ms (the value of auto)"
    );
}

/// Sets the metrics of compliance and latency in the sliding windows of a tier, or of a tenant's requests in a tier.
pub(crate) fn slo(report: &GroupReport) {
    let (tier, tenant) = (report.tier.name(), report.tenant.map(|salt| salt.label()));
    for (metric, window) in [("ttft", report.ttft), ("tpot", report.tpot), ("e2e", report.e2e)] {
        match &tenant {
            None => {
                gauge!("tiercel_slo_compliance_ratio", "tier" => tier, "metric" => metric)
                    .set(window.compliance);
                gauge!("tiercel_slo_headroom_ratio", "tier" => tier, "metric" => metric)
                    .set(window.headroom);
                gauge!("tiercel_slo_overdue", "tier" => tier, "metric" => metric)
                    .set(window.overdue as f64);
                let percentiles =
                    [("50", window.p50_ms), ("90", window.p90_ms), ("99", window.p99_ms)];
                for (percentile, ms) in percentiles {
                    gauge!("tiercel_slo_window_seconds", "tier" => tier, "metric" => metric, "percentile" => percentile)
                        .set(ms / 1000.0);
                }
            }
            Some(tenant) => {
                let labels = [
                    ("tier", tier.to_owned()),
                    ("metric", metric.to_owned()),
                    ("tenant", tenant.clone()),
                ];
                gauge!("tiercel_tenant_slo_compliance_ratio", &labels).set(window.compliance);
                gauge!("tiercel_tenant_slo_p99_seconds", &labels).set(window.p99_ms / 1000.0);
            }
        }
    }
}

#[cfg(test)]
mod tests;
