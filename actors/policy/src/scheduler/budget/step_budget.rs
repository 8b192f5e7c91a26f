//! The step budget: the length that the next step may have, so that the streams in it keep their TPOT targets.
//!
//! Every sequence of a step gets its token when the step ends, so each stream pays for every prompt token in the step.
//! A stream with a TPOT target may take its aimed pace, a little less than the target, per token on average. The time
//! by which the stream is ahead of its aimed pace is: aimed pace, us, times the number of its output tokens after the
//! first, less the time from its first token to the start of the planned step, us. The next step may take the aimed
//! pace plus the time by which the stream is ahead. The stream that allows the shortest step limits the step, and
//! prompts fill the step up to this length. If only one tier has requests, a stream may fall behind its aimed pace by
//! [`RECOVERABLE_SHARE`] of its recoverable lag.
//!
//! Only streams that can still meet their TPOT targets limit the step. Prompts with a prefill demand go before the
//! streams of their own tier and of lower tiers: see [`StepBudget::prefill_us`].
//!
//! Slack is defined in `slack`, prefill demand in `prefill_demand`.

use crate::scheduler::basis::Basis;
use crate::scheduler::budget::prefill_demand::PrefillDemand;
use crate::scheduler::budget::slack::{Allowance, allowance};
use crate::scheduler::budget::slack_reserve::SlackReserve;
use crate::scheduler::candidate::{Candidate, decode_work};
use crate::scheduler::cost::StepWork;
use crate::scheduler::queue::arrivals::Traffic;
use tiercel_config::SloTargets;
use tiercel_device::{Tier, Timestamp};

const TIERS: usize = Tier::ALL.len();
/// Blocking limit: longest step, as a share of the tightest TTFT target of the tiers with recent arrivals. A request
/// that arrives during a step waits for the end of the step. A step is longer only if its streams alone take longer, or
/// if prompts need more of it for their first tokens. A smaller share would make steps short, and so inefficient, while
/// several tiers have requests.
const BLOCKING: f64 = 0.3;
/// Blocking limit for short prompts: longest step, as a share of the tightest TTFT target of a prompt of one token,
/// whose derived target is the shortest. Such a prompt that arrives when a step begins has 1 - 0.6 = 0.4 of its target
/// left for the next step.
const BLOCKING_SHORT_PROMPT: f64 = 0.6;
/// Lower bound of the blocking limits, in multiples of the time of an empty step. On a slow device a shorter step would
/// consist mostly of its fixed cost.
const BLOCKING_MIN_STEPS: f64 = 2.0;
/// Number of tokens over which a premium stream saves up its slack reserve. Saving faster costs lower tiers more;
/// saving over more tokens would take longer than short streams last.
const SAVING_TOKENS: f64 = 30.0;
/// Share of its recoverable lag by which a stream may be behind its aimed pace if only one tier has requests. All of it
/// would leave nothing for prompts that come later, and an output may end earlier than predicted.
const RECOVERABLE_SHARE: f64 = 0.5;

/// Step budget: the length that the next step may have, and the time that prompts need in it.
#[derive(Debug)]
pub(crate) struct StepBudget {
    /// Longest next step that the streams of each tier allow, us; infinite if no stream of the tier has a TPOT target
    /// that it can still meet.
    allowed_us: [f64; TIERS],
    /// Blocking limit of the next step, us: arriving requests shall not wait long for the end of the step. The step is
    /// longer only if its streams alone take longer, or if prompts need more of it for their first tokens.
    blocking_us: f64,
    /// Time of the next step that each tier's prompts need for their first tokens to meet their TTFT targets, us.
    prefill_demand_us: [f64; TIERS],
    /// Longest next step that premium and system streams allow for lower tiers' work, us: a longer step would use up
    /// their slack reserve, or slack that they save up for the reserve. Infinite if no such stream limits the step.
    /// Prompts of the premium and system tiers may make a step longer, as far as their first tokens require.
    allowed_with_reserve_us: f64,
}

