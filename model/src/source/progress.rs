//! Progress display of long transfers: a bar on a terminal, otherwise one log line.

use indicatif::{ProgressBar, ProgressStyle};
use std::io::IsTerminal;

const TEMPLATE: &str = "{msg} {wide_bar} {bytes}/{total_bytes} {bytes_per_sec}";

/// Progress display of one download or verification. Cheap to clone; disappears when the last clone is dropped.
#[derive(Debug, Clone)]
pub(super) struct Progress {
    bar: ProgressBar,
}

impl Progress {
    /// Starts a progress display with the text `what`. `bytes` may be 0 while the total size is unknown.
    pub(super) fn start(what: String, bytes: u64) -> Progress {
        if !std::io::stderr().is_terminal() {
            tracing::info!(bytes, "{what}");
            return Progress { bar: ProgressBar::hidden() };
        }
        let bar = ProgressBar::new(bytes).with_message(what);
        if let Ok(style) = ProgressStyle::with_template(TEMPLATE) {
            bar.set_style(style);
        }
        Progress { bar }
    }

    pub(super) fn set(&self, bytes: u64) {
        self.bar.set_position(bytes);
    }

    pub(super) fn finish(&self) {
        self.bar.finish_and_clear();
    }
}
