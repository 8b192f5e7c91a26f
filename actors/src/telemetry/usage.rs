//! Metrics of the usage of tiers and tenants: tokens, device time that they had and that was due to them.

use metrics::{Counter, Gauge, counter, describe_counter, describe_gauge, gauge};
use std::collections::BTreeMap;
use tiercel_device::{Tier, Timestamp};
use tiercel_policy::accounting::{PartyUsage, UsageReport};
use tiercel_policy::blocks::Salt;

/// Interval at which the metrics are set, us.
const INTERVAL_US: u64 = 1_000_000;
/// Label of all tenants without an account of their own.
const OTHERS: &str = "other";

/// Names of counters of seconds that are counted in microseconds, because counters of the `metrics` facade are whole
/// numbers. `Exporter::render` (api) divides these counters by a million.
pub const MICROSECOND_COUNTERS: [&str; 4] = [
    "tiercel_device_seconds_total",
    "tiercel_due_device_seconds_total",
    "tiercel_tenant_device_seconds_total",
    "tiercel_tenant_due_device_seconds_total",
];

/// Names and descriptions of the counter metrics.
const COUNTERS: [(&str, &str); 8] = [
    (
        "tiercel_cached_tokens_total",
        "Prompt tokens of started sequences that were found in the prefix cache, by tier",
    ),
    ("tiercel_device_seconds_total", "Device time that sequences of a tier had, by tier"),
    (
        "tiercel_due_device_seconds_total",
        "Device time that was due to a tier by its share, by tier",
    ),
    (
        "tiercel_tenant_prompt_tokens_total",
        "Prompt tokens of started sequences, by tier and tenant",
    ),
    (
        "tiercel_tenant_cached_tokens_total",
        "Prompt tokens of started sequences that were found in the prefix cache, by tier and tenant",
    ),
    ("tiercel_tenant_output_tokens_total", "Output tokens, by tier and tenant"),
    ("tiercel_tenant_device_seconds_total", "Device time that a tenant had, by tier and tenant"),
    (
        "tiercel_tenant_due_device_seconds_total",
        "Device time that was due to a tenant by its weight, by tier and tenant",
    ),
];
/// Names and descriptions of the gauge metrics.
const GAUGES: [(&str, &str); 2] = [
    (
        "tiercel_fair_share_deviation_ratio",
        "Device time of the last minute that a tier had less the time that was due to it, as a share of all, -1 to 1",
    ),
    (
        "tiercel_tenant_fair_share_deviation_ratio",
        "Device time of the last minute that a tenant had less the time that was due to it, as a share of all, -1 to 1",
    ),
];

/// Registers the description of each metric.
pub(super) fn describe() {
    for (name, text) in COUNTERS {
        describe_counter!(name, text);
    }
    for (name, text) in GAUGES {
        describe_gauge!(name, text);
    }
}

/// Metrics of the usage of tiers and tenants. Their handles are kept, because looking up a metric costs more than
/// setting it.
#[derive(Default)]
pub(crate) struct UsageMetrics {
    told: Option<Timestamp>,
    tiers: BTreeMap<Tier, OfTier>,
    tenants: BTreeMap<(Tier, Option<Salt>), OfTenant>,
}

struct OfTier {
    cached: Counter,
    time: OfTime,
}

struct OfTenant {
    prompt: Counter,
    cached: Counter,
    output: Counter,
    time: OfTime,
}

/// Metrics of the device time of a tier or a tenant.
struct OfTime {
    had: Counter,
    due: Counter,
    deviation: Gauge,
}

impl OfTier {
    fn new(tier: Tier) -> OfTier {
        let tier = tier.name();
        OfTier {
            cached: counter!("tiercel_cached_tokens_total", "tier" => tier),
            time: OfTime {
                had: counter!("tiercel_device_seconds_total", "tier" => tier),
                due: counter!("tiercel_due_device_seconds_total", "tier" => tier),
                deviation: gauge!("tiercel_fair_share_deviation_ratio", "tier" => tier),
            },
        }
    }
}

impl OfTenant {
    fn new(tier: Tier, tenant: Option<Salt>) -> OfTenant {
        let tenant = tenant.map_or_else(|| OTHERS.to_owned(), Salt::label);
        let labels = [("tier", tier.name().to_owned()), ("tenant", tenant)];
        OfTenant {
            prompt: counter!("tiercel_tenant_prompt_tokens_total", &labels),
            cached: counter!("tiercel_tenant_cached_tokens_total", &labels),
            output: counter!("tiercel_tenant_output_tokens_total", &labels),
            time: OfTime {
                had: counter!("tiercel_tenant_device_seconds_total", &labels),
                due: counter!("tiercel_tenant_due_device_seconds_total", &labels),
                deviation: gauge!("tiercel_tenant_fair_share_deviation_ratio", &labels),
            },
        }
    }
}

impl OfTime {
    fn set(&self, usage: &PartyUsage) {
        self.had.absolute(usage.device_us as u64);
        self.due.absolute(usage.due_us as u64);
        self.deviation.set(usage.deviation);
    }
}

impl UsageMetrics {
    /// Whether the metrics are due to be set at `now`; if so, they are due again a second later.
    pub(crate) fn are_due(&mut self, now: Timestamp) -> bool {
        let due = self.told.is_none_or(|told| now >= told + INTERVAL_US);
        if due {
            self.told = Some(now);
        }
        due
    }

    /// Sets the metrics. The number of tenants in a report is bounded, and so is the number of metrics.
    pub(crate) fn set(&mut self, report: &UsageReport) {
        for (tier, usage) in Tier::ALL.into_iter().zip(&report.tiers) {
            if tier == Tier::System {
                continue;
            }
            let metrics = self.tiers.entry(tier).or_insert_with(|| OfTier::new(tier));
            metrics.cached.absolute(usage.cached_tokens);
            metrics.time.set(usage);
        }
        for row in &report.tenants {
            let (tier, tenant, usage) = (row.tier, row.tenant, &row.usage);
            let metrics =
                self.tenants.entry((tier, tenant)).or_insert_with(|| OfTenant::new(tier, tenant));
            metrics.prompt.absolute(usage.prompt_tokens);
            metrics.cached.absolute(usage.cached_tokens);
            metrics.output.absolute(usage.output_tokens);
            metrics.time.set(usage);
        }
    }
}