impl StepBudget {
    /// Returns the budget of a step with the sequences `candidates` that begins at `begins`; `None` if the settings
    /// give steps a fixed size.
    pub(crate) fn new(
        candidates: &[Candidate<'_>],
        basis: &Basis,
        (traffic, reserve): (Traffic, &SlackReserve),
        begins: Timestamp,
    ) -> Option<StepBudget> {
        if !basis.rules.budget_by_slack() {
            return None;
        }
        let alone = traffic.one_tier && same_tier(candidates);
        // Leave out background and best-effort streams if pausing may leave them out of the step. Otherwise they could
        // make the bare step so long that a stream of a higher tier counts as unable to meet its TPOT target.
        let counts = |candidate: &&Candidate<'_>| {
            let paused = basis.rules.scheduling.pause_background && !alone;
            !paused || candidate.sequence.tier_before_ageing() < Tier::Background
        };
        let bare_us = basis.cost.step_us(&decode_work(candidates.iter().filter(counts)));
        // If only one tier has requests, use no slack reserve, which protects premium streams from lower tiers' work.
        let reserve_us = if traffic.one_tier { 0.0 } else { reserve.reserve_us() };
        let reserve = (reserve_us, reserve.saving_max());
        // If the streams are of one tier too, let them fall behind their pace, so that first tokens come sooner.
        let recoverable_share = if alone { RECOVERABLE_SHARE } else { 0.0 };
        let (allowed_us, allowed_with_reserve_us) =
            allowed_us(candidates, (reserve, recoverable_share), bare_us, begins);
        let mut budget = StepBudget {
            allowed_us,
            blocking_us: blocking_any_prompt_us(basis, traffic),
            prefill_demand_us: [0.0; TIERS],
            allowed_with_reserve_us,
        };
        let (limiting, tightest_us) =
            budget.tightest().unwrap_or((Tier::Background, f64::INFINITY));
        let step_us = tightest_us.min(budget.blocking_us);
        if step_us.is_finite() {
            let lengths_us = (step_us.max(bare_us), bare_us);
            budget.add_demand(candidates, basis, lengths_us, limiting, begins);
        }
        Some(budget)
    }

