//! Rows of the latest snapshot, which all listings share.

use crate::control::sorted::SortedRows;
use std::sync::{Arc, Mutex, PoisonError};
use tiercel_actors::Snapshot;

/// Rows of the live requests by the latest snapshot. They are made once for each snapshot and not for each listing, so
/// that many listings a second take little processor time from the engine.
#[derive(Default)]
pub(crate) struct LatestRows(Mutex<Option<OfSnapshot>>);

/// Rows, and the snapshot that they were made from.
type OfSnapshot = (Arc<Snapshot>, Arc<SortedRows>);

impl LatestRows {
    /// Returns the rows of a snapshot. The first listing of the snapshot makes the rows
    /// with `make`; other listings wait meanwhile.
    pub(crate) fn of(
        &self,
        snapshot: &Arc<Snapshot>,
        make: impl FnOnce() -> SortedRows,
    ) -> Arc<SortedRows> {
        // Ignore that the mutex is poisoned: the value is replaced as a whole.
        let mut latest = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((_, rows)) = latest.as_ref().filter(|(of, _)| Arc::ptr_eq(of, snapshot)) {
            return rows.clone();
        }
        let rows = Arc::new(make());
        *latest = Some((snapshot.clone(), rows.clone()));
        rows
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_are_made_once_for_each_snapshot() {
        let latest = LatestRows::default();
        let [first, second] = [(); 2].map(|()| Arc::new(Snapshot::default()));
        let mut made = 0;
        for snapshot in [&first, &first, &second, &second, &first] {
            latest.of(snapshot, || {
                made += 1;
                SortedRows::default()
            });
        }
        assert_eq!(made, 3);
    }
}
