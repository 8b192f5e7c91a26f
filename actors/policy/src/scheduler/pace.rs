//! How much prompt a step may hold, so that those who wait for its end keep what they were promised.
//!
//! All members of a step get their token when it ends, so every prompt token in it is paid for by every
//! stream. A stream with a TPOT target may take `target` per token on average: what its steps so far took
//! less than that is its bank, and the next step may take the target plus the bank. The stream with the
//! least to spend sets the length of the step, and prompts fill it up to there.
//!
//! Nothing is gained by hurrying for a stream that cannot meet its target any more, and a prompt is held up
//! no longer than its own target for the first token allows: see [`Scheduler::prefill_budget`].
//!
//! The bank and the pace of first tokens are the reference scheduler's of the project's workloads page.

use crate::scheduler::preset::Budget;
use crate::scheduler::sequence::Sequence;
use crate::scheduler::state::Scheduler;
use tiercel_config::SloTargets;
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

/// What the streams of a step allow.
struct Allowance {
    /// Length of the step, us.
    step_us: f64,
    /// Tier of the stream that has the least to spend.
    tier: Tier,
}

impl Scheduler {
    /// Most prompt tokens of a step with these candidates, of whom `decodes` are streams.
    ///
    /// The streams' allowance, but never less than brings the first tokens of requests at least as good
    /// as the tightest stream in time.
    pub(crate) fn prefill_budget(
        &self,
        candidates: &[&Sequence],
        decodes: u32,
        now: Timestamp,
    ) -> u32 {
        let room = self.settings.max_num_batched_tokens.saturating_sub(decodes);
        if self.preset.budget == Budget::Fixed {
            return room;
        }
        let streams = || candidates.iter().copied().filter(|sequence| sequence.decoding());
        let kv_tokens = streams().map(|sequence| u64::from(sequence.len())).sum();
        let bare_us = self.cost.step_us(decodes, 0, kv_tokens);
        let Some(allowance) = self.allowance(streams(), bare_us, now) else { return room };
        let token_us = (self.cost.step_us(decodes, 1, kv_tokens) - bare_us).max(1e-3);
        let spare = ((allowance.step_us - bare_us) / token_us).max(0.0) as u32;
        let step_us = allowance.step_us.max(bare_us);
        let pressing = candidates
            .iter()
            .filter_map(|prompt| self.pressing_tokens(prompt, step_us, allowance.tier, now))
            .fold(0, u32::saturating_add);
        spare.max(pressing).max(MIN_TOKENS).min(room)
    }

    /// The least that a stream has to spend; `None` if none has a target that it can still meet.
    /// `bare_us` is the length of a step without prompts.
    fn allowance<'a>(
        &self,
        streams: impl Iterator<Item = &'a Sequence>,
        bare_us: f64,
        now: Timestamp,
    ) -> Option<Allowance> {
        let allowances = streams.filter_map(|stream| {
            let aim_us = self.targets(stream.tier)?.tpot_ms? * 1000.0 * AIM;
            let elapsed_us = now.since_us(stream.first_token_at?) as f64;
            let bank_us = aim_us * (f64::from(stream.output_len()) - 1.0) - elapsed_us;
            let can_gain_us = f64::from(stream.output_left()) * (aim_us - bare_us);
            let step_us = aim_us + if bank_us < 0.0 { bank_us / CATCH_UP_STEPS } else { bank_us };
            (bank_us + can_gain_us >= 0.0).then_some(Allowance { step_us, tier: stream.tier })
        });
        allowances.min_by(|a, b| a.step_us.total_cmp(&b.step_us))
    }

    /// Tokens of a prompt that a step of `step_us` must hold for its first token to come in time, if the
    /// steps until then hold as many. One that is late already goes on as fast as if it had just come,
    /// unless it is of a better tier than the `paced` stream, which then may wait; nothing without a target.
    fn pressing_tokens(
        &self,
        prompt: &Sequence,
        step_us: f64,
        paced: Tier,
        now: Timestamp,
    ) -> Option<u32> {
        let starts = !prompt.decoding() && prompt.output_len() == 0 && prompt.tier <= paced;
        if !starts {
            return None;
        }
        let aim_us = self.targets(prompt.tier)?.ttft_ms? * 1000.0 * FIRST_TOKEN_AIM;
        let left = prompt.len() - prompt.computed;
        // The first token comes at the end of its step.
        let time_us = aim_us - step_us - now.since_us(prompt.arrival) as f64;
        let over_us = if time_us > step_us {
            time_us
        } else if time_us + step_us < 0.0 && prompt.tier == paced {
            aim_us
        } else {
            step_us
        };
        Some((f64::from(left) * (step_us / over_us).min(1.0)).ceil() as u32)
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

#[cfg(test)]
mod tests {
    use crate::scheduler::tests::{all_sample, scheduler, sequence, submit};
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

    /// Tokens of sequence `id` in the next step, planned at `now`.
    fn tokens(s: &mut Scheduler, id: u64, now: u64) -> u32 {
        let request = s.plan(Timestamp(now)).expect("a step");
        let want = request.wants.iter().find(|want| want.ticket.seq == SeqId(id));
        want.map_or(0, |want| want.new_tokens)
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
        // Three more steps can save 1167 us at most.
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
        stream(&mut s, Tier::Premium, 1000, 1000);
        s.enqueue(sequence(2, Tier::Standard, 200));
        assert_eq!(tokens(&mut s, 2, 1000 + 100_000), 16);
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
        // 1010 us and this step are left: 490 us of them take 98 tokens.
        assert_eq!(plan(Tier::Premium, 13_000), 98);
        assert_eq!(plan(Tier::Premium, 12_000), 200, "this step or never");
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
}