    /// Adds the time that prompts need to meet their TTFT targets. The step takes `step_us`, `bare_us` of it without
    /// prompts, and is limited by streams of tier `limiting`.
    fn add_demand(
        &mut self,
        candidates: &[Candidate<'_>],
        basis: &Basis,
        (step_us, bare_us): (f64, f64),
        limiting: Tier,
        begins: Timestamp,
    ) {
        for tier in Tier::ALL {
            let prompts = candidates.iter().filter(|candidate| !candidate.one_token_left);
            let prompts = prompts.map(|prompt| prompt.sequence).filter(|s| s.tier == tier);
            let mut demand = PrefillDemand::default();
            for prompt in prompts {
                demand.add(prompt, &basis.cost, (step_us, tier < limiting), begins);
            }
            self.prefill_demand_us[tier.index()] = demand.in_step_us(step_us, bare_us);
        }
    }

    /// Returns the longest next step that the streams of tiers above `tier` allow, us. If `tier` is below premium, the
    /// step also leaves premium streams their slack reserve.
    fn allowed_by_higher_us(&self, tier: Tier) -> f64 {
        let least = self.allowed_us[..tier.index()].iter().copied().fold(f64::INFINITY, f64::min);
        if tier > Tier::Premium { least.min(self.allowed_with_reserve_us) } else { least }
    }

    /// Returns the tier whose streams allow only the shortest step, and the length of that step, us; `None` if no
    /// stream limits the step.
    fn tightest(&self) -> Option<(Tier, f64)> {
        let all = Tier::ALL.into_iter().zip(self.allowed_us);
        all.min_by(|a, b| a.1.total_cmp(&b.1)).filter(|(_, us)| us.is_finite())
    }

    /// Returns the time of the next step that is left to background streams, us: the longest step that higher tiers'
    /// streams and the blocking limit allow, less `bare_us`, less the time of prompts; negative if none is left. The
    /// time of prompts is the larger of the prefill demand of all prompts and `in_time_us`, the time of the whole rest
    /// of prompts in time (0 if streams are not paused for them). `bare_us` is the time of a step with the higher
    /// tiers' streams alone.
    pub(crate) fn background_us(&self, bare_us: f64, in_time_us: f64) -> f64 {
        let demand_us: f64 = self.prefill_demand_us.iter().sum();
        self.allowed_by_higher_us(Tier::Background).min(self.blocking_us)
            - bare_us
            - demand_us.max(in_time_us)
    }

    /// Returns by how much a step that gives premium prompts the time they need is longer than premium streams allow,
    /// us; negative if it is not. `bare_us` is the time of a step with only the streams of effective tiers (before
    /// ageing) above background.
    pub(crate) fn over_premium_us(&self, bare_us: f64) -> f64 {
        let demand_us: f64 = self.prefill_demand_us[..Tier::Standard.index()].iter().sum();
        bare_us + demand_us - self.allowed_by_higher_us(Tier::Standard)
    }

    /// Returns the time for prompts in a step that without prompts takes `bare_us`, us: as much as all streams, the
    /// slack reserve and the limit `blocking_us` allow. If first tokens would miss their TTFT targets, prompts get
    /// more, up to what streams of tiers above those prompts' tier allow.
    pub(crate) fn prefill_us(&self, bare_us: f64) -> f64 {
        let tightest_us = self.tightest().map_or(f64::INFINITY, |(_, us)| us);
        let mut budget_us =
            tightest_us.min(self.allowed_with_reserve_us).min(self.blocking_us) - bare_us;
        let mut demand_us = 0.0;
        for tier in Tier::ALL {
            demand_us += self.prefill_demand_us[tier.index()];
            budget_us = budget_us.max(demand_us.min(self.allowed_by_higher_us(tier) - bare_us));
        }
        budget_us.max(0.0)
    }
}

/// Whether all candidates are of one tier. A tier of which no request came lately and none waits may still have running
/// streams, and an operator may have given a stream another tier.
fn same_tier(candidates: &[Candidate<'_>]) -> bool {
    let tier = |candidate: &Candidate<'_>| candidate.sequence.tier;
    candidates.windows(2).all(|pair| tier(&pair[0]) == tier(&pair[1]))
}

/// Returns the longest step that the streams of each tier allow, us, and the longest that premium streams allow for
/// lower tiers' work, us. Premium streams keep a slack reserve of `reserve_us`, or save up for it at most the share
/// `saving_max` of their aimed pace in each step. Streams may be behind their aimed pace by the share
/// `recoverable_share` of their recoverable lag.
fn allowed_us(
    candidates: &[Candidate<'_>],
    ((reserve_us, saving_max), recoverable_share): ((f64, f64), f64),
    bare_us: f64,
    begins: Timestamp,
) -> ([f64; TIERS], f64) {
    let mut allowed_us = [f64::INFINITY; TIERS];
    let mut allowed_with_reserve_us = f64::INFINITY;
    for stream in candidates.iter().filter(|candidate| candidate.one_token_left) {
        let tier = stream.sequence.tier;
        let allowance = allowance(stream.sequence, bare_us, begins);
        if let Some(Allowance { aim_us, ahead_of_pace_us, recoverable_us }) = allowance {
            let step_us = aim_us + ahead_of_pace_us + recoverable_share * recoverable_us;
            let least = &mut allowed_us[tier.index()];
            *least = least.min(step_us);
            if tier <= Tier::Premium {
                let saving_us = (reserve_us / SAVING_TOKENS).min(saving_max * aim_us);
                let until_saved_us = step_us.min(aim_us - saving_us);
                allowed_with_reserve_us =
                    allowed_with_reserve_us.min(until_saved_us.max(step_us - reserve_us));
            }
        }
    }
    (allowed_us, allowed_with_reserve_us)
}

/// Returns the blocking limit of the next step, us: the share [`BLOCKING`] of the tightest TTFT target. The limit is
/// infinite if no tier with a TTFT target had requests lately, or if only one tier has requests: shorter steps would
/// only make these requests wait for more steps.
pub(crate) fn blocking_typical_us(basis: &Basis, traffic: Traffic) -> f64 {
    limit_us(basis, traffic, |targets| Some(BLOCKING * targets.ttft_ms?))
}

/// Returns the longest step that blocks neither the typical prompt nor the shortest one for too long, us: the smaller
/// of [`blocking_typical_us`] and the share [`BLOCKING_SHORT_PROMPT`] of the tightest TTFT target of a one-token
/// prompt.
fn blocking_any_prompt_us(basis: &Basis, traffic: Traffic) -> f64 {
    let of_one_token =
        |targets: SloTargets| Some(BLOCKING_SHORT_PROMPT * targets.of_prompt(1).ttft_ms?);
    blocking_typical_us(basis, traffic).min(limit_us(basis, traffic, of_one_token))
}

/// Returns the smallest of the limits that `limit_ms` computes from the latency targets of each tier with recent
/// arrivals, us, and at least [`BLOCKING_MIN_STEPS`] empty steps.
fn limit_us(basis: &Basis, traffic: Traffic, limit_ms: impl Fn(SloTargets) -> Option<f64>) -> f64 {
    if traffic.one_tier {
        return f64::INFINITY;
    }
    let present = Tier::ALL.into_iter().filter(|tier| traffic.came(*tier));
    let limits_ms = present.filter_map(|tier| limit_ms(basis.targets.of(tier)));
    let least_us = BLOCKING_MIN_STEPS * basis.cost.step_us(&StepWork::default());
    (limits_ms.fold(f64::INFINITY, f64::min) * 1000.0).max(least_us)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scheduler::budget::fixtures::{assert_near, cost};
    use crate::scheduler::tests::{NOW, scheduler};

    /// Returns a budget of 100, 200, 300 and 400 us for the streams of the tiers, with a premium demand of 30 us and a
    /// standard demand of 50 us.
    fn budget() -> StepBudget {
        StepBudget {
            allowed_us: [100.0, 200.0, 300.0, 400.0],
            blocking_us: 1_000.0,
            prefill_demand_us: [0.0, 30.0, 50.0, 0.0],
            allowed_with_reserve_us: 90.0,
        }
    }

    #[test]
    fn background_streams_get_what_higher_tiers_leave() {
        assert_eq!(budget().background_us(5.0, 0.0), 90.0 - 5.0 - 80.0);
        assert_eq!(budget().background_us(5.0, 81.0), 90.0 - 5.0 - 81.0);
        let blocked = StepBudget { blocking_us: 60.0, ..budget() };
        assert_eq!(blocked.background_us(5.0, 0.0), 60.0 - 5.0 - 80.0);
    }

    #[test]
    fn a_step_is_limited_by_the_target_of_the_shortest_prompts_too() {
        let mut s = scheduler(|_| ());
        s.basis.cost = cost();
        for tier in [Tier::Premium, Tier::Background] {
            s.queue.arrivals.set(tier, Some(NOW));
        }
        s.basis.targets.premium.ttft_ms = Some(10.0);
        s.basis.targets.premium.ttft_prompt_tokens = 101;
        let mut limit_us = |fewer_ms| {
            s.basis.targets.premium.ttft_ms_per_token_fewer = fewer_ms;
            blocking_any_prompt_us(&s.basis, s.queue.traffic(NOW))
        };
        assert_near(limit_us(0.0), 3_000.0);
        // The TTFT target of a prompt of one token is 5 ms with 0.05 ms for each token fewer, and 4 ms with 0.06 ms.
        assert_near(limit_us(0.05), 3_000.0);
        assert_near(limit_us(0.06), 2_400.0);
    }

    #[test]
    fn premium_prompts_take_time_beyond_what_premium_streams_allow() {
        assert_eq!(budget().over_premium_us(5.0), 5.0 + 30.0 - 90.0);
        assert_eq!(budget().over_premium_us(70.0), 70.0 + 30.0 - 90.0);
    }
}
