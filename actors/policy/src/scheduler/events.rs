//! What happens to sequences between plans: they arrive, end, are commanded, and steps complete.

use crate::admission::{Patience, retry_after_ms};
use crate::blocks::Salt;
use crate::protocol::StoreEvent;
use crate::scheduler::outcome::{Effect, EndReport, FinishReason, PreemptDecision, RequestFault};
use crate::scheduler::pipeline::InFlight;
use crate::scheduler::sequence::{Hold, NewSequence, Phase, Sequence};
use crate::scheduler::state::{Limits, Scheduler};
use tiercel_config::Batching;
use tiercel_device::{
    Sampled, SeqFault, SeqId, StepDone, StepError, StepId, StepOutput, Ticket, Tier, Timestamp,
};

impl Scheduler {
    /// A new sequence waits for its first start.
    pub fn enqueue(&mut self, mut new: NewSequence) {
        let tenant = new.salt;
        if !self.share_prefixes {
            // Names stay, a swapped sequence is found again by them, but nobody else's are equal.
            new.salt = Salt::of_sequence(new.seq);
        }
        let mut sequence = Sequence::new(new, self.limits.block_size);
        sequence.tenant = tenant;
        self.place_new(&mut sequence);
        let arrival = sequence.arrival;
        self.enter_deadline(&mut sequence, arrival);
        self.noticed();
        // The server's own requests, as that of its warm-up, are no reason to keep anything from its clients' requests.
        if sequence.tier > Tier::System {
            self.came_at[sequence.tier.index()] = Some(sequence.arrival);
        }
        self.drain[sequence.tier.index()].entered(sequence.arrival);
        self.sequences.insert(sequence);
    }

    /// Ends a sequence in whatever phase it is; `None` if it is not live (any more). Its blocks are
    /// released with the next request, except those that a copy still uses, which follow.
    pub fn cancel(&mut self, seq: SeqId) -> Option<EndReport> {
        self.end(seq, None)
    }

    /// Ends a sequence whose output is complete for a reason only the client's side knows, as a stop
    /// string is; `None` if it is not live.
    pub fn stop(&mut self, seq: SeqId) -> Option<Effect> {
        self.end(seq, Some(Ok(FinishReason::Stop))).map(Effect::Ended)
    }

    /// Ends a sequence with a fault; `None` if it is not live.
    pub fn fail(&mut self, seq: SeqId, fault: RequestFault) -> Option<Effect> {
        self.end(seq, Some(Err(fault))).map(Effect::Ended)
    }

    /// Turns away requests without a first token whose patience is at an end.
    pub fn expire(&mut self, now: Timestamp) -> Vec<Effect> {
        let expired = |sequence: &&Sequence| {
            let waited_us = now.since_us(sequence.arrival) as f64;
            sequence.first_token_at.is_none() && sequence.patience.exceeded_by(waited_us).is_some()
        };
        let live = self.sequences.iter().filter(expired);
        let expired: Vec<(SeqId, Patience)> = live.map(|s| (s.id, s.patience)).collect();
        let end = |(seq, patience): (SeqId, Patience)| {
            let retry_after_ms = self.retry_after_ms(seq, now)?;
            let Patience { us, stated } = patience;
            let patience_ms = us.unwrap_or(0) / 1000;
            self.fail(seq, RequestFault::OutOfPatience { patience_ms, stated, retry_after_ms })
        };
        expired.into_iter().filter_map(end).collect()
    }

    /// Turns away the worst-ranked sequence of a worse tier than `tier` that has not started, so that somebody
    /// of that tier can have its place; `None` if there is none.
    pub fn displace(&mut self, tier: Tier, now: Timestamp) -> Option<Effect> {
        let worse = |sequence: &&Sequence| sequence.tier > tier && !sequence.was_open();
        let worst = self.sequences.queue().rev().map(|(_, sequence)| sequence).find(worse)?.id;
        self.turn_away(worst, now)
    }

    fn turn_away(&mut self, seq: SeqId, now: Timestamp) -> Option<Effect> {
        let retry_after_ms = self.retry_after_ms(seq, now)?;
        self.fail(seq, RequestFault::TurnedAway { retry_after_ms })
    }

    /// When a request that is turned away had better come back, ms.
    fn retry_after_ms(&self, seq: SeqId, now: Timestamp) -> Option<u64> {
        let tier = self.sequences.get(seq)?.tier;
        Some(retry_after_ms(self.drain[tier.index()].wait_us(now), seq.0))
    }

