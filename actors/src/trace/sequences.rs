//! Derives the recorded events of sequences and steps from the Scheduler's messages.

use super::capture::{Capture, CaptureBusy, Keeper};
use super::{Ending, Event, Slice, Tracer};
use crate::messages::BeginCapture;
use crate::request::Control;
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;
use tiercel_device::{SeqId, StepBatch, StepDone, StepId, Timestamp};
use tiercel_policy::scheduler::{EndReport, NewSequence, Phase, PreemptDecision, Scheduler};
use tiercel_policy::{GrantOutcome, PreemptOutcome, StepGrant, StoreEvent};
use tokio::sync::oneshot;

/// Passes the Scheduler's events to the engine's recorder. Its state is only maintained if there is a recorder.
pub struct SequenceTrace {
    tracer: Tracer,
    /// Live sequences that have not started or are preempted. The next slice of such a sequence is recorded as a start
    /// or a resume.
    without_blocks: BTreeSet<SeqId>,
    /// For each step in flight, the time at which it was submitted, or at which the step before it ended if that was
    /// later.
    began: BTreeMap<StepId, Timestamp>,
    /// Capture that is under way.
    capture: Option<UnderWay>,
}

/// Capture that is under way.
struct UnderWay {
    number: u64,
    keeper: Rc<Keeper>,
    /// Channel on which the capture is sent when it ends.
    captured: oneshot::Sender<Capture>,
}

impl SequenceTrace {
    /// Makes a `SequenceTrace`, which passes the Scheduler's events to the recorder behind `tracer`.
    pub fn new(tracer: Tracer) -> SequenceTrace {
        let (without_blocks, began) = (BTreeSet::new(), BTreeMap::new());
        SequenceTrace { tracer, without_blocks, began, capture: None }
    }

    /// Begins a capture.
    ///
    /// # Errors
    /// [`CaptureBusy`] if the engine's events are being captured already.
    pub(crate) fn begin_capture(
        &mut self,
        BeginCapture { number, captured }: BeginCapture,
        core: &Scheduler,
        now: Timestamp,
    ) -> Result<(), CaptureBusy> {
        if self.tracer.is_on() {
            return Err(CaptureBusy);
        }
        let phases: Vec<(SeqId, Phase)> =
            core.live().filter_map(|seq| Some((seq, core.phase(seq)?))).collect();
        let waiting = phases.iter().filter(|(_, phase)| *phase == Phase::Waiting);
        self.without_blocks = waiting.map(|(seq, _)| *seq).collect();
        // The begin of steps in flight is unknown, because these steps were submitted before the capture.
        self.began.clear();
        let keeper = Keeper::new(now, phases);
        self.tracer.switch(Some(keeper.clone()));
        self.capture = Some(UnderWay { number, keeper, captured });
        Ok(())
    }

    /// Ends the capture with this number, or with `None` any capture under way, and sends the capture to its
    /// [`ActiveCapture`](super::ActiveCapture). Without such a capture, does nothing.
    pub(crate) fn end_capture(&mut self, number: Option<u64>, now: Timestamp) {
        let meant = |under_way: &mut UnderWay| number.is_none_or(|of| of == under_way.number);
        let Some(ended) = self.capture.take_if(meant) else { return };
        self.tracer.switch(None);
        self.without_blocks.clear();
        self.began.clear();
        // Ignore a closed channel: the caller that began the capture has left.
        let _ = ended.captured.send(ended.keeper.finish(now));
    }

    pub(crate) fn arrived(&mut self, new: &NewSequence) {
        if !self.tracer.is_on() {
            return;
        }
        let seq = new.seq;
        self.without_blocks.insert(seq);
        self.tracer.note(|| Event::Arrived {
            seq,
            tier: new.tier,
            prompt: new.prompt.len() as u32,
            max_tokens: new.max_tokens,
        });
    }

