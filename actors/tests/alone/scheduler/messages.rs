//! Tests of the Scheduler's answers to clock ticks, timers, drains, operators and the end of the engine, and of the
//! metrics of its steps.

use super::{Alone, started, started_on};
use crate::{run, run_for_metrics};
use tiercel_actors::messages::{
    Displace, Drain, GetStatus, PlanDue, Shutdown, StepEnded, Stop, Tick,
};
use tiercel_actors::{Drained, FinishReason, RequestFault, Resource, StreamEvent, Usage};
use tiercel_config::EngineSettings;
use tiercel_device::{Clock, SeqId, StepDone, StepError, Tier, Timestamp};
use tiercel_policy::slo::Observation;
use tokio::sync::{mpsc, oneshot};

fn last(stream: &mut mpsc::Receiver<StreamEvent>) -> Option<StreamEvent> {
    let mut last = None;
    while let Ok(event) = stream.try_recv() {
        last = Some(event);
    }
    last
}

impl Alone {
    /// Sends a drain with its grace period's end; returns the channel on which the Scheduler reports that it is done.
    async fn drain(&self, deadline: u64) -> oneshot::Receiver<Drained> {
        let (done, drained) = oneshot::channel();
        let deadline = Timestamp(deadline);
        self.scheduler.send(Drain { deadline, done }).await.unwrap();
        drained
    }

    /// Grants all open requests for blocks until the Scheduler makes no more, and ends the steps that it submits.
    async fn finish(&self) {
        for _ in 0..4 {
            super::settle().await;
            for request in self.reserved.take() {
                if let Some(batch) = self.grant(&request.0, Vec::new()).await {
                    self.end(&batch).await;
                }
            }
        }
    }
}

#[test]
fn the_first_token_is_observed_with_its_time_and_counted_with_its_step() {
    let metrics = run_for_metrics(async {
        let alone = started();
        let _stream = alone.enqueue(1, Tier::Standard).await;
        let request = alone.request().await;
        let batch = alone.grant(&request, Vec::new()).await.expect("the request was granted");
        alone.clock.sleep_us(2_501).await;
        alone.end(&batch).await;
        super::settle().await;
        let first = alone.told.observed.take().into_iter().find_map(|seen| match seen.what {
            Observation::FirstToken { ttft_ms } => Some(ttft_ms),
            _ => None,
        });
        // The sequence arrived at 1 us, and its first token came 2500 us later.
        assert_eq!(first, Some(2.5));
    });
    assert_eq!(metrics.get("tiercel_generated_tokens_total{tier=\"standard\"}"), Some("1"));
    assert_eq!(metrics.get("tiercel_step_tokens_sum"), Some("6"), "the tokens of the prompt");
}

#[test]
fn a_tick_reports_the_shares_of_slots_and_of_output_buffers_in_use() {
    run(async {
        let alone = started();
        // A buffer of 10 events has room for 8 beside its 2 reserved entries.
        let _stream = alone.enqueue_with_buffer(1, Tier::Standard, 10).await;
        alone.step().await;
        alone.step().await;
        assert!(alone.scheduler.send(Tick).await.unwrap());
        super::settle().await;
        let slots = f64::from(EngineSettings::default().scheduler.max_num_seqs);
        let told: Vec<_> = alone.told.in_use.take();
        let told: Vec<_> =
            told.iter().map(|use_of| (use_of.resource, use_of.used_percent)).collect();
        // One sequence runs, and 2 of 8 events are unread.
        assert_eq!(told, [(Resource::Slots, 100.0 / slots), (Resource::Outputs, 25.0)]);
        assert_eq!(alone.scheduler.send(GetStatus).await.unwrap().running, 1);
    });
}

#[test]
fn an_idle_scheduler_is_drained_at_once() {
    run(async {
        let alone = started();
        let drained = alone.drain(1_000).await;
        assert_eq!(drained.await, Ok(Drained::default()));
    });
}

