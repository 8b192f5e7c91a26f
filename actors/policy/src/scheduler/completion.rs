//! Completions: how the scheduler applies the results of steps that ended at the device, and of copies that ended at
//! the block store.

use crate::protocol::StoreEvent;
use crate::scheduler::cost::StepWork;
use crate::scheduler::outcome::{Effect, FinishReason, PreemptDecision, RequestFault};
use crate::scheduler::pipeline::InFlight;
use crate::scheduler::rules::Limits;
use crate::scheduler::sequence::{Phase, Sequence};
use crate::scheduler::state::State;
use tiercel_device::{
    NoToken, NotSampled, Sampled, SeqId, StepDone, StepError, StepId, StepOutput, Ticket, Tier,
    Timestamp,
};

impl State {
    /// Records that planning a step took `us` microseconds, from when the plan was due until the step was submitted to
    /// the device.
    pub(crate) fn observe_planning(&mut self, us: u64) {
        self.pipeline.observe_planning(us);
    }

    /// Corrects the cost model by a copy of `blocks` blocks that took `duration_us`, and counts the blocks.
    pub(crate) fn copied(&mut self, blocks: u32, duration_us: u64) {
        self.basis.cost.observe_copy(blocks, duration_us);
        self.counters.copied_blocks += u64::from(blocks);
    }

    /// Applies the result of a step. Before this, no token that the step computed or sampled counts.
    pub(crate) fn step_done(&mut self, done: StepDone, now: Timestamp) -> Vec<Effect> {
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
        self.counters.slices += ended.members.len() as u64;
        self.learn_from_step(ended, &output, now);
        for (seq, result) in &output.sampled {
            if matches!(result, Err(NotSampled::MaskLate | NotSampled::NoToken(_))) {
                self.pipeline.leave_out(*seq);
            }
        }
        for seq in &ended.members {
            self.advance(*seq, ended.step);
        }
        let mut effects = Vec::with_capacity(output.sampled.len());
        for (seq, result) in output.sampled {
            self.accept(seq, ended.step, result, now, &mut effects);
        }
        let block_size = self.basis.rules.limits.block_size;
        for seq in &ended.members {
            self.queue.table.update(*seq, |sequence| sequence.kv.in_flight.ended(ended.step));
            if let Some(sequence) = self.queue.table.active_mut(*seq) {
                self.outbox.progress.push(sequence.progress(block_size));
            }
        }
        effects
    }

    /// Updates the cost model, the source of latency targets, the planning lead, premium's slack reserve, the tiers' usage
    /// and the ledger with the times of a step that has ended.
    fn learn_from_step(&mut self, ended: &InFlight, output: &StepOutput, now: Timestamp) {
        let device_us = output.timing.forward_us + output.timing.sampling_us;
        if !ended.partial {
            self.learn_step_time(&ended.work, device_us);
        }
        self.pipeline.observe_starting(output.timing.host_us);
        self.pipeline.learn_lead(ended);
        self.ledger.stepped(&ended.shares, device_us, now);
        // The slack reserve does not count steps in which only one tier has requests. The tier's streams may fall
        // behind their pace in such steps, so premium streams lag more than beside requests of lower tiers.
        let target_ms = self.basis.targets.of(Tier::Premium).tpot_ms;
        if let Some(target_ms) = target_ms.filter(|_| !self.queue.traffic(now).one_tier) {
            let own_us: f64 = ended.time_us[..=Tier::Premium.index()].iter().sum();
            let premium_us = self.basis.cost.step_us(&StepWork::default()) + own_us;
            self.reserve.stepped(premium_us, target_ms * 1000.0, device_us as f64, now);
        }
        if self.basis.rules.counts_usage() {
            self.usage.add(ended.time_us, now);
        }
    }

    /// Updates the cost model and the source of latency targets by a step with the work `work` that took `device_us`.
    pub(crate) fn learn_step_time(&mut self, work: &StepWork, device_us: u64) {
        self.basis.cost.observe_step(work, device_us);
        self.target_source.observe_step(work, &self.basis.cost);
    }

    /// Marks the tokens that a successful step computed of a sequence as valid. The sequence is no longer a suspect of
    /// an earlier failed step.
    fn advance(&mut self, seq: SeqId, step: StepId) {
        let part = self.queue.table.get(seq).and_then(|sequence| sequence.kv.in_flight.part(step));
        let Some(part) = part else { return };
        self.suspects.remove(seq);
        let sequence = self.queue.table.active_mut(seq);
        if let (Some(computed), Some(sequence)) = (part.computed, sequence) {
            sequence.kv.computed = computed;
        }
    }

