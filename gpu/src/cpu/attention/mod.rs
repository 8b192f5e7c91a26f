//! Attention of the CPU device, for decode tokens and prefill chunks in one call. KV blocks are read in place.
//!
//! The keys of a row are reduced span by span. A span is [`plan::SPAN`] aligned positions and has its own softmax. The
//! partial results of the spans are merged in order of position. Within a span, every output is one chain of operations
//! in order of position. So a result never depends on how the work was cut.
#![expect(unsafe_code, reason = "kernels read KV blocks in place and write disjoint outputs")]

#[cfg(target_arch = "x86_64")]
mod avx2;
mod item;
mod kernel;
mod partial;
mod plan;
mod portable;
mod scales;
mod softmax;
#[cfg(test)]
mod tests;

use super::element::Element;
use super::isa::Isa;
use super::kv::KvMemory;
use super::pool::{Pool, SharedMut};
use super::tensor::Tensor;
use crate::{AttentionShape, KvType, SeqRows};
use half::{bf16, f16};
use item::{Merged, Scratch, with_scratch};
use kernel::Kernel;
use partial::{RowSums, Softmax, finish};
use plan::{Item, Plan, Plans, Tile, visible};

/// Arguments of one attention call on the CPU: the batch, the layer, the queries, keys and values.
pub(super) struct Attention<'a> {
    pub(super) isa: Isa,
    pub(super) kv: &'a KvMemory,
    pub(super) qkv: &'a Tensor,
    pub(super) shape: &'a AttentionShape,
    pub(super) layer: usize,
    pub(super) batch: &'a [SeqRows],
}

/// State that is kept between attention calls: plans, and memory for the partial results of split tiles.
#[derive(Debug, Default)]
pub(super) struct Memory {
    plans: Plans,
    partials: RowSums,
}

/// Computes attention for the rows of every sequence in the batch. Other rows of the output tensor `out` stay
/// unchanged.
pub(super) fn attention(pool: &Pool, call: &Attention<'_>, memory: &mut Memory, out: &mut Tensor) {
    match call.kv.layout().kv_type {
        KvType::F32 => with_elements::<f32>(pool, call, memory, out),
        KvType::F16 => with_elements::<f16>(pool, call, memory, out),
        KvType::Bf16 => with_elements::<bf16>(pool, call, memory, out),
        KvType::Q8 => with_elements::<i8>(pool, call, memory, out),
    }
}

fn with_elements<E: Element>(
    pool: &Pool,
    call: &Attention<'_>,
    memory: &mut Memory,
    out: &mut Tensor,
) {
    #[cfg(target_arch = "x86_64")]
    if let Some(kernel) =
        avx2::Avx2::new(call.isa, call.kv.layout().block_size, call.shape.head_dim)
    {
        return run::<E, _>(pool, call, kernel, memory, out);
    }
    run::<E, _>(pool, call, portable::Portable, memory, out);
}

/// Whether the instruction set has vector kernels of attention for this block size and head width.
#[cfg(target_arch = "x86_64")]
pub(super) fn is_vectorised(isa: Isa, block_size: usize, head_dim: usize) -> bool {
    avx2::Avx2::new(isa, block_size, head_dim).is_some()
}

/// Whether vector kernels of attention exist for this instruction set, block size and head width: never on a processor
/// that is not x86-64.
#[cfg(not(target_arch = "x86_64"))]
pub(super) fn is_vectorised(_: Isa, _: usize, _: usize) -> bool {
    false
}

/// Memory that the compute threads write in disjoint parts during attention: the output tensor, and the partial results
/// of split tiles.
struct Outputs<'a> {
    out: SharedMut<'a, f32>,
    cols: usize,
    softmax: SharedMut<'a, Softmax>,
    values: SharedMut<'a, f32>,
}

