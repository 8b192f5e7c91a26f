//! Histogram of the gaps between consecutive tokens of streams. A run has too many gaps to keep each.

use serde::{Deserialize, Serialize};

/// Lower limit of the histogram of gaps between tokens, us; shorter gaps count as this long.
const LEAST_US: f64 = 10.0;
/// Ratio of the upper to the lower limit of each histogram bucket; it makes quantiles exact to half a percent.
const RATIO: f64 = 1.01;
/// Natural logarithm of the ratio of neighbouring bucket limits (`RATIO`), as a constant so that it is not computed for
/// every token.
const LN_RATIO: f64 = 0.009_950_330_853_168_083;
/// Number of histogram buckets; they cover gaps of up to 15 minutes.
const BUCKETS: usize = 1840;

/// Histogram of the gaps between consecutive tokens, in buckets whose limits grow by a constant ratio.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Gaps {
    counts: Vec<u32>,
    total: u64,
}

/// Quantiles of the gaps between consecutive tokens of a stream, over all requests, ms; exact to half a percent.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct GapSummary {
    /// Number of gaps between consecutive tokens.
    pub count: u64,
    /// Median of the gaps between consecutive tokens, ms.
    pub p50: f64,
    /// 99th percentile of the gaps between consecutive tokens, ms.
    pub p99: f64,
}

impl Default for Gaps {
    fn default() -> Self {
        Gaps { counts: vec![0; BUCKETS], total: 0 }
    }
}

impl Gaps {
    pub(crate) fn add(&mut self, us: u64) {
        let bucket = ((us as f64 / LEAST_US).max(1.0).ln() / LN_RATIO) as usize;
        self.counts[bucket.min(BUCKETS - 1)] += 1;
        self.total += 1;
    }

    pub(crate) fn summary(&self) -> Option<GapSummary> {
        let quantile = |q: f64| {
            let rank = (q * self.total as f64).ceil() as u64;
            let mut seen = 0;
            let bucket = self.counts.iter().position(|count| {
                seen += u64::from(*count);
                seen >= rank
            });
            LEAST_US * RATIO.powf(bucket.unwrap_or(0) as f64 + 0.5) / 1000.0
        };
        (self.total > 0).then(|| GapSummary {
            count: self.total,
            p50: quantile(0.5),
            p99: quantile(0.99),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_are_right_to_a_percent() {
        let mut gaps = Gaps::default();
        assert_eq!(gaps.summary(), None);
        for us in 1..=100_000 {
            gaps.add(us);
        }
        let summary = gaps.summary().expect("counted");
        assert_eq!(summary.count, 100_000);
        assert!((summary.p50 / 50.0 - 1.0).abs() < 0.01, "{summary:?}");
        assert!((summary.p99 / 99.0 - 1.0).abs() < 0.01, "{summary:?}");
        gaps.add(u64::MAX);
    }
}
