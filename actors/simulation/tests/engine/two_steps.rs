//! Tests of the engine with two steps in flight, on a mock device whose host takes longer than a step.

use super::{storm, tight};
use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Arc;
use tiercel_actors::trace::{Event, Record};
use tiercel_actors::{FinishReason, Request, StreamEvent};
use tiercel_config::PreemptionMode;
use tiercel_device::{Clock, SeqId, StepId, Timestamp};
use tiercel_simulation::{Laboratory, collect, request, simulate};

fn slow_host(mut laboratory: Laboratory) -> Laboratory {
    laboratory.device.host_us = 10_000;
    laboratory
}

fn tiny(clock: Clock) -> Laboratory {
    slow_host(Laboratory::tiny(clock))
}

/// Recorder that counts the steps that are submitted while another step is in flight.
#[derive(Default)]
struct Overlaps {
    in_flight: Cell<u32>,
    overlapping: Cell<u32>,
    steps: RefCell<Vec<(StepId, Vec<SeqId>)>>,
}

impl Record for Overlaps {
    fn record(&self, _: Timestamp, event: &Event) {
        match event {
            Event::StepSubmitted { step, slices } => {
                self.overlapping.set(self.overlapping.get() + self.in_flight.get());
                self.in_flight.set(self.in_flight.get() + 1);
                let seqs = slices.iter().map(|slice| slice.seq).collect();
                self.steps.borrow_mut().push((*step, seqs));
            }
            Event::StepEnded { .. } => self.in_flight.set(self.in_flight.get() - 1),
            _ => {}
        }
    }
}

#[test]
fn a_stream_has_the_next_step_in_flight_and_the_same_text() {
    for depth in [1, 2] {
        simulate(async |clock| {
            let mut laboratory = tiny(clock);
            laboratory.settings.scheduler.steps_in_flight = depth;
            let oracle = laboratory.device.oracle();
            let overlaps = Rc::new(Overlaps::default());
            let engine = laboratory.start_recorded(Some(Rc::clone(&overlaps) as Rc<dyn Record>));
            let got = collect(engine.submit(request(&[1, 2], 100)).await.unwrap()).await;
            assert_eq!(got.tokens, oracle.output(&[1, 2], 100));
            // Steps 3 to 100 are submitted while the step before them is in flight. Step 2 is not, because during the
            // first step the engine does not know yet that the host is slow.
            let expected = if depth == 2 { 98 } else { 0 };
            assert_eq!(overlaps.overlapping.get(), expected);
            assert_eq!(overlaps.steps.borrow().len(), 100, "none is computed for nothing");
        });
    }
}

#[test]
fn a_profile_with_a_slow_host_keeps_two_steps_in_flight_and_then_the_host_costs_no_time() {
    let end_us = |host_us: f64| {
        let mut end_us = 0;
        simulate(async |clock| {
            let mut laboratory = Laboratory::tiny(clock.clone());
            laboratory.device.profile.host.step_us = host_us;
            let engine = laboratory.start_recorded(None);
            collect(engine.submit(request(&[1, 2], 100)).await.unwrap()).await;
            end_us = clock.now().0;
        });
        end_us
    };
    // The first steps wait for the host, until the engine has learned the host's time. Each later step is submitted
    // while the step before is in flight.
    let waits = (end_us(50.0) - end_us(0.0)) / 50;
    assert!((2..=5).contains(&waits), "{waits} of 100 steps waited");
}

#[test]
fn a_stop_token_ends_the_stream_although_the_next_step_is_under_way() {
    simulate(async |clock| {
        let laboratory = tiny(clock);
        let output = laboratory.device.oracle().output(&[9, 9], 10);
        let overlaps = Rc::new(Overlaps::default());
        let engine = laboratory.start_recorded(Some(Rc::clone(&overlaps) as Rc<dyn Record>));
        let stop = Request { stop_tokens: Arc::from([output[4]]), ..request(&[9, 9], 10) };
        let got = collect(engine.submit(stop).await.unwrap()).await;
        assert_eq!(got.tokens, output[..4]);
        let Some(StreamEvent::Finished { reason: FinishReason::Stop, usage }) = got.end else {
            panic!("{:?}", got.end)
        };
        assert_eq!(usage.completion_tokens, 4);
        super::settled(&engine).await;
        assert_eq!(overlaps.steps.borrow().len(), 6, "one was under way");
    });
}

#[test]
fn storms_show_in_no_text_and_every_block_comes_back() {
    for mode in [PreemptionMode::Swap, PreemptionMode::Recompute, PreemptionMode::Auto] {
        for seed in 20..32 {
            let laboratory = |clock| slow_host(tight(clock, mode));
            let status = simulate(async |clock| storm(laboratory(clock), seed, 60).await.0);
            let preemptions = status.counters.preemptions();
            assert!(preemptions > 0, "seed {seed}, {mode:?}: memory was not short");
        }
    }
}

#[test]
fn failed_steps_and_copies_cost_only_requests_that_were_in_them() {
    let (mut finished, mut all) = (0, 0);
    for seed in 0..6 {
        simulate(async |clock| {
            let mut laboratory = slow_host(tight(clock, PreemptionMode::Swap));
            laboratory.device.faults.step_fails = 0.02;
            laboratory.device.faults.copy_fails = 0.2;
            let (status, collected) = storm(laboratory, seed, 60).await;
            assert!(status.counters.failed_steps > 0);
            all += collected.len();
            let whole =
                |end: &Option<StreamEvent>| matches!(end, Some(StreamEvent::Finished { .. }));
            finished += collected.iter().filter(|got| whole(&got.end)).count();
        });
    }
    assert!(finished * 10 >= all * 9, "{finished} of {all} finished");
}
