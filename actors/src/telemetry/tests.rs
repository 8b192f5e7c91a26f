//! Tests of the metrics: each test reads the text of the endpoint `/metrics` that a recorder of its own renders.

use super::*;
use crate::kit::small_device;
use metrics_exporter_prometheus::PrometheusBuilder;
use std::sync::{Arc, Mutex};
use tiercel_device::{SeqId, SeqSlice, SliceInput, StepId, Timestamp};
use tiercel_policy::accounting::{PartyUsage, TenantUsage, UsageReport};
use tiercel_policy::blocks::Salt;
use tiercel_policy::scheduler::{FinishReason, RequestFault, Usage};
use tracing::field::{Field, Visit};
use tracing::span;

/// Text of the endpoint `/metrics`.
struct Metrics(String);

/// Returns the metrics that `work` sets.
fn metrics_of(work: impl FnOnce()) -> Metrics {
    let recorder = PrometheusBuilder::new().build_recorder();
    metrics::with_local_recorder(&recorder, work);
    Metrics(recorder.handle().render())
}

impl Metrics {
    /// Returns the value of a time series; `None` if the metrics have no such series.
    fn get(&self, series: &str) -> Option<f64> {
        let mut lines = self.0.lines();
        let text = lines.find_map(|line| line.strip_prefix(series)?.strip_prefix(' '))?;
        Some(text.parse().expect("the value of a series is a number"))
    }

    /// Asserts that every given time series has the given value.
    fn assert_are(&self, expected: &[(&str, f64)]) {
        for (series, value) in expected {
            let got = self.get(series).unwrap_or_else(|| panic!("no {series} in {}", self.0));
            assert!((got - value).abs() < 1e-9, "{series} is {got} instead of {value}");
        }
    }
}

#[test]
fn the_descriptions_of_counters_gauges_and_histograms_are_exported() {
    let metrics = metrics_of(|| {
        describe();
        counter!("tiercel_steps_total").increment(1);
        gauge!("tiercel_running").set(1.0);
        histogram!("tiercel_step_seconds").record(1.0);
        histogram!("tiercel_step_tokens").record(1.0);
    });
    for help in [
        "# HELP tiercel_steps_total Steps of the model that completed\n",
        "# HELP tiercel_running Sequences that hold KV blocks and may be in a step\n",
        "# HELP tiercel_step_seconds Duration of a step on the device\n",
        "# HELP tiercel_step_tokens Tokens computed in a step, decode and prefill\n",
    ] {
        assert!(metrics.0.contains(help), "no {help} in {}", metrics.0);
    }
}

#[test]
fn a_new_engine_exports_the_sizes_of_its_device_and_zeros() {
    let (info, _) = small_device();
    let info = DeviceInfo { name: "small".into(), block_size: 16, ..info };
    let info = DeviceInfo { device_blocks: 30, host_blocks: 20, ..info };
    metrics_of(|| device(&info)).assert_are(&[
        (
            "vllm:cache_config_info{block_size=\"16\",num_gpu_blocks=\"30\",num_cpu_blocks=\"20\",device=\"small\"}",
            1.0,
        ),
        ("tiercel_generated_tokens_total{tier=\"background\"}", 0.0),
        ("tiercel_pressure_level{resource=\"outputs\"}", 0.0),
        ("tiercel_queue_depth{tier=\"premium\"}", 0.0),
    ]);
}

#[test]
fn only_tiers_that_got_tokens_count_them() {
    let metrics = metrics_of(|| tokens([0, 0, 5, 1]));
    metrics.assert_are(&[
        ("tiercel_generated_tokens_total{tier=\"standard\"}", 5.0),
        ("tiercel_generated_tokens_total{tier=\"background\"}", 1.0),
    ]);
    assert_eq!(metrics.get("tiercel_generated_tokens_total{tier=\"premium\"}"), None);
}

