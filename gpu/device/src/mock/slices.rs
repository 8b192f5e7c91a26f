//! Checks the slices of a step of the mock device against KV memory and the states of the sequences, and writes the
//! fingerprints of the step to KV memory.

use super::faults::{MockFault, MockFaultKind};
use super::memory::Memory;
use super::sequences::{SequenceState, Sequences};
use crate::{BlockId, SeqSlice, StepBatch, StepId};
use std::ops::Range;
use std::sync::Arc;

/// Amount of work in a step, from which the mock device models the step's duration.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(super) struct Work {
    /// Number of decode tokens of the step.
    pub(super) decode_tokens: u64,
    /// Number of prefill tokens of the step.
    pub(super) prefill_tokens: u64,
    /// Number of tokens whose KV the decodes of the step read, the decode tokens themselves included.
    pub(super) kv_tokens: u64,
    /// Number of pairs of a prefill token and a token before it in its sequence.
    pub(super) prefill_context: u64,
}

impl Work {
    /// Returns the amount of work of a step's slices, without the slices of unknown sequences.
    pub(super) fn of(batch: &StepBatch, sequences: &Sequences) -> Work {
        let mut work = Work::default();
        for slice in &batch.slices {
            let Some(state) = sequences.get(&slice.seq) else { continue };
            let (first, len) = (u64::from(slice.first_pos), slice.input.len() as u64);
            if state.decodes(slice.first_pos as usize, slice.input.len()) {
                work.decode_tokens += 1;
                work.kv_tokens += first + 1;
            } else {
                work.prefill_tokens += len;
                work.prefill_context += len * first + len * len.saturating_sub(1) / 2;
            }
        }
        work
    }
}

/// Returns the KV blocks that a slice writes, each with its index in the block table and the token slots that are
/// written.
fn written(
    slice: &SeqSlice,
    block_size: usize,
) -> impl Iterator<Item = (BlockId, usize, Range<usize>)> {
    let (first, end) = (slice.first_pos as usize, slice.first_pos as usize + slice.input.len());
    (first / block_size..end.div_ceil(block_size)).map(move |entry| {
        let start = entry * block_size;
        let slots = first.max(start) - start..end.min(start + block_size) - start;
        (slice.table[entry], entry, slots)
    })
}

/// Checks that every slice of a step fits its sequence and its block table, that no sequence has two slices, and that
/// no KV block is written twice.
pub(super) fn check_shape(
    batch: &StepBatch,
    sequences: &mut Sequences,
    memory: &mut Memory,
    max_len: u32,
) -> Result<(), MockFault> {
    let (step, block_size) = (batch.id, memory.block_size());
    for slice in &batch.slices {
        let seq = slice.seq;
        let Some(state) = sequences.get_mut(&seq) else { continue };
        let again = state.last_step.replace(step) == Some(step);
        let wrong = slice_is_wrong(slice, state, memory, max_len);
        if let Some(what) = wrong.or(again.then_some("two slices in one step")) {
            return Err(MockFault { step, seq, kind: MockFaultKind::BadSlice(what) });
        }
        let mut blocks = written(slice, block_size).map(|(block, ..)| block);
        if let Some(block) = blocks.find(|block| memory.claimed_before(*block, step)) {
            return Err(MockFault { step, seq, kind: MockFaultKind::SharedWrite { block } });
        }
    }
    Ok(())
}

fn slice_is_wrong(
    slice: &SeqSlice,
    state: &SequenceState,
    memory: &Memory,
    max_len: u32,
) -> Option<&'static str> {
    let (first, len) = (slice.first_pos as usize, slice.input.len());
    let end = first + len;
    if len == 0 {
        Some("no input")
    } else if end > max_len as usize {
        Some("longer than the model supports")
    } else if slice.table.len() * memory.block_size() < end {
        Some("the block table is too short")
    } else if !slice.table[first / memory.block_size()..].iter().all(|block| memory.has(*block)) {
        Some("the block table names a block that does not exist")
    } else if !state.input_is_right(first, &slice.input) {
        Some("the input is not what the sequence holds at that position")
    } else if slice.sample.is_some_and(|i| !state.samples(end, i)) {
        Some("the output to sample does not follow the input")
    } else {
        None
    }
}

