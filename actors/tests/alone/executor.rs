//! Tests of the Executor actor alone: steps go to the device, and the ends of steps come back as messages.

use crate::run;
use actix::Actor;
use tiercel_actors::Executor;
use tiercel_actors::kit::{lifeline, recorder, settle};
use tiercel_actors::messages::{ExecuteStep, Shutdown, StepEnded};
use tiercel_device::{StepBatch, StepDone, StepError, StepId, StepRunner, SubmitError};

/// Device stand-in that ends the first step at once, with an error, and refuses all others.
struct OneStep(bool);

impl StepRunner for OneStep {
    fn submit(
        &mut self,
        batch: StepBatch,
        done: Box<dyn FnOnce(StepDone) + Send>,
    ) -> Result<(), SubmitError> {
        if std::mem::replace(&mut self.0, true) {
            return Err(SubmitError::Stopped);
        }
        done(StepDone { id: batch.id, result: Err(StepError::Failed("on purpose".into())) });
        Ok(())
    }
}

fn step(id: u64) -> ExecuteStep {
    let (starts, ends, slices) = (Vec::new(), Vec::new(), Vec::new());
    ExecuteStep(StepBatch { id: StepId(id), starts, ends, slices })
}

#[test]
fn a_step_that_the_device_refuses_ends_as_a_lost_device() {
    run(async {
        let (ended, ends) = recorder::<StepEnded>();
        let (life, obituary) = lifeline("Executor");
        let executor = Executor::new(Box::new(OneStep(false)), ended, life).start();
        executor.send(step(1)).await.unwrap();
        executor.send(step(2)).await.unwrap();
        settle().await;
        let ends = ends.take();
        assert_eq!(ends.iter().map(|end| end.0.id.0).collect::<Vec<_>>(), [1, 2]);
        assert!(matches!(ends[0].0.result, Err(StepError::Failed(_))));
        assert!(matches!(ends[1].0.result, Err(StepError::DeviceLost(_))));
        executor.send(Shutdown).await.unwrap();
        settle().await;
        assert!(
            !executor.connected() && obituary.borrow().is_none(),
            "an orderly stop is no death"
        );
    });
}