fn run<E: Element, K: Kernel<E>>(
    pool: &Pool,
    call: &Attention<'_>,
    kernel: K,
    memory: &mut Memory,
    out: &mut Tensor,
) {
    let Memory { plans, partials } = memory;
    let plan = plans.get(call.shape, call.batch, pool.threads());
    partials.resize(plan.partial_rows, call.shape.head_dim);
    let cols = out.cols();
    let outputs = Outputs {
        out: SharedMut::new(out.values_mut()),
        cols,
        softmax: SharedMut::new(&mut partials.softmax),
        values: SharedMut::new(&mut partials.values),
    };
    pool.run(plan.items.len(), &|index| {
        call.item::<E, K>(kernel, plan, &plan.items[index], &outputs);
    });
    pool.run(plan.split.len(), &|index| call.merge_tile(&plan.tiles[plan.split[index]], &outputs));
}

impl Attention<'_> {
    /// Returns for every query row of an attention tile its row in the batch, its query head and its position in its
    /// sequence.
    fn rows_of(&self, tile: &Tile) -> impl Iterator<Item = (usize, usize, usize)> {
        let seq = &self.batch[tile.seq];
        let (first_row, first_pos) = (seq.rows.start, seq.first_pos as usize);
        let heads = tile.heads.clone();
        tile.tokens.clone().flat_map(move |token| {
            heads.clone().map(move |head| (token, head, first_pos + token - first_row))
        })
    }

    fn item<E: Element, K: Kernel<E>>(
        &self,
        kernel: K,
        plan: &Plan,
        item: &Item,
        outputs: &Outputs<'_>,
    ) {
        let tile = &plan.tiles[item.tile];
        let (rows, dim) = (tile.rows(), self.shape.head_dim);
        with_scratch(|Scratch { span, merged }| {
            if let Some(first) = tile.partial {
                self.spans(kernel, (tile, item), span, |span, row, softmax, values| {
                    let place = first + (span - tile.spans.start) * rows + row;
                    // SAFETY: each (tile, span, row) has its own place among the partial results and belongs to one
                    // work item, so no two threads write the same place.
                    let (to_softmax, to_values) = unsafe {
                        (outputs.softmax.slice(place, 1), outputs.values.slice(place * dim, dim))
                    };
                    to_softmax[0] = *softmax;
                    to_values.copy_from_slice(values);
                });
            } else {
                merged.clear(rows, dim);
                let add =
                    |_, row, softmax: &Softmax, values: &[f32]| merged.add(row, softmax, values);
                self.spans(kernel, (tile, item), span, add);
                self.finish_tile(tile, merged, outputs);
            }
        });
    }

    /// Merges the partial attention results of a tile whose spans are split over several work items.
    fn merge_tile(&self, tile: &Tile, outputs: &Outputs<'_>) {
        let (rows, dim) = (tile.rows(), self.shape.head_dim);
        let first = tile.partial.expect("only split tiles are merged");
        with_scratch(|Scratch { merged, .. }| {
            merged.clear(rows, dim);
            for (row, (_, _, position)) in self.rows_of(tile).enumerate() {
                let seen = visible(self.shape, position);
                for span in seen.start / plan::SPAN..=(seen.end - 1) / plan::SPAN {
                    let place = first + (span - tile.spans.start) * rows + row;
                    // SAFETY: all work items are done, and only the chunk that merges a tile accesses the tile's
                    // partial results.
                    let (softmax, values) = unsafe {
                        (outputs.softmax.slice(place, 1), outputs.values.slice(place * dim, dim))
                    };
                    merged.add(row, &softmax[0], values);
                }
            }
            self.finish_tile(tile, merged, outputs);
        });
    }

    fn finish_tile(&self, tile: &Tile, merged: &Merged, outputs: &Outputs<'_>) {
        let dim = self.shape.head_dim;
        for (row, (token, head, _)) in self.rows_of(tile).enumerate() {
            // SAFETY: each (row, head) of the output belongs to one tile, and each tile is finished once, so no two
            // threads write the same output.
            let out = unsafe { outputs.out.slice(token * outputs.cols + head * dim, dim) };
            let values = &merged.sums.values[row * dim..(row + 1) * dim];
            finish(&merged.sums.softmax[row], values, out);
        }
    }
}
