//! The largest steps that a GPU's settings allow, run before the KV cache is allocated. Memory that the driver and its
//! libraries allocate during steps (for kernels that are loaded late, for uploaded block tables) is then in use, so the
//! free memory shows the possible size of the KV cache.

use super::LoadError;
use crate::forward::{Decoder, ForwardBatch};
use std::ops::Range;
use std::sync::Arc;
use tiercel_device::BlockId;
use tiercel_gpu::{Draw, Ops, RowInput, SeqRows};

/// The only KV block of the dry run. All rows of the dry run's steps write this block; the results do not matter.
const BLOCK: BlockId = BlockId(0);

/// Runs the largest steps: as many sequences as may sample a token, with block tables of the longest sequence, first
/// beside the longest prompt chunk, then alone. Each step runs as often as steps can be in flight, so that the memory
/// of all steps in flight is used. `block_size` is the number of tokens of a KV block.
///
/// # Errors
/// [`LoadError::DryRun`] if a step failed.
pub(super) fn run<O: Ops>(
    ops: &mut O,
    decoder: &mut Decoder<O>,
    block_size: usize,
) -> Result<(), LoadError> {
    let limits = *decoder.limits();
    let table: Arc<[BlockId]> = vec![BLOCK; limits.max_positions.div_ceil(block_size)].into();
    let seq = |rows: Range<usize>| SeqRows { rows, first_pos: 0, table: Arc::clone(&table) };
    let singles = limits.max_sampled_rows;
    let prompt = limits.max_positions.min(limits.max_batched_tokens - singles);
    for rows in [singles + prompt, singles] {
        let mut seqs: Vec<SeqRows> = (0..singles).map(|row| seq(row..row + 1)).collect();
        seqs.extend((rows > singles).then(|| seq(singles..rows)));
        let inputs = vec![RowInput::Token(0); rows];
        let sampled: Vec<usize> = (0..singles).collect();
        for _ in 0..O::STEPS {
            let batch = ForwardBatch { inputs: &inputs, seqs: &seqs, sampled: &sampled };
            step(ops, decoder, batch).map_err(|error| LoadError::DryRun { rows, error })?;
        }
    }
    Ok(())
}

fn step<O: Ops>(
    ops: &mut O,
    decoder: &mut Decoder<O>,
    batch: ForwardBatch<'_>,
) -> Result<(), tiercel_device::StepError> {
    let vocab = decoder.config().vocab_size;
    decoder.forward(ops, batch);
    for rows in decoder.logit_chunks() {
        let logits = decoder.logits(ops, rows.clone());
        let draw = |row| Draw {
            row,
            temperature: 1.0,
            top_k: 0,
            top_p: 0.9,
            min_p: 0.0,
            at: 0.5,
            mask: None,
        };
        let draws: Vec<Draw<'_>> = (0..rows.len()).map(draw).collect();
        // A device that draws no tokens needs no memory for draws.
        ops.draw_rows(logits, vocab, rows.start, &draws);
    }
    ops.submit();
    ops.finish().map(drop)
}