#[test]
fn requests_are_counted_by_tier_and_by_how_they_ended_or_were_refused() {
    let report = EndReport {
        seq: SeqId(1),
        tier: Tier::Standard,
        outcome: Some(Ok(FinishReason::Length)),
        usage: Usage { prompt_tokens: 7, ..Usage::default() },
        arrival: Timestamp(0),
        first_token_at: None,
        last_token_at: None,
    };
    let stalled = EndReport { outcome: Some(Err(RequestFault::Stalled)), ..report.clone() };
    let full =
        Refusal::ServerFull { limit: 8, tier: Tier::Premium, reserved: 0, retry_after_ms: 1 };
    metrics_of(|| {
        ended(&report);
        ended(&stalled);
        refused(Tier::Premium, &full);
        refused(Tier::Premium, &Refusal::NeverFits("too long".into()));
        refused(Tier::Premium, &Refusal::ShuttingDown);
        refused(Tier::Premium, &Refusal::EngineStopped);
    })
    .assert_are(&[
        ("tiercel_requests_total{tier=\"standard\",outcome=\"length\"}", 1.0),
        ("tiercel_requests_total{tier=\"standard\",outcome=\"stalled\"}", 1.0),
        // Two requests with prompts of 7 tokens ended.
        ("tiercel_prompt_tokens_total{tier=\"standard\"}", 14.0),
        ("tiercel_requests_total{tier=\"premium\",outcome=\"refused\"}", 1.0),
        ("tiercel_requests_total{tier=\"premium\",outcome=\"never_fits\"}", 1.0),
        ("tiercel_requests_total{tier=\"premium\",outcome=\"shutdown\"}", 2.0),
    ]);
}

#[test]
fn usage_is_exported_by_tier_and_by_tenant_and_device_time_in_microseconds() {
    let usage = PartyUsage {
        working: 3,
        prompt_tokens: 10,
        cached_tokens: 4,
        output_tokens: 20,
        device_us: 1_500.7,
        due_us: 900.2,
        recent_device_us: 500.0,
        recent_due_us: 0.0,
        deviation: 0.25,
    };
    let mut report = UsageReport::default();
    report.tiers[Tier::System.index()] = usage;
    report.tiers[Tier::Premium.index()] = usage;
    for tenant in [Some(Salt([0xab; 16])), None] {
        report.tenants.push(TenantUsage { tier: Tier::Premium, tenant, usage });
    }
    let mut of_usage = UsageMetrics::default();
    assert!(of_usage.are_due(Timestamp(5)) && !of_usage.are_due(Timestamp(1_000_004)));
    assert!(of_usage.are_due(Timestamp(1_000_005)));
    let metrics = metrics_of(|| of_usage.set(&report));
    metrics.assert_are(&[
        ("tiercel_cached_tokens_total{tier=\"premium\"}", 4.0),
        ("tiercel_device_seconds_total{tier=\"premium\"}", 1_500.0),
        ("tiercel_due_device_seconds_total{tier=\"premium\"}", 900.0),
        ("tiercel_fair_share_deviation_ratio{tier=\"premium\"}", 0.25),
        ("tiercel_device_seconds_total{tier=\"background\"}", 0.0),
        ("tiercel_tenant_prompt_tokens_total{tier=\"premium\",tenant=\"abababab\"}", 10.0),
        ("tiercel_tenant_cached_tokens_total{tier=\"premium\",tenant=\"abababab\"}", 4.0),
        ("tiercel_tenant_output_tokens_total{tier=\"premium\",tenant=\"other\"}", 20.0),
        ("tiercel_tenant_device_seconds_total{tier=\"premium\",tenant=\"other\"}", 1_500.0),
        ("tiercel_tenant_due_device_seconds_total{tier=\"premium\",tenant=\"other\"}", 900.0),
        ("tiercel_tenant_fair_share_deviation_ratio{tier=\"premium\",tenant=\"other\"}", 0.25),
    ]);
    assert!(!metrics.0.contains("system"), "{}", metrics.0);
}

#[test]
fn latencies_are_exported_in_seconds() {
    metrics_of(|| {
        latency(Tier::Standard, Observation::FirstToken { ttft_ms: 250.0 });
        latency(Tier::Premium, Observation::Finished { tpot_ms: Some(40.0), e2e_ms: 1_500.0 });
        latency(Tier::Premium, Observation::Finished { tpot_ms: None, e2e_ms: 1_000.0 });
    })
    .assert_are(&[
        ("tiercel_ttft_seconds_sum{tier=\"standard\"}", 0.25),
        ("tiercel_tpot_seconds_sum{tier=\"premium\"}", 0.04),
        ("tiercel_tpot_seconds_count{tier=\"premium\"}", 1.0),
        ("tiercel_e2e_seconds_sum{tier=\"premium\"}", 2.5),
        ("tiercel_e2e_seconds_count{tier=\"premium\"}", 2.0),
    ]);
}

