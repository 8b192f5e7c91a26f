//! How much prompt a step may hold, so that those who wait for its end keep what they were promised.
//!
//! All members of a step get their token when it ends, so every prompt token in it is paid for by every
//! stream. A stream with a TPOT target may take `target` per token on average: what its steps so far took
//! less than that is its bank, and the next step may take the target plus the bank. The stream with the
//! least to spend sets the length of the step, and prompts fill it up to there.
//!
//! Nothing is gained by hurrying for a stream that cannot meet its target any more. Prompts whose first
//! tokens are due go before the pace of streams of their own and of worse tiers: see
//! [`Pace::prefill_us`].
//!
//! The bank and the pace of first tokens are the reference scheduler's of the project's workloads page.

use crate::scheduler::cost::StepWork;
use crate::scheduler::pipeline::InFlight;
use crate::scheduler::prompts::Share;
use crate::scheduler::sequence::Sequence;
use crate::scheduler::state::Scheduler;
use tiercel_config::Budget;
use tiercel_device::{Tier, Timestamp};

/// Share of a target that is aimed at: steps are not as long as predicted.
pub(crate) const AIM: f64 = 0.98;
/// How long before the target a first token is aimed at, in times of the mean error of a predicted step.
const FIRST_TOKEN_MARGIN: f64 = 30.0;
/// That error is taken to be at least this, as a share of the step: little is known of it at first.
const LEAST_ERROR: f64 = 0.03;
/// Share of the tightest target for a first token that a step may take with nothing urgent in it: who comes meanwhile
/// waits for its end. Less makes steps of worse tiers short, and so dear, where no better request ever comes.
const BLOCKING: f64 = 0.2;
/// The least of that, in times of an empty step.
const LEAST_BLOCKING: f64 = 2.0;
/// A tier of which nobody came for so long is not waited for, us.
const LATELY_US: u64 = 60_000_000;
/// A premium stream saves the reserve over about so many tokens: sooner costs worse tiers more, and a short stream
/// has not many.
const SAVING_TOKENS: f64 = 30.0;
/// How far behind a stream may be and still set the pace, in times of its target. What is further behind was
/// held up by something that shorter steps do not cure: its reader, an operator, a preemption. Not much less:
/// where long steps put every stream behind, without a pace they would only get longer.
const MAX_BEHIND: f64 = 64.0;

/// How long the next step may be, and what of it first tokens that are due need.
#[derive(Debug)]
pub(crate) struct Pace {
    /// Lengths of the step that the streams allow, us, by tier; infinite without a stream that has a target it
    /// can still meet.
    allowances: [f64; Tier::ALL.len()],
    /// Length of a step that holds nothing urgent, us.
    blocking_us: f64,
    /// Time that prompts of each tier must be given in the step for their first tokens to come in time, us.
    pressing_us: [f64; Tier::ALL.len()],
    /// What premium streams allow worse tiers, us.
    guarded_us: f64,
}

impl Pace {
    /// What streams of better tiers than `tier` allow.
    fn above(&self, tier: Tier) -> f64 {
        let least = self.allowances[..tier.index()].iter().copied().fold(f64::INFINITY, f64::min);
        if tier > Tier::Premium { least.min(self.guarded_us) } else { least }
    }

    /// The least, and its tier.
    fn tightest(&self) -> Option<(Tier, f64)> {
        let all = Tier::ALL.into_iter().zip(self.allowances);
        all.min_by(|a, b| a.1.total_cmp(&b.1)).filter(|(_, us)| us.is_finite())
    }

    /// What the better streams and prompts leave to background streams, `bare_us` being the length of a step of
    /// the better streams alone.
    pub(crate) fn left_to_background(&self, bare_us: f64) -> f64 {
        self.above(Tier::Background).min(self.blocking_us)
            - bare_us
            - self.pressing_us.iter().sum::<f64>()
    }

