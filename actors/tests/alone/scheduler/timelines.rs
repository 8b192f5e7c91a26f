//! Tests of the timelines of sequences.

use super::settle;
use super::{Alone, started};
use crate::run;
use tiercel_actors::messages::{CopiesEnded, Inspect, StepReserved};
use tiercel_actors::{Control, Happening, Moment};
use tiercel_device::{SeqId, StepId, Tier};
use tiercel_policy::{Grant, GrantOutcome, PreemptOutcome, Preempted, StepGrant, StoreEvent};

impl Alone {
    /// Returns the moments of a live sequence.
    async fn moments(&self, seq: SeqId) -> Vec<Moment> {
        let inspected = self.scheduler.send(Inspect(vec![seq])).await.unwrap();
        let [(view, timeline)] = &inspected.live[..] else { panic!("{inspected:?}") };
        assert_eq!(view.seq, seq);
        timeline.moments().copied().collect()
    }

    async fn happenings(&self, seq: SeqId) -> Vec<Happening> {
        self.moments(seq).await.iter().map(|moment| moment.what).collect()
    }

    async fn command(&self, control: Control) {
        let changed = self.scheduler.send(super::Command(control)).await.unwrap();
        assert!(changed.known);
    }
}

#[test]
fn a_timeline_tells_what_happened_to_a_sequence_and_in_which_step() {
    run(async {
        let alone = started();
        let _first = alone.enqueue(1, Tier::Premium).await;
        let _streams =
            [alone.enqueue(2, Tier::Background).await, alone.enqueue(3, Tier::Background).await];
        // The clock stood still while the sequences arrived at 1, 2 and 3 us.
        alone.clock.sleep_us(10).await;
        alone.step().await;
        alone.step().await;
        let request = alone.request().await;
        let victim = request.victims[0].ticket;
        let outcome = PreemptOutcome::Freed { blocks: 1, on_host: 0, retained: 0 };
        let preempted = vec![Preempted { ticket: victim, outcome }];
        let batch = alone.grant(&request, preempted).await.expect("the others run");
        alone.end(&batch).await;
        let taken = request.step;
        let resumed = alone.step().await.step;
        let queued = Happening::Queued { tier: Tier::Background };
        let moments = alone.moments(victim.seq).await;
        let expected = [
            (queued, StepId(1)),
            (Happening::Started, StepId(2)),
            (Happening::FirstToken, StepId(2)),
            (Happening::Preempted { swap: false }, taken),
            (Happening::Resumed, resumed),
        ];
        assert_eq!(moments.iter().map(|m| (m.what, m.step)).collect::<Vec<_>>(), expected);
        assert!(moments.is_sorted_by_key(|moment| moment.at));
        assert_eq!(moments[0].at.0, victim.seq.0, "the time of its arrival");
        let other = SeqId(5 - victim.seq.0);
        assert_eq!(alone.happenings(other).await.len(), 3, "queued, started, first token");
    });
}

#[test]
fn a_timeline_tells_what_operators_did_and_leaves_out_what_changed_nothing() {
    run(async {
        let alone = started();
        let _stream = alone.enqueue(1, Tier::Background).await;
        let seq = SeqId(1);
        let raised = Control::Reprioritize { seq, tier: Tier::Premium, priority: 0 };
        for control in [
            Control::Resume(seq),
            Control::Pause(seq),
            Control::Pause(seq),
            raised.clone(),
            raised,
            Control::Resume(seq),
        ] {
            alone.command(control).await;
        }
        let expected = [
            Happening::Queued { tier: Tier::Background },
            Happening::Paused,
            Happening::Moved { from: Tier::Background, to: Tier::Premium },
            Happening::Unpaused,
        ];
        assert_eq!(alone.happenings(seq).await, expected);
        alone.command(Control::Cancel(seq)).await;
        let inspected = alone.scheduler.send(Inspect(vec![seq])).await.unwrap();
        assert!(inspected.live.is_empty(), "the sequence has ended");
    });
}

#[test]
fn a_timeline_tells_when_blocks_are_copied_in() {
    run(async {
        let alone = started();
        let _stream = alone.enqueue(1, Tier::Premium).await;
        let request = alone.request().await;
        let ticket = request.wants[0].ticket;
        let grants = vec![Grant { ticket, outcome: GrantOutcome::Copying { blocks: 1 } }];
        let step = request.step;
        let grant = StepGrant { step, grants, preempted: Vec::new(), free_blocks: 0 };
        alone.scheduler.send(StepReserved(grant)).await.unwrap();
        settle().await;
        let queued = Happening::Queued { tier: Tier::Premium };
        assert_eq!(alone.happenings(ticket.seq).await, [queued, Happening::Copying]);
        let event = StoreEvent::Resumed { ticket, computed: 4, copied: 1, failed: 0 };
        let ended = CopiesEnded { events: vec![event], blocks: 1, duration_us: 10 };
        alone.scheduler.send(ended).await.unwrap();
        alone.step().await;
        let started = [queued, Happening::Copying, Happening::Started, Happening::FirstToken];
        assert_eq!(alone.happenings(ticket.seq).await, started);
    });
}

#[test]
fn a_swap_that_is_aborted_is_told_as_a_resume() {
    run(async {
        let alone = started();
        let _streams =
            [alone.enqueue(1, Tier::Premium).await, alone.enqueue(2, Tier::Background).await];
        alone.step().await;
        let request = alone.request().await;
        let victim = request.victims[0].ticket;
        let outcome = PreemptOutcome::Copying { blocks: 1, retained: 0 };
        let preempted = vec![Preempted { ticket: victim, outcome }];
        alone.grant(&request, preempted).await.expect("the other one runs");
        let event = StoreEvent::PreemptCopied { ticket: victim, copied: 1, failed: 0, on_host: 1 };
        let ended = CopiesEnded { events: vec![event], blocks: 1, duration_us: 10 };
        alone.scheduler.send(ended).await.unwrap();
        super::settle().await;
        assert_eq!(alone.told.aborted.take().len(), 1);
        let happened = alone.happenings(victim.seq).await;
        let [.., taken, back] = happened[..] else { panic!("{happened:?}") };
        assert_eq!((taken, back), (Happening::Preempted { swap: true }, Happening::Resumed));
    });
}
