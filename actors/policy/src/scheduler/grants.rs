//! Grants: turns the block store's answer to a step request into a batch for the device.

use crate::accounting::{AccountId, StepShares};
use crate::protocol::{Grant, GrantOutcome, PreemptOutcome, Preempted, StepGrant};
use crate::scheduler::cost::StepWork;
use crate::scheduler::outcome::{Effect, RequestFault};
use crate::scheduler::pipeline::InFlight;
use crate::scheduler::pipeline::progress::Part;
use crate::scheduler::sequence::{Opened, Phase, Sequence};
use crate::scheduler::state::State;
use std::sync::Arc;
use tiercel_device::{
    BlockId, SeqId, SeqSlice, SliceInput, StepBatch, Ticket, Tier, Timestamp, Tokens,
};

/// One sequence's part of a step: the tokens that the step computes of it.
struct Slice {
    slice: SeqSlice,
    decode: bool,
    /// Whether the sequence is new to the device, which must be sent its sampling parameters and its prompt.
    sequence_start: bool,
}

impl State {
    /// Applies the block store's answer to a step request. Returns the batch to submit (`None` if no sequence may run,
    /// or if a failed step has made the plan void), and reports of victims whose requests the preemption ended.
    pub(crate) fn granted(&mut self, grant: StepGrant) -> (Option<StepBatch>, Vec<Effect>) {
        let Some(planned) = self.pipeline.reserved(grant.step) else {
            return (None, Vec::new());
        };
        let mut effects = Vec::new();
        for preempted in &grant.preempted {
            effects.extend(self.preempted(*preempted));
        }
        let most = grant.grants.len();
        let mut batch = StepBatch {
            id: grant.step,
            starts: Vec::new(),
            ends: Vec::new(),
            slices: Vec::with_capacity(most),
        };
        let mut in_flight = InFlight {
            step: grant.step,
            members: Vec::with_capacity(most),
            work: StepWork::default(),
            time_us: [0.0; Tier::ALL.len()],
            shares: StepShares::default(),
            begins: planned.begins,
            expected_us: 0.0,
            invalidated: planned.invalidated,
            partial: false,
        };
        self.memory.shortage = false;
        self.memory.free_blocks = grant.free_blocks;
        self.apply_grants(grant.grants, &mut batch, &mut in_flight);
        if planned.invalidated {
            self.retry.may_replan = true;
            return (None, effects);
        }
        // Do not count an empty plan while a step is in flight: sequences of that step may hold the missing blocks, and
        // give them back soon.
        if self.pipeline.none_in_flight() || !batch.slices.is_empty() {
            let any_reserved = self.memory.reservations.any_blocks();
            self.retry.planned(batch.slices.is_empty(), any_reserved);
        }
        if batch.slices.is_empty() {
            return (None, effects);
        }
        batch.ends = std::mem::take(&mut self.outbox.device_ends);
        in_flight.expected_us = self.basis.cost.step_us(&in_flight.work);
        let weights = self.basis.rules.shares.percent();
        let before = self.pipeline.in_flight().iter().map(|step| &step.shares);
        self.ledger.share_out(&mut in_flight.shares, weights, before);
        self.pipeline.submit(in_flight);
        (Some(batch), effects)
    }

    /// Applies the block store's answers to the wants of the sequences: moves waiting sequences that got blocks to
    /// phase running or opening, and adds the sequences that may run to the batch.
    fn apply_grants(
        &mut self,
        grants: Vec<Grant>,
        batch: &mut StepBatch,
        in_flight: &mut InFlight,
    ) {
        let (mut opened, mut open_denied) = (0, 0);
        for Grant { ticket, outcome } in grants {
            let waits = self.current(ticket).is_some_and(|s| s.phase == Phase::Waiting);
            match outcome {
                GrantOutcome::Denied { .. } => open_denied += usize::from(waits),
                _ => opened += usize::from(waits),
            }
            match outcome {
                GrantOutcome::Run { computed, cover, table } => {
                    if waits {
                        self.open(ticket.seq, computed);
                    }
                    self.add_slice(ticket, cover, table, batch, in_flight);
                }
                GrantOutcome::Copying { .. } => self.set_phase(ticket, Phase::Opening),
                GrantOutcome::Denied { pending_blocks } => {
                    self.denied(ticket, pending_blocks > 0, in_flight.begins);
                }
            }
        }
        self.retry.limit_opens(opened, open_denied);
    }

