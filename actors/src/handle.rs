//! The engine as the HTTP side sees it: submit, stream, cancel, control.

use crate::request::{Control, EngineStatus, Refusal, Request, StreamEvent};
use std::sync::Arc;
use tiercel_device::{Clock, DeviceInfo, SeqId, Tier};
use tokio::sync::mpsc;

/// Address of a running engine; cheap to clone and to send to HTTP workers.
#[derive(Clone)]
pub struct EngineHandle {
    shared: Arc<Shared>,
}

struct Shared {
    info: DeviceInfo,
    clock: Clock,
}

/// An accepted sequence. Dropping it cancels the sequence, in whatever state it is.
pub struct TokenStream {
    seq: SeqId,
    tier: Tier,
    events: mpsc::Receiver<StreamEvent>,
}

impl TokenStream {
    /// The sequence.
    pub fn seq(&self) -> SeqId {
        self.seq
    }

    /// The tier it really runs in.
    pub fn tier(&self) -> Tier {
        self.tier
    }

    /// The next event; `None` after the last one, or if the engine stopped.
    pub async fn next(&mut self) -> Option<StreamEvent> {
        self.events.recv().await
    }
}

impl EngineHandle {
    /// Facts of the device, for checks before submitting.
    pub fn info(&self) -> &DeviceInfo {
        &self.shared.info
    }

    /// The engine's clock.
    pub fn clock(&self) -> &Clock {
        &self.shared.clock
    }

    /// Asks admission for a place.
    ///
    /// # Errors
    /// [`Refusal`] if the request can never run, a queue is full or the engine is stopping.
    pub async fn submit(&self, request: Request) -> Result<TokenStream, Refusal> {
        let _ = request;
        Err(Refusal::EngineStopped)
    }

    /// Sends an operator command; answers whether it named something that exists.
    ///
    /// # Errors
    /// [`Refusal::EngineStopped`].
    pub async fn control(&self, control: Control) -> Result<bool, Refusal> {
        let _ = control;
        Err(Refusal::EngineStopped)
    }

    /// A snapshot.
    ///
    /// # Errors
    /// [`Refusal::EngineStopped`].
    pub async fn status(&self) -> Result<EngineStatus, Refusal> {
        Err(Refusal::EngineStopped)
    }

    /// Stops accepting, lets what runs finish for at most `grace_ms`, ends the rest with a clear
    /// status, and returns when nothing is left.
    pub async fn drain(&self, grace_ms: u64) {
        let _ = grace_ms;
    }
}
