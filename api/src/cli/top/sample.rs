//! Figures of a server at one moment, as the control API tells them.

use serde::Deserialize;
use serde_json::Value;
use std::collections::VecDeque;
use tiercel_device::{Tier, Timestamp};

/// Number of samples over which rates are computed, so that a rate is a mean over some seconds.
const SAMPLES: usize = 6;
/// Tiers that requests can have, in the order of the rows.
const TIERS: [Tier; 3] = [Tier::Premium, Tier::Standard, Tier::Background];

/// Figures of a server at one moment.
#[derive(Debug, Clone, Default)]
pub(super) struct Sample {
    /// Time at which the figures were read, by the clock of this program.
    pub(super) at: Timestamp,
    /// Stage of the server's life: `ready` or `draining`.
    pub(super) stage: String,
    pub(super) requests: u64,
    pub(super) max_requests: u64,
    /// Median and 99th percentile of the durations of the latest steps, ms.
    pub(super) step_ms: Option<(f64, f64)>,
    /// Device pool, then host pool.
    pub(super) pools: [Pool; 2],
    pub(super) tiers: Vec<TierRow>,
    /// The tenants with the most blocks, requests or device time.
    pub(super) tenants: Vec<TenantRow>,
    /// Number of all tenants; `tenants` may have fewer rows.
    pub(super) tenants_total: usize,
    pub(super) counters: Counters,
    /// Number of requests that match the filter; the rows may be fewer.
    pub(super) total: usize,
    pub(super) rows: Vec<RequestRow>,
}

/// Blocks of a pool.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Pool {
    pub(super) all: u64,
    /// Blocks in use by the tier of their owner: premium, standard, background; then those of other owners.
    pub(super) owned: [u64; 4],
    /// Free blocks whose content can still be found.
    pub(super) cached: u64,
}

impl Pool {
    /// Returns the number of blocks in use.
    pub(super) fn used(&self) -> u64 {
        self.owned.iter().sum()
    }
}

/// Figures of one tier.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct TierRow {
    pub(super) tier: Tier,
    pub(super) queued: u64,
    pub(super) running: u64,
    pub(super) preempted: u64,
    /// Latencies that have a target: TTFT, TPOT and E2E.
    pub(super) latencies: Vec<Latency>,
}

/// A latency of a tier's requests over the window of the SloMonitor. Figures are absent if the window has no request.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Latency {
    /// Name of the latency, such as `TTFT`.
    pub(super) name: &'static str,
    pub(super) p99_ms: Option<f64>,
    pub(super) target_ms: f64,
    /// Share of the requests that met their target, 0 to 1.
    pub(super) compliance: Option<f64>,
    /// Share of the target that the 99th percentile leaves; negative above the target.
    pub(super) headroom: Option<f64>,
}

/// Live requests of a tenant, and the tokens and device time that the tenant used.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(default)]
pub(super) struct TenantRow {
    pub(super) tenant: String,
    pub(super) waiting: u64,
    pub(super) running: u64,
    pub(super) preempted: u64,
    pub(super) device_blocks: u64,
    /// `None` for a tenant without an account of its own.
    pub(super) used: Option<TenantUse>,
}

/// Tokens and device time that a tenant used since the start of the server.
#[derive(Debug, Clone, Copy, Default, PartialEq, Deserialize)]
#[serde(default)]
pub(super) struct TenantUse {
    pub(super) prompt_tokens: u64,
    pub(super) output_tokens: u64,
    pub(super) device_s: f64,
    /// Tenant's share of the device time of the last minute, 0 to 1.
    pub(super) recent_share: f64,
}

/// Totals since the start of the server.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(super) struct Counters {
    pub(super) steps: u64,
    pub(super) tokens: u64,
    pub(super) preemptions: u64,
}

/// One choice of a live request.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(default)]
pub(super) struct RequestRow {
    pub(super) id: String,
    pub(super) request_id: String,
    pub(super) seq: u64,
    pub(super) tenant: String,
    pub(super) tier: Tier,
    pub(super) state: String,
    pub(super) paused: bool,
    pub(super) slow_reader: bool,
    pub(super) late: bool,
    pub(super) position: Option<u64>,
    pub(super) age_ms: u64,
    pub(super) prompt_tokens: u64,
    pub(super) computed_tokens: u64,
    pub(super) output_tokens: u64,
    pub(super) max_tokens: u64,
    pub(super) device_blocks: u64,
    pub(super) host_blocks: u64,
    pub(super) preemptions: u64,
    pub(super) slack_ms: Option<f64>,
}

