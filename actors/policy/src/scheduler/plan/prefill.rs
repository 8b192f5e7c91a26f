//! Prefill: how many tokens of each prompt a step computes. A prompt is here any candidate with more than one token
//! left to compute (`Candidate::one_token_left` is false), so also a preempted stream whose KV must be computed again
//! or copied in. A prompt with one token left is handled as a decode.

use crate::scheduler::basis::Basis;
use crate::scheduler::budget::step_budget::StepBudget;
use crate::scheduler::candidate::{Candidate, decode_work};
use crate::scheduler::plan::prefill_order::{in_order, order_in_force, several_tiers_share};
use crate::scheduler::plan::view::View;
use crate::scheduler::queue::arrivals::Traffic;
use crate::scheduler::rules::Rules;
use crate::scheduler::sequence::{Phase, Sequence};
use tiercel_config::PrefillOrder;
use tiercel_device::Tier;

/// Most prompt tokens that a step computes, with chunked prefill, if its streams leave no time for prompts. A step
/// computes at least one prompt token, so that prefill never stops.
const UNAFFORDED_MAX_TOKENS: u32 = 16;
/// Longest time of prompts in a step whose streams leave no time for prompts, as a share of the bare step. Without this
/// bound, streams behind their TPOT targets would never catch up on a device with costly prompts, such as a CPU.
const UNAFFORDED_SHARE: f64 = 0.15;

/// A long chunk waits for the next step if this step finishes another prompt of the same tier, and the next step has
/// time for the whole prompt. A chunk is long if the bare step takes at most this share of the chunk's time. The
/// finished prompt gets its first token sooner by the time of the chunk, and the first token of the waiting prompt
/// comes no later if the next step has as much time and room.
const LONG_CHUNK_SHARE: f64 = 0.25;