    /// Holds or releases a sequence; whether it is live.
    pub fn set_hold(&mut self, seq: SeqId, hold: Hold, held: bool) -> bool {
        let changed = self.sequences.change(seq, |sequence| {
            let before = sequence.in_line();
            match hold {
                Hold::Operator => sequence.held_by_operator = held,
                Hold::Stream => sequence.held_by_stream = held,
            }
            sequence.was_held |= held;
            (sequence.tier, before, sequence.in_line())
        });
        let Some((tier, before, after)) = changed else { return false };
        match (before, after) {
            (true, false) => self.drain[tier.index()].gave_up(),
            (false, true) => self.drain[tier.index()].moved_in(),
            _ => {}
        }
        self.noticed();
        true
    }

    /// Changes tier and priority from the next plan on; whether the sequence is live.
    pub fn reprioritize(&mut self, seq: SeqId, tier: Tier, priority: i32) -> bool {
        let Some(mut sequence) = self.sequences.remove(seq) else { return false };
        if sequence.in_line() && sequence.tier != tier {
            self.drain[sequence.tier.index()].gave_up();
            self.drain[tier.index()].moved_in();
        }
        // A request that was late in one tier need not be late in another.
        sequence.late &= sequence.tier == tier;
        self.deadlines.leave(&sequence);
        (sequence.tier, sequence.priority) = (tier, priority);
        sequence.promised_nothing = false;
        let line = self.line_of(&sequence);
        self.take_turn(&mut sequence, line);
        self.place(&mut sequence);
        self.renew_deadline(&mut sequence);
        self.sequences.insert(sequence);
        self.noticed();
        true
    }

    /// Believes the result of a step, and only here anything is believed.
    pub fn step_done(&mut self, done: StepDone, now: Timestamp) -> Vec<Effect> {
        let Some(ended) = self.pipeline.ended(done.id, now) else { return Vec::new() };
        match done.result {
            Ok(output) => self.step_succeeded(&ended, output, now),
            Err(StepError::Failed(why)) => self.step_failed(&ended, &why),
            Err(StepError::DeviceLost(why)) => {
                let live: Vec<SeqId> = self.live().collect();
                let fault = RequestFault::Step(why);
                live.into_iter().filter_map(|seq| self.fail(seq, fault.clone())).collect()
            }
        }
    }

    fn step_succeeded(
        &mut self,
        ended: &InFlight,
        output: StepOutput,
        now: Timestamp,
    ) -> Vec<Effect> {
        self.counters.steps += 1;
        self.counters.slices += ended.slices.len() as u64;
        let device_us = output.timing.forward_us + output.timing.sampling_us;
        self.cost.observe_step(&ended.work, device_us);
        self.pipeline.starts_in(output.timing.host_us);
        self.pipeline.learn_lead(ended);
        self.learn_of_premium(ended, device_us as f64, now);
        if self.counts_time() {
            self.had.add(ended.time_us, now);
        }
        for seq in &ended.slices {
            self.advance(*seq, ended.step);
        }
        let mut effects = Vec::with_capacity(output.sampled.len());
        for (seq, result) in output.sampled {
            self.accept(seq, ended.step, result, now, &mut effects);
        }
        let block_size = self.limits.block_size;
        for seq in &ended.slices {
            self.sequences.update(*seq, |sequence| sequence.ahead.ended(ended.step));
            if let Some(sequence) = self.sequences.active_mut(*seq) {
                self.progress.push(sequence.progress(block_size));
            }
        }
        effects
    }

    fn advance(&mut self, seq: SeqId, step: StepId) {
        let part = self.sequences.get(seq).and_then(|sequence| sequence.ahead.part(step));
        let Some(part) = part else { return };
        self.suspects.remove(&seq);
        if let (Some(computed), Some(sequence)) = (part.computed, self.sequences.active_mut(seq)) {
            sequence.computed = computed;
        }
    }

    fn accept(
        &mut self,
        seq: SeqId,
        step: StepId,
        result: Result<Sampled, SeqFault>,
        now: Timestamp,
        effects: &mut Vec<Effect>,
    ) {
        // A token of a sequence that was cancelled during the step is discarded, and one that follows what was not
        // believed. One of a sequence whose blocks were taken meanwhile counts.
        let in_step = self.sequences.get(seq).filter(|s| s.ahead.part(step).is_some());
        let Some(sequence) = in_step else { return };
        let sampled = match result {
            Ok(sampled) => sampled,
            Err(fault) => {
                effects.extend(self.fail(seq, RequestFault::Model(fault.to_string())));
                return;
            }
        };
        if sequence.stops_at(sampled.token) {
            effects.extend(self.end(seq, Some(Ok(FinishReason::Stop))).map(Effect::Ended));
            return;
        }
        let first = sequence.first_token_at.is_none();
        if sequence.in_line() {
            self.drain[sequence.tier.index()].left(now);
        }
        if first {
            self.turns.start(sequence);
            self.fair.left(sequence.tenant);
            self.deadlines.leave(sequence);
        }
        effects.push(Effect::Token {
            seq,
            tier: sequence.tier,
            token: sampled.token,
            logprobs: sampled.logprobs,
            ttft_us: first.then(|| now.since_us(sequence.arrival)),
        });
        let Limits { block_size, max_model_len, .. } = self.limits;
        let at_limit = self.sequences.update(seq, |sequence| {
            sequence.push(sampled.token, now, block_size);
            sequence.at_limit(max_model_len)
        });
        if at_limit == Some(true) {
            effects.extend(self.end(seq, Some(Ok(FinishReason::Length))).map(Effect::Ended));
        }
    }