/// A page of the listing of live requests.
#[derive(Debug, Default, Deserialize)]
struct Listing {
    total: usize,
    requests: Vec<RequestRow>,
}

impl Sample {
    /// Reads the figures out of the answers of the control API: the document for live views, and a page of the listing.
    ///
    /// # Errors
    /// If an answer does not have the form of this version's.
    pub(super) fn read(at: Timestamp, live: &Value, listing: Value) -> Result<Sample, String> {
        let other = |what: &str, why: &dyn std::fmt::Display| {
            format!("the server's {what} has another form than this version's: {why}")
        };
        let listing: Listing =
            serde_json::from_value(listing).map_err(|error| other("listing", &error))?;
        let number = |pointer: &str| {
            let found = live.pointer(pointer).and_then(Value::as_u64);
            found.ok_or_else(|| other("live document", &format_args!("no number {pointer}")))
        };
        let ms = |name: &str| live["step_time"][name].as_f64();
        Ok(Sample {
            at,
            stage: live["stage"].as_str().unwrap_or("?").to_owned(),
            requests: number("/engine/requests")?,
            max_requests: number("/engine/max_requests")?,
            step_ms: ms("p50_ms").zip(ms("p99_ms")),
            pools: [pool(&live["pools"]["device"]), pool(&live["pools"]["host"])],
            tiers: TIERS.map(|tier| tier_row(tier, &live["tiers"][tier.name()])).into(),
            tenants: Vec::<TenantRow>::deserialize(&live["tenants"])
                .map_err(|error| other("live document", &error))?,
            tenants_total: number("/tenants_total")? as usize,
            counters: Counters {
                steps: number("/counters/steps")?,
                tokens: number("/counters/output_tokens")?,
                preemptions: number("/counters/swaps")?
                    + number("/counters/recomputes")?
                    + number("/counters/drops")?,
            },
            total: listing.total,
            rows: listing.requests,
        })
    }
}

fn count(of: &Value, name: &str) -> u64 {
    of[name].as_u64().unwrap_or(0)
}

fn pool(of: &Value) -> Pool {
    let owned = ["premium", "standard", "background", "other"].map(|owner| {
        let blocks = &of["owners"][owner];
        count(blocks, "held") + count(blocks, "in_transit")
    });
    Pool { all: count(of, "total"), owned, cached: count(of, "cached") }
}

fn tier_row(tier: Tier, of: &Value) -> TierRow {
    let latency = |(name, key): (&'static str, &str)| {
        let slo = &of["slo"][key];
        let known = |field: &str, is_known: bool| slo[field].as_f64().filter(|_| is_known);
        // A request that is turned away misses its target, though its latency was never measured.
        let missed = slo["compliance"].as_f64().is_some_and(|share| share < 1.0);
        let judged = count(slo, "samples") + count(slo, "overdue") > 0 || missed;
        Some(Latency {
            name,
            p99_ms: known("p99_ms", count(slo, "samples") > 0),
            target_ms: slo["target_ms"].as_f64()?,
            compliance: known("compliance", judged),
            headroom: known("headroom", judged),
        })
    };
    let names = [("TTFT", "ttft"), ("TPOT", "tpot"), ("E2E", "e2e")];
    TierRow {
        tier,
        queued: count(of, "queued"),
        running: count(of, "prefill") + count(of, "decode"),
        preempted: count(of, "preempted") + count(of, "resuming"),
        latencies: names.into_iter().filter_map(latency).collect(),
    }
}

/// Rates over the last samples; absent where they are not known yet.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(super) struct Rates {
    pub(super) tokens_per_s: Option<f64>,
    pub(super) preemptions_per_min: Option<f64>,
}

/// Counters of the last samples.
#[derive(Debug, Default)]
pub(super) struct History {
    kept: VecDeque<(Timestamp, Counters)>,
}

impl History {
    /// Adds the counters of a sample. Counters that became smaller are those of a server that was started anew.
    pub(super) fn add(&mut self, at: Timestamp, counters: Counters) {
        if self.kept.back().is_some_and(|(_, last)| counters.steps < last.steps) {
            self.kept.clear();
        }
        if self.kept.len() == SAMPLES {
            self.kept.pop_front();
        }
        self.kept.push_back((at, counters));
    }