    /// By how much a step of the better streams, that alone takes `bare_us`, is too long for premium ones if
    /// premium prompts are given in it what they need, us.
    pub(crate) fn over_premium(&self, bare_us: f64) -> f64 {
        let pressing: f64 = self.pressing_us[..Tier::Standard.index()].iter().sum();
        bare_us + pressing - self.above(Tier::Standard)
    }

    /// Time for prompts in a step that without them takes `bare_us`: what all streams allow; more where first
    /// tokens would come late otherwise, as far as the streams of tiers better than theirs allow it.
    pub(crate) fn prefill_us(&self, bare_us: f64) -> f64 {
        let tightest_us = self.tightest().map_or(f64::INFINITY, |(_, us)| us);
        let mut budget = tightest_us.min(self.guarded_us).min(self.blocking_us) - bare_us;
        let mut pressing = 0.0;
        for tier in Tier::ALL {
            pressing += self.pressing_us[tier.index()];
            budget = budget.max(pressing.min(self.above(tier) - bare_us));
        }
        budget.max(0.0)
    }
}

impl Scheduler {
    /// The pace of a step with these candidates; `None` if steps are of a fixed size.
    pub(crate) fn pace(&self, candidates: &[Share<'_>], now: Timestamp) -> Option<Pace> {
        if self.settings.budget == Budget::Fixed {
            return None;
        }
        // Background streams that may sit it out are no reason why a better one could not catch up.
        let counts = |share: &&Share<'_>| {
            !self.settings.pause_background || share.sequence.tier < Tier::Background
        };
        let bare_us = self.cost.step_us(&streams_in(candidates.iter().filter(counts)));
        let (allowances, guarded_us) = self.allowances(candidates, bare_us, now);
        let mut pace = Pace {
            allowances,
            guarded_us,
            pressing_us: [0.0; Tier::ALL.len()],
            blocking_us: self.blocking_us(now),
        };
        let (paced, tightest_us) = pace.tightest().unwrap_or((Tier::Background, f64::INFINITY));
        let step_us = tightest_us.min(pace.blocking_us);
        if step_us.is_finite() {
            self.press(&mut pace, candidates, (bare_us, step_us.max(bare_us)), paced, now);
        }
        Some(pace)
    }

    /// Length of a step that holds nothing urgent, us; infinite if nobody came lately who has a target for the first
    /// token, or all requests are of one tier: a shorter step makes as many of them wait for longer.
    pub(crate) fn blocking_us(&self, now: Timestamp) -> f64 {
        if self.one_tier_comes(now) {
            return f64::INFINITY;
        }
        let targets = Tier::ALL
            .into_iter()
            .filter(|tier| self.came_lately(*tier, now))
            .filter_map(|tier| self.slo.of(tier).ttft_ms);
        let target_us = targets.fold(f64::INFINITY, f64::min) * 1000.0;
        // On a slow device most of a shorter one would be what every step costs.
        (BLOCKING * target_us).max(LEAST_BLOCKING * self.cost.step_us(&StepWork::default()))
    }

    /// Whether requests of the tier came lately.
    fn came_lately(&self, tier: Tier, now: Timestamp) -> bool {
        self.came_at[tier.index()].is_some_and(|at| now.since_us(at) <= LATELY_US)
    }

    /// Whether requests of a better tier came lately: what is kept from a tier is kept while they come.
    pub(crate) fn better_came_lately(&self, tier: Tier, now: Timestamp) -> bool {
        Tier::ALL[..tier.index()].iter().any(|better| self.came_lately(*better, now))
    }

    /// Whether all requests that came lately, and all that wait, are of one tier.
    pub(crate) fn one_tier_comes(&self, now: Timestamp) -> bool {
        let waiting = self.sequences.unstarted_tokens();
        let comes = |tier: &Tier| waiting[tier.index()] > 0 || self.came_lately(*tier, now);
        Tier::ALL.into_iter().filter(comes).count() <= 1
    }

