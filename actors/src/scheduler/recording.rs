//! Handlers of the Scheduler that begin and end recordings of the engine's events.

use super::SchedulerActor;
use crate::messages::{BeginRecording, EndRecording};
use crate::trace::{Recording, RecordingBusy};
use actix::Handler;
use actix::dev::MessageResult;

impl Handler<BeginRecording> for SchedulerActor {
    type Result = Result<(), RecordingBusy>;

    fn handle(
        &mut self,
        BeginRecording(number): BeginRecording,
        _: &mut Self::Context,
    ) -> Self::Result {
        self.trace.begin_recording(number, &self.core, self.clock.now())
    }
}

impl Handler<EndRecording> for SchedulerActor {
    type Result = MessageResult<EndRecording>;

    fn handle(
        &mut self,
        EndRecording(number): EndRecording,
        _: &mut Self::Context,
    ) -> Self::Result {
        let ended: Option<Recording> = self.trace.end_recording(number, self.clock.now());
        MessageResult(ended)
    }
}
