//! From grants to a batch for the device.

use crate::protocol::{Grant, GrantOutcome, PreemptOutcome, Preempted, StepGrant};
use crate::scheduler::ahead::Part;
use crate::scheduler::cost::StepWork;
use crate::scheduler::outcome::{Effect, RequestFault};
use crate::scheduler::pipeline::InFlight;
use crate::scheduler::sequence::{Opened, Phase, Sequence};
use crate::scheduler::state::{Scheduler, Scope};
use std::sync::Arc;
use tiercel_device::{BlockId, SeqId, SeqSlice, SliceInput, StepBatch, Ticket, Tier, Tokens};

/// Plans that may come to nothing before the next event is waited for. All kinds of them are fewer.
const MOST_FRUITLESS: u32 = 8;

/// Weight of a prompt in the share of prompts that is found cached.
const HIT_SMOOTHING: f64 = 0.05;

/// Tokens of a sequence to run in a step.
struct Slice {
    slice: SeqSlice,
    decode: bool,
    sequence_start: bool,
}

impl Scheduler {
    /// Applies the store's answer and returns the batch to submit, if anything may run, and what became
    /// of victims that are dropped for good.
    pub fn granted(&mut self, grant: StepGrant) -> (Option<StepBatch>, Vec<Effect>) {
        let Some(reserved) = self.pipeline.reserved(grant.step) else {
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
            slices: Vec::with_capacity(most),
            work: StepWork::default(),
            time_us: [0.0; Tier::ALL.len()],
            begins: reserved.begins,
            expected_us: 0.0,
            shaken: reserved.in_vain,
        };
        self.shortage = false;
        self.free_blocks = grant.free_blocks;
        self.take_up(grant.grants, &mut batch, &mut in_flight);
        if reserved.in_vain {
            self.replan = true;
            return (None, effects);
        }
        // Whoever is in a step in flight may have what the others lack.
        if self.pipeline.is_dry() || !batch.slices.is_empty() {
            self.narrow(batch.slices.is_empty());
        }
        if batch.slices.is_empty() {
            return (None, effects);
        }
        batch.ends = std::mem::take(&mut self.device_ends);
        in_flight.expected_us = self.cost.step_us(&in_flight.work);
        self.pipeline.submit(in_flight);
        (Some(batch), effects)
    }