/// Checks that every KV position that a step reads holds the right prefix of its sequence. With one fingerprint per
/// block, full blocks that were checked before and have not changed since are not checked again.
pub(super) fn check_reads(
    batch: &StepBatch,
    sequences: &mut Sequences,
    memory: &mut Memory,
) -> Result<(), MockFault> {
    let block_size = memory.block_size();
    for slice in &batch.slices {
        let Some(state) = sequences.get_mut(&slice.seq) else { continue };
        doubt_what_changed(state, slice, memory);
        let first = slice.first_pos as usize;
        for entry in state.relies_on..first.div_ceil(block_size) {
            let block = slice.table[entry];
            let print = state.block_prints.get(entry);
            if print.is_some_and(|print| memory.is_full_with(block, *print)) {
                if state.relies_on == entry {
                    memory.rely_on(block);
                    state.relies_on += 1;
                }
                continue;
            }
            let start = entry * block_size;
            let valid = block_size.min(first - start);
            let end = state.prints.len().min(start + block_size);
            if !memory.holds(block.0, valid, &state.prints[start..end]) {
                let kind = MockFaultKind::WrongContent { block, entry: entry as u32 };
                return Err(MockFault { step: batch.id, seq: slice.seq, kind });
            }
        }
    }
    Ok(())
}

/// Reduces the number of blocks at the front of a sequence's block table that need not be checked again: to the part
/// that the new table shares with the old one, or to none if the content of any checked block has changed.
fn doubt_what_changed(state: &mut SequenceState, slice: &SeqSlice, memory: &mut Memory) {
    let relied_on = &state.table[..state.relies_on];
    let keeps = if state.breaches != memory.breaches {
        0
    } else if Arc::ptr_eq(&state.table, &slice.table) {
        state.relies_on
    } else {
        relied_on.iter().zip(slice.table.iter()).take_while(|(old, new)| old == new).count()
    };
    memory.forget(&relied_on[keeps..]);
    state.relies_on = keeps;
    state.breaches = memory.breaches;
    state.table = Arc::clone(&slice.table);
}

/// Makes the KV that a starting step will write garbage until the step ends, so that early readers are found (see
/// [`Memory::spoil`]).
pub(super) fn spoil(batch: &StepBatch, sequences: &Sequences, memory: &mut Memory) {
    for slice in batch.slices.iter().filter(|slice| sequences.contains_key(&slice.seq)) {
        for (block, _, slots) in written(slice, memory.block_size()) {
            memory.spoil(block.0, slots);
        }
    }
}

/// Stores in KV memory the fingerprints of the tokens that a step computed, when the step has succeeded.
pub(super) fn write(batch: &StepBatch, sequences: &Sequences, memory: &mut Memory) {
    let block_size = memory.block_size();
    for slice in &batch.slices {
        let Some(state) = sequences.get(&slice.seq) else { continue };
        for (block, entry, slots) in written(slice, block_size) {
            let start = entry * block_size;
            let end = state.prints.len().min(start + block_size);
            memory.write(block.0, slots, &state.prints[start..end]);
        }
    }
}

/// Returns a mistake of the engine (`UnknownSequence`) for each slice of a sequence that the device does not know.
pub(super) fn unknown<'a>(
    batch: &'a StepBatch,
    sequences: &'a Sequences,
) -> impl Iterator<Item = MockFault> + 'a {
    let step: StepId = batch.id;
    let strangers = batch.slices.iter().filter(|slice| !sequences.contains_key(&slice.seq));
    strangers.map(move |slice| MockFault {
        step,
        seq: slice.seq,
        kind: MockFaultKind::UnknownSequence,
    })
}
