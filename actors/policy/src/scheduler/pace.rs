//! How much prompt a step may hold, so that those who wait for its end keep what they were promised.
//!
//! All members of a step get their token when it ends, so every prompt token in it is paid for by every
//! stream. A stream with a TPOT target may take `target` per token on average: what its steps so far took
//! less than that is its bank, and the next step may take the target plus the bank. The stream with the
//! least to spend sets the length of the step, and prompts fill it up to there.
//!
//! Nothing is gained by hurrying for a stream that cannot meet its target any more. Prompts whose first
//! tokens are due go before the pace of streams of their own and of worse tiers: see
//! [`Scheduler::prefill_budget`].
//!
//! The bank and the pace of first tokens are the reference scheduler's of the project's workloads page.

use crate::scheduler::prompts::{Share, streams_in};
use crate::scheduler::sequence::Sequence;
use crate::scheduler::state::Scheduler;
use tiercel_config::{Budget, SloTargets};
use tiercel_device::{Tier, Timestamp};

/// Share of a target that is aimed at: steps are not as long as predicted.
const AIM: f64 = 0.98;
/// A stream that is behind catches up over about so many steps, not in one: a step without prompts costs
/// those that wait for their first token more than it gives.
const CATCH_UP_STEPS: f64 = 6.0;
/// Share of the target for the first token after which a prompt is not held up any more.
const FIRST_TOKEN_AIM: f64 = 0.85;
/// Prompt tokens that every step may hold: somebody's first token must come nearer, however little the
/// streams have to spend.
const MIN_TOKENS: u32 = 16;

/// How far behind a stream may be and still set the pace, in times of its target. What is further behind was
/// held up by something that shorter steps do not cure: its reader, an operator, a preemption. Not much less:
/// where long steps put every stream behind, without a pace they would only get longer.
const MAX_BEHIND: f64 = 64.0;

/// Lengths of the step that the streams allow, us, by tier; infinite without a stream that has a target it
/// can still meet.
struct Allowances([f64; Tier::ALL.len()]);

impl Allowances {
    /// What streams of better tiers than `tier` allow.
    fn above(&self, tier: Tier) -> f64 {
        self.0[..tier.index()].iter().copied().fold(f64::INFINITY, f64::min)
    }

    /// The least, and its tier.
    fn tightest(&self) -> Option<(Tier, f64)> {
        let all = Tier::ALL.into_iter().zip(self.0);
        all.min_by(|a, b| a.1.total_cmp(&b.1)).filter(|(_, us)| us.is_finite())
    }
}

