//! Views of live requests that cost the engine little, however many requests are live: the snapshot that listings
//! share, and views of single sequences as they are now.

use crate::boot::App;
use crate::control::latest::LatestRows;
use crate::control::row::{Row, rows};
use crate::control::sorted::SortedRows;
use crate::http::ApiError;
use std::collections::HashSet;
use std::sync::Arc;
use tiercel_actors::{EngineHandle, SequenceState, SequenceView, Snapshot};
use tiercel_device::SeqId;

/// Age up to which listings share a snapshot, ms, if few requests are live.
const SNAPSHOT_AGE_MS: u64 = 250;
/// Number of live sequences for each ms of that age, if many are live: a snapshot of more sequences takes longer, so
/// fewer are taken. With 10,000 sequences one is taken a second, which delays far fewer than one in a hundred steps.
const SEQUENCES_PER_MS: u64 = 10;

/// Returns the age up to which listings share a snapshot, ms, with so many live sequences.
pub(super) fn snapshot_age_ms(sequences: u32) -> u64 {
    SNAPSHOT_AGE_MS.max(u64::from(sequences) / SEQUENCES_PER_MS)
}

/// Returns the snapshot that listings share.
///
/// # Errors
/// 503 if the engine has stopped.
pub(super) async fn shared(engine: &EngineHandle) -> Result<Arc<Snapshot>, ApiError> {
    Ok(engine.snapshot(snapshot_age_ms(engine.places())).await?)
}

/// Returns the snapshot that listings share, and its rows, which are made once for each snapshot and each value of
/// `kept`.
///
/// # Errors
/// 503 if the engine has stopped.
pub(super) async fn listed(
    app: &App,
    engine: &EngineHandle,
    kept: &LatestRows,
) -> Result<(Arc<Snapshot>, Arc<SortedRows>), ApiError> {
    let snapshot = shared(engine).await?;
    let rows = kept.of(&snapshot, || {
        let requests = app.live.of(snapshot.sequences.iter().map(|view| view.seq));
        SortedRows::new(rows(&snapshot, &requests, app.clock.now()))
    });
    Ok((snapshot, rows))
}

/// Returns the row of a sequence in the listing that is shared.
pub(super) fn row_of(rows: &SortedRows, seq: SeqId) -> Option<&Row> {
    rows.in_order(None).find(|row| row.seq == seq.0)
}

/// Returns views of all live requests, by sequence: of a sequence that waited in the snapshot that listings share, as
/// it was then, and of every other sequence, as it is now.
///
/// # Errors
/// 503 if the engine has stopped.
pub(super) async fn all(app: &App, engine: &EngineHandle) -> Result<Vec<SequenceView>, ApiError> {
    let snapshot = shared(engine).await?;
    let waiting =
        |seq| snapshot.find(seq).filter(|view| view.state == SequenceState::Waiting).cloned();
    let (mut views, mut others) = (Vec::new(), Vec::new());
    for seq in app.live.sequences() {
        match waiting(seq) {
            Some(view) => views.push(view),
            None => others.push(seq),
        }
    }
    let inspected = engine.inspect(&others).await?;
    views.extend(inspected.live.into_iter().map(|(view, _)| view));
    views.sort_unstable_by_key(|view| view.seq);
    Ok(views)
}

/// Brings views that [`all`] returned up to date: adds views of the sequences that have arrived since, as they are now,
/// and removes the views of sequences whose requests have ended. Nothing waits between the removal and the return.
///
/// # Errors
/// 503 if the engine has stopped.
pub(super) async fn update(
    app: &App,
    engine: &EngineHandle,
    views: &mut Vec<SequenceView>,
) -> Result<(), ApiError> {
    let known: HashSet<SeqId> = views.iter().map(|view| view.seq).collect();
    let mut arrived = app.live.sequences();
    arrived.retain(|seq| !known.contains(seq));
    let inspected = engine.inspect(&arrived).await?;
    views.extend(inspected.live.into_iter().map(|(view, _)| view));
    let live: HashSet<SeqId> = app.live.sequences().into_iter().collect();
    views.retain(|view| live.contains(&view.seq));
    views.sort_unstable_by_key(|view| view.seq);
    Ok(())
}
