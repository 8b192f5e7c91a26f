//! Tests of commands and snapshots: what operators change and see.

use super::*;

#[test]
fn a_command_answers_with_the_sequence_before_and_after_it() {
    run(async {
        let alone = started();
        let mut stream = alone.enqueue(1, Tier::Background).await;
        alone.step().await;
        let seq = SeqId(1);
        let raised = Control::Reprioritize { seq, tier: Tier::Premium, priority: -1 };
        let changed = alone.scheduler.send(Command(raised)).await.unwrap();
        let tier = |view: &Option<tiercel_actors::SequenceView>| {
            view.as_ref().map(|view| (view.tier, view.priority))
        };
        assert_eq!(tier(&changed.before), Some((Tier::Background, 0)));
        assert_eq!(tier(&changed.after), Some((Tier::Premium, -1)));
        let paused = alone.scheduler.send(Command(Control::Pause(seq))).await.unwrap();
        assert!(paused.after.is_some_and(|view| view.paused) && paused.step >= changed.step);
        let cancelled = alone.scheduler.send(Command(Control::Cancel(seq))).await.unwrap();
        assert!(cancelled.known && cancelled.after.is_none());
        let mut last = None;
        while let Ok(event) = stream.try_recv() {
            last = Some(event);
        }
        assert_eq!(last, Some(StreamEvent::Failed(RequestFault::Cancelled)));
        assert!(!alone.scheduler.send(Command(Control::Cancel(seq))).await.unwrap().known);
    });
}

#[test]
fn a_snapshot_holds_every_live_sequence_once() {
    run(async {
        let alone = started();
        let mut streams = Vec::new();
        for id in 1..=200 {
            streams.push(alone.enqueue(id, Tier::Standard).await);
        }
        alone.step().await;
        let mut published = alone.snapshots.subscribe();
        alone.scheduler.do_send(TakeSnapshot);
        // A second request while the first snapshot is being taken begins no other one.
        alone.scheduler.do_send(TakeSnapshot);
        // Sequence 3 ends before the snapshot is complete, and sequence 201 comes.
        alone.scheduler.do_send(Cancel(SeqId(3)));
        let _late = alone.enqueue(201, Tier::Premium).await;
        published.changed().await.unwrap();
        let snapshot = published.borrow_and_update().clone();
        let ids: Vec<u64> = snapshot.sequences.iter().map(|view| view.seq.0).collect();
        assert!(ids.is_sorted_by(|a, b| a < b), "each once: {ids:?}");
        assert!((4..=200).all(|id| ids.contains(&id)), "{ids:?}");
        let runs = snapshot.sequences.iter().filter(|view| view.state != SequenceState::Waiting);
        assert!(runs.count() > 0);
        settle().await;
        assert!(!published.has_changed().unwrap());
    });
}

#[test]
fn other_actors_handle_messages_between_the_slices_of_a_snapshot() {
    run(async {
        let alone = started();
        let mut streams = Vec::new();
        for id in 1..=640 {
            streams.push(alone.enqueue(id, Tier::Standard).await);
        }
        let (other, _) = answering(|_: &GetUsage| BlockUsage::default());
        let mut published = alone.snapshots.subscribe();
        published.mark_unchanged();
        alone.scheduler.do_send(TakeSnapshot);
        let mut answers = 0;
        while !published.has_changed().unwrap() {
            other.send(GetUsage).await.unwrap();
            answers += 1;
        }
        assert_eq!(published.borrow().sequences.len(), 640);
        assert!(answers >= 10, "{answers} answers during ten slices");
    });
}

#[test]
fn a_snapshot_is_completed_when_the_scheduler_stops() {
    run(async {
        let alone = started();
        let mut streams = Vec::new();
        for id in 1..=200 {
            streams.push(alone.enqueue(id, Tier::Standard).await);
        }
        let mut published = alone.snapshots.subscribe();
        alone.scheduler.do_send(TakeSnapshot);
        alone.scheduler.do_send(Shutdown);
        let changed = alone.clock.timeout_us(1_000_000, published.changed()).await;
        changed.expect("no caller waits for ever").unwrap();
        assert_eq!(published.borrow().sequences.len(), 200);
    });
}

#[test]
fn adjusted_settings_hold_from_the_next_plan_and_reach_admission() {
    run(async {
        let alone = started();
        let _streams =
            [alone.enqueue(1, Tier::Standard).await, alone.enqueue(2, Tier::Standard).await];
        alone.step().await;
        assert_eq!(alone.step().await.wants.len(), 2);
        let mut settings = EngineSettings::default();
        settings.scheduler.max_num_seqs = 1;
        settings.patience.standard_s = 7.0;
        settings.reservation.premium_blocks_percent = 40.0;
        settings.slo.standard.ttft_ms = Target::Ms(700.0);
        let control = Control::Adjust(Box::new(settings));
        assert!(alone.scheduler.send(Command(control)).await.unwrap().known);
        settle().await;
        let limits = alone.told.limits.take();
        let [limits] = &limits[..] else { panic!("{limits:?}") };
        assert_eq!(limits.patience.standard_s, 7.0);
        assert_eq!(limits.reservation.premium_blocks_percent, 40.0);
        let targets = alone.told.targets.take();
        let ttft = targets.iter().map(|Retarget(targets)| targets.standard.ttft_ms);
        assert_eq!(ttft.collect::<Vec<_>>(), [Some(700.0)]);
        alone.step().await;
        assert_eq!(alone.step().await.wants.len(), 1, "one sequence a step");
    });
}
