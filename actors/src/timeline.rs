//! Timelines of live sequences: what happened to each of them, and when, for an operator who looks at one request.
//!
//! A timeline is written when something happens to its sequence, which is not in every step: the Scheduler passes on
//! arrivals, starts, first tokens, preemptions, resumes and operators' commands.

use crate::request::Control;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use tiercel_device::{SeqId, StepBatch, StepId, Tier, Timestamp};
use tiercel_policy::scheduler::{NewSequence, Phase, PreemptDecision, Scheduler, SequenceView};
use tiercel_policy::{GrantOutcome, PreemptOutcome, StepGrant, StoreEvent};

/// Most moments that a timeline keeps. If there are more, the oldest ones are dropped.
const MOMENTS_MAX: usize = 16;

/// What happened to a sequence at one moment of its timeline.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Happening {
    /// The sequence was accepted and waits for its start.
    Queued {
        /// Tier in which the sequence was accepted.
        tier: Tier,
    },
    /// The sequence got its first KV blocks, and a step with it was submitted.
    Started,
    /// The first output token was sampled.
    FirstToken,
    /// The sequence was preempted.
    Preempted {
        /// Whether blocks of it are copied to the host pool (swap) rather than only given up (recompute).
        swap: bool,
    },
    /// Blocks of the sequence are copied from the host pool to the device. It starts or resumes when they are there.
    Copying,
    /// The preempted sequence has blocks again, or keeps those that it should have given up.
    Resumed,
    /// An operator paused the sequence.
    Paused,
    /// An operator ended the pause.
    Unpaused,
    /// An operator moved the sequence to another tier.
    Moved {
        /// Tier before the change.
        from: Tier,
        /// Tier after the change.
        to: Tier,
    },
}

/// One moment of a timeline.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Moment {
    /// Time of the moment.
    pub at: Timestamp,
    /// Step that the moment belongs to: of a start, a first token and a preemption the step that caused it, of anything
    /// else the step that was planned last.
    pub step: StepId,
    /// What happened.
    pub what: Happening,
}

/// The last moments of a sequence, oldest first.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Timeline {
    moments: VecDeque<Moment>,
    dropped: u64,
}

impl Timeline {
    /// Returns the moments that are kept, oldest first.
    pub fn moments(&self) -> impl Iterator<Item = &Moment> {
        self.moments.iter()
    }

    /// Returns the number of earlier moments, which are not kept.
    pub fn dropped(&self) -> u64 {
        self.dropped
    }

    fn add(&mut self, moment: Moment) {
        if self.moments.len() == MOMENTS_MAX {
            self.moments.pop_front();
            self.dropped += 1;
        }
        self.moments.push_back(moment);
    }
}

/// Timeline of a sequence that has ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EndedTimeline {
    /// Id of the sequence.
    pub seq: SeqId,
    /// Last moments of the sequence.
    pub timeline: Timeline,
    /// Time at which the sequence ended, in whatever way.
    pub at: Timestamp,
}

/// Timelines of all live sequences.
#[derive(Debug, Default)]
pub(crate) struct Timelines {
    of: BTreeMap<SeqId, Timeline>,
    /// Live sequences that are preempted. Mostly there are none, and then a step costs nothing.
    preempted: BTreeSet<SeqId>,
}

impl Timelines {
    /// Returns the timeline of a live sequence.
    pub(crate) fn of(&self, seq: SeqId) -> Option<&Timeline> {
        self.of.get(&seq)
    }

    pub(crate) fn arrived(&mut self, new: &NewSequence, step: StepId) {
        let mut timeline = Timeline::default();
        timeline.add(Moment { at: new.arrival, step, what: Happening::Queued { tier: new.tier } });
        self.of.insert(new.seq, timeline);
    }

    /// Forgets a sequence that has ended, and returns its timeline.
    pub(crate) fn ended(&mut self, seq: SeqId) -> Option<Timeline> {
        self.preempted.remove(&seq);
        self.of.remove(&seq)
    }

