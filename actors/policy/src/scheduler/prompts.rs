//! How the prompts of a step share its tokens.

use crate::scheduler::rank::Rank;
use crate::scheduler::sequence::{Phase, Sequence};
use crate::scheduler::state::{Scheduler, Scope};
use tiercel_config::{Budget, PrefillOrder, SchedulerSettings, StepMix};
use tiercel_device::{Tier, Timestamp};

/// A candidate of the step and the tokens it is given.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Share<'a> {
    pub(crate) sequence: &'a Sequence,
    pub(crate) rank: Rank,
    pub(crate) tokens: u32,
    /// What is asked of hundreds of sequences several times in a plan, beside each other: its length, and whether it
    /// waits, or decodes.
    pub(crate) len: u32,
    pub(crate) waits: bool,
    pub(crate) decoding: bool,
}

impl<'a> Share<'a> {
    /// A candidate that has no tokens yet.
    pub(crate) fn of(rank: Rank, sequence: &'a Sequence) -> Share<'a> {
        Share {
            sequence,
            rank,
            tokens: 0,
            len: sequence.len(),
            waits: sequence.phase == Phase::Waiting,
            decoding: sequence.decoding(),
        }
    }
}

impl Scheduler {
    /// Gives each candidate its tokens. Decodes are given theirs before any prompt, so that a long one
    /// never stalls a stream; prompts share what is left. Under `prompts-alone` a step with prompts has no
    /// decodes, and goes first.
    pub(crate) fn share_out(&self, shares: &mut Vec<Share<'_>>, now: Timestamp) {
        if self.scope == Scope::Decodes {
            shares.retain(|share| share.decoding);
        }
        let prompts = shares.iter().any(|share| !share.decoding);
        if self.settings.mix == StepMix::PromptsAlone && prompts {
            // Or those who gave way for a decode would take their blocks back before it had them, for ever.
            let promised = shares.iter().any(|share| share.decoding && share.sequence.promised);
            shares.retain(|share| share.decoding == promised);
        }
        if self.settings.pause_background {
            self.pause(shares, now);
        }
        let decodes = shares.iter().filter(|share| share.decoding).count() as u32;
        for share in shares.iter_mut().filter(|share| share.decoding) {
            share.tokens = 1;
        }
        if prompts {
            let budget = self.prefill_budget(shares, now);
            let room = self.prefill_room(decodes);
            self.share_prompts(shares, budget, room);
        }
    }

    fn share_prompts(&self, shares: &mut [Share<'_>], budget: u32, room: u32) {
        let mut queue: Vec<usize> = (0..shares.len()).filter(|at| !shares[*at].decoding).collect();
        // A plan that follows one that came to nothing is for the best-ranked: only it may take everybody's blocks.
        if self.settings.prefill_order != PrefillOrder::Rank && self.scope == Scope::All {
            // Stable: equals stay in order of service.
            queue.sort_by_key(|at| self.prefill_key(shares[*at].sequence));
        }
        let background_budget = budget.min(self.background_budget());
        let (mut used, mut partial) = (0, 0);
        for at in queue {
            let sequence = shares[at].sequence;
            let paced = sequence.tier == Tier::Background && self.settings.chunked_prefill;
            let most = if paced { background_budget } else { budget };
            let left = sequence.left_to_compute();
            let chunk = match most.saturating_sub(used) {
                free if self.settings.chunked_prefill => self.chunk(left, free, used == 0),
                free if left <= free => left,
                _ if used == 0 => left.min(room),
                // It waits for the next step; whoever overtook it now would have to wait for it then.
                _ => break,
            };
            let leaves_partial = chunk < left;
            let full = self.settings.max_partial_prefills;
            if leaves_partial && full > 0 && partial >= full {
                continue;
            }
            partial += u32::from(leaves_partial && chunk > 0);
            used += chunk;
            shares[at].tokens = chunk;
        }
    }

    /// Whoever was denied blocks to grow comes first: others were made to give way for it, and what they gave may
    /// only now have come free.
    fn prefill_key(&self, sequence: &Sequence) -> (u8, bool, u64) {
        let key = match self.settings.prefill_order {
            PrefillOrder::Rank => 0,
            PrefillOrder::Deadline => self.first_token_due(sequence).0,
            PrefillOrder::Shortest => u64::from(sequence.left_to_compute()),
        };
        (sequence.place.level, !sequence.denied, key)
    }

    /// Tokens of a prompt with `left` to compute in a step that has `room` for it; `first` if it is the
    /// first prompt of the step.
    fn chunk(&self, left: u32, room: u32, first: bool) -> u32 {
        let chunk = left.min(room).min(self.long_prefill_threshold());
        let unit = self.settings.chunk_alignment.max(1);
        let aligned = chunk - chunk % unit;
        // The end of a prompt is as long as it is, and where no whole unit fits somebody still goes on.
        if chunk == left || (aligned == 0 && first) { chunk } else { aligned }
    }

    /// Most prompt tokens in a step with so many decodes, whatever these can afford.
    pub(crate) fn prefill_room(&self, decodes: u32) -> u32 {
        let SchedulerSettings { max_num_batched_tokens, max_prefill_tokens, .. } = self.settings;
        let most = if max_prefill_tokens == 0 { u32::MAX } else { max_prefill_tokens };
        max_num_batched_tokens.saturating_sub(decodes).min(most)
    }

    fn long_prefill_threshold(&self) -> u32 {
        let share = self.settings.long_prefill_percent / 100.0;
        let by_share = (f64::from(self.limits.max_model_len) * share) as u32;
        let set = |tokens: u32| if tokens == 0 { u32::MAX } else { tokens };
        set(self.settings.long_prefill_token_threshold).min(set(by_share))
    }

    /// Tokens of prompts up to which a step is filled with background ones; at least one, so that they
    /// go on when nobody better is there.
    fn background_budget(&self) -> u32 {
        match self.settings.background_prefill_percent {
            100.. => u32::MAX,
            percent => {
                let most = u64::from(self.settings.max_num_batched_tokens);
                ((most * u64::from(percent) / 100) as u32).max(1)
            }
        }
    }

    /// Takes background streams out of the step, worst first, as long as the better streams in it cannot
    /// afford them.
    fn pause(&self, shares: &mut Vec<Share<'_>>, now: Timestamp) {
        if self.settings.budget != Budget::Slack {
            return;
        }
        let allowed_us = self.allowed_by_better(shares, now);
        let (mut decodes, mut kv_tokens) = streams_in(shares);
        while self.cost.step_us(decodes, 0, kv_tokens) > allowed_us {
            let paused =
                |share: &Share<'_>| share.sequence.tier == Tier::Background && share.decoding;
            let Some(at) = shares.iter().rposition(paused) else { return };
            kv_tokens -= u64::from(shares.remove(at).len);
            decodes -= 1;
        }
    }
}

/// Streams among the candidates, and the tokens they read.
pub(crate) fn streams_in(shares: &[Share<'_>]) -> (u32, u64) {
    let streams = shares.iter().filter(|share| share.decoding);
    streams.fold((0, 0), |(count, tokens), stream| (count + 1, tokens + u64::from(stream.len)))
}