#[test]
fn a_step_is_exported_with_its_tokens_and_the_seconds_of_its_parts() {
    let slice = |tokens: u32| SeqSlice {
        seq: SeqId(u64::from(tokens)),
        first_pos: 0,
        input: SliceInput::Known((0..tokens).collect()),
        table: [].into(),
        sample: None,
    };
    let slices = vec![slice(2), slice(3)];
    let batch = StepBatch { id: StepId(1), starts: vec![], ends: vec![], slices };
    metrics_of(|| {
        planned(&batch, 300);
        stepped(&StepTiming { forward_us: 2_000, sampling_us: 500, host_us: 7 });
    })
    .assert_are(&[
        ("tiercel_step_tokens_sum", 5.0),
        // 2000 us + 500 us.
        ("tiercel_step_seconds_sum", 0.002_5),
        ("tiercel_step_part_seconds_sum{part=\"planning\"}", 0.000_3),
        ("tiercel_step_part_seconds_sum{part=\"device\"}", 0.002),
        ("tiercel_step_part_seconds_sum{part=\"sampling\"}", 0.000_5),
    ]);
}

#[test]
fn copied_bytes_are_counted_by_direction() {
    metrics_of(|| {
        copied(CopyDirection::Out, 4_096);
        copied(CopyDirection::In, 100);
        copied(CopyDirection::In, 11);
    })
    .assert_are(&[
        ("tiercel_swapped_bytes_total{direction=\"out\"}", 4_096.0),
        ("tiercel_swapped_bytes_total{direction=\"in\"}", 111.0),
    ]);
}

#[test]
fn the_used_share_of_each_memory_is_exported_and_absent_memory_is_unused() {
    // Of the device pool 8 - 2 = 6 of 8 blocks are in use, of the host pool 10 - 2 = 8 of 10.
    let usage = BlockUsage {
        device_total: 8,
        device_free: 2,
        host_total: 10,
        host_free: 2,
        mirroring_lag: 5,
    };
    metrics_of(|| blocks(&usage)).assert_are(&[
        ("tiercel_kv_usage_ratio{memory=\"device\"}", 0.75),
        ("vllm:kv_cache_usage_perc", 0.75),
        ("tiercel_kv_usage_ratio{memory=\"host\"}", 0.8),
        ("tiercel_mirroring_lag_blocks", 5.0),
    ]);
    let without_host = BlockUsage { host_total: 0, host_free: 0, ..usage };
    metrics_of(|| blocks(&without_host))
        .assert_are(&[("tiercel_kv_usage_ratio{memory=\"host\"}", 0.0)]);
}

#[test]
fn errors_of_the_cost_model_are_exported_apart_for_steps_and_copies() {
    metrics_of(|| cost_error(CostError { step: 0.125, copy: 0.5 })).assert_are(&[
        ("tiercel_cost_error_ratio{of=\"step\"}", 0.125),
        ("tiercel_cost_error_ratio{of=\"copy\"}", 0.5),
    ]);
}