#[test]
fn a_drain_ends_what_is_live_at_its_deadline_and_not_before() {
    run(async {
        let alone = started();
        let mut stream = alone.enqueue(1, Tier::Standard).await;
        let mut drained = alone.drain(100).await;
        alone.clock.sleep_us(99).await;
        alone.scheduler.send(Tick).await.unwrap();
        assert_eq!(last(&mut stream), None, "the grace period is not over");
        alone.clock.sleep_us(1).await;
        alone.scheduler.send(Tick).await.unwrap();
        assert_eq!(last(&mut stream), Some(StreamEvent::Failed(RequestFault::ShuttingDown)));
        assert!(drained.try_recv().is_err(), "a request for blocks is not answered yet");
        alone.finish().await;
        assert_eq!(drained.try_recv(), Ok(Drained { ended: 1, ..Drained::default() }));
    });
}

#[test]
fn the_second_step_in_flight_is_planned_when_its_timer_fires_and_not_before() {
    run(async {
        let alone = started_on(2, Clock::simulated());
        let _stream = alone.enqueue(1, Tier::Standard).await;
        let request = alone.request().await;
        // The host takes 30 us to plan the first step, so a second step in flight pays off.
        alone.clock.sleep_us(30).await;
        alone.grant(&request, Vec::new()).await.expect("the request was granted");
        assert!(alone.reserved.take().is_empty() && alone.told.plans.take().is_empty());
        // The first step takes about 206 us: 200 us and 1 us for each of its 6 tokens.
        alone.clock.sleep_us(300).await;
        super::settle().await;
        assert_eq!(alone.told.plans.take().len(), 1);
        assert!(
            alone.reserved.take().is_empty(),
            "the timer message has not reached the scheduler"
        );
        alone.scheduler.send(PlanDue).await.unwrap();
        assert_eq!(alone.request().await.wants.len(), 1);
    });
}

#[test]
fn on_a_real_clock_a_step_may_be_planned_faster_than_a_timer_is_late() {
    run(async {
        let alone = started_on(1, Clock::wall());
        let mut stream = alone.enqueue(1, Tier::Standard).await;
        alone.step().await;
        assert_eq!(last(&mut stream), Some(StreamEvent::Token { token: 7, logprobs: None }));
        assert_eq!(*alone.obituary.borrow(), None);
    });
}

#[test]
fn a_stopped_sequence_is_complete_with_the_tokens_that_it_has() {
    run(async {
        let alone = started();
        let mut stream = alone.enqueue(1, Tier::Standard).await;
        alone.step().await;
        alone.scheduler.send(Stop(SeqId(1))).await.unwrap();
        alone.finish().await;
        let usage = Usage { prompt_tokens: 6, completion_tokens: 1, ..Usage::default() };
        let finished = StreamEvent::Finished { reason: FinishReason::Stop, usage };
        assert_eq!(last(&mut stream), Some(finished));
    });
}

#[test]
fn a_waiting_sequence_of_a_lower_tier_is_turned_away_for_a_higher_one_only() {
    run(async {
        let alone = started();
        let mut stream = alone.enqueue(1, Tier::Standard).await;
        let displace = |tier, choices| alone.scheduler.send(Displace { tier, choices });
        assert!(!displace(Tier::Standard, 1).await.unwrap());
        assert!(!displace(Tier::Premium, 2).await.unwrap(), "one sequence is too few");
        assert_eq!(last(&mut stream), None);
        assert!(displace(Tier::Premium, 1).await.unwrap());
        let end = last(&mut stream);
        let turned_away =
            |event| matches!(event, Some(StreamEvent::Failed(RequestFault::TurnedAway { .. })));
        assert!(turned_away(end.clone()), "{end:?}");
        assert!(!displace(Tier::Premium, 1).await.unwrap(), "none is left");
    });
}

#[test]
fn a_lost_device_is_announced_with_its_cause() {
    run(async {
        let alone = started();
        let _stream = alone.enqueue(1, Tier::Standard).await;
        let request = alone.request().await;
        let batch = alone.grant(&request, Vec::new()).await.expect("the request was granted");
        let result = Err(StepError::DeviceLost("unplugged".into()));
        alone.scheduler.send(StepEnded(StepDone { id: batch.id, result })).await.unwrap();
        let cause = alone.obituary.borrow().clone();
        assert_eq!(cause.as_deref(), Some("Scheduler: device lost: unplugged"));
    });
}

#[test]
fn a_scheduler_that_is_shut_down_stops_without_being_announced_dead() {
    run(async {
        let alone = started();
        alone.scheduler.send(Shutdown).await.unwrap();
        super::settle().await;
        assert!(!alone.scheduler.connected());
        assert_eq!(*alone.obituary.borrow(), None);
    });
}
