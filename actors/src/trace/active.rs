//! The side of a capture that is outside the engine: it ends the capture.

use super::Capture;
use crate::messages::EndCapture;
use crate::request::Refusal;
use actix::Recipient;
use tokio::sync::oneshot;

/// Capture of the engine's events that is under way. Dropping it ends the capture.
pub struct ActiveCapture {
    number: u64,
    end: Recipient<EndCapture>,
    captured: oneshot::Receiver<Capture>,
}

impl ActiveCapture {
    pub(crate) fn new(
        number: u64,
        end: Recipient<EndCapture>,
        captured: oneshot::Receiver<Capture>,
    ) -> ActiveCapture {
        ActiveCapture { number, end, captured }
    }

    /// Ends the capture when `time` resolves, or earlier if the engine is drained and stops. Returns the capture.
    ///
    /// # Errors
    /// [`Refusal::EngineStopped`] if the engine has died.
    pub async fn finish(mut self, time: impl Future<Output = ()>) -> Result<Capture, Refusal> {
        tokio::select! {
            captured = &mut self.captured => return captured.map_err(|_| Refusal::EngineStopped),
            () = time => {}
        }
        self.end.do_send(EndCapture(self.number));
        (&mut self.captured).await.map_err(|_| Refusal::EngineStopped)
    }
}

impl Drop for ActiveCapture {
    fn drop(&mut self) {
        // The capture may have ended already: the scheduler then does nothing.
        self.end.do_send(EndCapture(self.number));
    }
}