#[test]
fn sequences_and_preemptions_are_exported_for_tiercel_and_for_vllm() {
    let census = Census { waiting: [1, 2, 3, 4], running: 5, preempted: 6 };
    let counters = Counters {
        swaps: [0, 0, 1, 2],
        recomputes: [0, 0, 4, 0],
        drops: [0, 0, 0, 8],
        steps: 16,
        failed_steps: 17,
        postponed_draws: 21,
        recomputed_tokens: 18,
        prefix_query_tokens: 19,
        prefix_hit_tokens: 20,
        ..Counters::default()
    };
    let preempted = |tier, strategy| {
        format!("tiercel_preemptions_total{{tier=\"{tier}\",strategy=\"{strategy}\"}}")
    };
    metrics_of(|| gauges(&census, &counters)).assert_are(&[
        ("tiercel_queue_depth{tier=\"background\"}", 4.0),
        ("tiercel_running", 5.0),
        // 1 + 2 + 3 + 4 sequences wait. For vLLM the 6 preempted ones wait too.
        ("tiercel_waiting", 10.0),
        ("tiercel_preempted", 6.0),
        ("vllm:num_requests_running", 5.0),
        ("vllm:num_requests_waiting", 16.0),
        (&preempted("standard", "swap"), 1.0),
        (&preempted("background", "swap"), 2.0),
        (&preempted("standard", "recompute"), 4.0),
        (&preempted("background", "drop"), 8.0),
        // 1 + 2 swaps, 4 recomputes and 8 drops.
        ("vllm:num_preemptions_total", 15.0),
        ("tiercel_steps_total", 16.0),
        ("tiercel_failed_steps_total", 17.0),
        ("tiercel_postponed_draws_total", 21.0),
        ("tiercel_recomputed_tokens_total", 18.0),
        ("tiercel_prefix_query_tokens_total", 19.0),
        ("tiercel_prefix_hit_tokens_total", 20.0),
    ]);
}

#[test]
fn new_targets_replace_the_exported_ones_and_absent_targets_are_not_exported() {
    let of = |ttft_ms| Targets {
        standard: SloTargets { ttft_ms: Some(ttft_ms), ..SloTargets::default() },
        premium: SloTargets::default(),
        background: SloTargets::default(),
        requests_may_tighten: false,
    };
    let change = |before, targets| Retargeted {
        before,
        targets,
        by_operator: true,
        unreachable: Vec::new(),
    };
    let series = "tiercel_slo_target_seconds{tier=\"standard\",metric=\"ttft\"}";
    let at_first = metrics_of(|| targets(&of(250.0)));
    at_first.assert_are(&[(series, 0.25)]);
    assert_eq!(at_first.0.matches("tiercel_slo_target_seconds{").count(), 1, "{}", at_first.0);
    let later = metrics_of(|| {
        targets(&of(250.0));
        retargeted(&change(of(250.0), of(300.0)));
    });
    later.assert_are(&[(series, 0.3)]);
    let none = Targets { standard: SloTargets::default(), ..of(0.0) };
    let removed = metrics_of(|| {
        targets(&of(250.0));
        retargeted(&change(of(250.0), none));
    });
    assert!(removed.0.contains(&format!("{series} NaN")), "{}", removed.0);
}

/// Log that keeps the messages of all events.
#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<String>>>);

impl Visit for Log {
    fn record_debug(&mut self, field: &Field, value: &dyn std::fmt::Debug) {
        if field.name() == "message" {
            self.0.lock().expect("no test panics with the lock").push(format!("{value:?}"));
        }
    }
}

impl tracing::Subscriber for Log {
    fn enabled(&self, _: &tracing::Metadata<'_>) -> bool {
        true
    }

    fn new_span(&self, _: &span::Attributes<'_>) -> span::Id {
        span::Id::from_u64(1)
    }

    fn record(&self, _: &span::Id, _: &span::Record<'_>) {}

    fn record_follows_from(&self, _: &span::Id, _: &span::Id) {}

    fn event(&self, event: &tracing::Event<'_>) {
        event.record(&mut self.clone());
    }

    fn enter(&self, _: &span::Id) {}

    fn exit(&self, _: &span::Id) {}
}

#[test]
fn a_stated_target_that_the_device_cannot_meet_is_named_in_a_warning() {
    let log = Log::default();
    let setting = "slo.premium.ttft_ms";
    let target = Unreachable { setting, stated_ms: 5.0, alone_ms: 7.5, effective_ms: 40.0 };
    tracing::subscriber::with_default(log.clone(), || unreachable(&target));
    let lines = log.0.lock().expect("no test panics with the lock");
    assert_eq!(lines.len(), 1, "{lines:?}");
    for part in ["slo.premium.ttft_ms = 5 ms", "takes 7.5 ms", "is 40 ms"] {
        assert!(lines[0].contains(part), "no {part} in {lines:?}");
    }
}
