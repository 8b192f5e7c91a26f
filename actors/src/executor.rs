//! Executor: the actor that owns the compute side of the device and submits steps to it.

use crate::lifeline::Lifeline;
use crate::messages::{ExecuteStep, Shutdown, StepEnded};
use actix::{Actor, ActorContext, Context, Handler, Recipient};
use tiercel_device::{StepDone, StepError, StepRunner};

/// Actor that submits steps to the device. The device reports the end of a step to the scheduler directly, from its own
/// thread, which saves one message per step.
pub struct Executor {
    runner: Box<dyn StepRunner>,
    ended: Recipient<StepEnded>,
    lifeline: Lifeline,
}

impl Executor {
    /// Makes the Executor of the device's compute side (`runner`). The end of each step is sent to `ended`.
    pub fn new(
        runner: Box<dyn StepRunner>,
        ended: Recipient<StepEnded>,
        lifeline: Lifeline,
    ) -> Executor {
        Executor { runner, ended, lifeline }
    }
}

impl Actor for Executor {
    type Context = Context<Self>;
}

impl Handler<ExecuteStep> for Executor {
    type Result = ();

    fn handle(&mut self, ExecuteStep(batch): ExecuteStep, _: &mut Self::Context) {
        let id = batch.id;
        let ended = self.ended.clone();
        let done = Box::new(move |done: StepDone| ended.do_send(StepEnded(done)));
        if let Err(why) = self.runner.submit(batch, done) {
            // A device that refuses a step counts as lost, because the scheduler never submits more steps than the
            // device takes.
            let result = Err(StepError::DeviceLost(why.to_string()));
            self.ended.do_send(StepEnded(StepDone { id, result }));
        }
    }
}

impl Handler<Shutdown> for Executor {
    type Result = ();

    fn handle(&mut self, _: Shutdown, ctx: &mut Self::Context) {
        self.lifeline.release();
        ctx.stop();
    }
}
