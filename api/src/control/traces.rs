//! Count of the traces that have no answer yet.

use std::sync::Arc;

/// Count of the traces that are under way or whose files are being written. A stopping server waits until the count is
/// 0.
#[derive(Default)]
pub(crate) struct Traces(Arc<()>);

impl Traces {
    /// Counts one more trace until the returned guard is dropped.
    pub(super) fn begin(&self) -> Arc<()> {
        self.0.clone()
    }

    /// Returns whether a trace has no answer yet.
    pub(crate) fn any(&self) -> bool {
        Arc::strong_count(&self.0) > 1
    }
}
