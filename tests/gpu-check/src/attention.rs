//! Checks a GPU's attention against the CPU's over head widths, numbers of query heads per key head, ragged lengths,
//! chunk boundaries, sliding windows, scattered KV blocks, and formats of the KV cache.

use crate::CheckError;
use crate::pair::{LAYERS, Pair, PairOptions, Setting, shape};
use crate::report::Report;
use std::sync::Arc;
use tiercel_device::BlockId;
use tiercel_gpu::cuda::{Driver, tested_shapes};
use tiercel_gpu::{AttentionShape, Ops, SeqRows, TensorUse};

/// Limits of the difference between the attention outputs of GPU and CPU: the norm of all differences as a share of the
/// norm of the results, and the largest difference as a share of the largest result. The GPU rounds queries and keys to
/// bf16 after their rotation (RoPE), which changes every attention score; with a KV cache in 8 bits, the GPU rounds
/// queries only.
const LIMITS: (f32, f32) = (1e-2, 2e-2);

/// Formats of the KV cache: whether the KV cache is in 8 bits.
const BOTH: [bool; 2] = [false, true];

/// Sequences of a step: for each, the number of tokens that the step computes and the number of earlier positions.
type Parts<'a> = &'a [(usize, usize)];

/// Checks that the GPU's attention agrees with the CPU's within the limits of rounding, and that with the option
/// `exact` it does not depend on how a prompt was cut into chunks.
///
/// # Errors
/// [`CheckError`] if something could not be run at all.
pub fn check_attention<D: Driver>(
    open: &dyn Fn() -> Result<D, CheckError>,
    report: &mut Report,
) -> Result<(), CheckError> {
    let span = open()?.span();
    for ((head_dim, queries), q8) in tested_shapes().flat_map(|shape| BOTH.map(|q8| (shape, q8))) {
        let shape = shape(head_dim, queries, 2);
        let name = format!("{queries} x {head_dim}{}", format_name(q8));
        let options = PairOptions { q8, ..PairOptions::default() };
        // Decode sequences whose lengths lie just before and after the end of a span (the stretch of positions that
        // attention computes separately), and of several spans.
        let lengths = [0, span - 1, span, 3 * span + 4, 2 * span - 1, 7].map(|before| (1, before));
        attend(open, &shape, options, &lengths, &format!("decode, {name}"), report)?;
        // Prompt chunks that start a prompt or continue one in the middle of a KV block, and a single decode token in
        // the same batch.
        let chunks = [(70, 0), (33, 21), (1, 40), (2, 63), (span, span + 5)];
        attend(open, &shape, options, &chunks, &format!("prompts, {name}"), report)?;
    }
    for (head_dim, queries, q8) in
        [(16, 2, false), (64, 3, false), (64, 3, true), (80, 4, false), (128, 8, false)]
    {
        let name = format!("prompts row by row, {queries} x {head_dim}{}", format_name(q8));
        let parts = [(35, 0), (9, span - 2), (1, 40)];
        let options = PairOptions { exact: true, q8, ..PairOptions::default() };
        attend(open, &shape(head_dim, queries, 2), options, &parts, &name, report)?;
    }
    for (window, block_size) in [(1, 16), (24, 16), (40, 8), (64, 32), (1000, 64)] {
        let windowed = AttentionShape { sliding_window: Some(window), ..shape(64, 3, 1) };
        for (exact, q8) in [(false, false), (true, false), (false, true)] {
            let format = format_name(q8);
            let name =
                format!("window of {window}, blocks of {block_size}, row by row: {exact}{format}");
            let parts = [(90, 0), (1, 4 * span - 8), (20, 50)];
            let options = PairOptions { block_size, exact, q8 };
            attend(open, &windowed, options, &parts, &name, report)?;
        }
    }
    BOTH.into_iter().try_for_each(|q8| cut_anywhere(open, q8, report))
}

fn format_name(q8: bool) -> &'static str {
    if q8 { ", q8" } else { "" }
}

