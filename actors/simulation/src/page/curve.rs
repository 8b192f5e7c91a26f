//! Histogram of TTFTs in buckets of growing width, so that its size does not depend on the number of requests.

use serde::Serialize;
use std::collections::BTreeMap;
use tiercel_device::Tier;

/// Number of histogram buckets per decade (factor 10) of TTFT; each bucket is 2.3 % wide.
pub(super) const BUCKETS_A_DECADE: u32 = 100;
/// Lower limit of the first bucket of the TTFT histogram, us.
const LEAST_US: f64 = 100.0;

/// Histograms of TTFTs, one for each tier.
#[derive(Debug, Clone, Default)]
pub(super) struct Curve {
    /// Number of requests of each tier, including requests that never got a token.
    requests: [u64; 4],
    /// Number of requests that got a first token, by tier and TTFT bucket.
    counts: [BTreeMap<u32, u64>; 4],
}

/// Cumulative TTFT curve of one tier: its number of requests and, for each bucket in use, the bucket's index and the
/// number of requests whose TTFT is below the bucket's upper limit.
#[derive(Debug, Serialize)]
pub(super) struct Line {
    tier: usize,
    requests: u64,
    points: Vec<(u32, u64)>,
}

/// Cumulative TTFT curves of the tiers that had requests.
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
