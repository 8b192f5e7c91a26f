//! A block store with helper functions, for tests of single rules. Blocks hold 4 tokens.

use std::sync::Arc;
use tiercel_device::{BlockId, CopyBatch, Epoch, SeqId, StepId, Ticket};
use tiercel_policy::blocks::{BlockHash, BlockStore, StoreConfig};
use tiercel_policy::{
    Grant, GrantOutcome, PreemptOutcome, Progress, StepGrant, StepRequest, StoreEvent, Victim,
    Want, WantKind,
};

pub(crate) struct Scene {
    pub(crate) store: BlockStore,
    pub(crate) step: u64,
}

/// Returns the names of the first `n` blocks of the text number `text`.
pub(crate) fn names(text: u8, n: u8) -> Arc<[BlockHash]> {
    (0..n).map(|i| BlockHash([text, i, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0])).collect()
}

pub(crate) fn ticket(seq: u64, epoch: u32) -> Ticket {
    Ticket { seq: SeqId(seq), epoch: Epoch(epoch) }
}

pub(crate) fn victim(seq: u64, swap: bool) -> Victim {
    Victim { ticket: ticket(seq, 1), swap, spared: false, group: 0 }
}

/// Returns a running sequence's request for blocks for `tokens` tokens in all, for which `max_victims` victims may be
/// preempted.
pub(crate) fn grow(seq: u64, tokens: u32, max_victims: u32) -> Want {
    Want {
        ticket: ticket(seq, 0),
        len: tokens,
        new_tokens: tokens,
        reserve: 0,
        kept_for_others: 0,
        kind: WantKind::Grow,
        max_victims,
    }
}

pub(crate) fn open(seq: u64, tokens: u32, hashes: &[BlockHash], max_victims: u32) -> Want {
    open_with(seq, tokens, hashes, max_victims, (0, 0))
}

pub(crate) fn open_with(
    seq: u64,
    tokens: u32,
    hashes: &[BlockHash],
    max_victims: u32,
    (keep_free, must_fit): (u32, u32),
) -> Want {
    let kind = WantKind::Open { hashes: hashes.into(), keep_free, must_fit, own_only: false };
    Want { kind, ..grow(seq, tokens, max_victims) }
}

/// Id of a test sequence whose request needs a number of free KV blocks to be granted but allocates none of them.
const NEWCOMER: u64 = 998;

/// Returns a want that is granted once `blocks` blocks are free, and that takes none of them.
pub(crate) fn room(blocks: u32, max_victims: u32) -> Want {
    let most = blocks * 4;
    Want { new_tokens: 0, ..open_with(NEWCOMER, most, &[], max_victims, (0, most)) }
}

impl Scene {
    pub(crate) fn new(device_blocks: u32, host_blocks: u32) -> Scene {
        Scene::bounded(device_blocks, host_blocks, 64, 64)
    }

    pub(crate) fn bounded(
        device_blocks: u32,
        host_blocks: u32,
        in_transit: u32,
        batch: u32,
    ) -> Scene {
        let store = BlockStore::new(StoreConfig {
            block_size: 4,
            device_blocks,
            host_blocks,
            max_copy_blocks_in_transit: in_transit,
            max_copy_blocks_per_batch: batch,
        });
        Scene { store, step: 0 }
    }

    /// Sends a step request to the store, after all earlier steps have completed, and returns the answer.
    pub(crate) fn ask(&mut self, wants: Vec<Want>, victims: Vec<Victim>) -> StepGrant {
        self.request(StepRequest { wants, victims, ..StepRequest::default() })
    }

    pub(crate) fn request(&mut self, request: StepRequest) -> StepGrant {
        self.step += 1;
        let (step, completed_step) = (StepId(self.step), StepId(self.step - 1));
        let grant = self.store.reserve(&StepRequest { step, completed_step, ..request });
        self.store.check().unwrap();
        grant
    }

    /// Starts a sequence that computes `blocks` full blocks of the text number `text`, without cache hits. Returns its
    /// block table.
    pub(crate) fn running(&mut self, seq: u64, text: u8, blocks: u8) -> Arc<[BlockId]> {
        self.running_on(seq, &names(text, blocks), 0)
    }

