//! How the prompts of a step share its tokens.

use crate::scheduler::pace::{Pace, streams_in};
use crate::scheduler::rank::Rank;
use crate::scheduler::sequence::{Phase, Sequence};
use crate::scheduler::state::{Scheduler, Scope};
use std::cmp::Reverse;
use std::collections::BTreeSet;
use tiercel_config::{PrefillOrder, SchedulerSettings, StepMix};
use tiercel_device::{SeqId, Tier, Timestamp};

/// Prompt tokens that every step may hold, and at least one: somebody's first token must come nearer, however little
/// the streams have to spend.
const MIN_TOKENS: u32 = 16;
/// They take no more than this share of the streams' part of the step. Where prompts are dear, as on a CPU, streams
/// that are behind would never catch up otherwise.
const MIN_SHARE: f64 = 0.15;

/// A background stream that has sat out for longer takes part all the same, one in each step: so all of them get on,
/// however long better ones leave no time.
const MOST_SAT_OUT_US: u64 = 2_000_000;

/// Order of prompts in a step: level, whether it was not denied blocks, whether it is late, and what the order counts.
type PrefillKey = (u8, bool, bool, u64);

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
            len: sequence.planned_len(),
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
        let pace = self.pace(shares, now);
        // After a plan that came to nothing nobody sits out: they may hold the blocks that others wait for.
        let pauses = self.settings.pause_background && self.fruitless == 0;
        if let Some(pace) = pace.as_ref().filter(|_| pauses) {
            self.pause(shares, pace, now);
        }
        for share in shares.iter_mut().filter(|share| share.decoding) {
            share.tokens = 1;
        }
        if prompts {
            let bare = streams_in(shares.iter());
            let bare_us = self.cost.step_us(&bare);
            let us = pace.map_or(f64::INFINITY, |pace| pace.prefill_us(bare_us));
            let least = self.cost.prefill_tokens_in(bare_us * MIN_SHARE, 0).clamp(1, MIN_TOKENS);
            self.share_prompts(shares, (us, least), self.prefill_room(bare.decode_tokens), now);
        }
    }

    /// Gives prompts at most `budget_us` of the step, but `least` tokens even so, and at most `room` tokens.
    fn share_prompts(
        &self,
        shares: &mut [Share<'_>],
        (budget_us, least): (f64, u32),
        room: u32,
        now: Timestamp,
    ) {
        let mut queue: Vec<usize> = (0..shares.len()).filter(|at| !shares[*at].decoding).collect();
        let divided = self.several_share(queue.iter().map(|at| shares[*at].sequence));
        // A plan that follows one that came to nothing is for the best-ranked: only it may take everybody's blocks.
        if self.settings.prefill_order != PrefillOrder::Rank && self.scope == Scope::All {
            let prompts = || queue.iter().map(|at| shares[*at].sequence);
            let turns = self.levels_of_several(prompts());
            // Stable: equals stay in order of service.
            queue.sort_by_key(|at| match shares[*at].sequence {
                sequence if divided && sequence.place.rest > 0 => opening_key(sequence),
                sequence => self.prefill_key(sequence, turns),
            });
        }
        let background_room = room.min(self.background_room(now));
        let (mut used, mut used_us, mut partial) = (0, 0.0, 0);
        for at in queue {
            let sequence = shares[at].sequence;
            // What tiers share they have as it is their turn, and not what another rule leaves.
            let shared = divided && sequence.place.rest > 0;
            let paced =
                sequence.tier == Tier::Background && self.settings.chunked_prefill && !shared;
            let most = if paced { background_room } else { room };
            let left = sequence.left_to_compute();
            let computed = sequence.planned_len() - left;
            let affordable = self.cost.prefill_tokens_in(budget_us - used_us, computed);
            let least = least.saturating_sub(used);
            let chunk = match most.saturating_sub(used).min(affordable.max(least)) {
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
            used_us += self.cost.prefill_us(chunk, computed);
            shares[at].tokens = chunk;
        }
    }

    /// Whether prompts of several tiers share what those with targets leave.
    fn several_share<'a>(&self, prompts: impl Iterator<Item = &'a Sequence>) -> bool {
        let mut rests = prompts.map(|prompt| prompt.place.rest).filter(|rest| *rest > 0);
        let first = rests.next();
        rests.any(|rest| Some(rest) != first)
    }

    /// The levels at which prompts go by the turns of their tenants: several have some.
    fn levels_of_several<'a>(
        &self,
        prompts: impl Iterator<Item = &'a Sequence>,
    ) -> [bool; Tier::ALL.len()] {
        let mut several = [false; Tier::ALL.len()];
        let mut first = [None; Tier::ALL.len()];
        for prompt in prompts.filter(|_| self.tenants_take_turns()) {
            let level = usize::from(prompt.place.level);
            several[level] |= *first[level].get_or_insert(prompt.tenant) != prompt.tenant;
        }
        several
    }

    /// Whoever was denied blocks to grow comes first: others were made to give way for it, and what they gave may
    /// only now have come free.
    fn prefill_key(&self, sequence: &Sequence, turns: [bool; Tier::ALL.len()]) -> PrefillKey {
        let key = match self.settings.prefill_order {
            PrefillOrder::Rank => 0,
            _ if turns[usize::from(sequence.place.level)] => sequence.turn.tag as u64,
            PrefillOrder::Deadline if sequence.late => u64::from(sequence.left_to_compute()),
            PrefillOrder::Deadline => self.first_token_due(sequence).0,
            PrefillOrder::Shortest => u64::from(sequence.left_to_compute()),
        };
        (sequence.place.level, !sequence.denied, sequence.place.late, key)
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

    /// Tokens of prompts up to which a step is filled with background ones, while better requests come; at least one,
    /// so that they go on.
    fn background_room(&self, now: Timestamp) -> u32 {
        match self.settings.background_prefill_percent {
            _ if !self.better_came_lately(Tier::Background, now) => u32::MAX,
            100.. => u32::MAX,
            percent => {
                let most = u64::from(self.settings.max_num_batched_tokens);
                ((most * u64::from(percent) / 100) as u32).max(1)
            }
        }
    }

    /// Takes background streams out of the step, worst first, as long as the better streams in it and the first
    /// tokens that are due cannot afford them, but never the one that has sat out longest if that is too long; then
    /// standard streams, as long as premium cannot.
    fn pause(&self, shares: &mut Vec<Share<'_>>, pace: &Pace, now: Timestamp) {
        let better = |share: &&Share<'_>| {
            share.sequence.tier < Tier::Background && !share.sequence.promised_nothing
        };
        let bare_us = self.cost.step_us(&streams_in(shares.iter().filter(better)));
        let left_us = pace.left_to_background(bare_us);
        let stream = |share: &Share<'_>| share.decoding && !better(&share);
        let starved = starved(shares.iter().filter(|share| stream(share)), now);
        let streams = shares.iter().filter(|share| stream(share));
        let mut needed_us: f64 = streams.map(|share| self.cost.decode_us(share.len)).sum();
        // Somebody goes on in any case: a target may be shorter than a step of one.
        while needed_us > left_us && shares.len() > 1 {
            let sits_out = |share: &Share<'_>| stream(share) && Some(share.sequence.id) != starved;
            let Some(at) = shares.iter().rposition(sits_out) else { break };
            needed_us -= self.cost.decode_us(shares.remove(at).len);
        }
        self.pause_standard(shares, pace.over_premium(bare_us), (bare_us, now));
    }

    /// Takes standard streams out of a step that is too long for premium by `over_us`, those first that are
    /// furthest ahead of their targets, and none that is not ahead.
    fn pause_standard(
        &self,
        shares: &mut Vec<Share<'_>>,
        mut over_us: f64,
        (bare_us, now): (f64, Timestamp),
    ) {
        if over_us <= 0.0 {
            return;
        }
        let standard = |share: &&Share<'_>| share.decoding && share.sequence.tier == Tier::Standard;
        let ahead = shares.iter().filter(standard).filter_map(|share| {
            let us = self.ahead_us(share.sequence, bare_us, now)?;
            Some((Reverse(us as u64), share.sequence.id, self.cost.decode_us(share.len)))
        });
        let mut ahead: Vec<(Reverse<u64>, SeqId, f64)> = ahead.collect();
        ahead.sort_unstable_by_key(|(us, seq, _)| (*us, *seq));
        let needed = ahead.iter().take_while(|(.., decode_us)| {
            let needed = over_us > 0.0;
            over_us -= decode_us;
            needed
        });
        let paused: BTreeSet<SeqId> = needed.map(|(_, seq, _)| *seq).collect();
        shares.retain(|share| !paused.contains(&share.sequence.id));
    }
}

/// Tiers that share the rest have opened in turn, and what is open is computed in that order.
fn opening_key(sequence: &Sequence) -> PrefillKey {
    let waits = sequence.phase == Phase::Waiting;
    let number = if waits { u64::MAX } else { sequence.opened_number };
    (sequence.place.level, !sequence.denied, false, number)
}

/// The stream whose last token is longest ago, if that is too long.
fn starved<'a, 'b: 'a>(
    streams: impl Iterator<Item = &'a Share<'b>>,
    now: Timestamp,
) -> Option<SeqId> {
    // One that has no blocks to go on with would only keep the others from their turn.
    let streams = streams.filter(|share| !share.sequence.denied);
    let since =
        streams.filter_map(|share| Some((share.sequence.last_token_at?, share.sequence.id)));
    since.min().filter(|(at, _)| now.since_us(*at) > MOST_SAT_OUT_US).map(|(_, seq)| seq)
}