    /// Records that the block store denied a sequence's request for blocks for a step that begins at `begins`.
    /// `promised` says that victims are being copied out, which will free enough blocks.
    fn denied(&mut self, ticket: Ticket, promised: bool, begins: Timestamp) {
        self.memory.shortage = true;
        if let Some(sequence) = self.queue.table.active_mut(ticket.seq) {
            sequence.kv.denied_at = Some(begins);
            sequence.kv.promised = promised;
        }
        if self.suspects.contains(ticket.seq) {
            self.suspects.deny();
            self.retry.may_replan = true;
        }
    }

    /// Adds a sequence's part of the step to the batch: its tokens from the end of the steps in flight up to position
    /// `cover`.
    fn add_slice(
        &mut self,
        ticket: Ticket,
        cover: u32,
        table: Option<Arc<[BlockId]>>,
        batch: &mut StepBatch,
        in_flight: &mut InFlight,
    ) {
        let sequence = self.queue.table.active_mut(ticket.seq);
        // Skip a sequence that ended while the block store answered; its blocks are released with the next step
        // request.
        let Some(sequence) = sequence.filter(|s| s.kv.epoch == ticket.epoch) else { return };
        (sequence.kv.denied_at, sequence.kv.promised) = (None, false);
        if let Some(table) = table {
            sequence.kv.block_table = table;
        }
        if in_flight.invalidated {
            return;
        }
        let (computed, len) = (sequence.planned_computed(), sequence.planned_len());
        // If a draw was postponed while the block store answered, the step has one token less to compute.
        let cover = cover.min(len);
        let slice = slice_of(sequence, computed, cover);
        if slice.sequence_start {
            batch.starts.push(sequence.start());
            sequence.on_device = true;
        }
        let tokens = slice.slice.input.len() as u32;
        in_flight.members.push(ticket.seq);
        if slice.decode {
            in_flight.work.add_decode(len);
        } else {
            in_flight.work.add_prefill(tokens, computed);
        }
        let us = match slice.decode {
            true => self.basis.cost.decode_us(len),
            false => self.basis.cost.prefill_us(tokens, computed),
        };
        in_flight.time_us[sequence.tier.index()] += us;
        let samples = slice.slice.sample.is_some();
        let part = Part { step: batch.id, computed: Some(cover), samples, void: false };
        sequence.kv.in_flight.submit(part);
        let last = !sequence.runnable(self.basis.rules.limits.max_model_len);
        in_flight.shares.charge(sequence.party(), us, last);
        batch.slices.push(slice.slice);
    }

    /// Moves a sequence to phase running, because it has its blocks or the copies of its blocks have ended. Its first
    /// `computed` tokens have valid KV.
    pub(crate) fn open(&mut self, seq: SeqId, computed: u32) {
        self.opened += 1;
        let (number, block_size) = (self.opened, self.basis.rules.limits.block_size);
        let tiers = &mut self.queue.tiers;
        let opened = self.queue.table.change(seq, |sequence| {
            tiers.open(sequence);
            sequence.phase = Phase::Running;
            sequence.kv.opened_number = number;
            let token_tag = sequence.service.token_tag;
            (sequence.opened(computed, block_size), token_tag, sequence.party())
        });
        let Some((opened, token_tag, party)) = opened else { return };
        self.queue.token_queue.advance_to(token_tag);
        self.count_opened(opened, party);
    }

