//! What a server was when its recording of live traffic began.

use actix_web::body::SizedStream;
use actix_web::web::Bytes;
use futures_util::Stream;
use futures_util::stream;
use std::convert::Infallible;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use tiercel_config::EngineSettings;
use tiercel_policy::slo::Targets;

/// Length of the pieces in which a recording's file is sent, bytes. The HTTP server takes a piece when its buffer has
/// room.
const PIECE_BYTES: usize = 64 * 1024;

/// Facts about a server for the header of its recording.
#[derive(Debug, Clone)]
pub(super) struct Facts {
    /// Time at which the recording began, seconds since 1970.
    pub(super) unix_s: u64,
    /// Settings of the engine.
    pub(super) settings: EngineSettings,
    /// Whether settings were changed since.
    pub(super) settings_changed: bool,
    /// Latency targets in effect when the recording began.
    pub(super) targets: Targets,
    /// Whether the latency targets in effect have changed since the recording began.
    pub(super) targets_changed: bool,
}

/// Facts about the server at the begin of the recording that it keeps.
#[derive(Default)]
pub(crate) struct Recorded {
    facts: Mutex<Option<Facts>>,
    settings_changed: AtomicBool,
    /// Whether a client is being sent the recording's file, which takes as much memory again as the recording.
    sending: Arc<AtomicBool>,
}

/// Right to send the recording's file; one client at a time has it. Dropping it returns the right.
pub(super) struct Sending(Arc<AtomicBool>);

impl Sending {
    /// Returns the body of the answer with the file. The body keeps the right until the HTTP server has taken the
    /// last piece, or the client is gone.
    pub(super) fn body(
        self,
        file: String,
    ) -> SizedStream<impl Stream<Item = Result<Bytes, Infallible>>> {
        let length = file.len() as u64;
        SizedStream::new(length, Box::pin(self.body_pieces(file)))
    }

    fn body_pieces(self, file: String) -> impl Stream<Item = Result<Bytes, Infallible>> {
        stream::unfold((Bytes::from(file), self), |(mut rest, sending)| async move {
            let piece = rest.split_to(rest.len().min(PIECE_BYTES));
            (!piece.is_empty()).then_some((Ok(piece), (rest, sending)))
        })
    }
}

impl Drop for Sending {
    fn drop(&mut self) {
        self.0.store(false, Ordering::Release);
    }
}

impl Recorded {
    /// Notes that an operator changed settings while a recording ran.
    pub(crate) fn note_change(&self) {
        self.settings_changed.store(true, Ordering::Relaxed);
    }

    /// Notes the latency targets in effect while a recording runs.
    pub(super) fn note_targets(&self, targets: &Targets) {
        let mut facts = self.facts.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(facts) = facts.as_mut() {
            facts.targets_changed |= facts.targets != *targets;
        }
    }

    /// Keeps the facts about a recording that begins, in place of those about the last one.
    pub(super) fn begin(&self, facts: Facts) {
        *self.facts.lock().unwrap_or_else(PoisonError::into_inner) = Some(facts);
        self.settings_changed.store(false, Ordering::Relaxed);
    }

    /// Returns the right to send the recording's file; `None` while another client is being sent the file.
    pub(super) fn sending(&self) -> Option<Sending> {
        let taken = self.sending.swap(true, Ordering::Acquire);
        (!taken).then(|| Sending(self.sending.clone()))
    }

    /// Returns the facts about the recording; `None` if there was none.
    pub(super) fn facts(&self) -> Option<Facts> {
        // Ignore that the mutex is poisoned: the facts are replaced as a whole.
        let facts = self.facts.lock().unwrap_or_else(PoisonError::into_inner).clone()?;
        let settings_changed = self.settings_changed.load(Ordering::Relaxed);
        Some(Facts { settings_changed, ..facts })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures_util::{FutureExt, StreamExt};

    #[test]
    fn targets_that_change_while_the_recording_runs_are_noted_for_good() {
        let recorded = Recorded::default();
        let (settings, targets) = (EngineSettings::default(), Targets::default());
        let (settings_changed, targets_changed) = (false, false);
        recorded.begin(Facts { unix_s: 0, settings, settings_changed, targets, targets_changed });
        let changed = || recorded.facts().expect("a recording began").targets_changed;
        recorded.note_targets(&targets);
        assert!(!changed());
        recorded.note_targets(&Targets { requests_may_tighten: true, ..targets });
        recorded.note_targets(&targets);
        assert!(changed());
    }

    #[test]
    fn the_right_to_send_the_file_lasts_until_the_file_is_sent_or_the_client_is_gone() {
        let recorded = Recorded::default();
        let file = "x".repeat(2 * PIECE_BYTES + 1);
        let mut sent = Vec::new();
        for pieces in [3, 1] {
            let sending = recorded.sending().expect("no client is being sent the file");
            let mut body = Box::pin(sending.body_pieces(file.clone()));
            for _ in 0..pieces {
                let piece = body.next().now_or_never().flatten().expect("more of the file");
                sent.extend(piece.expect("pieces are no errors"));
                assert!(recorded.sending().is_none());
            }
            if pieces == 3 {
                assert!(body.next().now_or_never().is_some_and(|end| end.is_none()));
                assert_eq!(sent, file.as_bytes());
            }
            drop(body);
        }
        assert!(recorded.sending().is_some());
    }
}