/// Runs the attention of one step on GPU and CPU, after random KV was written for the earlier positions, and compares
/// the outputs.
fn attend<D: Driver>(
    open: &dyn Fn() -> Result<D, CheckError>,
    shape: &AttentionShape,
    options: PairOptions,
    parts: Parts<'_>,
    what: &str,
    report: &mut Report,
) -> Result<(), CheckError> {
    let blocks = |(rows, before): &(usize, usize)| (rows + before).div_ceil(options.block_size);
    let used: usize = parts.iter().map(blocks).sum();
    let setting = Setting { shape: *shape, blocks: used as u32 + 7, options };
    let mut pair = Pair::new(open()?, setting, 5)?;
    let seqs = pair.sequences(parts);
    let width = shape.head_dim as f32;
    let inv_freq: Vec<f32> =
        (0..shape.head_dim / 2).map(|i| 1e4_f32.powf(-2.0 * i as f32 / width)).collect();
    let longest = parts.iter().map(|(rows, before)| rows + before).max().unwrap_or(0);
    let rope = pair.cuda.rope(&inv_freq, 1.0, longest)?;
    let cpu_rope = pair.cpu.rope(&inv_freq, 1.0, longest)?;
    for layer in 0..LAYERS {
        for (seq, (_, before)) in seqs.iter().zip(parts).filter(|(_, (_, before))| *before > 0) {
            let earlier = [SeqRows { rows: 0..*before, first_pos: 0, table: seq.table.clone() }];
            let mut qkv = pair.random(*before, shape.qkv_cols(), TensorUse::Activations)?;
            let (batch, cpu_batch) = batches(&mut pair, &earlier, shape);
            pair.cuda.rope_kv_write(&mut qkv.cuda, &rope, shape, layer, &batch);
            pair.cpu.rope_kv_write(&mut qkv.cpu, &cpu_rope, shape, layer, &cpu_batch);
            pair.cuda.finish()?;
        }
    }
    let (mut cuda, mut cpu) = (Vec::new(), Vec::new());
    for layer in 0..LAYERS {
        let rows = parts.iter().map(|(rows, _)| rows).sum();
        let mut qkv = pair.random(rows, shape.qkv_cols(), TensorUse::Activations)?;
        let (batch, cpu_batch) = batches(&mut pair, &seqs, shape);
        pair.cuda.rope_kv_write(&mut qkv.cuda, &rope, shape, layer, &batch);
        pair.cpu.rope_kv_write(&mut qkv.cpu, &cpu_rope, shape, layer, &cpu_batch);
        let mut out = pair.empty(rows, shape.heads * shape.head_dim, TensorUse::Activations)?;
        pair.cuda.attention(&qkv.cuda, shape, layer, &batch, &mut out.cuda);
        pair.cpu.attention(&qkv.cpu, shape, layer, &cpu_batch, &mut out.cpu);
        cuda.extend(pair.cuda.read(&out.cuda)?);
        cpu.extend_from_slice(out.cpu.values());
        pair.cuda.finish()?;
    }
    report.compare(what, &cuda, &cpu, LIMITS);
    Ok(())
}

fn batches<D: Driver>(
    pair: &mut Pair<D>,
    seqs: &[SeqRows],
    shape: &AttentionShape,
) -> (tiercel_gpu::cuda::CudaBatch, Vec<SeqRows>) {
    (pair.cuda.batch(seqs, &[*shape]), pair.cpu.batch(seqs, &[*shape]))
}

/// Checks that a prompt's attention outputs, computed with the option `exact`, are the same bit for bit however the
/// prompt is cut into chunks: whole, and in two other ways.
fn cut_anywhere<D: Driver>(
    open: &dyn Fn() -> Result<D, CheckError>,
    q8: bool,
    report: &mut Report,
) -> Result<(), CheckError> {
    let shape = shape(64, 3, 2);
    let setting = Setting {
        shape,
        blocks: 5,
        options: PairOptions { exact: true, q8, ..PairOptions::default() },
    };
    let mut pair = Pair::new(open()?, setting, 9)?;
    let values = pair.numbers(80 * shape.qkv_cols(), 2.0);
    let whole = outputs(&mut pair, &shape, &values, &[80])?;
    for chunks in [&[33, 1, 1, 45][..], &[16, 64]] {
        let same = whole == outputs(&mut pair, &shape, &values, chunks)?;
        let format = format_name(q8);
        report.holds(&format!("attention bit for bit in chunks of {chunks:?}{format}"), same);
    }
    Ok(())
}

fn outputs<D: Driver>(
    pair: &mut Pair<D>,
    shape: &AttentionShape,
    values: &[f32],
    chunks: &[usize],
) -> Result<Vec<u32>, CheckError> {
    let rope = pair.cuda.rope(&[0.3; 32], 1.0, 80)?;
    let table: Arc<[BlockId]> = (0..5).map(BlockId).collect();
    let (cols, width) = (shape.qkv_cols(), shape.heads * shape.head_dim);
    let (mut done, mut found) = (0, Vec::new());
    for &rows in chunks {
        let seqs = [SeqRows { rows: 0..rows, first_pos: done as u32, table: table.clone() }];
        let mut qkv = pair.cuda.tensor(rows, cols, TensorUse::Activations)?;
        pair.cuda.write(&mut qkv, &values[done * cols..(done + rows) * cols])?;
        let batch = pair.cuda.batch(&seqs, &[*shape]);
        pair.cuda.rope_kv_write(&mut qkv, &rope, shape, 0, &batch);
        let mut out = pair.cuda.tensor(rows, width, TensorUse::Activations)?;
        pair.cuda.attention(&qkv, shape, 0, &batch, &mut out);
        found.extend(pair.cuda.read(&out)?.into_iter().map(f32::to_bits));
        pair.cuda.finish()?;
        done += rows;
    }
    Ok(found)
}
