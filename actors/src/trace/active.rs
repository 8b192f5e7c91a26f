//! The side of a recording that is outside the engine: it ends the recording.

use super::Recording;
use crate::messages::EndRecording;
use crate::request::Refusal;
use actix::Recipient;

/// Recording of the engine's events that is under way. Dropping it ends the recording.
pub struct ActiveRecording {
    number: u64,
    end: Recipient<EndRecording>,
}

impl ActiveRecording {
    pub(crate) fn new(number: u64, end: Recipient<EndRecording>) -> ActiveRecording {
        ActiveRecording { number, end }
    }

    /// Ends the recording, and returns it.
    ///
    /// # Errors
    /// [`Refusal::EngineStopped`] if the engine has stopped.
    pub async fn finish(self) -> Result<Recording, Refusal> {
        let recording = self.end.send(EndRecording(self.number)).await;
        recording.ok().flatten().ok_or(Refusal::EngineStopped)
    }
}

impl Drop for ActiveRecording {
    fn drop(&mut self) {
        // The recording may have ended already: the scheduler then does nothing.
        self.end.do_send(EndRecording(self.number));
    }
}
