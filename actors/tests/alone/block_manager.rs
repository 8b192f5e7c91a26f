//! Tests of the BlockManager actor alone: it answers every request for a step's blocks with one grant.

use crate::run;
use actix::{Actor, Addr};
use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;
use tiercel_actors::kit::{Received, lifeline, recorder, settle};
use tiercel_actors::messages::{
    AbortPreempt, BlockUsage, CommitPreempt, CopiesEnded, CopyBlocks, CopyEnded, GetUsage,
    HostGrown, InUse, ReserveStep, Shutdown, StepReserved, StepsCompleted,
};
use tiercel_actors::trace::{Event, Record, Tracer};
use tiercel_actors::{BlockManager, BlockPeers, Checks, Obituary, Resource};
use tiercel_device::{
    Clock, CopyDirection, CopyDone, CopyError, CopyId, Epoch, SeqId, StepId, Ticket, Timestamp,
};
use tiercel_policy::blocks::{BlockHash, BlockStore, StoreConfig};
use tiercel_policy::{GrantOutcome, Progress, StepRequest, StoreEvent, Victim, Want, WantKind};

/// Messages that the BlockManager under test sent to the other actors.
struct Told {
    reserved: Received<StepReserved>,
    copied: Received<CopiesEnded>,
    copies: Received<CopyBlocks>,
    in_use: Received<InUse>,
    events: Rc<Kept>,
    obituary: Obituary,
}

/// Recorder that keeps all events.
#[derive(Default)]
struct Kept(RefCell<Vec<Event>>);

impl Record for Kept {
    fn record(&self, _: Timestamp, event: &Event) {
        self.0.borrow_mut().push(event.clone());
    }
}

fn started(device_blocks: u32) -> (Addr<BlockManager>, Told) {
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
    let (life, obituary) = lifeline("BlockManager");
    let events = Rc::new(Kept::default());
    let tracer = Tracer::new(Some(events.clone()), Clock::simulated());
    let manager = BlockManager::new(store, peers, Checks::Always, tracer, life).start();
    (manager, Told { reserved, copied, copies, in_use, events, obituary })
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

#[test]
fn the_used_shares_of_both_pools_are_reported() {
    run(async {
        let (manager, told) = started(5);
        manager.send(open(1, 1, 12)).await.unwrap();
        manager.send(GetUsage).await.unwrap();
        settle().await;
        // 12 tokens fill 3 of the 5 device blocks. None of the 4 host blocks is in use.
        let expected = [(Resource::Blocks, 60.0), (Resource::Host, 0.0), (Resource::Copies, 0.0)];
        assert_eq!(told.shares(), expected);
    });
}

impl Told {
    fn shares(&self) -> Vec<(Resource, f64)> {
        self.in_use.take().iter().map(|use_of| (use_of.resource, use_of.used_percent)).collect()
    }
}

#[test]
fn blocks_that_the_host_pool_gets_later_are_counted_and_used() {
    run(async {
        let (manager, _told) = started(5);
        let host = |usage: BlockUsage| (usage.host_total, usage.host_free);
        assert_eq!(host(usage(&manager).await), (4, 4));
        manager.send(HostGrown(3)).await.unwrap();
        assert_eq!(host(usage(&manager).await), (7, 7));
    });
}

/// Ticket of the sequence that [`swapping`] preempts.
const VICTIM: Ticket = Ticket { seq: SeqId(1), epoch: Epoch(0) };

/// Starts a BlockManager with two device blocks. Both belong to sequence 1, which is preempted for sequence 2: the
/// copies to the host pool wait until step 1 has completed. Then the BlockManager is told that step 1 has completed.
async fn swapping() -> (Addr<BlockManager>, Told, CopyId) {
    let (manager, told) = started(2);
    manager.send(open(1, 1, 8)).await.unwrap();
    let ReserveStep(mut request) = open(2, 2, 4);
    request.wants[0].max_victims = 1;
    request.victims = vec![Victim { ticket: VICTIM, swap: true, spared: false, group: 0 }];
    let hashes = vec![BlockHash([1; 16]), BlockHash([2; 16])];
    request.progress = vec![Progress { seq: SeqId(1), computed: 8, hashes }];
    manager.send(ReserveStep(request)).await.unwrap();
    settle().await;
    assert!(told.copies.take().is_empty(), "step 1 may still write the blocks");
    manager.send(StepsCompleted(StepId(1))).await.unwrap();
    settle().await;
    let copies = told.copies.take();
    assert_eq!(copies.len(), 1);
    let batch = &copies[0].0;
    assert_eq!((batch.direction, batch.pairs.len()), (CopyDirection::Out, 2));
    let id = batch.id;
    (manager, told, id)
}

async fn usage(manager: &Addr<BlockManager>) -> BlockUsage {
    manager.send(GetUsage).await.unwrap()
}

#[test]
fn a_committed_swap_frees_the_blocks_once_their_copies_have_ended() {
    run(async {
        let (manager, told, id) = swapping().await;
        let started = Event::CopyStarted { copy: id, out: true, blocks: 2 };
        assert!(told.events.0.take().contains(&started));
        assert_eq!(usage(&manager).await.device_free, 0);
        settle().await;
        // 2 of the 4 host blocks are in use, and 2 blocks of at most 4 are in transit.
        let expected =
            [(Resource::Blocks, 100.0), (Resource::Host, 50.0), (Resource::Copies, 50.0)];
        assert_eq!(told.shares(), expected);
        let done = CopyDone { id, duration_us: 70, result: Ok(()) };
        manager.send(CopyEnded(done)).await.unwrap();
        settle().await;
        let ended = told.copied.take();
        assert_eq!(ended.len(), 1);
        assert_eq!((ended[0].blocks, ended[0].duration_us), (2, 70));
        let copied = StoreEvent::PreemptCopied { ticket: VICTIM, copied: 2, failed: 0, on_host: 2 };
        assert_eq!(ended[0].events, [copied]);
        manager.send(CommitPreempt(VICTIM)).await.unwrap();
        assert_eq!(usage(&manager).await.device_free, 2);
        settle().await;
        assert_eq!(told.shares()[2], (Resource::Copies, 0.0));
    });
}

#[test]
fn an_aborted_swap_cannot_be_committed_any_more() {
    run(async {
        let (manager, _told, id) = swapping().await;
        let done = CopyDone { id, duration_us: 70, result: Ok(()) };
        manager.send(CopyEnded(done)).await.unwrap();
        manager.send(AbortPreempt(VICTIM)).await.unwrap();
        manager.send(CommitPreempt(VICTIM)).await.unwrap();
        assert_eq!(usage(&manager).await.device_free, 0);
    });
}

#[test]
fn a_device_that_is_lost_during_a_copy_is_announced() {
    run(async {
        let (manager, told, id) = swapping().await;
        let result = Err(CopyError::DeviceLost("unplugged".into()));
        manager.send(CopyEnded(CopyDone { id, duration_us: 0, result })).await.unwrap();
        let cause = told.obituary.borrow().clone();
        assert_eq!(cause.as_deref(), Some("BlockManager: device lost: unplugged"));
    });
}

#[test]
fn a_block_manager_that_is_shut_down_stops_without_being_announced_dead() {
    run(async {
        let (manager, told) = started(2);
        manager.send(Shutdown).await.unwrap();
        settle().await;
        assert!(!manager.connected() && told.obituary.borrow().is_none());
    });
}