    /// Starts a sequence with the block names `hashes`: the first `hits` blocks are cache hits, and the others are
    /// computed. Returns its block table.
    pub(crate) fn running_on(
        &mut self,
        seq: u64,
        hashes: &[BlockHash],
        hits: usize,
    ) -> Arc<[BlockId]> {
        let tokens = hashes.len() as u32 * 4;
        let grant = self.ask(vec![open(seq, tokens, &hashes[..hits], 0)], vec![]);
        let GrantOutcome::Run { table: Some(table), computed, .. } = only(&grant) else {
            panic!("no room for the scene: {grant:?}");
        };
        assert_eq!(computed as usize, hits * 4);
        let progress = self.progress(seq, tokens, &hashes[hits..]);
        self.request(StepRequest { progress: vec![progress], ..StepRequest::default() });
        table
    }

    pub(crate) fn progress(&self, seq: u64, computed: u32, hashes: &[BlockHash]) -> Progress {
        Progress { seq: SeqId(seq), computed, hashes: hashes.to_vec() }
    }

    /// Asks the block store for `blocks` free blocks, for which the store preempts as many of `victims` as it needs,
    /// and gives the blocks back unused. Returns the outcomes of the preemptions.
    pub(crate) fn make_room(&mut self, blocks: u32, victims: Vec<Victim>) -> Vec<PreemptOutcome> {
        let grant = self.ask(vec![room(blocks, victims.len() as u32)], victims);
        self.store.release(SeqId(NEWCOMER));
        grant.preempted.iter().map(|taken| taken.outcome).collect()
    }

    /// Preempts by swap a sequence that shares no block: all copies to the host succeed, then the preemption is
    /// committed.
    pub(crate) fn swap_out(&mut self, seq: u64) -> PreemptOutcome {
        let now = self.store.snapshot();
        let own = now.tables.iter().find(|(id, _)| *id == SeqId(seq)).unwrap().1;
        let [outcome] = self.make_room(now.device.free + own, vec![victim(seq, true)])[..] else {
            panic!("only {seq} is a victim");
        };
        if let PreemptOutcome::Copying { .. } = outcome {
            self.finish_copies(true);
            assert!(self.store.commit_preempt(ticket(seq, 1)));
        }
        self.store.check().unwrap();
        outcome
    }

    /// Reports to the block store that all earlier steps are completed, and returns the batches of copies that may
    /// start now.
    pub(crate) fn take(&mut self) -> Vec<CopyBatch> {
        self.ask(vec![], vec![]);
        let batches = self.store.take_copies();
        self.store.check().unwrap();
        batches
    }

    pub(crate) fn finish_copies(&mut self, ok: bool) -> Vec<StoreEvent> {
        let mut events = Vec::new();
        loop {
            let batches = self.take();
            if batches.is_empty() {
                return events;
            }
            for batch in batches {
                events.extend(self.store.copy_done(batch.id, ok));
                self.store.check().unwrap();
            }
        }
    }

    /// Allocates all free device blocks and frees them again, so that no cached content is left.
    pub(crate) fn flush_device(&mut self) {
        let free = self.store.snapshot().device.free;
        self.ask(vec![open(999, free * 4, &[], 0)], vec![]);
        assert_eq!(self.store.snapshot().device.free, 0);
        self.store.release(SeqId(999));
        assert_eq!(self.store.snapshot().device.cached, 0);
    }
}

/// Returns the result of the only request for blocks in a step.
pub(crate) fn only(grant: &StepGrant) -> GrantOutcome {
    let [Grant { outcome, .. }] = grant.grants.as_slice() else {
        panic!("one answer expected: {grant:?}");
    };
    outcome.clone()
}

/// Returns, for each sequence of a step, how many tokens its block table covers; `None` if the sequence may not run.
pub(crate) fn covers(grant: &StepGrant) -> Vec<Option<u32>> {
    grant
        .grants
        .iter()
        .map(|grant| match grant.outcome {
            GrantOutcome::Run { cover, .. } => Some(cover),
            _ => None,
        })
        .collect()
}

/// Returns the ids of the sequences that were preempted for a step.
pub(crate) fn preempted(grant: &StepGrant) -> Vec<u64> {
    grant.preempted.iter().map(|taken| taken.ticket.seq.0).collect()
}

/// Returns how many blocks must come free from copies under way before a denied request for blocks may succeed; 0 if
/// such copies are not enough.
pub(crate) fn pending(outcome: &GrantOutcome) -> u32 {
    match outcome {
        GrantOutcome::Denied { pending_blocks } => *pending_blocks,
        other => panic!("not denied: {other:?}"),
    }
}