impl Scheduler {
    /// Most prompt tokens of a step with these candidates.
    ///
    /// What all streams allow; more where first tokens would come late otherwise, as far as the streams of
    /// tiers better than theirs allow it.
    pub(crate) fn prefill_budget(&self, candidates: &[Share<'_>], now: Timestamp) -> u32 {
        let (decodes, kv_tokens) = streams_in(candidates);
        let room = self.prefill_room(decodes);
        if self.settings.budget == Budget::Fixed {
            return room;
        }
        let bare_us = self.cost.step_us(decodes, 0, kv_tokens);
        let allowances = self.allowances(streams(candidates), bare_us, now);
        let Some((paced, tightest_us)) = allowances.tightest() else { return room };
        let token_us = (self.cost.step_us(decodes, 1, kv_tokens) - bare_us).max(1e-3);
        // The cast saturates: nothing above means no limit.
        let spare = |step_us: f64| ((step_us - bare_us) / token_us).max(0.0) as u32;
        let step_us = tightest_us.max(bare_us);
        let mut budget = spare(tightest_us).max(MIN_TOKENS);
        let mut pressing = 0_u32;
        for tier in Tier::ALL {
            let prompts = candidates.iter().filter(|share| !share.decoding);
            let prompts = prompts.map(|share| share.sequence).filter(|prompt| prompt.tier == tier);
            let tokens = prompts.filter_map(|p| self.pressing_tokens(p, step_us, paced, now));
            pressing = tokens.fold(pressing, u32::saturating_add);
            budget = budget.max(pressing.min(spare(allowances.above(tier))));
        }
        budget.min(room)
    }

    /// Length of the step that the streams of better tiers than background allow, us, if background may sit
    /// it out.
    pub(crate) fn allowed_by_better(&self, candidates: &[Share<'_>], now: Timestamp) -> f64 {
        let better = || streams(candidates).filter(|stream| stream.tier < Tier::Background);
        let kv_tokens = better().map(|stream| u64::from(stream.len())).sum();
        let bare_us = self.cost.step_us(better().count() as u32, 0, kv_tokens);
        self.allowances(better(), bare_us, now).above(Tier::Background)
    }

    /// When the first token of a sequence should come; never, without a target.
    pub(crate) fn first_token_due(&self, sequence: &Sequence) -> Timestamp {
        let target_ms = self.targets(sequence.tier).and_then(|targets| targets.ttft_ms);
        let after_us = target_ms.map_or(u64::MAX, |ms| (ms * 1000.0) as u64);
        Timestamp(sequence.arrival.0.saturating_add(after_us))
    }

    /// How late a stream is, for comparison: the further it is ahead of its target, the less. 0 without a
    /// target.
    pub(crate) fn lateness(&self, stream: &Sequence, now: Timestamp) -> u64 {
        let target_ms = self.targets(stream.tier).and_then(|targets| targets.tpot_ms);
        let (Some(target_ms), Some(first)) = (target_ms, stream.first_token_at) else { return 0 };
        let due_us = target_ms * 1000.0 * (f64::from(stream.output_len()) - 1.0);
        let ahead_us = due_us - now.since_us(first) as f64;
        // The cast saturates: nobody is half of all time ahead.
        (u64::MAX as f64 / 2.0 - ahead_us).max(1.0) as u64
    }

    /// What the streams allow; `bare_us` is the length of a step without prompts.
    fn allowances<'a>(
        &self,
        streams: impl Iterator<Item = &'a Sequence>,
        bare_us: f64,
        now: Timestamp,
    ) -> Allowances {
        let mut least = [f64::INFINITY; Tier::ALL.len()];
        for stream in streams {
            if let Some(step_us) = self.allowance(stream, bare_us, now) {
                let least = &mut least[stream.tier.index()];
                *least = least.min(step_us);
            }
        }
        Allowances(least)
    }

    /// Length of the next step that a stream allows, us; `None` without a target it can still meet.
    fn allowance(&self, stream: &Sequence, bare_us: f64, now: Timestamp) -> Option<f64> {
        let aim_us = self.targets(stream.tier)?.tpot_ms? * 1000.0 * AIM;
        let elapsed_us = now.since_us(stream.first_token_at?) as f64;
        let bank_us = aim_us * (f64::from(stream.output_len()) - 1.0) - elapsed_us;
        let can_gain_us = f64::from(stream.output_left()) * (aim_us - bare_us);
        let lost = bank_us + can_gain_us < 0.0 || bank_us < -MAX_BEHIND * aim_us;
        let share = if bank_us < 0.0 { 1.0 / CATCH_UP_STEPS } else { 1.0 };
        (!lost).then_some(aim_us + bank_us * share)
    }

    /// Tokens of a prompt that a step of `step_us` must hold for its first token to come in time, if the
    /// steps until then hold as many. One that is late whatever is done goes on as fast as if it had just
    /// come, or if it is of a better tier than the `paced` stream, which then may wait, at once. `None` for
    /// what is no prompt or has no target.
    fn pressing_tokens(
        &self,
        prompt: &Sequence,
        step_us: f64,
        paced: Tier,
        now: Timestamp,
    ) -> Option<u32> {
        if prompt.decoding() || prompt.output_len() > 0 {
            return None;
        }
        let target_us = self.targets(prompt.tier)?.ttft_ms? * 1000.0;
        let aim_us = target_us * FIRST_TOKEN_AIM;
        let left = prompt.len() - prompt.computed;
        // The first token comes at the end of its step.
        let spent_us = now.since_us(prompt.arrival) as f64 + step_us;
        let share = |of: u32, time_us: f64| (f64::from(of) * step_us / time_us).ceil() as u32;
        Some(if spent_us + step_us < aim_us {
            share(left, aim_us - spent_us)
        } else if spent_us <= target_us || prompt.tier < paced {
            left
        } else {
            share(prompt.len(), aim_us.max(step_us)).min(left)
        })
    }

    fn targets(&self, tier: Tier) -> Option<&SloTargets> {
        match tier {
            Tier::System => None,
            Tier::Premium => Some(&self.slo.premium),
            Tier::Standard => Some(&self.slo.standard),
            Tier::Background => Some(&self.slo.background),
        }
    }
}

fn streams<'a>(candidates: &[Share<'a>]) -> impl Iterator<Item = &'a Sequence> {
    candidates.iter().filter(|share| share.decoding).map(|share| share.sequence)
}

