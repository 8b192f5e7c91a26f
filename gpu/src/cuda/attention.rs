//! Launches of attention kernels. The rows of decodes are computed by spans of positions, whose results are combined.
//! The rows of prompt chunks are computed by tiles; with `device.exact`, all rows are computed by spans.

use super::batch::{Cut, Layout, SPANS_MAX, SpanGroup, Tiles, lay_out};
use super::driver::{Arg, CudaError, DevicePtr, Driver, KernelShape};
use super::kernels::ATTENTION_THREADS;
use super::memory::CudaTensor;
use super::ops::{CudaBatch, CudaOps};
use crate::{AttentionShape, SeqRows};
use std::f32::consts::LOG2_E;

/// Device memory in which the spans of a launch are combined.
#[derive(Debug, Clone, Copy)]
pub(super) struct SpanMemory {
    /// Address of the partial results, `[span][query head][head_dim + 2]` in f32.
    results: DevicePtr,
    /// Address of the counts of finished thread blocks, `[span][key head][part of its query heads]` in u32: all 0
    /// between launches.
    finished: DevicePtr,
}

impl SpanMemory {
    /// Allocates the memory for as many spans as a launch may have.
    pub(super) fn new<D: Driver>(
        driver: &mut D,
        shape: KernelShape,
        kv_heads: usize,
    ) -> Result<SpanMemory, CudaError> {
        let heads = shape.queries * kv_heads;
        let results = driver.allocate(SPANS_MAX * heads * (shape.head_dim + 2) * 4)?;
        let finished_bytes = SPANS_MAX * kv_heads * shape.query_parts() * 4;
        let finished = driver.allocate(finished_bytes)?;
        driver.clear(finished, finished_bytes)?;
        Ok(SpanMemory { results, finished })
    }
}

/// Arguments that all attention kernel launches of one model layer share.
struct Layer<'a> {
    qkv: &'a CudaTensor,
    batch: &'a CudaBatch,
    layer: usize,
    window: Arg,
    scale: Arg,
}

impl<D: Driver> CudaOps<D> {
    pub(super) fn lay_out(&self, seqs: &[SeqRows], shapes: &[AttentionShape]) -> Layout {
        for seq in seqs {
            let end = seq.first_pos as usize + seq.rows.len();
            let held = seq.table.len() * self.kv.block_size;
            assert!(end <= held, "{end} positions in a table for {held}");
            let used = &seq.table[..end.div_ceil(self.kv.block_size)];
            let exists = used.iter().all(|block| block.0 < self.kv.blocks);
            assert!(exists, "a table with blocks of {}", self.kv.blocks);
        }
        let rows = seqs.iter().map(|seq| seq.rows.end).max().unwrap_or(0);
        // Chooses the sliding window that the batch description must cover: none (all positions) if some layer has
        // none, otherwise the widest of a layer.
        let windows = shapes.iter().map(|shape| shape.sliding_window.unwrap_or(0) as usize);
        let window = windows.reduce(|a, b| if a == 0 || b == 0 { 0 } else { a.max(b) });
        let cut = Cut {
            shape: self.shape,
            block_size: self.kv.block_size,
            span: self.driver.span(),
            window: window.unwrap_or(0),
            exact: self.exact,
            filled: self.graphs.fills(),
        };
        lay_out(seqs, rows, cut)
    }

    pub(super) fn check_attention(&self, qkv: &CudaTensor, shape: &AttentionShape) {
        assert_eq!(
            (shape.kv_heads, shape.head_dim, shape.qkv_cols(), shape.heads),
            (self.kv.kv_heads, self.kv.head_dim, qkv.cols, self.kv.kv_heads * self.shape.queries),
            "kv heads, head width, qkv columns, heads"
        );
    }

    pub(super) fn attend(
        &mut self,
        qkv: &CudaTensor,
        shape: &AttentionShape,
        layer: usize,
        batch: &CudaBatch,
        out: &CudaTensor,
    ) {
        let call = Layer {
            qkv,
            batch,
            layer,
            window: Arg::U32(shape.sliding_window.unwrap_or(0)),
            // Scales the attention scores by log2(e), because the kernels compute softmax weights as powers of two.
            scale: Arg::F32(shape.scale * LOG2_E),
        };
        if let Some(tiles) = &batch.layout.tiles {
            self.attend_tiles(&call, tiles, out);
        }
        for group in &batch.layout.groups {
            self.attend_spans(&call, group, out);
        }
    }

    fn attend_spans(&mut self, call: &Layer<'_>, group: &SpanGroup, out: &CudaTensor) {
        let Layer { qkv, batch, layer, window, scale } = *call;
        let (words, kv) = (&batch.layout, &self.kv);
        let args = [
            Arg::Ptr(qkv.at),
            Arg::U32(qkv.cols as u32),
            Arg::Ptr(kv.layer(layer)),
            Arg::U64(kv.block_bytes() as u64),
            Arg::U32(kv.block_size as u32),
            batch.word(words.positions),
            batch.word(words.table_starts),
            batch.word(words.tables),
            batch.word(group.span_rows),
            batch.word(group.span_numbers),
            batch.word(group.span_firsts),
            batch.word(group.span_counts),
            Arg::Ptr(self.spans.results),
            Arg::Ptr(self.spans.finished),
            Arg::Ptr(out.at),
            Arg::U32(kv.kv_heads as u32),
            window,
            scale,
        ];
        let blocks = (kv.kv_heads * self.shape.query_parts(), group.spans);
        let block = (ATTENTION_THREADS, self.shape.rows_shared_bytes());
        self.launch_shared("attention_rows", blocks, block, &args);
    }

    fn attend_tiles(&mut self, call: &Layer<'_>, tiles: &Tiles, out: &CudaTensor) {
        let Layer { qkv, batch, layer, window, scale } = *call;
        let (words, kv) = (&batch.layout, &self.kv);
        let args = [
            Arg::Ptr(qkv.at),
            Arg::U32(qkv.cols as u32),
            Arg::Ptr(kv.layer(layer)),
            Arg::U64(kv.block_bytes() as u64),
            Arg::U32(kv.block_size as u32),
            batch.word(tiles.sequences),
            batch.word(words.tables),
            batch.word(tiles.tile_sequences),
            batch.word(tiles.tile_numbers),
            Arg::Ptr(out.at),
            Arg::U32(kv.kv_heads as u32),
            window,
            scale,
        ];
        let block = (ATTENTION_THREADS, self.shape.tiles_shared_bytes());
        self.launch_shared("attention_prefill", (kv.kv_heads, tiles.tiles), block, &args);
    }
}