    /// Applies one preemption by the block store. Returns the end of the request if the victim is dropped, and nothing
    /// otherwise.
    pub(crate) fn preempted(&mut self, preempted: Preempted) -> Vec<Effect> {
        let Preempted { ticket, outcome } = preempted;
        let block_size = self.basis.rules.limits.block_size;
        let (on_host, retained_tokens) = match outcome {
            PreemptOutcome::Freed { on_host, retained, .. } => (on_host, retained * block_size),
            PreemptOutcome::Copying { retained, .. } => {
                // The preemption is only prepared: its blocks are being copied out. It is counted when it is committed.
                self.set_phase(ticket, Phase::Preempting);
                let retain =
                    |sequence: &mut Sequence| sequence.kv.retained_tokens = retained * block_size;
                self.queue.table.change(ticket.seq, retain);
                return Vec::new();
            }
        };
        let Some((phase, preemptions)) = self.current(ticket).map(|s| (s.phase, s.preemptions))
        else {
            return Vec::new();
        };
        if phase == Phase::Waiting {
            // The victim was preempted before, and its preemption was counted then; this time it only gives up KV
            // blocks that it had retained on the device.
            self.queue.table.change(ticket.seq, |sequence| {
                sequence.kv.saved = on_host > 0;
                sequence.kv.on_host = on_host;
                sequence.kv.retained_tokens = retained_tokens;
            });
            return Vec::new();
        }
        if self.basis.rules.drops(preemptions) {
            let tier = self.close(ticket.seq, false, 0);
            self.counters.drops[tier] += 1;
            return self.fail(ticket.seq, RequestFault::Dropped).into_iter().collect();
        }
        self.queue.table.update(ticket.seq, |sequence| sequence.kv.on_host = on_host);
        let tier = self.close(ticket.seq, on_host > 0, retained_tokens);
        self.counters.count_preemption(tier, on_host > 0);
        Vec::new()
    }

    /// Moves a preempted sequence back to phase waiting. The sequence keeps only the blocks of its first
    /// `retained_tokens` tokens. A stream whose first token was late counts as in time from now on: a stream cannot
    /// starve, so a late stream would wait without bound behind newcomers of its tier. Returns the index of the
    /// sequence's tier.
    pub(crate) fn close(&mut self, seq: SeqId, saved: bool, retained_tokens: u32) -> usize {
        let Some(mut sequence) = self.queue.table.remove(seq) else { return 0 };
        let tier = sequence.tier.index();
        sequence.closed(saved, retained_tokens);
        sequence.service.late &= sequence.first_token_at.is_none();
        self.queue.place_again(&mut sequence, &self.basis);
        self.queue.table.insert(sequence);
        tier
    }

    /// Updates the token counters when a sequence gets its KV blocks: for a first start, by its prompt tokens and those
    /// of them found in the prefix cache; for a resumption, by the tokens that must be computed again.
    fn count_opened(&mut self, opened: Opened, (tier, account): (Tier, AccountId)) {
        match opened {
            Opened::First { prompt, hit } => {
                self.ledger.started(tier, account, (prompt, hit));
                self.counters.prefix_query_tokens += u64::from(prompt);
                self.counters.prefix_hit_tokens += u64::from(hit);
                let found = f64::from(hit) / f64::from(prompt.max(1));
                self.queue.hit_share.observe(found);
            }
            Opened::Again { recompute } => {
                self.counters.recomputed_tokens += u64::from(recompute);
            }
        }
    }

    fn set_phase(&mut self, ticket: Ticket, phase: Phase) {
        if self.current(ticket).is_some() {
            self.queue.table.change(ticket.seq, |sequence| sequence.phase = phase);
        }
    }
}

/// Returns the slice of a sequence that a step computes: the tokens from position `computed` (where the steps in flight
/// end) to position `cover`, exclusive.
fn slice_of(sequence: &Sequence, computed: u32, cover: u32) -> Slice {
    // If a step in flight is sampling the sequence's next token, that token is the input of this step, because the
    // steps in flight compute all tokens before it.
    let input = match sequence.kv.in_flight.last_sampling() {
        Some(step) if computed >= sequence.len() => SliceInput::SampledBy(step),
        _ => {
            let known = &sequence.text.tokens[computed as usize..cover as usize];
            SliceInput::Known(Tokens::from_slice(known))
        }
    };
    // The step samples a new token if it computes the last token of the sequence.
    let samples = cover == sequence.planned_len();
    let output = sequence.planned_output();
    Slice {
        decode: input.len() == 1 && samples && output > 0,
        sequence_start: !sequence.on_device,
        slice: SeqSlice {
            seq: sequence.id,
            first_pos: computed,
            input,
            table: Arc::clone(&sequence.kv.block_table),
            sample: samples.then_some(output),
        },
    }
}

#[cfg(test)]
mod tests;
