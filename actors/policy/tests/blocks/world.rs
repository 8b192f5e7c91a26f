//! A simulated engine around the block store: sequences, steps in flight, copies, and the content of every token
//! position. It checks that each block that the store hands out really holds the content that it should.

use crate::content::{Draws, Tier, mix};
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use tiercel_device::{BlockId, CopyBatch, CopyDirection, CopyId, Epoch, SeqId, StepId, Ticket};
use tiercel_policy::blocks::{BlockHash, BlockStore, StoreConfig};
use tiercel_policy::{Progress, StoreEvent};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Phase {
    Waiting,
    Running,
    Preempting { copied: bool },
    Opening,
}

/// A sequence in the simulated engine, as a scheduler sees it.
pub(crate) struct Seq {
    pub(crate) id: SeqId,
    pub(crate) phase: Phase,
    pub(crate) epoch: u32,
    /// `known`: number of the sequence's tokens that are known so far; `last`: number of tokens at which the sequence
    /// ends.
    pub(crate) known: u32,
    pub(crate) last: u32,
    /// Number of tokens with valid KV: `computed` after the completed steps, `planned` after the steps in flight.
    pub(crate) computed: u32,
    pub(crate) planned: u32,
    pub(crate) table: Arc<[BlockId]>,
    /// Number of blocks that the preempted sequence retains on the device.
    pub(crate) retained: u32,
    /// Number of times that the sequence got blocks to start or resume with, or failed in a step. The result of a step
    /// that was planned at an older count is ignored.
    pub(crate) life: u32,
    /// For each token position, a fingerprint of the token prefix that ends there.
    pub(crate) prints: Vec<u64>,
    pub(crate) hashes: Arc<[BlockHash]>,
}

impl Seq {
    pub(crate) fn ticket(&self) -> Ticket {
        Ticket { seq: self.id, epoch: Epoch(self.epoch) }
    }
}

/// One sequence's part of a step: its tokens `first..end`.
pub(crate) struct Slice {
    pub(crate) seq: SeqId,
    pub(crate) life: u32,
    pub(crate) first: u32,
    pub(crate) end: u32,
    pub(crate) table: Arc<[BlockId]>,
}

pub(crate) struct Step {
    pub(crate) id: StepId,
    pub(crate) slices: Vec<Slice>,
}

pub(crate) struct World {
    pub(crate) store: BlockStore,
    pub(crate) config: StoreConfig,
    pub(crate) seqs: BTreeMap<SeqId, Seq>,
    pub(crate) next_seq: u64,
    pub(crate) in_flight: VecDeque<Step>,
    pub(crate) last_step: u64,
    pub(crate) completed: u64,
    pub(crate) progress: Vec<Progress>,
    pub(crate) released: Vec<SeqId>,
    pub(crate) device: Tier,
    pub(crate) host: Tier,
    pub(crate) copies: BTreeMap<CopyId, (CopyBatch, Vec<Vec<u64>>)>,
    /// Number of occurrences of each kind of event, by which the test checks that the random traffic reaches every
    /// kind.
    pub(crate) seen: BTreeMap<&'static str, u32>,
}

impl World {
    pub(crate) fn new(config: StoreConfig) -> World {
        World {
            store: BlockStore::new(config),
            config,
            seqs: BTreeMap::new(),
            next_seq: 1,
            in_flight: VecDeque::new(),
            last_step: 0,
            completed: 0,
            progress: Vec::new(),
            released: Vec::new(),
            device: Tier::new(config.device_blocks, config.block_size),
            host: Tier::new(config.host_blocks, config.block_size),
            copies: BTreeMap::new(),
            seen: BTreeMap::new(),
        }
    }

    pub(crate) fn count(&mut self, what: &'static str) {
        *self.seen.entry(what).or_insert(0) += 1;
    }