    /// Records the block store's answer to a request for a step's blocks, before the Scheduler applies it: which
    /// sequences are preempted, and which wait for copies. Sequences that have ended meanwhile are skipped.
    pub(crate) fn granted(&mut self, grant: &StepGrant, core: &Scheduler) {
        if !self.tracer.is_on() {
            return;
        }
        for preempted in &grant.preempted {
            let seq = preempted.ticket.seq;
            let Some(phase) = core.phase(seq) else { continue };
            self.tracer.note(|| match preempted.outcome {
                PreemptOutcome::Freed { blocks, on_host, .. } if phase == Phase::Waiting => {
                    Event::GaveMore { seq, blocks, on_host }
                }
                PreemptOutcome::Freed { blocks, on_host, .. } => {
                    Event::PreemptFreed { seq, blocks, on_host }
                }
                PreemptOutcome::Copying { blocks, .. } => Event::PreemptCopying { seq, blocks },
            });
            if matches!(preempted.outcome, PreemptOutcome::Freed { .. }) {
                self.without_blocks.insert(seq);
            }
        }
        for granted in &grant.grants {
            let seq = granted.ticket.seq;
            if let GrantOutcome::Copying { blocks } = granted.outcome
                && core.phase(seq).is_some()
            {
                self.tracer.note(|| Event::ResumeCopying { seq, blocks });
            }
        }
    }

    pub(crate) fn submitted(&mut self, batch: &StepBatch, now: Timestamp) {
        if !self.tracer.is_on() {
            return;
        }
        self.began.insert(batch.id, now);
        for slice in &batch.slices {
            let (seq, computed) = (slice.seq, slice.first_pos);
            if self.without_blocks.remove(&seq) {
                self.tracer.note(|| Event::Resumed { seq, computed, copied: 0, failed: 0 });
            }
        }
        let slices = batch.slices.iter().map(|slice| Slice {
            seq: slice.seq,
            first_pos: slice.first_pos,
            tokens: slice.input.len() as u32,
            sample: slice.sample,
        });
        self.tracer.note(|| Event::StepSubmitted { step: batch.id, slices: slices.collect() });
    }

    pub(crate) fn stepped(&mut self, done: &StepDone, now: Timestamp) {
        if !self.tracer.is_on() {
            return;
        }
        let began = self.began.remove(&done.id).unwrap_or(now);
        // All other steps in flight count as begun now, when the step before them has ended.
        self.began.values_mut().for_each(|next| *next = now);
        self.tracer.note(|| Event::StepEnded {
            step: done.id,
            ok: done.result.is_ok(),
            duration_us: now.since_us(began),
        });
    }

    pub(crate) fn first_token(&self, seq: SeqId) {
        self.tracer.note(|| Event::FirstToken { seq });
    }

    /// Records an event of the block store (blocks copied out, or back on the device), given the phase that its
    /// sequence had before and the Scheduler's decision to commit or abort.
    pub(crate) fn store_event(
        &mut self,
        event: StoreEvent,
        before: Option<Phase>,
        decision: PreemptDecision,
    ) {
        match (event, decision) {
            (StoreEvent::PreemptCopied { ticket, copied, failed, .. }, PreemptDecision::Commit) => {
                let seq = ticket.seq;
                if self.tracer.is_on() {
                    self.without_blocks.insert(seq);
                }
                self.tracer.note(|| Event::PreemptCommitted { seq, copied, failed });
            }
            (StoreEvent::PreemptCopied { ticket, copied, failed, .. }, PreemptDecision::Abort) => {
                self.tracer.note(|| Event::PreemptAborted { seq: ticket.seq, copied, failed });
            }
            (StoreEvent::Resumed { ticket, computed, copied, failed }, _)
                if before == Some(Phase::Opening) =>
            {
                let seq = ticket.seq;
                self.without_blocks.remove(&seq);
                self.tracer.note(|| Event::Resumed { seq, computed, copied, failed });
            }
            _ => {}
        }
    }

    pub(crate) fn ended(&mut self, report: &EndReport) {
        self.without_blocks.remove(&report.seq);
        self.tracer.note(|| Event::Ended {
            seq: report.seq,
            ending: Ending::of(report),
            tokens: report.usage.completion_tokens,
            preemptions: report.usage.preemptions,
        });
    }

    pub(crate) fn command(&self, control: &Control, known: bool) {
        self.tracer.note(|| {
            let (seq, text) = match control {
                Control::Reprioritize { seq, tier, priority } => {
                    (Some(*seq), format!("reprioritize to {tier}, priority {priority}"))
                }
                Control::Pause(seq) => (Some(*seq), "pause".to_owned()),
                Control::Resume(seq) => (Some(*seq), "resume".to_owned()),
                Control::Cancel(seq) => (Some(*seq), "cancel".to_owned()),
                Control::SetPolicy(policy) => (None, format!("policy {policy:?}")),
                Control::Adjust(_) => (None, "settings".to_owned()),
            };
            Event::Command { seq, text, known }
        });
    }
}

#[cfg(test)]
mod tests;