    /// Finds what prompts that are due need of a step of `step_us`, that without them takes `bare_us`.
    fn press(
        &self,
        pace: &mut Pace,
        candidates: &[Share<'_>],
        (bare_us, step_us): (f64, f64),
        paced: Tier,
        now: Timestamp,
    ) {
        for tier in Tier::ALL {
            let prompts = candidates.iter().filter(|share| !share.decoding);
            let prompts = prompts.map(|share| share.sequence).filter(|s| s.tier == tier);
            let mut demand = Demand::default();
            for prompt in prompts {
                self.demand(prompt, step_us, tier < paced, now, &mut demand);
            }
            pace.pressing_us[tier.index()] = demand.in_step(step_us, bare_us);
        }
    }

    /// When the first token of a sequence should come; never, without a target.
    pub(crate) fn first_token_due(&self, sequence: &Sequence) -> Timestamp {
        let after_us = sequence.targets.ttft_ms.map_or(u64::MAX, |ms| (ms * 1000.0) as u64);
        Timestamp(sequence.arrival.0.saturating_add(after_us))
    }

    /// How late a stream is, for comparison: the further it is ahead of its target, the less. 0 without a
    /// target.
    pub(crate) fn lateness(&self, stream: &Sequence, now: Timestamp) -> u64 {
        let (Some(target_ms), Some(first)) = (stream.targets.tpot_ms, first_token(stream, now))
        else {
            return 0;
        };
        let due_us = target_ms * 1000.0 * (f64::from(stream.planned_output()) - 1.0);
        let ahead_us = due_us - now.since_us(first) as f64;
        // The cast saturates: nobody is half of all time ahead.
        (u64::MAX as f64 / 2.0 - ahead_us).max(1.0) as u64
    }

    /// How far a stream is ahead of all its targets, us, if it is by more than a step of `step_us`.
    pub(crate) fn ahead_us(&self, stream: &Sequence, step_us: f64, now: Timestamp) -> Option<f64> {
        let first = first_token(stream, now)?;
        let by_pace = stream.targets.tpot_ms.map_or(f64::INFINITY, |ms| {
            ms * 1000.0 * f64::from(stream.planned_output()) - now.since_us(first) as f64
        });
        let by_end = stream.targets.e2e_ms.map_or(f64::INFINITY, |ms| {
            let still = (3.0 * stream.predicted_tokens - f64::from(stream.planned_output()))
                .clamp(1.0, f64::from(stream.output_left()).max(1.0));
            ms * 1000.0 - now.since_us(stream.arrival) as f64 - still * 1.5 * step_us
        });
        Some(by_pace.min(by_end)).filter(|us| *us > 2.0 * step_us)
    }

    /// What the streams allow, by tier, and what premium ones allow worse tiers; `bare_us` is the length of a step
    /// without prompts.
    fn allowances(
        &self,
        candidates: &[Share<'_>],
        bare_us: f64,
        now: Timestamp,
    ) -> ([f64; Tier::ALL.len()], f64) {
        // The reserve is kept from worse tiers.
        let reserve_us = if self.one_tier_comes(now) { 0.0 } else { self.reserve.us() };
        let mut least = [f64::INFINITY; Tier::ALL.len()];
        let mut guarded_us = f64::INFINITY;
        for share in candidates.iter().filter(|share| share.decoding) {
            let tier = share.sequence.tier;
            if let Some((aim_us, spare_us)) = self.allowance(share.sequence, bare_us, now) {
                let step_us = aim_us + spare_us;
                least[tier.index()] = least[tier.index()].min(step_us);
                if tier <= Tier::Premium {
                    let saving_us =
                        (reserve_us / SAVING_TOKENS).min(self.reserve.saving_max() * aim_us);
                    let until_saved_us = step_us.min(aim_us - saving_us);
                    guarded_us = guarded_us.min(until_saved_us.max(step_us - reserve_us));
                }
            }
        }
        (least, guarded_us)
    }

    /// Learns what premium's part of a step that ran took of streams beside it.
    pub(crate) fn learn_of_premium(&mut self, in_flight: &InFlight, step_us: f64, now: Timestamp) {
        if let Some(target_ms) = self.slo.of(Tier::Premium).tpot_ms {
            let own_us: f64 = in_flight.time_us[..=Tier::Premium.index()].iter().sum();
            let premium_us = self.cost.step_us(&StepWork::default()) + own_us;
            self.reserve.stepped(premium_us, target_ms * 1000.0 * AIM, step_us, now);
        }
    }

    /// Length of the next step that a stream allows, us: what is aimed at, and what it has saved, or less if it is
    /// behind; `None` without a target it can still meet.
    fn allowance(&self, stream: &Sequence, bare_us: f64, now: Timestamp) -> Option<(f64, f64)> {
        let aim_us = stream.targets.tpot_ms? * 1000.0 * AIM;
        let elapsed_us = now.since_us(first_token(stream, now)?) as f64;
        let bank_us = aim_us * (f64::from(stream.planned_output()) - 1.0) - elapsed_us;
        let can_gain_us = f64::from(stream.output_left()) * (aim_us - bare_us);
        let lost = bank_us + can_gain_us < 0.0 || bank_us < -MAX_BEHIND * aim_us;
        (!lost).then_some((aim_us, bank_us))
    }

    /// Adds what a prompt must be given for its first token to come in time. One that is late whatever is done
    /// goes on as fast as if it had just come, or, if paced streams `may_wait` for it, at once.
    fn demand(
        &self,
        prompt: &Sequence,
        step_us: f64,
        may_wait: bool,
        now: Timestamp,
        demand: &mut Demand,
    ) {
        let starts = prompt.planned_output() == 0;
        let Some(target_ms) = prompt.targets.ttft_ms.filter(|_| starts) else {
            return;
        };
        let target_us = target_ms * 1000.0;
        let error = self.cost.error().step.max(LEAST_ERROR);
        let aim_us = target_us - FIRST_TOKEN_MARGIN * error * step_us;
        let left = prompt.left_to_compute();
        let left_us = self.cost.prefill_us(left, prompt.planned_len() - left);
        // The first token comes at the end of its step.
        let spent_us = now.since_us(prompt.arrival) as f64 + step_us;
        if spent_us + step_us < aim_us {
            demand.due.push((aim_us - spent_us, left_us));
        } else if spent_us <= target_us || may_wait {
            demand.now_us += left_us;
        } else {
            let whole_us = self.cost.prefill_us(prompt.planned_len(), 0);
            demand.now_us += (whole_us * step_us / aim_us.max(step_us)).min(left_us);
        }
    }
}

/// When the first token of a stream came; one that is being sampled comes when the step that is planned for `now`
/// begins.
fn first_token(stream: &Sequence, now: Timestamp) -> Option<Timestamp> {
    stream.first_token_at.or_else(|| (stream.planned_output() > 0).then_some(now))
}

/// What prompts of a tier must be given for their first tokens to come in time.
#[derive(Debug, Default)]
struct Demand {
    /// In the next step, us.
    now_us: f64,
    /// Within a time, us: the time and what is to be given, us.
    due: Vec<(f64, f64)>,
}

impl Demand {
    /// What a step of at least `step_us`, that without prompts takes `bare_us`, must give them if the steps after it
    /// give as much: whoever is due first goes first, and by each due time all that are due until then must be
    /// done.
    fn in_step(mut self, step_us: f64, bare_us: f64) -> f64 {
        self.due.sort_unstable_by(|a, b| a.0.total_cmp(&b.0));
        let (mut sum_us, mut share) = (0.0, 0.0_f64);
        for (within_us, left_us) in self.due {
            sum_us += left_us;
            share = share.max(sum_us / within_us);
        }
        // A step in which prompts have that share of the time is at least so long.
        let longer_us = if share < 1.0 { bare_us / (1.0 - share) } else { f64::INFINITY };
        self.now_us + (share * step_us.max(longer_us)).min(sum_us)
    }
}

/// The work of the streams among candidates.
pub(crate) fn streams_in<'a, 'b: 'a>(candidates: impl Iterator<Item = &'a Share<'b>>) -> StepWork {
    let mut work = StepWork::default();
    for stream in candidates.filter(|share| share.decoding) {
        work.add_decode(stream.len);
    }
    work
}