    /// Adds a new sequence, which may share a random prefix with other sequences of its family.
    pub(crate) fn arrive(&mut self, draws: &mut Draws) {
        if self.seqs.len() >= 6 {
            return;
        }
        let id = SeqId(self.next_seq);
        self.next_seq += 1;
        let most = self.config.device_blocks * self.config.block_size;
        let last = most / 3 + 1 + draws.below(u64::from(most) / 2) as u32;
        let known = last / 2 + 1 + draws.below(u64::from(last) / 2) as u32;
        let (family, common) = (draws.below(3), draws.below(u64::from(last) + 1));
        let mut print = 0;
        let token = |p: u64| if p < common { mix(family) ^ p } else { mix(id.0 ^ 77) ^ p };
        let prints: Vec<u64> = (0..u64::from(last))
            .map(|p| {
                print = mix(print ^ mix(token(p))).max(1);
                print
            })
            .collect();
        let ends = prints.chunks_exact(self.config.block_size as usize);
        let hashes = ends.map(|block| name(block[block.len() - 1])).collect();
        let seq = Seq {
            id,
            phase: Phase::Waiting,
            epoch: 0,
            known,
            last,
            computed: 0,
            planned: 0,
            table: Arc::new([]),
            retained: 0,
            life: 0,
            prints,
            hashes,
        };
        self.seqs.insert(id, seq);
    }

    /// Completes the oldest step in flight: the tokens of each sequence in it are written to their blocks. A failed
    /// step writes garbage, and so does any step for a sequence that has ended or got other blocks since.
    pub(crate) fn complete_step(&mut self, ok: bool) {
        let Some(step) = self.in_flight.pop_front() else { return };
        self.completed = step.id.0;
        for slice in &step.slices {
            let alive = self.seqs.get(&slice.seq).is_some_and(|seq| seq.life == slice.life);
            if alive && ok {
                self.assert_prefix(slice.seq, slice.first, &slice.table, "a step reads");
            }
            self.write(slice, alive && ok);
            if alive {
                self.step_ended_for(slice, ok);
            }
        }
    }

    fn write(&mut self, slice: &Slice, well: bool) {
        for position in slice.first..slice.end {
            let block = slice.table[(position / self.config.block_size) as usize].0;
            for (batch, _) in self.copies.values() {
                let touched = batch.pairs.iter().any(|pair| pair.device.0 == block);
                assert!(!touched, "{} writes d{block} during copy {}", slice.seq, batch.id);
            }
            let print = if well { self.seqs[&slice.seq].prints[position as usize] } else { 0 };
            self.device.set(block, (position % self.config.block_size) as usize, print);
        }
    }

    fn step_ended_for(&mut self, slice: &Slice, ok: bool) {
        let block_size = self.config.block_size;
        let seq = self.seqs.get_mut(&slice.seq).expect("it is alive");
        if !ok {
            seq.life += 1;
            seq.planned = seq.computed;
            return;
        }
        let parked = seq.phase == Phase::Waiting;
        // If the sequence was preempted while the step ran, the step's tokens do not count, because its blocks are
        // gone.
        if !parked {
            seq.computed = slice.end;
        }
        let full = |tokens: u32| (tokens / block_size) as usize;
        let hashes = seq.hashes[full(slice.first)..full(slice.end)].to_vec();
        self.progress.push(Progress { seq: slice.seq, computed: slice.end, hashes });
        let seq = self.seqs.get_mut(&slice.seq).expect("it is alive");
        if slice.end == seq.known {
            seq.known = (seq.known + 1).min(seq.last);
        }
        if parked {
            self.count("progress of a parked sequence");
        }
    }

    /// Starts the copies that the store hands out, and remembers the content of their source blocks.
    pub(crate) fn take_copies(&mut self) {
        for batch in self.store.take_copies() {
            let largest = self.config.max_copy_blocks_per_batch.max(1) as usize;
            assert!((1..=largest).contains(&batch.pairs.len()), "size of a batch");
            let mut sources = Vec::new();
            for pair in &batch.pairs {
                self.assert_fence(batch.direction, pair.device);
                match batch.direction {
                    CopyDirection::Out => {
                        sources.push(self.device.block(pair.device.0).to_vec());
                        self.host.spoil(pair.host.0);
                    }
                    CopyDirection::In => {
                        sources.push(self.host.block(pair.host.0).to_vec());
                        self.device.spoil(pair.device.0);
                    }
                }
            }
            self.copies.insert(batch.id, (batch, sources));
        }
        let in_transit: usize = self.copies.values().map(|(batch, _)| batch.pairs.len()).sum();
        let room = self.config.max_copy_blocks_in_transit.max(1) as usize;
        assert!(in_transit <= room, "{in_transit} blocks in transit");
    }