    /// Appends a sampled token to its sequence, and ends the sequence if the token was its last. A stop token and the
    /// end of a constraint end the sequence without an appended token. If the mask was late, the draw is postponed. Any
    /// other reason for which there is no token fails the sequence's request.
    fn accept(
        &mut self,
        seq: SeqId,
        step: StepId,
        result: Result<Sampled, NotSampled>,
        now: Timestamp,
        effects: &mut Vec<Effect>,
    ) {
        // Discard the token if its sequence was cancelled during the step, or if the step's result for the sequence is
        // void or was invalidated. A token still counts if the sequence was preempted during the step.
        let in_step = self.queue.table.get(seq).filter(|s| s.kv.in_flight.part(step).is_some());
        let Some(sequence) = in_step else { return };
        let sampled = match result {
            Ok(sampled) => Some(sampled),
            Err(NotSampled::NoToken(NoToken::Complete)) => None,
            Err(NotSampled::MaskLate) => {
                self.counters.postponed_draws += 1;
                self.queue.table.update(seq, |sequence| sequence.postpone_draw(step));
                return;
            }
            Err(fault) => {
                effects.extend(self.fail(seq, request_fault(&fault)));
                return;
            }
        };
        let first = sequence.first_token_at.is_none();
        if first {
            self.deadlines.flow[sequence.tier.index()].served(now);
        }
        if sequence.in_line() {
            self.queue.drain[sequence.tier.index()].served(now);
        }
        let Some(sampled) = sampled.filter(|sampled| !sequence.stops_at(sampled.token)) else {
            effects
                .extend(self.end_uncounted(seq, Some(Ok(FinishReason::Stop))).map(Effect::Ended));
            return;
        };
        if first {
            self.queue.tenants.served(sequence);
            self.queue.token_queue.stops_waiting(sequence.service.token_entry());
            self.deadlines.leave(sequence);
        }
        self.ledger.output(sequence.tier, sequence.service.account);
        effects.push(Effect::Token {
            seq,
            tier: sequence.tier,
            token: sampled.token,
            logprobs: sampled.logprobs,
            ttft_us: first.then(|| now.since_us(sequence.arrival)),
        });
        let Limits { block_size, max_model_len, .. } = self.basis.rules.limits;
        let at_limit = self.queue.table.update(seq, |sequence| {
            sequence.push(sampled.token, now, block_size);
            sequence.first_token_step.get_or_insert(step);
            sequence.at_limit(max_model_len)
        });
        if at_limit == Some(true) {
            effects.extend(self.end(seq, Some(Ok(FinishReason::Length))).map(Effect::Ended));
        }
    }

    /// Discards the results of a failed step, and those that its sequences get from later steps in flight. The step
    /// does not say which sequence caused the failure, so each becomes a suspect that runs alone once; the request of
    /// one that fails alone ends.
    fn step_failed(&mut self, ended: &InFlight, why: &str) -> Vec<Effect> {
        self.counters.failed_steps += 1;
        self.pipeline.invalidate();
        for seq in &ended.members {
            self.queue.table.update(*seq, Sequence::invalidate_in_flight);
        }
        // A step that was in flight behind a failed step may have failed because of it, so its sequences do not become
        // suspects.
        if ended.invalidated {
            return Vec::new();
        }
        if let [alone] = ended.members[..]
            && self.suspects.remove(alone)
        {
            return self.fail(alone, RequestFault::Step(why.to_owned())).into_iter().collect();
        }
        let table = &self.queue.table;
        let live = ended.members.iter().copied().filter(|seq| table.contains(*seq));
        self.suspects.extend(live);
        Vec::new()
    }

    /// Applies an event of the block store. If the copies of a prepared preemption ended, returns whether the store
    /// shall commit or abort it.
    pub(crate) fn store_event(&mut self, event: StoreEvent) -> PreemptDecision {
        self.retry.allow_replan();
        match event {
            StoreEvent::PreemptCopied { ticket, on_host, .. } => self.copied_out(ticket, on_host),
            StoreEvent::Resumed { ticket, computed, .. } => {
                let opening = self.current(ticket).is_some_and(|s| s.phase == Phase::Opening);
                if opening {
                    self.open(ticket.seq, computed);
                }
                PreemptDecision::Stale
            }
        }
    }

    /// Decides whether to commit or to abort a preemption whose copies to the host have ended. The victim has `on_host`
    /// pinned host blocks.
    fn copied_out(&mut self, ticket: Ticket, on_host: u32) -> PreemptDecision {
        if !self.current(ticket).is_some_and(|s| s.phase == Phase::Preempting) {
            return PreemptDecision::Stale;
        }
        // Abort the preemption if no sequence waits for blocks any more: the victim continues without losing its
        // blocks.
        if !self.memory.shortage && !self.queue.table.has_queue() {
            self.queue.table.change(ticket.seq, |sequence| {
                sequence.phase = Phase::Running;
                sequence.kv.retained_tokens = 0;
            });
            return PreemptDecision::Abort;
        }
        let retained_tokens =
            self.current(ticket).map_or(0, |sequence| sequence.kv.retained_tokens);
        self.queue.table.update(ticket.seq, |sequence| sequence.kv.on_host = on_host);
        let tier = self.close(ticket.seq, on_host > 0, retained_tokens);
        self.counters.count_preemption(tier, on_host > 0);
        PreemptDecision::Commit
    }
}

/// Converts the reason for which a step sampled no token for a sequence to the fault of the sequence's request.
fn request_fault(reason: &NotSampled) -> RequestFault {
    match reason {
        NotSampled::NoToken(reason) => RequestFault::Constraint(reason.to_string()),
        NotSampled::BadLogits | NotSampled::UnknownSequence(_) | NotSampled::MaskLate => {
            RequestFault::Model(reason.to_string())
        }
    }
}

#[cfg(test)]
mod tests;
