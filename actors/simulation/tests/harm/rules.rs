//! The three "do no harm" rules, as comparisons of figures under the default policy with those under other policies.

use crate::runs::{Figures, Percentiles, TierFigures};

/// Largest share of the premium or standard requests that may stay incomplete under the default policy where `fcfs`
/// completes all.
const MISSING_MAX: f64 = 0.001;
/// Largest share by which tokens per second under the default policy may be below those under the best other preset.
const SLOWER_MAX: f64 = 0.02;
/// Largest share by which a figure of a tier that is alone on the server may be worse than under `fcfs`.
const WORSE_MAX: f64 = 0.03;
/// Differences between two policies in the share of requests in target that count as noise, percentage points.
const NOISE_POINTS: f64 = 0.5;
/// Minimum number of requests above a latency percentile for the percentile to be compared. With fewer requests, it
/// depends on chance.
const BEYOND_MIN: f64 = 10.0;

/// Comparison of one figure under the default policy with the same figure under another policy.
#[derive(Debug, Clone)]
pub(crate) struct Check {
    pub(crate) rule: char,
    pub(crate) workload: String,
    pub(crate) tier: String,
    pub(crate) figure: String,
    /// Value of the compared figure (such as a latency percentile) under the default policy.
    pub(crate) default: f64,
    /// Value of the compared figure under the other policy, whose name is `policy`.
    pub(crate) other: f64,
    pub(crate) policy: String,
    /// Share by which the figure is worse under the default policy; negative if it is better.
    pub(crate) worse: f64,
    /// Largest share by which the figure may be worse under the default policy.
    pub(crate) allowed: f64,
    /// Reason for which the rule allows a worse figure in this comparison, if any.
    pub(crate) excuse: Option<String>,
    /// Whether the figure rests on too few requests to be compared; a worse value then breaks no rule.
    pub(crate) few: bool,
}

impl Check {
    /// Whether the comparison breaks its rule; known exceptions are not considered.
    pub(crate) fn broken(&self) -> bool {
        self.worse > self.allowed + 1e-9 && self.excuse.is_none() && !self.few
    }
}

/// Rule (a): where `fcfs` completes every request, the default policy completes at least 99.9 % of the premium and of
/// the standard requests, and all background requests unless higher tiers gain from it.
pub(crate) fn completes(
    workload: &str,
    loose: bool,
    default: &Figures,
    fcfs: &Figures,
) -> Vec<Check> {
    if fcfs.tiers.iter().any(|tier| tier.completed < tier.requests) {
        return Vec::new();
    }
    let check = |other: &TierFigures| {
        let own = default.tier(&other.tier).cloned().unwrap_or_default();
        let background = other.tier == "background";
        // Compare the completed requests with those sent under the same policy, because in a closed loop the number of
        // requests differs between policies.
        let missing = 1.0 - own.completed as f64 / own.requests.max(1) as f64;
        Check {
            rule: 'a',
            workload: workload.to_owned(),
            tier: other.tier.clone(),
            figure: "completed, %".to_owned(),
            default: 100.0 * (1.0 - missing),
            other: 100.0,
            policy: "fcfs".to_owned(),
            worse: missing,
            allowed: if background { 0.0 } else { MISSING_MAX },
            excuse: if background && !loose { needed_by_higher_tiers(default, fcfs) } else { None },
            few: false,
        }
    };
    fcfs.tiers.iter().map(check).collect()
}

/// Returns the excuse for incomplete background requests: the name of a higher tier that has more requests in target
/// under the default policy than under `fcfs`, if there is one.
fn needed_by_higher_tiers(default: &Figures, fcfs: &Figures) -> Option<String> {
    let better = fcfs.tiers.iter().filter(|tier| tier.tier != "background");
    let mut gains = better.filter_map(|other| {
        let (own, other_percent) = (default.tier(&other.tier)?, other.in_target_percent());
        let gained = own.in_target_percent() - other_percent > NOISE_POINTS;
        gained.then(|| {
            let (tier, own) = (&other.tier, own.in_target_percent());
            format!("{tier} in target {own:.1} % (fcfs {other_percent:.1})")
        })
    });
    gains.next()
}

