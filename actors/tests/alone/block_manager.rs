//! Tests of the BlockManager actor alone: it answers every request for a step's blocks with one grant.

use crate::run;
use actix::Actor;
use std::sync::Arc;
use tiercel_actors::kit::{Received, lifeline, recorder, settle};
use tiercel_actors::messages::{
    CopiesEnded, CopyBlocks, GetUsage, InUse, ReserveStep, StepReserved,
};
use tiercel_actors::trace::Tracer;
use tiercel_actors::{BlockManager, BlockPeers, Checks};
use tiercel_device::{Clock, Epoch, SeqId, StepId, Ticket};
use tiercel_policy::blocks::{BlockStore, StoreConfig};
use tiercel_policy::{GrantOutcome, StepRequest, Want, WantKind};

/// Messages that the BlockManager under test sent to the other actors.
struct Told {
    reserved: Received<StepReserved>,
    copied: Received<CopiesEnded>,
    copies: Received<CopyBlocks>,
    in_use: Received<InUse>,
}

fn started(device_blocks: u32) -> (actix::Addr<BlockManager>, Told) {
    let store = BlockStore::new(StoreConfig {
        block_size: 4,
        device_blocks,
        host_blocks: 4,
        max_copy_blocks_in_transit: 4,
        max_copy_blocks_per_batch: 4,
    });
    let (to_reserved, reserved) = recorder();
    let (to_copied, copied) = recorder();
    let (to_copies, copies) = recorder();
    let (to_in_use, in_use) = recorder();
    let peers = BlockPeers {
        reserved: to_reserved,
        copied: to_copied,
        copies: to_copies,
        in_use: to_in_use,
    };
    let (life, _) = lifeline("BlockManager");
    let tracer = Tracer::new(None, Clock::simulated());
    let manager = BlockManager::new(store, peers, Checks::Always, tracer, life).start();
    (manager, Told { reserved, copied, copies, in_use })
}

/// Makes a request for the blocks of a step with one new sequence of `tokens` tokens.
fn open(step: u64, seq: u64, tokens: u32) -> ReserveStep {
    let want = Want {
        ticket: Ticket { seq: SeqId(seq), epoch: Epoch(0) },
        len: tokens,
        new_tokens: tokens,
        reserve: 0,
        kept_for_others: 0,
        kind: WantKind::Open {
            hashes: Arc::from([]),
            keep_free: 0,
            must_fit: tokens,
            own_only: false,
        },
        max_victims: 0,
    };
    ReserveStep(StepRequest { step: StepId(step), wants: vec![want], ..StepRequest::default() })
}

#[test]
fn a_step_is_reserved_as_far_as_there_are_blocks() {
    run(async {
        let (manager, told) = started(2);
        manager.send(open(1, 1, 8)).await.unwrap();
        manager.send(open(2, 2, 4)).await.unwrap();
        settle().await;
        let grants = told.reserved.take();
        assert_eq!(grants.iter().map(|grant| grant.0.step.0).collect::<Vec<_>>(), [1, 2]);
        let outcome = |at: usize| &grants[at].0.grants[0].outcome;
        assert!(matches!(outcome(0), GrantOutcome::Run { cover: 8, .. }), "{:?}", outcome(0));
        assert!(matches!(outcome(1), GrantOutcome::Denied { .. }), "{:?}", outcome(1));
        let usage = manager.send(GetUsage).await.unwrap();
        assert_eq!((usage.device_total, usage.device_free), (2, 0));
        settle().await;
        assert!(told.in_use.take().iter().any(|use_of| use_of.used_percent == 100.0));
        assert!(told.copies.take().is_empty() && told.copied.take().is_empty());
    });
}
