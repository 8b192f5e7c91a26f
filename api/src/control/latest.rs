//! What many clients share: the rows of the latest snapshot for listings, and the latest document for live views.

use crate::control::sorted::SortedRows;
use actix_web::web::Bytes;
use std::sync::{Arc, Mutex, PoisonError};
use tiercel_actors::Snapshot;
use tiercel_device::{Clock, Timestamp};

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

/// The latest document for live views, as JSON. However many views poll, one document is made in each interval: by the
/// first view that asks, while the others wait.
#[derive(Default)]
pub(crate) struct LatestDocument(tokio::sync::Mutex<Option<(Timestamp, Bytes)>>);

impl LatestDocument {
    /// Returns the latest document if it is younger than `age_ms`; otherwise a new one, which `make` makes.
    ///
    /// # Errors
    /// The error of `make`.
    pub(crate) async fn young<E>(
        &self,
        clock: &Clock,
        age_ms: u64,
        make: impl Future<Output = Result<Bytes, E>>,
    ) -> Result<Bytes, E> {
        let mut latest = self.0.lock().await;
        let is_young = |made: &Timestamp| clock.now().since_us(*made) < age_ms * 1_000;
        if let Some((_, json)) = latest.as_ref().filter(|(made, _)| is_young(made)) {
            return Ok(json.clone());
        }
        let json = make.await?;
        *latest = Some((clock.now(), json.clone()));
        Ok(json)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures_util::future::join_all;
    use std::cell::Cell;
    use tiercel_simulation::simulate;

    #[test]
    fn views_share_a_document_and_wait_for_one_that_is_being_made() {
        simulate(async |clock| {
            let (latest, made) = (LatestDocument::default(), Cell::new(0));
            let look = async || {
                let make = async {
                    clock.sleep_us(10_000).await;
                    made.set(made.get() + 1);
                    Ok::<Bytes, ()>(Bytes::from(made.get().to_string()))
                };
                latest.young(&clock, 450, make).await.unwrap()
            };
            let first = join_all((0..20).map(|_| look())).await;
            assert!(first.iter().all(|json| *json == "1") && made.get() == 1);
            clock.sleep_us(449_999).await;
            assert_eq!(look().await, "1");
            clock.sleep_us(1).await;
            assert_eq!(look().await, "2");
            let failed = async { Err::<Bytes, ()>(()) };
            clock.sleep_us(450_000).await;
            assert!(latest.young(&clock, 450, failed).await.is_err());
            assert_eq!(look().await, "3", "a document after a failure");
        });
    }

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
