//! What the scheduler tells admission of the time there is for prompts.

use crate::admission::Capacity;
use crate::scheduler::cost::StepWork;
use crate::scheduler::pace::AIM;
use crate::scheduler::sequence::Sequence;
use crate::scheduler::state::Scheduler;
use tiercel_config::{Budget, SheddingForm};
use tiercel_device::{Tier, Timestamp};

impl Scheduler {
    /// The time there is for prompts, and what those that wait will take of it. Without shedding by forecast in it if
    /// steps are of a fixed size: then nobody knows.
    pub fn capacity(&self, now: Timestamp) -> Capacity {
        let mut streams = StepWork::default();
        let mut target_us = f64::INFINITY;
        let mut backlog_us = [0.0; Tier::ALL.len()];
        for (_, sequence) in self.sequences.active().filter(|(_, sequence)| !sequence.held()) {
            let left = sequence.left_to_compute();
            if sequence.planned_output() == 0 {
                backlog_us[sequence.served_as().index()] +=
                    self.cost.prefill_us(left, sequence.planned_len() - left);
            } else if sequence.decoding() {
                self.count_stream(sequence, &mut streams, &mut target_us);
            }
        }
        // What will be found of prompts that wait is not known; of others lately so much was.
        let token_us = self.cost.prefill_us(1, 0) * (1.0 - self.hit_share);
        for (us, tokens) in backlog_us.iter_mut().zip(self.sequences.unstarted_tokens()) {
            *us += token_us * tokens as f64;
        }
        let (step_us, prompts_us) = self.step_for(&streams, target_us, now);
        let slack = self.settings.budget == Budget::Slack;
        Capacity {
            step_us,
            idle_us: self.cost.step_us(&StepWork::default()),
            prompts_us,
            backlog_us,
            queue_us: Tier::ALL.map(|tier| self.drain[tier.index()].wait_us(now)),
            fair_tenants: self.tenants_take_turns(),
            fair_tiers: self.divides(),
            token_us,
            shares: self.share_report(),
            shedding: (slack || self.shedding.form == SheddingForm::Share).then_some(self.shedding),
        }
    }

    /// Length of the steps that the streams' targets allow, us, and the share of it that is left for prompts.
    pub(crate) fn time_for_prompts(&self, now: Timestamp) -> (f64, f64) {
        let mut streams = StepWork::default();
        let mut target_us = f64::INFINITY;
        for (_, sequence) in self.sequences.active().filter(|(_, sequence)| !sequence.held()) {
            if sequence.planned_output() > 0 && sequence.decoding() {
                self.count_stream(sequence, &mut streams, &mut target_us);
            }
        }
        let (step_us, prompts_us) = self.step_for(&streams, target_us, now);
        (step_us, prompts_us / step_us.max(1.0))
    }

    /// Adds a stream to those that steps are for, and its target to the tightest.
    fn count_stream(&self, stream: &Sequence, streams: &mut StepWork, target_us: &mut f64) {
        if stream.tier < Tier::Background {
            streams.add_decode(stream.planned_len());
            let tpot_ms = stream.targets.tpot_ms.unwrap_or(f64::INFINITY);
            *target_us = target_us.min(tpot_ms * 1000.0 * AIM);
        }
    }

    /// Length of a step with these streams, the tightest of which aims at a pace of `target_us`, and what of it is left
    /// for prompts, us.
    fn step_for(&self, streams: &StepWork, target_us: f64, now: Timestamp) -> (f64, f64) {
        let bare_us = self.cost.step_us(streams);
        let room = self.prefill_room(streams.decode_tokens);
        let longest_us = bare_us + self.cost.prefill_us(room, 0);
        let longest_us = longest_us.min(self.blocking_us(now)).max(bare_us);
        // Streams that cannot meet their targets set no pace.
        let target_us = if target_us > bare_us { target_us } else { f64::INFINITY };
        let step_us = target_us.clamp(bare_us, longest_us);
        (step_us, step_us - bare_us)
    }
}

#[cfg(test)]
mod tests {
    use crate::scheduler::tests::{NOW, grant_all, scheduler, sequence};
    use crate::scheduler::{Hold, Scheduler};
    use tiercel_device::{SeqId, Tier};

    #[test]
    fn whoever_is_paused_before_it_has_started_is_in_nobodys_way() {
        let mut s = scheduler(|_| ());
        s.enqueue(sequence(1, Tier::Standard, 20));
        let seen = |s: &Scheduler| {
            let tier = Tier::Standard.index();
            (s.capacity(NOW).backlog_us[tier], s.drain[tier].waiting())
        };
        assert_eq!(seen(&s), (200.0, 1));
        s.set_hold(SeqId(1), Hold::Operator, true);
        s.set_hold(SeqId(1), Hold::Stream, true);
        assert_eq!(seen(&s), (0.0, 0));
        s.set_hold(SeqId(1), Hold::Operator, false);
        assert_eq!(seen(&s), (0.0, 0), "its reader holds it yet");
        s.set_hold(SeqId(1), Hold::Stream, false);
        assert_eq!(seen(&s), (200.0, 1));
        s.set_hold(SeqId(1), Hold::Operator, true);
        s.enqueue(sequence(2, Tier::Standard, 20));
        s.cancel(SeqId(1));
        assert_eq!(seen(&s), (200.0, 1), "it was not counted when it left");
        let request = s.plan(NOW).expect("it can run");
        s.granted(grant_all(&request));
        assert_eq!(seen(&s), (0.0, 1), "a step in flight ends its prompt");
        s.set_hold(SeqId(2), Hold::Operator, true);
        assert_eq!(seen(&s), (0.0, 0));
    }
}
