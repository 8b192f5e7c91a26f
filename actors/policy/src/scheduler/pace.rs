//! How much prompt a step may hold, so that those who wait for its end keep what they were promised.
//!
//! All members of a step get their token when it ends, so every prompt token in it is paid for by every
//! stream. A stream with a TPOT target may take `target` per token on average: what its steps so far took
//! less than that is its bank, and the next step may take the target plus the bank. The stream with the
//! least to spend sets the length of the step, and prompts fill it up to there.
//!
//! Nothing is gained by hurrying for a stream that cannot meet its target any more, nor by holding up a
//! prompt beyond its own target for the first token: see [`Scheduler::prefill_budget`].

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
    /// as the tightest stream in time, as long as that is possible.
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
        let pressing = self.pressing_tokens(candidates, &allowance, now);
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

    /// Prompt tokens of this step without which a first token would come late.
    fn pressing_tokens(
        &self,
        candidates: &[&Sequence],
        allowance: &Allowance,
        now: Timestamp,
    ) -> u32 {
        let prompts = candidates.iter().filter(|sequence| {
            !sequence.decoding() && sequence.output_len() == 0 && sequence.tier <= allowance.tier
        });
        let needed = prompts.filter_map(|prompt| {
            let target_us = self.targets(prompt.tier)?.ttft_ms? * 1000.0;
            let waited_us = now.since_us(prompt.arrival) as f64;
            let left = f64::from(prompt.len() - prompt.computed);
            let time_us = target_us * FIRST_TOKEN_AIM - waited_us;
            if waited_us >= target_us {
                // It is late already.
                None
            } else if time_us <= allowance.step_us {
                Some(left)
            } else {
                Some(left * allowance.step_us.max(0.0) / time_us)
            }
        });
        needed.sum::<f64>().ceil() as u32
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