#[cfg(test)]
mod tests {
    use crate::scheduler::tests::{all_sample, grant_all, scheduler, sequence, submit};
    use crate::scheduler::{NewSequence, Scheduler};
    use tiercel_config::Policy;
    use tiercel_device::{SeqId, Tier, Timestamp};
    use tiercel_device::{StepBatch, StepDone, StepTiming};

    /// A scheduler whose steps take 100 us, 1 us more for each stream and 10 us for each prompt token,
    /// and the target of whose premium streams is 500 us a token.
    fn paced() -> Scheduler {
        scheduler(|settings| {
            settings.scheduler.max_num_batched_tokens = 256;
            settings.slo.premium.ttft_ms = Some(10.0);
            settings.slo.premium.tpot_ms = Some(0.5);
        })
    }

    /// A step from whose duration nothing can be learned.
    fn sampled(batch: &StepBatch) -> StepDone {
        let mut done = all_sample(batch, 1);
        if let Ok(output) = &mut done.result {
            output.timing = StepTiming { forward_us: 0, sampling_us: 0 };
        }
        done
    }

    /// Starts a stream that had its first token at `first_at`.
    fn stream(s: &mut Scheduler, tier: Tier, max_tokens: u32, first_at: u64) {
        s.enqueue(NewSequence { max_tokens, ..sequence(1, tier, 4) });
        let batch = submit(s);
        s.step_done(sampled(&batch), Timestamp(first_at));
    }

    /// Plans the step at `now`, runs it, and says how many tokens of sequence `id` it had.
    fn tokens(s: &mut Scheduler, id: u64, now: u64) -> u32 {
        let request = s.plan(Timestamp(now)).expect("a step");
        let want = request.wants.iter().find(|want| want.ticket.seq == SeqId(id));
        let tokens = want.map_or(0, |want| want.new_tokens);
        let batch = s.granted(grant_all(&request)).0.expect("a batch");
        s.step_done(sampled(&batch), Timestamp(now));
        tokens
    }

    #[test]
    fn a_stream_may_spend_its_target_and_what_it_has_saved() {
        // 490 us are aimed at: 101 us for the stream, 38 prompt tokens.
        for (now, expected) in [(1000, 38), (1000 + 100, 37), (1000 + 490, 30)] {
            let mut s = paced();
            stream(&mut s, Tier::Premium, 100, 1000);
            s.enqueue(sequence(2, Tier::Background, 200));
            // Behind by less than it can gain: a sixth of it in this step.
            assert_eq!(tokens(&mut s, 2, now), expected, "at {now}");
        }
        let mut s = paced();
        stream(&mut s, Tier::Premium, 100, 1000);
        let batch = submit(&mut s);
        s.step_done(sampled(&batch), Timestamp(1101));
        s.enqueue(sequence(2, Tier::Standard, 200));
        // The last step saved 389 us.
        assert_eq!(tokens(&mut s, 2, 1101), 38 + 39);
    }

    #[test]
    fn nobody_waits_for_a_stream_that_is_lost_or_has_no_target_or_under_a_fixed_budget() {
        let mut s = paced();
        stream(&mut s, Tier::Premium, 5, 1000);
        s.enqueue(sequence(2, Tier::Standard, 200));
        // Four more steps can save 1556 us at most.
        assert_eq!(tokens(&mut s, 2, 1000 + 2000), 200);
        let mut s = paced();
        stream(&mut s, Tier::Background, 100, 1000);
        s.enqueue(sequence(2, Tier::Standard, 200));
        assert_eq!(tokens(&mut s, 2, 1000), 200);
        let mut s = paced();
        s.set_policy(Policy::PriorityPreempt);
        stream(&mut s, Tier::Premium, 100, 1000);
        s.enqueue(sequence(2, Tier::Standard, 200));
        assert_eq!(tokens(&mut s, 2, 1000), 200);
    }

