//! Response stream of a sequence: the HTTP side reads the sequence's tokens from it.

use crate::messages::{Cancel, Stop};
use crate::recording::Recorder;
use crate::request::{StreamEvent, Usage};
use actix::Recipient;
use std::sync::Arc;
use tiercel_device::{SeqId, Tier};
use tokio::sync::mpsc;

/// Response stream of an accepted sequence. Dropping the stream cancels the sequence in any phase.
pub struct TokenStream {
    pub(crate) seq: SeqId,
    pub(crate) tier: Tier,
    pub(crate) events: mpsc::Receiver<StreamEvent>,
    pub(crate) recorder: Arc<Recorder>,
    pub(crate) stop: Recipient<Stop>,
    pub(crate) cancel: Recipient<Cancel>,
}

impl TokenStream {
    /// Returns the id of the stream's sequence.
    pub fn seq(&self) -> SeqId {
        self.seq
    }

    /// Returns the tier in which the stream's sequence was accepted.
    pub fn tier(&self) -> Tier {
        self.tier
    }

    /// Ends the sequence as complete, because the HTTP server has found the end of the output, such as a stop string.
    /// Returns the token counts of the request, which include output tokens that were not read from the stream; `None`
    /// if the sequence had failed or the engine stopped.
    pub async fn stop(mut self) -> Option<Usage> {
        self.stop.do_send(Stop(self.seq));
        loop {
            match self.next().await? {
                StreamEvent::Token { .. } => {}
                StreamEvent::Finished { usage, .. } => return Some(usage),
                StreamEvent::Failed(_) => return None,
            }
        }
    }

    /// Returns the next event (token or end) of the sequence; `None` after the last event, or if the engine stopped.
    pub async fn next(&mut self) -> Option<StreamEvent> {
        let event = self.events.recv().await;
        self.recorder.taken(self.seq, event.as_ref());
        event
    }
}

impl Drop for TokenStream {
    fn drop(&mut self) {
        // Cancel the sequence whenever its stream is dropped. The scheduler ignores the cancellation of a sequence that
        // has ended.
        self.cancel.do_send(Cancel(self.seq));
        self.recorder.left(self.seq);
    }
}
