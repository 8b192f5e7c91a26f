//! What a server was when its recording of live traffic began.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use tiercel_config::EngineSettings;
use tiercel_policy::slo::Targets;

/// Facts about a server for the header of its recording.
#[derive(Debug, Clone)]
pub(super) struct Facts {
    /// Time at which the recording began, seconds since 1970.
    pub(super) unix_s: u64,
    /// Settings of the engine.
    pub(super) settings: EngineSettings,
    /// Whether settings were changed since.
    pub(super) settings_changed: bool,
    /// Latency targets in effect.
    pub(super) targets: Targets,
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
