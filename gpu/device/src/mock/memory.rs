//! KV memory of both tiers, holding fingerprints of token prefixes instead of keys and values.

use crate::{BlockId, CopyDirection, StepId};
use std::ops::Range;

/// How much of the content the mock device remembers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Fingerprints {
    /// One fingerprint per block and how far it is filled: for long runs.
    #[default]
    PerBlock,
    /// One per slot: for fuzzing.
    PerSlot,
}

/// Both tiers. Content is a run of words per block: `[fingerprint of the last valid slot, valid slots]`
/// or one fingerprint per slot, where 0 is garbage.
#[derive(Debug)]
pub(super) struct Memory {
    kind: Fingerprints,
    block_size: usize,
    words: usize,
    device: Vec<u64>,
    host: Vec<u64>,
    /// The last step that writes each device block.
    writers: Vec<Option<StepId>>,
    /// How many sequences rely on what each device block holds.
    relied_on: Vec<u32>,
    /// Counts changes of device blocks that somebody relied on.
    pub(super) breaches: u64,
    /// Counts writes to the device tier by copies, so that a step knows whether to look again.
    pub(super) copies_in: u64,
}

impl Memory {
    /// Memory full of garbage.
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

    /// Blocks of the device tier.
    pub(super) fn device_blocks(&self) -> usize {
        self.device.len() / self.words
    }

    /// Blocks of the host tier.
    pub(super) fn host_blocks(&self) -> usize {
        self.host.len() / self.words
    }

    fn run(&self, block: u32) -> Range<usize> {
        let start = block as usize * self.words;
        start..start + self.words
    }

    /// Whether there is such a block.
    pub(super) fn has(&self, block: BlockId) -> bool {
        (block.0 as usize) < self.device_blocks()
    }

    /// Whether the first `valid` slots of a block hold a sequence's content; a block that does not exist
    /// holds none. `expected` are the sequence's fingerprints from the block's first slot on, at least
    /// `valid`.
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

    /// Whether a block is full and ends with this fingerprint, if that is all that is remembered of it.
    pub(super) fn is_full_with(&self, block: BlockId, print: u64) -> bool {
        let start = block.0 as usize * self.words;
        self.kind == Fingerprints::PerBlock
            && self.device.get(start) == Some(&print)
            && self.device.get(start + 1) == Some(&(self.block_size as u64))
    }

    /// A sequence relies on a full block that it has looked at, and will not look again unless
    /// [`Memory::breaches`] changes.
    pub(super) fn rely_on(&mut self, block: BlockId) {
        self.relied_on[block.0 as usize] += 1;
    }

    /// A sequence that relied on these blocks does so no more.
    pub(super) fn forget(&mut self, blocks: &[BlockId]) {
        for block in blocks {
            self.relied_on[block.0 as usize] -= 1;
        }
    }

    /// The content of a device block changes.
    fn touch(&mut self, block: u32) {
        self.breaches += u64::from(self.relied_on[block as usize] > 0);
    }

    /// A step is going to write a block; says whether it has said so before.
    pub(super) fn claimed_before(&mut self, block: BlockId, step: StepId) -> bool {
        self.writers[block.0 as usize].replace(step) == Some(step)
    }

    /// A step starts to write `slots` of a block: until it ends they are garbage.
    pub(super) fn spoil(&mut self, block: u32, slots: Range<usize>) {
        self.touch(block);
        let run = self.run(block);
        let words = &mut self.device[run];
        match self.kind {
            Fingerprints::PerSlot => words[slots].fill(0),
            // What is before the slots stays valid; with none before, the block holds nothing.
            Fingerprints::PerBlock if slots.start == 0 => words.fill(0),
            Fingerprints::PerBlock => {}
        }
    }

    /// A step wrote `slots` of a block. `expected` as in [`Memory::holds`].
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

    /// A copy starts: its destination is garbage until it ends. Returns the source's content now.
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

    /// A copy ends well. A source that changed meanwhile leaves garbage, as a torn copy would.
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

    /// Tokens per block.
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
