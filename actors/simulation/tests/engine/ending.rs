//! Tests of the two ways in which an engine ends: by a drain (shutdown), or by a death that it announces.

use tiercel_actors::{Engine, Refusal, RequestFault, StreamEvent};
use tiercel_config::EngineSettings;
use tiercel_device::{MockDevice, StepBatch, StepDone, StepRunner, SubmitError};
use tiercel_simulation::{Laboratory, collect, request, simulate};

/// Device side for steps (step runner) that panics at every step, like a broken driver.
struct Panics;

impl StepRunner for Panics {
    fn submit(
        &mut self,
        _: StepBatch,
        _: Box<dyn FnOnce(StepDone) + Send>,
    ) -> Result<(), SubmitError> {
        panic!("a broken driver")
    }
}

/// Device side for steps (step runner) that accepts every step and never ends it.
struct Hangs;

impl StepRunner for Hangs {
    fn submit(
        &mut self,
        _: StepBatch,
        _: Box<dyn FnOnce(StepDone) + Send>,
    ) -> Result<(), SubmitError> {
        Ok(())
    }
}

#[test]
fn an_actor_that_panics_is_announced_and_the_engine_can_still_be_stopped() {
    simulate(async |clock| {
        let laboratory = Laboratory::tiny(clock.clone());
        let mut device = MockDevice::open(laboratory.device.clone());
        device.runner = Box::new(Panics);
        let engine = Engine { settings: EngineSettings::default(), device, clock }.start_here();
        let stream = engine.submit(request(&[1], 50)).await.unwrap();
        let reader = actix_rt::spawn(collect(stream));
        assert_eq!(engine.died().await, "actor Executor died");
        engine.drain(10).await;
        assert!(!matches!(reader.await.unwrap().end, Some(StreamEvent::Finished { .. })));
    });
}

#[test]
fn a_step_that_never_ends_does_not_keep_the_engine_from_stopping() {
    simulate(async |clock| {
        let laboratory = Laboratory::tiny(clock.clone());
        let mut device = MockDevice::open(laboratory.device.clone());
        device.runner = Box::new(Hangs);
        let engine = Engine { settings: EngineSettings::default(), device, clock }.start_here();
        let stream = engine.submit(request(&[1], 50)).await.unwrap();
        let reader = actix_rt::spawn(collect(stream));
        engine.drain(10).await;
        let end = reader.await.unwrap().end;
        assert_eq!(end, Some(StreamEvent::Failed(RequestFault::ShuttingDown)));
    });
}

#[test]
fn a_lost_device_ends_every_request_and_is_announced() {
    simulate(async |clock| {
        let mut laboratory = Laboratory::tiny(clock);
        laboratory.device.faults.lost_at_step = Some(tiercel_device::StepId(5));
        let engine = laboratory.start();
        let got = collect(engine.submit(request(&[1], 50)).await.unwrap()).await;
        assert!(matches!(got.end, Some(StreamEvent::Failed(RequestFault::Step(_)))), "{got:?}");
        assert!(engine.died().await.contains("device lost"));
    });
}

#[test]
fn draining_finishes_what_runs_and_refuses_what_comes() {
    simulate(async |clock| {
        let engine = Laboratory::tiny(clock).start();
        let stream = engine.submit(request(&[1, 2], 30)).await.unwrap();
        let reader = actix_rt::spawn(collect(stream));
        let draining = {
            let engine = engine.clone();
            actix_rt::spawn(async move { engine.drain(60_000).await })
        };
        engine.clock().sleep_us(1).await;
        let late = engine.submit(request(&[1], 1)).await.err();
        assert_eq!(late, Some(Refusal::ShuttingDown));
        draining.await.unwrap();
        assert_eq!(reader.await.unwrap().tokens.len(), 30);
        assert_eq!(engine.cause_of_death(), None);
        assert_eq!(engine.submit(request(&[1], 1)).await.err(), Some(Refusal::EngineStopped));
    });
}

#[test]
fn a_drain_that_takes_too_long_ends_the_rest_with_a_clear_fault() {
    simulate(async |clock| {
        let mut laboratory = Laboratory::tiny(clock);
        laboratory.device.max_model_len = 4096;
        let engine = laboratory.start();
        let stream = engine.submit(request(&[1, 2], 2000)).await.unwrap();
        let reader = actix_rt::spawn(collect(stream));
        engine.drain(100).await;
        let end = reader.await.unwrap().end;
        assert_eq!(end, Some(StreamEvent::Failed(RequestFault::ShuttingDown)));
    });
}
