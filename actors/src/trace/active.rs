//! The side of a capture that is outside the engine: it ends the capture.

use super::Capture;
use crate::messages::EndCapture;
use crate::request::Refusal;
use actix::Recipient;

/// Capture of the engine's events that is under way. Dropping it ends the capture.
pub struct ActiveCapture {
    number: u64,
    end: Recipient<EndCapture>,
}

impl ActiveCapture {
    pub(crate) fn new(number: u64, end: Recipient<EndCapture>) -> ActiveCapture {
        ActiveCapture { number, end }
    }

    /// Ends the capture, and returns it.
    ///
    /// # Errors
    /// [`Refusal::EngineStopped`] if the engine has stopped.
    pub async fn finish(self) -> Result<Capture, Refusal> {
        let capture = self.end.send(EndCapture(self.number)).await;
        capture.ok().flatten().ok_or(Refusal::EngineStopped)
    }
}

impl Drop for ActiveCapture {
    fn drop(&mut self) {
        // The capture may have ended already: the scheduler then does nothing.
        self.end.do_send(EndCapture(self.number));
    }
}
