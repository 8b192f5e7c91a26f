//! How long first tokens took, in buckets that grow with the time, so that any number of requests fits.

use serde::Serialize;
use std::collections::BTreeMap;
use tiercel_device::Tier;

/// A bucket is 1/100 of a decade: 2.3 %.
pub(super) const BUCKETS_A_DECADE: u32 = 100;
/// The lower edge of the first bucket, us.
const LEAST_US: f64 = 100.0;

/// Times to the first token by tier.
#[derive(Debug, Clone, Default)]
pub(super) struct Curve {
    /// Requests, whether they got a token or not.
    requests: [u64; 4],
    /// Those that did, by bucket.
    counts: [BTreeMap<u32, u64>; 4],
}

/// One curve: requests, and for each bucket in use its number and how many were answered up to its upper edge.
#[derive(Debug, Serialize)]
pub(super) struct Line {
    tier: usize,
    requests: u64,
    points: Vec<(u32, u64)>,
}

/// The curves of the tiers that had requests.
pub(super) type Points = Vec<Line>;

impl Curve {
    pub(super) fn arrived(&mut self, tier: Tier) {
        self.requests[tier.index()] += 1;
    }

    pub(super) fn answered(&mut self, tier: Tier, after_us: u64) {
        let decades = (after_us as f64 / LEAST_US).max(1.0).log10();
        let bucket = (decades * f64::from(BUCKETS_A_DECADE)) as u32;
        *self.counts[tier.index()].entry(bucket).or_default() += 1;
    }

    pub(super) fn merge(&mut self, other: &Curve) {
        for tier in 0..self.requests.len() {
            self.requests[tier] += other.requests[tier];
            for (bucket, count) in &other.counts[tier] {
                *self.counts[tier].entry(*bucket).or_default() += count;
            }
        }
    }

    pub(super) fn points(&self) -> Points {
        let tiers = self.requests.iter().zip(&self.counts).enumerate();
        let used = tiers.filter(|(_, (requests, _))| **requests > 0);
        used.map(|(tier, (requests, counts))| {
            let mut answered = 0;
            let points = counts.iter().map(|(bucket, count)| {
                answered += count;
                (*bucket, answered)
            });
            Line { tier, requests: *requests, points: points.collect() }
        })
        .collect()
    }
}