    /// Notes which running sequences are preempted for a step, and for which blocks are copied in, before the Scheduler
    /// applies the grant.
    pub(crate) fn granted(&mut self, grant: &StepGrant, core: &Scheduler, now: Timestamp) {
        for preempted in &grant.preempted {
            let seq = preempted.ticket.seq;
            let swap = match preempted.outcome {
                // The sequence was preempted before, and gives up blocks that it had retained.
                PreemptOutcome::Freed { .. } if core.phase(seq) == Some(Phase::Waiting) => continue,
                PreemptOutcome::Freed { on_host, .. } => on_host > 0,
                PreemptOutcome::Copying { .. } => true,
            };
            if self.add(seq, (now, grant.step), Happening::Preempted { swap }) {
                self.preempted.insert(seq);
            }
        }
        for granted in &grant.grants {
            if matches!(granted.outcome, GrantOutcome::Copying { .. }) {
                self.add(granted.ticket.seq, (now, grant.step), Happening::Copying);
            }
        }
    }

    /// Notes which sequences start or resume with a step.
    pub(crate) fn submitted(&mut self, batch: &StepBatch, now: Timestamp) {
        for start in &batch.starts {
            self.add(start.seq, (now, batch.id), Happening::Started);
        }
        if self.preempted.is_empty() {
            return;
        }
        for slice in &batch.slices {
            self.resumed(slice.seq, (now, batch.id));
        }
    }

    pub(crate) fn first_token(&mut self, seq: SeqId, at: (Timestamp, StepId)) {
        self.add(seq, at, Happening::FirstToken);
    }

    /// Notes the end of copies: a sequence has its blocks back, or keeps them because its swap was aborted.
    pub(crate) fn store_event(
        &mut self,
        event: StoreEvent,
        before: Option<Phase>,
        decision: PreemptDecision,
        at: (Timestamp, StepId),
    ) {
        match event {
            StoreEvent::Resumed { ticket, .. } if before == Some(Phase::Opening) => {
                self.resumed(ticket.seq, at);
            }
            StoreEvent::PreemptCopied { ticket, .. } if decision == PreemptDecision::Abort => {
                self.resumed(ticket.seq, at);
            }
            _ => {}
        }
    }

    /// Adds an operator's command to the timeline of a sequence. `before` is the sequence before the command. A command
    /// that changes nothing is left out.
    pub(crate) fn command(
        &mut self,
        control: &Control,
        before: &SequenceView,
        at: (Timestamp, StepId),
    ) {
        let what = match control {
            Control::Pause(_) if !before.paused => Happening::Paused,
            Control::Resume(_) if before.paused => Happening::Unpaused,
            Control::Reprioritize { tier, .. } if *tier != before.tier => {
                Happening::Moved { from: before.tier, to: *tier }
            }
            _ => return,
        };
        self.add(before.seq, at, what);
    }

    fn resumed(&mut self, seq: SeqId, at: (Timestamp, StepId)) {
        if self.preempted.remove(&seq) {
            self.add(seq, at, Happening::Resumed);
        }
    }

    /// Adds a moment to a timeline; returns false if the sequence is not live.
    fn add(&mut self, seq: SeqId, (at, step): (Timestamp, StepId), what: Happening) -> bool {
        let timeline = self.of.get_mut(&seq);
        timeline.map(|timeline| timeline.add(Moment { at, step, what })).is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_timeline_keeps_the_last_moments_and_counts_the_others() {
        let mut timeline = Timeline::default();
        for number in 0..20 {
            timeline.add(Moment {
                at: Timestamp(number),
                step: StepId(number),
                what: Happening::Paused,
            });
        }
        assert_eq!((timeline.moments().count(), timeline.dropped()), (16, 4));
        assert_eq!(timeline.moments().next().map(|moment| moment.at), Some(Timestamp(4)));
    }
}
