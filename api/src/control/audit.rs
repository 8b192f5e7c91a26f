//! Audit: each change that an operator makes, and each recording and trace, as a line in the log and as an event for
//! the listeners of the event stream.

use crate::control::row::Row;
use serde::Serialize;
use serde_json::Value;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use tiercel_device::Clock;
use tokio::sync::broadcast;
use utoipa::ToSchema;

/// Events that a slow listener may be behind; older ones are lost for it, and it is told how many.
const BUFFERED_EVENTS: usize = 256;

/// Name in events that the server itself caused, for example at SIGTERM.
pub(crate) const SERVER: &str = "[server]";

/// Recorder of operators' changes.
pub(crate) struct Audit {
    /// Channel of the events, as JSON; `None` is the end of all events.
    events: broadcast::Sender<Option<Arc<str>>>,
    /// Number of the latest event.
    number: AtomicU64,
}

/// A change that an operator made, or an event of the server's life.
#[derive(Debug, Default, Serialize, ToSchema)]
pub(crate) struct Event<'a> {
    /// Name of the key that asked for the change, or [`SERVER`].
    pub(crate) by: &'a str,
    /// What was done: `reprioritize`, `pause`, `resume`, `cancel`, `policy`, `drain`, `record_start`, `record_stop`,
    /// `record_read` or `trace`; at SIGHUP `keys_read` or `certificate_read`; or how far a drain is: `draining` or
    /// `drained`.
    pub(crate) action: &'static str,
    /// Step that was planned last before the change, which takes effect in a later one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) step: Option<u64>,
    /// The request before the change.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) before: Option<Row>,
    /// The request after the change; absent if the change ended it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) after: Option<Row>,
    /// Settings that were changed, each with its values before and after.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Object>)]
    pub(crate) settings: Option<Value>,
    /// Longest time that running requests have to finish in a drain, or longest time of a recording or of a trace, ms.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) deadline_ms: Option<u64>,
    /// Time left until the deadline of the drain, ms.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) deadline_in_ms: Option<u64>,
    /// Number of choices that are left in a drain, that are live when a recording begins, or that a recording has.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) requests: Option<u32>,
    /// Number of API keys after the keys file was read again.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) keys: Option<usize>,
    /// At the end of a drain: number of the choices, of those that were live when it began, that were completed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) finished: Option<u32>,
    /// Number of these choices that the drain ended with the error `drained` at its deadline.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) ended: Option<u32>,
    /// Number of these choices that ended in another way: their clients left, they were cancelled, or they failed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) other: Option<u32>,
}

/// An event with its number and time.
#[derive(Serialize, ToSchema)]
#[schema(as = AuditEvent)]
pub(crate) struct Numbered<'a> {
    /// Number of the event; the first is 1.
    number: u64,
    /// Time of the event, seconds since 1970.
    unix_s: u64,
    #[serde(flatten)]
    event: &'a Event<'a>,
}

impl Audit {
    pub(crate) fn new() -> Audit {
        Audit { events: broadcast::Sender::new(BUFFERED_EVENTS), number: AtomicU64::new(0) }
    }

    /// Logs an event and sends it to the listeners of the event stream.
    pub(crate) fn record(&self, event: &Event<'_>) {
        let number = self.number.fetch_add(1, Ordering::Relaxed) + 1;
        let numbered = Numbered { number, unix_s: Clock::unix_s(), event };
        let json = serde_json::to_string(&numbered).expect("an event has only text keys");
        tracing::info!(target: "tiercel::audit", "{json}");
        // Ignore that nobody may listen.
        let _ = self.events.send(Some(json.into()));
    }

    /// Ends the streams of all listeners, because no event follows.
    pub(crate) fn end(&self) {
        let _ = self.events.send(None);
    }

    /// Returns a receiver of the events from now on.
    pub(crate) fn listen(&self) -> broadcast::Receiver<Option<Arc<str>>> {
        self.events.subscribe()
    }

    /// Returns the number of listeners.
    pub(crate) fn listeners(&self) -> usize {
        self.events.receiver_count()
    }
}