    /// A step failed without saying for whom. Nothing of it is believed, nor of what was computed after it for its
    /// members; these run one at a time until each has succeeded or is found guilty, so that the fault costs only the
    /// one it belongs to.
    fn step_failed(&mut self, ended: &InFlight, why: &str) -> Vec<Effect> {
        self.counters.failed_steps += 1;
        self.pipeline.shake();
        for seq in &ended.slices {
            self.sequences.update(*seq, |sequence| sequence.ahead.clear());
        }
        // One that followed a step that failed may have failed for it.
        if ended.shaken {
            return Vec::new();
        }
        if let [alone] = ended.slices[..]
            && self.suspects.remove(&alone)
        {
            return self.fail(alone, RequestFault::Step(why.to_owned())).into_iter().collect();
        }
        let live = ended.slices.iter().filter(|seq| self.sequences.contains(**seq));
        self.suspects.extend(live);
        Vec::new()
    }

    /// Applies an event of the store. For a prepared preemption the answer says what to tell it.
    pub fn store_event(&mut self, event: StoreEvent) -> PreemptDecision {
        self.noticed();
        match event {
            StoreEvent::PreemptCopied { ticket, copied, .. } => self.copied_out(ticket, copied),
            StoreEvent::Resumed { ticket, computed, .. } => {
                let opening = self.current(ticket).is_some_and(|s| s.phase == Phase::Opening);
                if opening {
                    self.open(ticket.seq, computed);
                }
                PreemptDecision::Stale
            }
        }
    }

    fn copied_out(&mut self, ticket: Ticket, copied: u32) -> PreemptDecision {
        if !self.current(ticket).is_some_and(|s| s.phase == Phase::Preempting) {
            return PreemptDecision::Stale;
        }
        // Nobody waits for blocks any more: the victim had better go on where it was.
        if !self.shortage && !self.sequences.somebody_waits() {
            self.sequences.change(ticket.seq, |sequence| {
                sequence.phase = Phase::Running;
                sequence.kept = 0;
            });
            return PreemptDecision::Abort;
        }
        let kept = self.current(ticket).map_or(0, |sequence| sequence.kept);
        let tier = self.close(ticket.seq, copied > 0, kept);
        self.counters.count_preemption(tier, copied > 0);
        PreemptDecision::Commit
    }

    fn end(
        &mut self,
        seq: SeqId,
        outcome: Option<Result<FinishReason, RequestFault>>,
    ) -> Option<EndReport> {
        let sequence = self.sequences.remove(seq)?;
        self.suspects.remove(&seq);
        self.deadlines.leave(&sequence);
        if sequence.in_line() {
            self.drain[sequence.tier.index()].gave_up();
        }
        let complete = matches!(outcome, Some(Ok(_)));
        self.learn_from(&sequence, complete);
        self.noticed();
        // Reports about it would name blocks it no longer has.
        self.progress.retain(|progress| progress.seq != seq);
        self.released.push(seq);
        if sequence.on_device {
            self.device_ends.push(seq);
        }
        Some(EndReport {
            seq,
            tier: sequence.tier,
            outcome,
            usage: sequence.usage(),
            arrival: sequence.arrival,
            first_token_at: sequence.first_token_at,
            last_token_at: sequence.last_token_at,
        })
    }

    /// What the order of service can learn from a sequence that ended, `complete` or not.
    fn learn_from(&mut self, sequence: &Sequence, complete: bool) {
        let (predicted, output) = (sequence.predicted_tokens, sequence.output_len());
        self.fair.correct(sequence.tenant, f64::from(output) - predicted);
        self.charge_what_was_used(sequence);
        if complete {
            let prompt = sequence.prompt_len();
            self.predictor.observe(sequence.tier, prompt, predicted, output);
        }
        if self.settings.batching == Batching::Static && sequence.was_open() {
            let others = |other: &Sequence| other.was_open();
            self.batch_closed = self.sequences.iter().any(others);
        }
    }
}
