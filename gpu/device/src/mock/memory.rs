//! KV memory of the mock device, device pool and host pool. It holds fingerprints of token prefixes instead of keys and
//! values.

use crate::{BlockId, CopyDirection, StepId};
use std::ops::Range;

/// How finely the mock device remembers the content of KV blocks: by block or by token slot.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Fingerprints {
    /// One fingerprint and the number of filled token slots per block: takes little memory, for long runs.
    #[default]
    PerBlock,
    /// One fingerprint per token slot of a block: finds more mistakes of the engine, for fuzzing.
    PerSlot,
}

/// Content of the device pool and the host pool of a mock device. The content of a block is a run of u64 numbers:
/// either `[fingerprint of the last valid token slot, number of valid token slots]`, or one fingerprint per token slot.
/// 0 is garbage.
#[derive(Debug)]
pub(super) struct Memory {
    kind: Fingerprints,
    block_size: usize,
    words: usize,
    device: Vec<u64>,
    host: Vec<u64>,
    /// For each device block, the last step that writes it. With it the mock device finds two slices of one step that
    /// write the same block.
    writers: Vec<Option<StepId>>,
    /// For each device block, the number of sequences that checked its content and do not check it again.
    relied_on: Vec<u32>,
    /// Number of times that the content of a device block changed while some sequence relied on its earlier check of
    /// the block. When the number grows, sequences check their blocks again.
    pub(super) breaches: u64,
    /// Number of writes to the device pool by copies. If the number has grown during a step, the step checks its blocks
    /// again.
    pub(super) copies_in: u64,
}

impl Memory {
    /// Returns the memory of a mock device whose blocks all hold garbage.
    pub(super) fn new(kind: Fingerprints, block_size: u32, device: u32, host: u32) -> Memory {
        let words = match kind {
            Fingerprints::PerBlock => 2,
            Fingerprints::PerSlot => block_size as usize,
        };
        Memory {
            kind,
            block_size: block_size as usize,
            words,
            device: vec![0; words * device as usize],
            host: vec![0; words * host as usize],
            writers: vec![None; device as usize],
            relied_on: vec![0; device as usize],
            breaches: 0,
            copies_in: 0,
        }
    }

    /// Returns the number of blocks in the device pool.
    pub(super) fn device_blocks(&self) -> usize {
        self.device.len() / self.words
    }

    /// Returns the number of blocks in the host pool.
    pub(super) fn host_blocks(&self) -> usize {
        self.host.len() / self.words
    }

    fn run(&self, block: u32) -> Range<usize> {
        let start = block as usize * self.words;
        start..start + self.words
    }

    /// Whether the device pool has a block of this number.
    pub(super) fn has(&self, block: BlockId) -> bool {
        (block.0 as usize) < self.device_blocks()
    }

    /// Whether the first `valid` token slots of a block hold the content of a sequence; false for a block that does not
    /// exist. `expected` are the sequence's fingerprints from the first token slot of the block on, at least `valid` of
    /// them.
    pub(super) fn holds(&self, block: u32, valid: usize, expected: &[u64]) -> bool {
        let Some(words) = self.device.get(self.run(block)) else { return false };
        match self.kind {
            Fingerprints::PerSlot => words[..valid] == expected[..valid],
            Fingerprints::PerBlock => {
                let filled = words[1] as usize;
                filled >= valid && expected.get(filled.wrapping_sub(1)) == Some(&words[0])
            }
        }
    }

    /// Whether all token slots of a KV block are written and the fingerprint of the last slot is `print`. Always false
    /// if the mock device keeps a fingerprint for every token slot, because then the caller must compare each slot.
    pub(super) fn is_full_with(&self, block: BlockId, print: u64) -> bool {
        let start = block.0 as usize * self.words;
        self.kind == Fingerprints::PerBlock
            && self.device.get(start) == Some(&print)
            && self.device.get(start + 1) == Some(&(self.block_size as u64))
    }

    /// Records that a sequence has checked a full block and relies on its content from now on: it checks the block
    /// again only if [`Memory::breaches`] or its block table changes.
    pub(super) fn rely_on(&mut self, block: BlockId) {
        self.relied_on[block.0 as usize] += 1;
    }

    /// Records that a sequence no longer relies on the content of these blocks.
    pub(super) fn forget(&mut self, blocks: &[BlockId]) {
        for block in blocks {
            self.relied_on[block.0 as usize] -= 1;
        }
    }

    /// Records that the content of a device block changes; counts a breach if a sequence checked the block before and
    /// relies on its content.
    fn touch(&mut self, block: u32) {
        self.breaches += u64::from(self.relied_on[block as usize] > 0);
    }

    /// Records that a step will write a block. Returns whether another slice of the same step writes the block too,
    /// which is a mistake of the engine.
    pub(super) fn claimed_before(&mut self, block: BlockId, step: StepId) -> bool {
        self.writers[block.0 as usize].replace(step) == Some(step)
    }

    /// Makes the token slots `slots` of a block garbage, because a step that will write them starts. With one
    /// fingerprint per block, does so only if the first slot of the block is one of them.
    pub(super) fn spoil(&mut self, block: u32, slots: Range<usize>) {
        self.touch(block);
        let run = self.run(block);
        let words = &mut self.device[run];
        match self.kind {
            Fingerprints::PerSlot => words[slots].fill(0),
            // If the mock device keeps one fingerprint per block, a write that begins after the first token slot leaves
            // the fingerprint as it is, because the slots before stay valid. Only a write from the first slot on erases
            // it.
            Fingerprints::PerBlock if slots.start == 0 => words.fill(0),
            Fingerprints::PerBlock => {}
        }
    }