/// Decides how many tokens of each candidate the step computes. Each decode gets its one token first, so that a long
/// prompt never stalls a stream. Prompts share the rest of the step. But with a step budget and
/// `scheduler.prefill_order = deadline`, once the step surely finishes a prompt, the next prompt of its tier waits if
/// only a long chunk of it fits and the next step has time and room for the whole prompt ([`LONG_CHUNK_SHARE`]).
/// `prompts` says whether any candidate may be a prompt. With `by_rank` prompts go by rank alone.
pub(crate) fn give_tokens(
    candidates: &mut [Candidate<'_>],
    budget: Option<&StepBudget>,
    view: &View<'_>,
    (prompts, by_rank): (bool, bool),
) {
    let View { basis, memory, traffic, begins, .. } = *view;
    for candidate in candidates.iter_mut().filter(|candidate| candidate.one_token_left) {
        candidate.tokens = 1;
    }
    if !prompts {
        return;
    }
    let bare = decode_work(candidates.iter());
    let bare_us = basis.cost.step_us(&bare);
    let least =
        basis.cost.prefill_tokens_in(bare_us * UNAFFORDED_SHARE, 0).clamp(1, UNAFFORDED_MAX_TOKENS);
    let tokens = basis.rules.prefill_room(bare.decode_tokens);
    // A bare step of 0 us, which a device without a measured speed has, does not count as short.
    let separates = budget.is_some() && bare_us > 0.0;
    let mut room = PrefillRoom {
        time_us: budget.map_or(f64::INFINITY, |budget| budget.prefill_us(bare_us)),
        used_us: 0.0,
        tokens,
        background_tokens: tokens.min(background_tokens(&basis.rules, traffic)),
        least,
        long_chunk_bare_us: if separates { bare_us } else { f64::INFINITY },
        shortage: memory.shortage,
        finished: None,
        used_tokens: 0,
        partial: 0,
    };
    // Share of the device's time that prompts have if later steps are like this one.
    let prompts_us = room.time_us.min(basis.cost.prefill_us(tokens, 0));
    let share = prompts_us / (prompts_us + bare_us).max(1.0);
    let order = match by_rank {
        true => PrefillOrder::Rank,
        false => order_in_force(candidates, basis, (share, traffic.one_tier), begins),
    };
    let tiers_share = several_tiers_share(candidates);
    for at in in_order(candidates, (&basis.rules, order), tiers_share) {
        let sequence = candidates[at].sequence;
        let shares = tiers_share && sequence.service.key.class.payer().is_some();
        match room.chunk(sequence, shares, basis) {
            Chunk::Tokens(tokens) => candidates[at].tokens = tokens,
            Chunk::Skip => continue,
            Chunk::StepIsFull => break,
        }
    }
}

/// Time and tokens that the step has for prompts, and how much of them is used up.
struct PrefillRoom {
    /// Time that the step has for all its prompts, us.
    time_us: f64,
    /// Time that prompts of the step have used up so far, us.
    used_us: f64,
    /// Number of tokens that the step has for all its prompts.
    tokens: u32,
    /// Number of prompt tokens in the step beyond which prompts of the background tier get no more tokens.
    background_tokens: u32,
    /// Number of tokens that all prompts together may get even if the step has no time for them.
    least: u32,
    /// Time of the bare step, us. If this step finishes another prompt of the same tier, a chunk counts as long if its
    /// time is long beside this time ([`LONG_CHUNK_SHARE`]). The time is infinite, so that no chunk is long, if the
    /// settings give steps a fixed size or if the bare step is predicted to take 0 us.
    long_chunk_bare_us: f64,
    /// Whether the block store's last answer denied a want.
    shortage: bool,
    /// Effective tier of the last prompt that the step surely finishes; `None` if there is none yet.
    finished: Option<Tier>,
    /// Number of tokens that prompts of the step have used up so far.
    used_tokens: u32,
    /// Number of prompts of which the step computes only a part.
    partial: u32,
}

/// The chunk of one prompt that the step computes.
enum Chunk {
    /// The step computes this many tokens of the prompt.
    Tokens(u32),
    /// The step computes no token of this prompt, but may compute tokens of the prompts after it in the order.
    Skip,
    /// The step computes nothing of this prompt, nor of any prompt after it in the order: the step is full, or a long
    /// chunk of this prompt waits for the next step.
    StepIsFull,
}

impl PrefillRoom {
    /// Chooses how many tokens of a prompt the step computes, and adds these tokens and their time to `used_tokens` and
    /// `used_us`. `shares`: whether the prompt has a payer, and prompts of the step have different payers.
    fn chunk(&mut self, sequence: &Sequence, shares: bool, basis: &Basis) -> Chunk {
        let settings = &basis.rules.scheduling;
        // Do not apply the token limit of background prompts if tiers share time: the tiers' fair queue limits these
        // prompts already.
        let limited = sequence.tier == Tier::Background && settings.chunked_prefill && !shares;
        let most = if limited { self.background_tokens } else { self.tokens };
        let left = sequence.left_to_compute();
        let computed = sequence.planned_len() - left;
        let tier = sequence.service.key.class.tier();
        let next = left.min(most).min(basis.rules.longest_chunk());
        let affordable = basis.cost.prefill_tokens_in(self.time_us - self.used_us, computed);
        let least = self.least.saturating_sub(self.used_tokens);
        let tokens = match most.saturating_sub(self.used_tokens).min(affordable.max(least)) {
            free if settings.chunked_prefill => {
                chunk(left, free, self.used_tokens == 0, &basis.rules)
            }
            free if left <= free => left,
            _ if self.used_tokens == 0 => left.min(self.tokens),
            // Without chunked prefill, a prompt that does not fit waits for the next step, and so do all prompts after
            // it: if they overtook it, it could be pushed out of the next step too.
            _ => return Chunk::StepIsFull,
        };
        let chunk_us = basis.cost.prefill_us(tokens, computed);
        let leaves_partial = tokens < left;
        let most_partial = settings.max_partial_prefills;
        if leaves_partial && most_partial > 0 && self.partial >= most_partial {
            return Chunk::Skip;
        }
        // `left` must be less than `most`, not equal: the other prompt, which this step finishes, takes one token of
        // the next step, because it decodes there.
        let next_finishes = next == left && left < most;
        if leaves_partial && next_finishes && self.chunk_waits(sequence, chunk_us, basis) {
            return Chunk::StepIsFull;
        }
        self.partial += u32::from(leaves_partial && tokens > 0);
        if tokens == left && !self.may_lack_blocks(sequence) {
            self.finished = Some(tier);
        }
        self.used_tokens += tokens;
        self.used_us += chunk_us;
        Chunk::Tokens(tokens)
    }

    /// Whether the prompt may lack blocks, so that the step may not compute it: the block store's last answer denied
    /// blocks to the prompt, or to any sequence if the prompt holds none yet, or the prompt's blocks must be copied in
    /// from the host first. No other prompt waits for such a prompt.
    fn may_lack_blocks(&self, sequence: &Sequence) -> bool {
        let opens = sequence.phase == Phase::Waiting;
        sequence.kv.denied_at.is_some() || opens && (self.shortage || sequence.kv.saved)
    }

    /// Whether a chunk of `chunk_us` that leaves a rest of the prompt waits, because this step finishes another prompt
    /// of its tier, a bare step takes at most the share [`LONG_CHUNK_SHARE`] of the chunk's time, and the next step has
    /// time for the whole prompt. A chunk waits only with `scheduler.prefill_order = deadline`. A prompt
    /// that comes later then overtakes the waiting one only if the waiting one is late or has a later deadline. If the
    /// shortest prompts went first, a prompt that waits could be overtaken again and again.
    fn chunk_waits(&self, sequence: &Sequence, chunk_us: f64, basis: &Basis) -> bool {
        let by_deadline = basis.rules.scheduling.prefill_order == PrefillOrder::Deadline;
        let left = sequence.left_to_compute();
        let whole_us = basis.cost.prefill_us(left, sequence.planned_len() - left);
        let tier = sequence.service.key.class.tier();
        let long = chunk_us * LONG_CHUNK_SHARE >= self.long_chunk_bare_us;
        by_deadline && self.finished == Some(tier) && long && whole_us <= self.time_us
    }
}

/// Returns how many tokens of a prompt the step computes. The step has room for `room` tokens, the prompt has `left`
/// tokens to compute, and `first` says that no prompt of the step has got tokens yet.
fn chunk(left: u32, room: u32, first: bool, rules: &Rules) -> u32 {
    let chunk = left.min(room).min(rules.longest_chunk());
    let unit = rules.scheduling.chunk_alignment.max(1);
    let aligned = chunk - chunk % unit;
    // Chunks are multiples of `scheduler.chunk_alignment`, except the last chunk of a prompt, and except for the first
    // prompt of a step if no whole multiple fits, so that it makes progress.
    if chunk == left || (aligned == 0 && first) { chunk } else { aligned }
}

/// Returns the number of prompt tokens in a step beyond which background prompts get none while requests of higher
/// tiers come; at least one, so that background prompts make progress.
fn background_tokens(rules: &Rules, traffic: Traffic) -> u32 {
    match rules.scheduling.background_prefill_percent {
        _ if !traffic.higher_came(Tier::Background) => u32::MAX,
        100.. => u32::MAX,
        percent => {
            let most = u64::from(rules.scheduling.max_num_batched_tokens);
            ((most * u64::from(percent) / 100) as u32).max(1)
        }
    }
}

#[cfg(test)]
mod tests;