    #[test]
    fn prompts_go_on_however_little_a_stream_has_to_spend() {
        let mut s = paced();
        stream(&mut s, Tier::Premium, 900, 1000);
        s.enqueue(sequence(2, Tier::Standard, 200));
        assert_eq!(tokens(&mut s, 2, 1000 + 4_000), 16);
    }

    #[test]
    fn a_first_token_that_is_due_is_not_held_up_by_a_stream_of_its_tier() {
        let plan = |tier, arrival| {
            let mut s = paced();
            stream(&mut s, Tier::Premium, 100, 20_000);
            s.enqueue(NewSequence { arrival: Timestamp(arrival), ..sequence(2, tier, 200) });
            tokens(&mut s, 2, 20_000)
        };
        // 8500 us are aimed at; just arrived, 13 tokens a step would do and there is room for 38.
        assert_eq!(plan(Tier::Premium, 20_000), 38);
        // This step and 1010 us are left: 490 us of them take 98 tokens.
        assert_eq!(plan(Tier::Premium, 13_000), 98);
        assert_eq!(plan(Tier::Premium, 12_000), 200, "this step or not as aimed at");
        assert_eq!(plan(Tier::Premium, 10_500), 200, "this step or never");
        assert_eq!(plan(Tier::Premium, 5_000), 38, "late already: as if it had just come");
        assert_eq!(plan(Tier::Standard, 5_000), 38, "no business of a premium stream");
    }

    #[test]
    fn a_better_prompt_goes_before_the_pace_of_a_worse_stream_even_when_it_is_late() {
        let mut s = paced();
        s.slo.standard.tpot_ms = Some(0.5);
        stream(&mut s, Tier::Standard, 100, 20_000);
        s.enqueue(NewSequence { arrival: Timestamp(0), ..sequence(2, Tier::Premium, 200) });
        assert_eq!(tokens(&mut s, 2, 20_000), 200);
    }

    #[test]
    fn a_late_prompt_keeps_its_pace_to_the_end() {
        let mut s = paced();
        s.slo.premium.ttft_ms = Some(4.0);
        stream(&mut s, Tier::Premium, 1000, 20_000);
        s.enqueue(NewSequence { arrival: Timestamp(0), ..sequence(2, Tier::Premium, 700) });
        // 3400 us for 700 tokens are 101 in 490 us.
        for (steps, expected) in [101, 101, 101, 101, 101, 101, 94].into_iter().enumerate() {
            assert_eq!(tokens(&mut s, 2, 20_000 + 490 * steps as u64), expected);
        }
    }

    #[test]
    fn a_worse_prompt_that_is_due_does_not_break_the_pace_of_a_better_stream() {
        let mut s = paced();
        (s.slo.standard.tpot_ms, s.slo.standard.ttft_ms) = (Some(0.3), Some(10.0));
        stream(&mut s, Tier::Premium, 100, 20_000);
        s.enqueue(NewSequence { max_tokens: 100, ..sequence(3, Tier::Standard, 4) });
        let batch = submit(&mut s);
        s.step_done(sampled(&batch), Timestamp(20_490));
        // The standard stream allows 294 us, the premium one 490: 38 and 19 tokens beside 102 us.
        s.enqueue(NewSequence { arrival: Timestamp(12_000), ..sequence(2, Tier::Standard, 200) });
        assert_eq!(tokens(&mut s, 2, 20_490), 38);
    }

    #[test]
    fn a_stream_that_was_held_for_long_sets_no_pace() {
        let mut s = paced();
        stream(&mut s, Tier::Premium, 900, 1000);
        s.enqueue(sequence(2, Tier::Standard, 200));
        assert_eq!(tokens(&mut s, 2, 1000 + 31_000), 16);
        let mut s = paced();
        stream(&mut s, Tier::Premium, 900, 1000);
        s.enqueue(sequence(2, Tier::Standard, 200));
        assert_eq!(tokens(&mut s, 2, 1000 + 32_000), 200);
    }
}
