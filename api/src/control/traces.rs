//! Count of the traces that have no answer yet.

use std::sync::Arc;

/// Traces that are taken now, or whose files are being written. A server that stops waits for their answers.
#[derive(Default)]
pub(crate) struct Traces(Arc<()>);

impl Traces {
    /// Counts a trace as long as the returned value lives.
    pub(super) fn begin(&self) -> Arc<()> {
        self.0.clone()
    }

    /// Whether a trace has no answer yet.
    pub(crate) fn any(&self) -> bool {
        Arc::strong_count(&self.0) > 1
    }
}
