//! BlockManager: the actor that owns the block store and translates messages into calls of it.

use crate::checks::Checks;
use crate::lifeline::Lifeline;
use crate::messages::{
    AbortPreempt, BlockUsage, BlocksMapped, CommitPreempt, CopiesEnded, CopyBlocks, CopyEnded,
    GetBlockMap, GetUsage, HostGrown, InUse, ReserveStep, Shutdown, StepReserved, StepsCompleted,
};
use crate::telemetry;
use crate::trace::{Event, Tracer};
use actix::{Actor, ActorContext, Context, Handler, Recipient};
use std::collections::BTreeMap;
use tiercel_device::{CopyDirection, CopyError, CopyId};
use tiercel_policy::blocks::BlockStore;
use tiercel_policy::pressure::{Resource, percent};
use tiercel_policy::{GrantOutcome, StepGrant};

/// Actors that the BlockManager sends messages to.
pub struct BlockPeers {
    /// Recipient (the Scheduler) of the grants of blocks for a step.
    pub reserved: Recipient<StepReserved>,
    /// Recipient (the Scheduler) of what follows from copies that have ended.
    pub copied: Recipient<CopiesEnded>,
    /// Recipient (the SwapManager) of blocks to copy between the device pool and the host pool.
    pub copies: Recipient<CopyBlocks>,
    /// Recipient (the SloMonitor) of how much of the memory is in use.
    pub in_use: Recipient<InUse>,
}

/// Actor that owns the block tables, block names, reference counts and pins of the device pool and the host pool.
pub struct BlockManager {
    store: BlockStore,
    peers: BlockPeers,
    /// Number of blocks in each batch of copies that is under way between device and host.
    batches: BTreeMap<CopyId, u32>,
    /// Number of messages so far that changed the store; used to check invariants only now and then.
    events: u64,
    checks: Checks,
    trace: Tracer,
    lifeline: Lifeline,
}

impl BlockManager {
    /// Makes the BlockManager of a block store. It passes its decisions to the recorder behind `trace`.
    pub fn new(
        store: BlockStore,
        peers: BlockPeers,
        checks: Checks,
        trace: Tracer,
        lifeline: Lifeline,
    ) -> BlockManager {
        BlockManager { store, peers, batches: BTreeMap::new(), events: 0, checks, trace, lifeline }
    }

    /// After each message that changes the store: sends the copies that may start to the SwapManager, and checks all
    /// invariants of the store if a check is due.
    fn settle(&mut self) {
        for batch in self.store.take_copies() {
            let blocks = batch.pairs.len() as u32;
            self.batches.insert(batch.id, blocks);
            let out = batch.direction == CopyDirection::Out;
            self.trace.note(|| Event::CopyStarted { copy: batch.id, out, blocks });
            self.peers.copies.do_send(CopyBlocks(batch));
        }
        self.events += 1;
        let config = self.store.config();
        let blocks = u64::from(config.device_blocks) + u64::from(config.host_blocks);
        if self.checks.are_due(self.events, blocks)
            && let Err(violation) = self.store.check()
        {
            self.lifeline.fatal(&violation.to_string());
            panic!("{violation}");
        }
    }

    fn planned(&self, grant: &StepGrant, wants: usize) -> Event {
        let (device_free, host_free) = self.store.free_blocks();
        let denied = |outcome: &GrantOutcome| matches!(outcome, GrantOutcome::Denied { .. });
        Event::Planned {
            step: grant.step,
            wants: wants as u32,
            denied: grant.grants.iter().filter(|grant| denied(&grant.outcome)).count() as u32,
            device_free,
            host_free,
        }
    }

