//! Handlers of the Scheduler that begin and end captures of the engine's events.

use super::SchedulerActor;
use crate::messages::{BeginCapture, EndCapture};
use crate::trace::CaptureBusy;
use actix::Handler;

impl Handler<BeginCapture> for SchedulerActor {
    type Result = Result<(), CaptureBusy>;

    fn handle(&mut self, begin: BeginCapture, _: &mut Self::Context) -> Self::Result {
        self.trace.begin_capture(begin, &self.core, self.clock.now())
    }
}

impl Handler<EndCapture> for SchedulerActor {
    type Result = ();

    fn handle(&mut self, EndCapture(number): EndCapture, _: &mut Self::Context) {
        self.trace.end_capture(Some(number), self.clock.now());
    }
}