/// Rule (b): no other preset makes more than 2 % more tokens per second than the default policy, unless it makes
/// premium requests miss targets.
pub(crate) fn makes_tokens(
    workload: &str,
    default: &Figures,
    others: &[(&str, &Figures)],
) -> Check {
    let premium = |figures: &Figures| figures.tier("premium").map(TierFigures::in_target_percent);
    let costs_premium = |other: &Figures| match (premium(default), premium(other)) {
        (Some(own), Some(other)) => own - other > NOISE_POINTS,
        _ => false,
    };
    let best = |chosen: &dyn Fn(&Figures) -> bool| {
        let chosen = others.iter().filter(|(_, figures)| chosen(figures));
        chosen.max_by(|a, b| a.1.tokens_per_s.total_cmp(&b.1.tokens_per_s))
    };
    let worse = |other: &Figures| 1.0 - default.tokens_per_s / other.tokens_per_s;
    let (first, figures) = best(&|_| true).expect("there are other presets");
    let fair = best(&|figures: &Figures| !costs_premium(figures));
    let fair_worse = fair.map_or(f64::NEG_INFINITY, |(_, figures)| worse(figures));
    // Compare with the best preset that costs premium nothing. If only presets that cost premium targets make more
    // tokens, report the best of them, with that excuse.
    let excused = worse(figures) > SLOWER_MAX && fair_worse <= SLOWER_MAX;
    let (policy, shown) = match fair {
        Some((name, rival)) if !excused => (*name, rival),
        _ => (*first, figures),
    };
    let excuse = excused.then(|| {
        let [own, other] = [default, figures].map(|f| premium(f).unwrap_or_default());
        format!("premium in target {own:.1} % ({first} {other:.1})")
    });
    Check {
        rule: 'b',
        workload: workload.to_owned(),
        tier: "all".to_owned(),
        figure: "tok/s".to_owned(),
        default: default.tokens_per_s,
        other: shown.tokens_per_s,
        policy: policy.to_owned(),
        worse: worse(shown),
        allowed: SLOWER_MAX,
        excuse,
        few: false,
    }
}

/// Rule (c): a tier that is alone on the server is served at most 3 % worse than under `fcfs`, unless more of its
/// requests meet their targets.
pub(crate) fn serves_alone(
    workload: &str,
    default: &TierFigures,
    fcfs: &TierFigures,
) -> Vec<Check> {
    // Compare shares: in a closed loop, the policy that serves faster is sent more requests.
    let [own, other] = [default, fcfs].map(TierFigures::in_target_percent);
    let excuse = (own > other).then(|| format!("in target {own:.2} % (fcfs {other:.2})"));
    let check = |figure: String, (own, other): (f64, f64), worse: f64, few: bool| Check {
        rule: 'c',
        workload: workload.to_owned(),
        tier: fcfs.tier.clone(),
        figure,
        default: own,
        other,
        policy: "fcfs".to_owned(),
        worse,
        allowed: WORSE_MAX,
        excuse: excuse.clone(),
        few,
    };
    let rates = (default.tokens_per_s, fcfs.tokens_per_s);
    let lost = if rates.1 > 0.0 { 1.0 - rates.0 / rates.1 } else { 0.0 };
    let mut checks = vec![check("tok/s".to_owned(), rates, lost, false)];
    let mut latencies = |name: &str, own: &Percentiles, other: &Percentiles| {
        for (at, percentile) in [50.0, 90.0, 99.0].into_iter().enumerate() {
            let few = (fcfs.requests as f64) * (100.0 - percentile) / 100.0 < BEYOND_MIN;
            let worse = own[at] / other[at].max(f64::MIN_POSITIVE) - 1.0;
            checks.push(check(
                format!("{name} p{percentile}, ms"),
                (own[at], other[at]),
                worse,
                few,
            ));
        }
    };
    latencies("TTFT", &default.ttft_ms, &fcfs.ttft_ms);
    latencies("E2E", &default.e2e_ms, &fcfs.e2e_ms);
    checks
}