    /// Stores the fingerprints of the token slots `slots` of a block when the step that wrote them has ended.
    /// `expected` are the sequence's fingerprints from the first token slot of the block on.
    pub(super) fn write(&mut self, block: u32, slots: Range<usize>, expected: &[u64]) {
        self.touch(block);
        let run = self.run(block);
        let words = &mut self.device[run];
        match self.kind {
            Fingerprints::PerSlot => words[slots.clone()].copy_from_slice(&expected[slots]),
            Fingerprints::PerBlock => {
                words[0] = expected[slots.end - 1];
                words[1] = slots.end as u64;
            }
        }
    }

    /// Begins the copy of a block between the pools: makes the destination garbage and returns the present content of
    /// the source.
    pub(super) fn begin_copy(&mut self, way: CopyDirection, device: u32, host: u32) -> Vec<u64> {
        let (on_device, on_host) = (self.run(device), self.run(host));
        match way {
            CopyDirection::Out => {
                self.host[on_host].fill(0);
                self.device[on_device].to_vec()
            }
            CopyDirection::In => {
                self.copies_in += 1;
                self.touch(device);
                self.device[on_device].fill(0);
                self.host[on_host].to_vec()
            }
        }
    }

    /// Ends a successful copy of a block between the pools: stores the content in the destination. If the source has
    /// changed since the copy began, the destination becomes garbage, as after a torn copy.
    pub(super) fn end_copy(&mut self, way: CopyDirection, device: u32, host: u32, began: &[u64]) {
        let (on_device, on_host) = (self.run(device), self.run(host));
        if way == CopyDirection::In {
            self.touch(device);
        }
        let (from, to) = match way {
            CopyDirection::Out => (&self.device[on_device], &mut self.host[on_host]),
            CopyDirection::In => {
                self.copies_in += 1;
                (&self.host[on_host], &mut self.device[on_device])
            }
        };
        if from == began {
            to.copy_from_slice(from);
        } else {
            to.fill(0);
        }
    }

    /// Returns the number of tokens per block.
    pub(super) fn block_size(&self) -> usize {
        self.block_size
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn content_is_known_slot_by_slot_and_moves_with_copies() {
        for kind in [Fingerprints::PerBlock, Fingerprints::PerSlot] {
            let mut memory = Memory::new(kind, 4, 2, 1);
            let content = [11, 12, 13, 14];
            assert!(!memory.holds(0, 1, &content) && !memory.holds(2, 1, &content));
            memory.write(0, 0..2, &content);
            memory.write(0, 2..3, &content);
            assert!(memory.holds(0, 3, &content) && memory.holds(0, 2, &content));
            assert!(!memory.holds(0, 4, &content));
            assert!(!memory.holds(0, 3, &[11, 12, 99, 14]));
            let began = memory.begin_copy(CopyDirection::Out, 0, 0);
            memory.end_copy(CopyDirection::Out, 0, 0, &began);
            let began = memory.begin_copy(CopyDirection::In, 1, 0);
            assert!(!memory.holds(1, 1, &content), "half-copied");
            memory.end_copy(CopyDirection::In, 1, 0, &began);
            assert!(memory.holds(1, 3, &content));
            memory.spoil(0, 0..2);
            assert!(!memory.holds(0, 1, &content));
        }
    }

    #[test]
    fn a_source_that_changes_during_a_copy_leaves_garbage() {
        let mut memory = Memory::new(Fingerprints::PerSlot, 2, 2, 1);
        memory.write(0, 0..2, &[1, 2]);
        let began = memory.begin_copy(CopyDirection::Out, 0, 0);
        memory.write(0, 0..2, &[3, 4]);
        memory.end_copy(CopyDirection::Out, 0, 0, &began);
        let began = memory.begin_copy(CopyDirection::In, 1, 0);
        memory.end_copy(CopyDirection::In, 1, 0, &began);
        assert!(!memory.holds(1, 1, &[1, 2]) && !memory.holds(1, 1, &[3, 4]));
    }

    #[test]
    fn touching_what_somebody_relies_on_is_a_breach() {
        let mut memory = Memory::new(Fingerprints::PerBlock, 2, 2, 1);
        memory.write(0, 0..2, &[1, 2]);
        assert!(memory.is_full_with(BlockId(0), 2) && !memory.is_full_with(BlockId(0), 1));
        assert!(!memory.is_full_with(BlockId(1), 0) && !memory.is_full_with(BlockId(9), 2));
        memory.rely_on(BlockId(0));
        memory.rely_on(BlockId(0));
        memory.spoil(1, 0..1);
        memory.forget(&[BlockId(0)]);
        assert_eq!(memory.breaches, 0);
        memory.spoil(0, 1..2);
        memory.write(0, 1..2, &[1, 3]);
        let began = memory.begin_copy(CopyDirection::In, 0, 0);
        memory.end_copy(CopyDirection::In, 0, 0, &began);
        assert_eq!(memory.breaches, 4);
        memory.forget(&[BlockId(0)]);
        memory.spoil(0, 0..1);
        assert_eq!(memory.breaches, 4);
    }
}
