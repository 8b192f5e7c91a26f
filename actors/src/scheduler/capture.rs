//! Handlers of the Scheduler that begin and end captures of the engine's events.

use super::SchedulerActor;
use crate::messages::{BeginCapture, EndCapture};
use crate::trace::{Capture, CaptureBusy};
use actix::Handler;
use actix::dev::MessageResult;

impl Handler<BeginCapture> for SchedulerActor {
    type Result = Result<(), CaptureBusy>;

    fn handle(
        &mut self,
        BeginCapture(number): BeginCapture,
        _: &mut Self::Context,
    ) -> Self::Result {
        self.trace.begin_capture(number, &self.core, self.clock.now())
    }
}

impl Handler<EndCapture> for SchedulerActor {
    type Result = MessageResult<EndCapture>;

    fn handle(&mut self, EndCapture(number): EndCapture, _: &mut Self::Context) -> Self::Result {
        let ended: Option<Capture> = self.trace.end_capture(number, self.clock.now());
        MessageResult(ended)
    }
}