    /// Applies the answers to the wants.
    fn take_up(&mut self, grants: Vec<Grant>, batch: &mut StepBatch, in_flight: &mut InFlight) {
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
                GrantOutcome::Denied { pending_blocks } => self.denied(ticket, pending_blocks > 0),
            }
        }
        if self.scope == Scope::All {
            self.adjust_open_limit(opened, open_denied);
        }
    }

    /// Decides whom the next plan is for, after one that came to nothing (`empty`) or not.
    fn narrow(&mut self, empty: bool) {
        let left_out = std::mem::take(&mut self.left_out);
        self.fruitless = if empty { self.fruitless + 1 } else { 0 };
        self.scope = match self.scope {
            Scope::All if left_out && empty => Scope::Running,
            Scope::Running if left_out && empty => Scope::Decodes,
            _ => Scope::All,
        };
        // Those it is for need not wait for what the others wait for.
        self.replan |= empty && self.scope != Scope::All;
        // Nor need the first for what is kept for others, if it was that.
        self.replan |= empty && self.fruitless == 1 && self.kept.something();
        if self.fruitless >= MOST_FRUITLESS {
            (self.replan, self.scope) = (false, Scope::All);
        }
    }

    fn denied(&mut self, ticket: Ticket, promised: bool) {
        self.shortage = true;
        if let Some(sequence) = self.sequences.active_mut(ticket.seq) {
            sequence.denied = true;
            sequence.promised = promised;
        }
        if self.suspects.contains(&ticket.seq) {
            self.suspect_denied = true;
            self.replan = true;
        }
    }

    fn add_slice(
        &mut self,
        ticket: Ticket,
        cover: u32,
        table: Option<Arc<[BlockId]>>,
        batch: &mut StepBatch,
        in_flight: &mut InFlight,
    ) {
        let sequence = self.sequences.active_mut(ticket.seq);
        // A sequence cancelled while the store was asked is gone; its release goes with the next request.
        let Some(sequence) = sequence.filter(|s| s.epoch == ticket.epoch) else { return };
        (sequence.denied, sequence.promised) = (false, false);
        if let Some(table) = table {
            sequence.table = table;
        }
        if in_flight.shaken {
            return;
        }
        let (computed, len) = (sequence.planned_computed(), sequence.planned_len());
        let slice = slice_of(sequence, computed, cover);
        if slice.sequence_start {
            batch.starts.push(sequence.start());
            sequence.on_device = true;
        }
        let tokens = slice.slice.input.len() as u32;
        in_flight.slices.push(ticket.seq);
        if slice.decode {
            in_flight.work.add_decode(len);
        } else {
            in_flight.work.add_prefill(tokens, computed);
        }
        in_flight.time_us[sequence.tier.index()] += match slice.decode {
            true => self.cost.decode_us(len),
            false => self.cost.prefill_us(tokens, computed),
        };
        let samples = slice.slice.sample.is_some();
        sequence.ahead.submit(Part { step: batch.id, computed: Some(cover), samples });
        batch.slices.push(slice.slice);
    }

    /// A sequence that waited, or whose copies have come in, may run: its first `computed` tokens are valid.
    pub(crate) fn open(&mut self, seq: SeqId, computed: u32) {
        self.opened += 1;
        let (number, block_size) = (self.opened, self.limits.block_size);
        let tier_turns = &mut self.tier_turns;
        let opened = self.sequences.change(seq, |sequence| {
            tier_turns.open(sequence);
            sequence.phase = Phase::Running;
            sequence.opened_number = number;
            (sequence.opened(computed, block_size), sequence.start_tag)
        });
        let Some((opened, start_tag)) = opened else { return };
        self.fair.start(start_tag);
        self.count_opened(opened);
    }

    /// Applies one preemption.
    pub fn preempted(&mut self, preempted: Preempted) -> Vec<Effect> {
        let Preempted { ticket, outcome } = preempted;
        let block_size = self.limits.block_size;
        let (saved, kept) = match outcome {
            PreemptOutcome::Freed { on_host, kept, .. } => (on_host > 0, kept * block_size),
            PreemptOutcome::Copying { kept, .. } => {
                // Counted when it is committed.
                self.set_phase(ticket, Phase::Preempting);
                self.sequences.change(ticket.seq, |sequence| sequence.kept = kept * block_size);
                return Vec::new();
            }
        };
        let Some((phase, preemptions)) = self.current(ticket).map(|s| (s.phase, s.preemptions))
        else {
            return Vec::new();
        };
        if phase == Phase::Waiting {
            // It was counted when it was preempted, and gives up more now.
            self.sequences.change(ticket.seq, |sequence| {
                sequence.saved = saved;
                sequence.kept = kept;
            });
            return Vec::new();
        }
        if self.drops(preemptions) {
            let tier = self.close(ticket.seq, false, 0);
            self.counters.drops[tier] += 1;
            return self.fail(ticket.seq, RequestFault::Dropped).into_iter().collect();
        }
        let tier = self.close(ticket.seq, saved, kept);
        self.counters.count_preemption(tier, saved);
        Vec::new()
    }

    /// A sequence lost its blocks, except those of its first `kept` tokens; says its tier's index.
    pub(crate) fn close(&mut self, seq: SeqId, saved: bool, kept: u32) -> usize {
        let Some(mut sequence) = self.sequences.remove(seq) else { return 0 };
        let tier = sequence.tier.index();
        sequence.closed(saved, kept);
        let line = self.line_of(&sequence);
        self.take_turn(&mut sequence, line);
        self.place(&mut sequence);
        self.sequences.insert(sequence);
        tier
    }

    /// Counts what an open found.
    fn count_opened(&mut self, opened: Opened) {
        match opened {
            Opened::First { prompt, hit } => {
                self.counters.prefix_query_tokens += u64::from(prompt);
                self.counters.prefix_hit_tokens += u64::from(hit);
                let found = f64::from(hit) / f64::from(prompt.max(1));
                self.hit_share += HIT_SMOOTHING * (found - self.hit_share);
            }
            Opened::Again { recompute } => {
                self.counters.recomputed_tokens += u64::from(recompute);
            }
        }
    }

    fn set_phase(&mut self, ticket: Ticket, phase: Phase) {
        if self.current(ticket).is_some() {
            self.sequences.change(ticket.seq, |sequence| sequence.phase = phase);
        }
    }

    /// The sequence a ticket names, unless it ended or the ticket is of an older epoch.
    pub(crate) fn current(&self, ticket: Ticket) -> Option<&Sequence> {
        self.sequences.get(ticket.seq).filter(|sequence| sequence.epoch == ticket.epoch)
    }
}

/// What of a sequence a step computes: from where the steps before it will have come, up to `cover`.
fn slice_of(sequence: &Sequence, computed: u32, cover: u32) -> Slice {
    // A token that is being sampled is the last: all before it are being computed.
    let input = match sequence.ahead.last_sampling() {
        Some(step) if computed >= sequence.len() => SliceInput::SampledBy(step),
        _ => {
            let known = &sequence.tokens[computed as usize..cover as usize];
            SliceInput::Known(Tokens::from_slice(known))
        }
    };
    // The last token is covered: its logits give the next one.
    let samples = cover == sequence.planned_len();
    let output = sequence.planned_output();
    Slice {
        decode: input.len() == 1 && samples && output > 0,
        sequence_start: !sequence.on_device,
        slice: SeqSlice {
            seq: sequence.id,
            first_pos: computed,
            input,
            table: Arc::clone(&sequence.table),
            sample: samples.then_some(output),
        },
    }
}
