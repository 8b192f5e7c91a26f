//! The side of a capture outside the engine: a guard that ends the capture, and the channel on which the capture comes.

use super::Capture;
use crate::messages::EndCapture;
use crate::request::Refusal;
use actix::Recipient;
use tokio::sync::oneshot;

/// Capture of the engine's events that is under way. Dropping it ends the capture.
pub struct ActiveCapture {
    guard: Guard,
    captured: oneshot::Receiver<Capture>,
}

/// Guard of a capture, which ends the capture when it is dropped.
struct Guard {
    number: u64,
    end: Recipient<EndCapture>,
}

impl ActiveCapture {
    pub(crate) fn new(
        number: u64,
        end: Recipient<EndCapture>,
        captured: oneshot::Receiver<Capture>,
    ) -> ActiveCapture {
        ActiveCapture { guard: Guard { number, end }, captured }
    }

    /// Ends the capture when `time` resolves, or earlier if the engine is drained and stops. Returns the capture.
    ///
    /// # Errors
    /// [`Refusal::EngineStopped`] if the engine has died.
    pub async fn finish(self, time: impl Future<Output = ()>) -> Result<Capture, Refusal> {
        let ActiveCapture { guard, mut captured } = self;
        let stopped = tokio::select! {
            capture = &mut captured => Some(capture),
            () = time => None,
        };
        drop(guard);
        let capture = match stopped {
            Some(capture) => capture,
            None => captured.await,
        };
        capture.map_err(|_| Refusal::EngineStopped)
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        // If the capture has ended already, the Scheduler does nothing.
        self.end.do_send(EndCapture(self.number));
    }
}