    /// Returns the rates from the oldest kept sample to the newest.
    pub(super) fn rates(&self) -> Rates {
        let (Some((from, first)), Some((to, last))) = (self.kept.front(), self.kept.back()) else {
            return Rates::default();
        };
        let seconds = to.since_us(*from) as f64 / 1e6;
        if seconds <= 0.0 {
            return Rates::default();
        }
        let more = |of: fn(&Counters) -> u64| of(last).saturating_sub(of(first)) as f64;
        Rates {
            tokens_per_s: Some(more(|counters| counters.tokens) / seconds),
            preemptions_per_min: Some(more(|counters| counters.preemptions) / seconds * 60.0),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn rates_are_means_over_the_last_samples_and_begin_anew_with_the_server() {
        let mut history = History::default();
        assert_eq!(history.rates(), Rates::default());
        for second in 0..10 {
            let counters =
                Counters { steps: second * 20, tokens: second * 100, preemptions: second };
            history.add(Timestamp(second * 1_000_000), counters);
        }
        let rates = history.rates();
        assert_eq!((rates.tokens_per_s, rates.preemptions_per_min), (Some(100.0), Some(60.0)));
        history.add(Timestamp(10_000_000), Counters::default());
        assert_eq!(history.rates(), Rates::default(), "one sample has no rate");
    }

    #[test]
    fn figures_are_read_from_the_live_document() {
        let blocks = |held: u64, in_transit: u64| json!({"held": held, "in_transit": in_transit});
        let slo = |samples: u64| {
            json!({
                "target_ms": 200.0, "samples": samples, "compliance": 0.5, "headroom": -0.25, "p99_ms": 250.0,
            })
        };
        let premium = json!({
            "queued": 3, "waiting": 2, "prefill": 1, "decode": 4, "preempted": 5, "resuming": 1,
            "slo": {"ttft": slo(7), "tpot": slo(0), "e2e": {"target_ms": null, "samples": 0}},
        });
        let idle = json!({"target_ms": 900.0, "samples": 0, "compliance": 1.0, "headroom": 1.0});
        let live = json!({
            "stage": "ready", "engine": {"requests": 9, "max_requests": 64},
            "counters": {"steps": 4, "output_tokens": 5, "swaps": 1, "recomputes": 2, "drops": 3},
            "step_time": {"p50_ms": 10.0, "p99_ms": 20.0},
            "tiers": {"premium": premium, "standard": {"slo": {"ttft": idle}}},
            "tenants": [
                {"tenant": "shop", "running": 2, "used": {"output_tokens": 7, "device_s": 1.5}},
                {"tenant": "late", "waiting": 1, "used": null},
            ],
            "tenants_total": 70,
            "pools": {"device": {"total": 10, "free": 1, "cached": 2, "owners": {
                "premium": blocks(3, 1), "background": blocks(2, 0), "other": blocks(0, 1),
            }}},
        });
        let row = json!({"id": "a", "seq": 1, "tier": "premium", "slack_ms": -1.5});
        let listing = json!({"total": 12, "requests": [row]});
        let sample = Sample::read(Timestamp(5), &live, listing).unwrap();
        let of_ttft = Latency {
            name: "TTFT",
            p99_ms: Some(250.0),
            target_ms: 200.0,
            compliance: Some(0.5),
            headroom: Some(-0.25),
        };
        // All requests were turned away: nothing was measured, and the target was missed.
        let of_tpot = Latency { name: "TPOT", p99_ms: None, ..of_ttft.clone() };
        let (tier, latencies) = (Tier::Premium, vec![of_ttft, of_tpot]);
        let expected = TierRow { tier, queued: 3, running: 5, preempted: 6, latencies };
        assert_eq!(sample.tiers[0], expected);
        let idle = &sample.tiers[1].latencies[0];
        assert_eq!((idle.compliance, idle.headroom), (None, None), "no request was judged");
        let device = Pool { all: 10, owned: [4, 0, 2, 1], cached: 2 };
        assert_eq!((sample.pools, device.used()), ([device, Pool::default()], 7));
        assert_eq!(sample.counters, Counters { steps: 4, tokens: 5, preemptions: 6 });
        assert_eq!((sample.step_ms, sample.total), (Some((10.0, 20.0)), 12));
        assert_eq!(sample.rows[0].slack_ms, Some(-1.5));
        let used = TenantUse { output_tokens: 7, device_s: 1.5, ..TenantUse::default() };
        assert_eq!((sample.tenants[0].used, sample.tenants[1].used), (Some(used), None));
        assert_eq!((sample.tenants[0].running, sample.tenants_total), (2, 70));
    }

    #[test]
    fn an_answer_of_another_form_is_an_error_that_says_so() {
        for listing in [json!({"rows": []}), json!({"total": 0, "requests": []})] {
            let error = Sample::read(Timestamp(0), &json!({}), listing).unwrap_err();
            assert!(error.contains("another form"), "{error}");
        }
    }
}
