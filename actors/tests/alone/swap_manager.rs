//! Tests of the SwapManager actor alone: batches of copies go to the copy engine at once, and their ends come back as
//! messages.

use crate::{run, run_for_metrics};
use actix::Actor;
use std::sync::{Arc, Mutex};
use tiercel_actors::SwapManager;
use tiercel_actors::kit::{lifeline, recorder, settle};
use tiercel_actors::messages::{CopyBlocks, CopyEnded, Shutdown};
use tiercel_device::{
    BlockId, CopyBatch, CopyDirection, CopyDone, CopyEngine, CopyError, CopyId, CopyPair,
    HostBlockId, SubmitError,
};

type Done = Box<dyn FnOnce(CopyDone) + Send>;

/// Copy engine stand-in that keeps its batches until the test ends them, and refuses batch 9.
#[derive(Clone, Default)]
struct Held(Arc<Mutex<Vec<(CopyId, Done)>>>);

impl CopyEngine for Held {
    fn submit(&mut self, batch: CopyBatch, done: Done) -> Result<(), SubmitError> {
        if batch.id.0 == 9 {
            return Err(SubmitError::Full);
        }
        self.0.lock().unwrap().push((batch.id, done));
        Ok(())
    }
}

impl Held {
    fn ids(&self) -> Vec<u64> {
        self.0.lock().unwrap().iter().map(|(id, _)| id.0).collect()
    }

    fn end_first(&self) {
        let (id, done) = self.0.lock().unwrap().remove(0);
        done(CopyDone { id, duration_us: 5, result: Ok(()) });
    }
}

fn copy(id: u64) -> CopyBlocks {
    CopyBlocks(CopyBatch::needed(CopyId(id), CopyDirection::Out, Vec::new()))
}

#[test]
fn every_batch_goes_to_the_copy_engine_at_once_and_its_end_is_told() {
    run(async {
        let engine = Held::default();
        let (ended, ends) = recorder::<CopyEnded>();
        let (life, _obituary) = lifeline("SwapManager");
        let swap = SwapManager::new(Box::new(engine.clone()), ended, 1, life).start();
        for id in 1..=3 {
            swap.send(copy(id)).await.unwrap();
        }
        assert_eq!(engine.ids(), [1, 2, 3]);
        engine.end_first();
        settle().await;
        assert_eq!(engine.ids(), [2, 3]);
        assert_eq!(ends.take().iter().map(|end| end.0.id.0).collect::<Vec<_>>(), [1]);
    });
}

#[test]
fn a_batch_that_the_copy_engine_refuses_has_failed() {
    run(async {
        let (ended, ends) = recorder::<CopyEnded>();
        let (life, _obituary) = lifeline("SwapManager");
        let swap = SwapManager::new(Box::new(Held::default()), ended, 1, life).start();
        swap.send(copy(9)).await.unwrap();
        settle().await;
        let ends = ends.take();
        assert!(matches!(&ends[..], [end] if matches!(end.0.result, Err(CopyError::Failed(_)))));
    });
}

#[test]
fn the_bytes_of_a_batch_are_counted_when_it_has_ended() {
    let metrics = run_for_metrics(async {
        let engine = Held::default();
        let (life, _obituary) = lifeline("SwapManager");
        let ended = recorder::<CopyEnded>().0;
        let swap = SwapManager::new(Box::new(engine.clone()), ended, 1_000, life).start();
        for (id, blocks) in [(1, 3), (2, 5)] {
            let pair = |block| CopyPair { device: BlockId(block), host: HostBlockId(block) };
            let pairs = (0..blocks).map(pair).collect();
            let batch = CopyBatch { pairs, ..copy(id).0 };
            swap.send(CopyBlocks(batch)).await.unwrap();
        }
        engine.end_first();
        settle().await;
    });
    // Only the first batch has ended: 3 blocks of 1000 bytes.
    let series = "tiercel_swapped_bytes_total{direction=\"out\"}";
    assert_eq!(metrics.get(series), Some("3000"));
}

#[test]
fn a_swap_manager_that_is_shut_down_stops_without_being_announced_dead() {
    run(async {
        let (life, obituary) = lifeline("SwapManager");
        let ended = recorder::<CopyEnded>().0;
        let swap = SwapManager::new(Box::new(Held::default()), ended, 1, life).start();
        swap.send(Shutdown).await.unwrap();
        settle().await;
        assert!(!swap.connected() && obituary.borrow().is_none());
    });
}
