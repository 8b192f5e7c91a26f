//! Lays out a [`StepBatch`] as rows of a forward pass. An accepted batch is safe to run: its sizes are within the
//! limits, its token ids and KV blocks exist, and no sequence writes a block that another sequence uses.

use super::error::BatchError;
use super::sequences::Sequences;
use crate::forward::{DecoderLimits, ForwardBatch};
use std::collections::HashSet;
use std::sync::Arc;
use tiercel_device::{BlockId, SeqId, SeqSlice, SliceInput, StepBatch};
use tiercel_gpu::{RowInput, SeqRows};

/// Value in the table of writers for a KV block that no slice of the step writes.
const NOBODY: u32 = u32::MAX;

/// Limits that a step batch is checked against: batch size, sequence length, vocabulary and number of KV blocks.
#[derive(Debug, Clone, Copy)]
pub(crate) struct PlanLimits {
    pub(crate) decoder: DecoderLimits,
    pub(crate) vocab: usize,
    pub(crate) block_size: usize,
    pub(crate) device_blocks: u32,
}

/// Layout of a step as rows of the forward pass. Its buffers are reused from step to step.
pub(super) struct Plan {
    limits: PlanLimits,
    inputs: Vec<RowInput>,
    seqs: Vec<SeqRows>,
    /// Row of the batch from whose logits each output is sampled, for the outputs that can be sampled, in the order of
    /// `outputs`; padding rows follow.
    sampled: Vec<usize>,
    outputs: Vec<Output>,
    seen: HashSet<SeqId>,
    /// For each KV block, by its id: the number of the slice that writes the block. Filled only while a step is
    /// checked.
    writers: Vec<u32>,
}

/// An output token that the step must sample, or report as failed, for one sequence.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Output {
    pub(super) seq: SeqId,
    /// Position of the token to sample in the sequence's output, from 0. `None` if nothing can be sampled, because the
    /// sequence is unknown to the device or its last token is missing.
    pub(super) index: Option<u32>,
}

impl Plan {
    pub(super) fn new(limits: PlanLimits) -> Plan {
        Plan {
            inputs: Vec::with_capacity(limits.decoder.max_batched_tokens),
            seqs: Vec::new(),
            sampled: Vec::new(),
            outputs: Vec::new(),
            seen: HashSet::new(),
            writers: vec![NOBODY; limits.device_blocks as usize],
            limits,
        }
    }

    /// Checks a step batch against the limits and lays out its tokens as rows of the forward pass.
    pub(super) fn build(
        &mut self,
        batch: &StepBatch,
        sequences: &Sequences,
    ) -> Result<(), BatchError> {
        self.inputs.clear();
        self.seqs.clear();
        self.sampled.clear();
        self.outputs.clear();
        self.seen.clear();
        for slice in &batch.slices {
            self.check(slice)?;
            self.add(slice, sequences)?;
        }
        let (rows, limit) = (self.sampled.len(), self.limits.decoder.max_sampled_rows);
        if rows > limit {
            return Err(BatchError::TooManySamples { rows, limit });
        }
        self.check_writes(batch)
    }

    /// Returns the number of sequences if the step is a pure decode step (each slice is one token and samples the
    /// next); otherwise `None`.
    pub(super) fn single_tokens(&self) -> Option<usize> {
        let rows = self.inputs.len();
        (rows > 0 && rows == self.seqs.len() && rows == self.sampled.len()).then_some(rows)
    }

    /// Pads a pure decode step up to `rows` rows, so that a captured CUDA graph can be replayed. The padding rows
    /// belong to no sequence and all write the KV block `block`.
    pub(super) fn fill(&mut self, rows: usize, block: BlockId) {
        let table: Arc<[BlockId]> = Arc::from([block]);
        for row in self.inputs.len()..rows {
            self.inputs.push(RowInput::Token(0));
            self.seqs.push(SeqRows { rows: row..row + 1, first_pos: 0, table: Arc::clone(&table) });
            self.sampled.push(row);
        }
    }