    /// Tells the SloMonitor what percentages of the device pool, of the host pool and of the limit on copies in transit
    /// are in use.
    fn report(&self, usage: &BlockUsage) {
        let in_transit: u32 = self.batches.values().sum();
        let config = self.store.config();
        let shares = [
            (Resource::Blocks, usage.device_total - usage.device_free, usage.device_total),
            (Resource::Host, usage.host_total - usage.host_free, usage.host_total),
            (Resource::Copies, in_transit, config.max_copy_blocks_in_transit),
        ];
        for (resource, used, total) in shares {
            let used_percent = percent(u64::from(used), u64::from(total));
            self.peers.in_use.do_send(InUse { resource, used_percent });
        }
    }

    fn usage(&self) -> BlockUsage {
        let config = self.store.config();
        let (device_free, host_free) = self.store.free_blocks();
        BlockUsage {
            device_total: config.device_blocks,
            device_free,
            host_total: config.host_blocks,
            host_free,
            mirroring_lag: self.store.mirroring_lag(),
        }
    }
}

impl Actor for BlockManager {
    type Context = Context<Self>;
}

impl Handler<ReserveStep> for BlockManager {
    type Result = ();

    fn handle(&mut self, ReserveStep(request): ReserveStep, _: &mut Self::Context) {
        let grant = self.store.reserve(&request);
        self.trace.note(|| self.planned(&grant, request.wants.len()));
        self.peers.reserved.do_send(StepReserved(grant));
        self.settle();
    }
}

impl Handler<StepsCompleted> for BlockManager {
    type Result = ();

    fn handle(&mut self, StepsCompleted(step): StepsCompleted, _: &mut Self::Context) {
        self.store.completed(step);
        self.settle();
    }
}

impl Handler<CommitPreempt> for BlockManager {
    type Result = ();

    fn handle(&mut self, CommitPreempt(ticket): CommitPreempt, _: &mut Self::Context) {
        self.store.commit_preempt(ticket);
        self.settle();
    }
}

impl Handler<AbortPreempt> for BlockManager {
    type Result = ();

    fn handle(&mut self, AbortPreempt(ticket): AbortPreempt, _: &mut Self::Context) {
        self.store.abort_preempt(ticket);
        self.settle();
    }
}

impl Handler<CopyEnded> for BlockManager {
    type Result = ();

    fn handle(&mut self, CopyEnded(done): CopyEnded, _: &mut Self::Context) {
        let blocks = self.batches.remove(&done.id).unwrap_or(0);
        match &done.result {
            Ok(()) => {}
            Err(CopyError::Failed(why)) => {
                tracing::warn!(
                    copy = %done.id, blocks, %why,
                    "a copy failed; KV that was not copied is computed again"
                );
            }
            Err(CopyError::DeviceLost(why)) => self.lifeline.fatal(&format!("device lost: {why}")),
        }
        let (copy, duration_us) = (done.id, done.duration_us);
        self.trace.note(|| Event::CopyEnded { copy, ok: done.result.is_ok(), duration_us });
        let events = self.store.copy_done(done.id, done.result.is_ok());
        self.peers.copied.do_send(CopiesEnded { events, blocks, duration_us: done.duration_us });
        self.settle();
    }
}

impl Handler<HostGrown> for BlockManager {
    type Result = ();

    fn handle(&mut self, HostGrown(blocks): HostGrown, _: &mut Self::Context) {
        self.store.add_host_blocks(blocks);
        self.settle();
    }
}

impl Handler<GetUsage> for BlockManager {
    type Result = BlockUsage;

    fn handle(&mut self, _: GetUsage, _: &mut Self::Context) -> BlockUsage {
        let usage = self.usage();
        telemetry::blocks(&usage);
        self.report(&usage);
        usage
    }
}

impl Handler<GetBlockMap> for BlockManager {
    type Result = BlocksMapped;

    fn handle(&mut self, GetBlockMap(of): GetBlockMap, _: &mut Self::Context) -> BlocksMapped {
        BlocksMapped(self.store.map(|seq| of.find(seq).map(|view| view.tier)))
    }
}

impl Handler<Shutdown> for BlockManager {
    type Result = ();

    fn handle(&mut self, _: Shutdown, ctx: &mut Self::Context) {
        self.lifeline.release();
        ctx.stop();
    }
}