    /// Asserts that no step in flight uses the destination block of a copy, or writes its source block.
    fn assert_fence(&self, direction: CopyDirection, block: BlockId) {
        for slice in self.in_flight.iter().flat_map(|step| &step.slices) {
            let first = match direction {
                CopyDirection::In => 0,
                CopyDirection::Out => (slice.first / self.config.block_size) as usize,
            };
            let end = slice.end.div_ceil(self.config.block_size) as usize;
            let named = slice.table[first.min(end)..end].contains(&block);
            assert!(!named, "{block} is copied while a step in flight names it ({})", slice.seq);
        }
    }

    pub(crate) fn end_copy(&mut self, id: CopyId, ok: bool) {
        let Some((batch, sources)) = self.copies.remove(&id) else { return };
        for (pair, source) in batch.pairs.iter().zip(&sources) {
            let (from, to, to_id) = match batch.direction {
                CopyDirection::Out => {
                    (self.device.block(pair.device.0), &mut self.host, pair.host.0)
                }
                CopyDirection::In => {
                    (self.host.block(pair.host.0), &mut self.device, pair.device.0)
                }
            };
            assert_eq!(from, source, "the source of {id} changed under way");
            assert!(to.block(to_id).iter().all(|slot| *slot == 0), "the target was written");
            if ok {
                to.fill(to_id, source);
            }
        }
        for event in self.store.copy_done(id, ok) {
            self.hear(event);
        }
    }

    fn hear(&mut self, event: StoreEvent) {
        let (StoreEvent::PreemptCopied { ticket, .. } | StoreEvent::Resumed { ticket, .. }) = event;
        let Some(seq) = self.seqs.get_mut(&ticket.seq) else {
            assert!(self.released.contains(&ticket.seq), "{ticket} was released long ago");
            return;
        };
        match event {
            StoreEvent::PreemptCopied { failed, .. } => {
                assert_eq!(seq.ticket(), ticket);
                assert_eq!(seq.phase, Phase::Preempting { copied: false });
                seq.phase = Phase::Preempting { copied: true };
                self.count(if failed > 0 { "copied out, some failed" } else { "copied out" });
            }
            StoreEvent::Resumed { computed, failed, .. } => {
                assert_eq!((seq.ticket(), seq.phase), (ticket, Phase::Opening));
                seq.phase = Phase::Running;
                (seq.computed, seq.planned) = (computed, computed);
                seq.table = Arc::new([]);
                self.count(match (failed, computed) {
                    (0, _) => "copied in",
                    (_, 0) => "copied in, nothing valid",
                    _ => "copied in, some failed",
                });
            }
        }
    }

    /// Makes a sequence wait after a preemption; it retains the first `retained` blocks of its table.
    pub(crate) fn park(&mut self, id: SeqId, retained: u32) {
        let seq = self.seqs.get_mut(&id).expect("it lives");
        seq.phase = Phase::Waiting;
        (seq.computed, seq.planned) = (0, 0);
        seq.retained = retained;
        seq.table = seq.table.iter().copied().take(retained as usize).collect();
    }

    pub(crate) fn cancel(&mut self, id: SeqId, at_once: bool) {
        let gone = self.seqs.remove(&id).expect("it lives");
        self.count(match gone.phase {
            Phase::Waiting if gone.retained > 0 => "cancelled waiting, with blocks",
            Phase::Waiting => "cancelled waiting",
            Phase::Running => "cancelled running",
            Phase::Preempting { .. } => "cancelled preempting",
            Phase::Opening => "cancelled opening",
        });
        if at_once {
            self.store.release(id);
        } else {
            self.released.push(id);
        }
    }

    /// Asserts that the first `valid` token positions of a block table hold the prefix of the sequence.
    pub(crate) fn assert_prefix(&self, id: SeqId, valid: u32, table: &[BlockId], who: &str) {
        let block_size = self.config.block_size as usize;
        let prints = &self.seqs[&id].prints[..valid as usize];
        for (entry, expected) in prints.chunks(block_size).enumerate() {
            let held = &self.device.block(table[entry].0)[..expected.len()];
            assert_eq!(held, expected, "{who} entry {entry} ({}) of {id}", table[entry]);
        }
    }
}

/// Returns a block's name, made from the fingerprint of the prefix that ends with the block.
fn name(print: u64) -> BlockHash {
    let mut bytes = [0; 16];
    bytes[..8].copy_from_slice(&print.to_le_bytes());
    BlockHash(bytes)
}