    pub(super) fn forward(&self) -> ForwardBatch<'_> {
        ForwardBatch { inputs: &self.inputs, seqs: &self.seqs, sampled: &self.sampled }
    }

    /// Returns one output per slice that samples a token, in the order of the slices. Of the outputs that can be
    /// sampled, the `i`-th takes its logits from the `i`-th sampled row.
    pub(super) fn outputs(&self) -> &[Output] {
        &self.outputs
    }

    fn check(&mut self, slice: &SeqSlice) -> Result<(), BatchError> {
        let (seq, limits) = (slice.seq, &self.limits);
        if slice.input.is_empty() {
            return Err(BatchError::EmptySlice(seq));
        }
        if !self.seen.insert(seq) {
            return Err(BatchError::TwoSlices(seq));
        }
        let (tokens, limit) =
            (self.inputs.len() + slice.input.len(), limits.decoder.max_batched_tokens);
        if tokens > limit {
            return Err(BatchError::TooManyTokens { tokens, limit });
        }
        let end = u64::from(slice.first_pos) + slice.input.len() as u64;
        let limit = limits.decoder.max_positions;
        if end > limit as u64 {
            return Err(BatchError::TooLong { seq, end, limit });
        }
        let needed = (end as usize).div_ceil(limits.block_size);
        let Some(table) = slice.table.get(..needed) else {
            return Err(BatchError::ShortTable { seq, blocks: slice.table.len(), end, needed });
        };
        match table.iter().find(|block| block.0 >= limits.device_blocks) {
            Some(&block) => Err(BatchError::Block { seq, block, blocks: limits.device_blocks }),
            None => Ok(()),
        }
    }

    fn add(&mut self, slice: &SeqSlice, sequences: &Sequences) -> Result<(), BatchError> {
        let seq = slice.seq;
        let known = sequences.contains(seq);
        let start = self.inputs.len();
        match &slice.input {
            SliceInput::Known(tokens) => {
                self.inputs.extend(tokens.iter().copied().map(RowInput::Token));
            }
            SliceInput::SampledBy(step) => match sequences.sampled_by(seq, *step) {
                Some(Some(input)) => self.inputs.push(input),
                // Nothing was sampled for the sequence in the step before, so it has no input token. The engine sent
                // the new step before it could know that.
                Some(None) => {
                    self.outputs.extend(slice.sample.map(|_| Output { seq, index: None }));
                    return Ok(());
                }
                None if known || slice.sample.is_none() => return Err(BatchError::NoToken(seq)),
                None => {
                    self.outputs.push(Output { seq, index: None });
                    return Ok(());
                }
            },
        }
        let vocab = self.limits.vocab;
        let unknown = |input: &RowInput| match *input {
            RowInput::Token(token) if token as usize >= vocab => Some(token),
            _ => None,
        };
        if let Some(token) = self.inputs[start..].iter().find_map(unknown) {
            return Err(BatchError::Token { seq, token, vocab });
        }
        let rows = start..self.inputs.len();
        if let Some(index) = slice.sample {
            self.outputs.push(Output { seq, index: known.then_some(index) });
            if known {
                self.sampled.push(rows.end - 1);
            }
        }
        let (first_pos, table) = (slice.first_pos, slice.table.clone());
        self.seqs.push(SeqRows { rows, first_pos, table });
        Ok(())
    }

    /// Checks that no KV block that one slice of the step writes is read or written by another slice, because compute
    /// threads write blocks without a lock.
    fn check_writes(&mut self, batch: &StepBatch) -> Result<(), BatchError> {
        let size = self.limits.block_size;
        let result = claim_blocks(&mut self.writers, &batch.slices, size);
        for slice in &batch.slices {
            for block in blocks(slice, size).1 {
                self.writers[block.0 as usize] = NOBODY;
            }
        }
        result
    }
}

/// Returns the KV blocks that a slice only reads (earlier context), and the blocks that it writes.
fn blocks(slice: &SeqSlice, size: usize) -> (&[BlockId], &[BlockId]) {
    let first = slice.first_pos as usize;
    let end = (first + slice.input.len()).div_ceil(size);
    slice.table[..end].split_at(first / size)
}

fn claim_blocks(writers: &mut [u32], slices: &[SeqSlice], size: usize) -> Result<(), BatchError> {
    let clash = |writer: u32, reader: &SeqSlice, block: BlockId| {
        let writer = slices[writer as usize].seq;
        Err(BatchError::SharedWrite { writer, reader: reader.seq, block })
    };
    for (number, slice) in slices.iter().enumerate() {
        for &block in blocks(slice, size).1 {
            let writer = &mut writers[block.0 as usize];
            if *writer != NOBODY {
                return clash(*writer, slice, block);
            }
            *writer = number as u32;
        }
    }
    for slice in slices {
        for &block in blocks(slice, size).0 {
            let writer = writers[block.0 as usize];
            if writer != NOBODY {
                return clash(writer, slice, block);
            }
        }
    }
    Ok(())
}
