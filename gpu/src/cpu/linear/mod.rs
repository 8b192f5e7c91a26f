//! Products of activations and packed weights. Work is cut into (block of activation rows) x (range of weight panels).
//! Neither the cut nor the height of the register tile that computes a row changes how an output element is summed:
//! always over the input features `k` in order.
#![expect(
    unsafe_code,
    reason = "kernels compiled for AVX2 and AVX-512; threads write disjoint parts of the output"
)]

mod activations;
#[cfg(target_arch = "x86_64")]
mod avx2_dense;
#[cfg(target_arch = "x86_64")]
mod avx2_quant;
#[cfg(target_arch = "x86_64")]
mod avx512;
mod portable;
#[cfg(test)]
mod tests;

use super::isa::Isa;
use super::pool::{Pool, SharedMut};
use super::tensor::{Tensor, Vector};
use super::weights::{Matrix, Panels, Q4Block, Q8Block, QUANT_LEN, Segment};
use activations::ActBlock;
pub(crate) use activations::ActRows;
#[cfg(target_arch = "x86_64")]
use avx2_quant::Sums;
use std::ops::Range;

/// Largest size of the activations of a block of rows (of at least 24 rows) in a matrix product, bytes (counted as 2
/// per activation). The activations should stay in the L2 cache beside the weight panels that stream past.
const ROW_BLOCK_BYTES: usize = 192 << 10;
/// Largest size of the quantized activations in one pass (of at least 4 rows) over a range of 8-bit weight panels,
/// bytes. The activations stay in the L1 cache while the panels stream from the L2 cache.
const Q8_PASS_BYTES: usize = 16 << 10;
/// Largest size of the quantized activations in one pass (of at least 8 rows) over a range of 4-bit weight panels,
/// bytes. The activations stay in the L1 cache beside one panel.
const Q4_PASS_BYTES: usize = 24 << 10;
/// Largest size of a range of quantized weight panels (of at least one panel) that several passes read, bytes. The
/// panels should stay in the L2 cache from one pass to the next.
const PASSED_BYTES: usize = 128 << 10;
/// Most activation rows in one pass over 4-bit weight panels, so that the sums of the rows also stay in the L1 cache.
const Q4_PASS_ROWS: usize = 24;
/// Least number of multiply-adds of a matrix product that is worth handing to another thread: about 1 us of work.
const CHUNK_MACS: usize = 48 << 10;
/// Most chunks of work per thread into which the panels of a weight matrix should be cut (a few more if parts of the
/// matrix leave short chunks). With several chunks per thread, a thread that is late does not delay the other threads
/// for long.
const CHUNKS_PER_THREAD: usize = 6;

/// Arguments of a matrix product that all its work items share.
struct Product<'a> {
    isa: Isa,
    x: &'a Tensor,
    acts: &'a ActRows,
    bias: Option<&'a Vector>,
    out: SharedMut<'a, f32>,
    out_cols: usize,
    k: usize,
}

/// Computes the matrix product `out = x · wᵀ + bias`; `acts` is scratch memory for quantized activations.
pub(crate) fn linear(
    (pool, isa): (&Pool, Isa),
    acts: &mut ActRows,
    w: &Matrix,
    bias: Option<&Vector>,
    x: &Tensor,
    out: &mut Tensor,
) {
    let rows = x.rows();
    if rows == 0 || w.n == 0 {
        return;
    }
    if w.is_quantized() {
        acts.quantize(pool, isa, x);
    }
    let row_block = (ROW_BLOCK_BYTES / (w.k * 2)).clamp(24, 512) / 12 * 12;
    let row_blocks = rows.div_ceil(row_block);
    let spans = panel_spans(w, rows.min(row_block), (pool.threads(), isa));
    let out_cols = out.cols();
    let out = SharedMut::new(out.values_mut());
    let product = Product { isa, x, acts, bias, out, out_cols, k: w.k };
    pool.run(row_blocks * spans.len(), &|chunk| {
        let (segment, panels) = &spans[chunk % spans.len()];
        let first = chunk / spans.len() * row_block;
        product.panels(segment, panels.clone(), first..rows.min(first + row_block));
    });
}

/// Cuts the panels of a weight matrix into ranges of about equal work for the threads.
fn panel_spans(
    w: &Matrix,
    rows: usize,
    (threads, isa): (usize, Isa),
) -> Vec<(&Segment, Range<usize>)> {
    let macs = w.n * w.k * rows;
    let wanted = (macs / CHUNK_MACS).clamp(1, threads * CHUNKS_PER_THREAD);
    let outputs = if threads == 1 { w.n } else { w.n.div_ceil(wanted) };
    let mut spans = Vec::with_capacity(wanted + w.segments.len());
    for segment in &w.segments {
        let height = segment.panels.rows();
        let panels = segment.n.div_ceil(height);
        let together = panels_together(isa, &segment.panels, rows);
        let step = outputs.div_ceil(height).next_multiple_of(together);
        let ranges = (0..panels).step_by(step).map(|first| first..panels.min(first + step));
        spans.extend(ranges.map(|range| (segment, range)));
    }
    spans
}

/// Returns how many neighbouring weight panels a kernel multiplies at a time with `rows` activation rows.
fn panels_together(isa: Isa, panels: &Panels, rows: usize) -> usize {
    match (isa, panels) {
        #[cfg(target_arch = "x86_64")]
        (Isa::Avx512, Panels::Q8(_) | Panels::Q4(_)) if rows >= avx512::ROWS_MIN => 2,
        _ => 1,
    }
}

/// Cuts a range of weight panels into ranges that stay in the L2 cache while several passes read them. The lengths of
/// these ranges are multiples of `together`, except the last one's.
#[cfg(target_arch = "x86_64")]
fn cached<B>(
    panels: Range<usize>,
    panel_blocks: usize,
    together: usize,
) -> impl Iterator<Item = Range<usize>> {
    let step = PASSED_BYTES / (panel_blocks * size_of::<B>());
    let step = (step / together * together).max(together);
    let end = panels.end;
    panels.step_by(step).map(move |first| first..end.min(first + step))
}

/// Cuts the activation rows `$rows` into tiles of the given heights, highest first, and runs `$tile` with the row
/// numbers of each tile.
#[cfg(target_arch = "x86_64")]
macro_rules! tiles {
    ($rows:expr, [$($height:literal),*], |$tile_rows:ident| $tile:expr) => {{
        let Range { start: mut row, end } = $rows;
        $(while end - row >= $height {
            let $tile_rows: [usize; $height] = std::array::from_fn(|i| row + i);
            $tile;
            row += $height;
        })*
    }};
}

/// Fills `out` with the first values of `sums`. If [`Product::emit`] contained this copy, the compiler would merge the
/// copies of whole and of partial panels into one call of `memcpy` for each panel and row.
#[cold]
#[inline(never)]
fn store_some(out: &mut [f32], sums: &[f32]) {
    out.copy_from_slice(&sums[..out.len()]);
}

impl Product<'_> {
    fn panels(&self, segment: &Segment, panels: Range<usize>, rows: Range<usize>) {
        match self.isa {
            Isa::Portable => self.portable(segment, panels, rows),
            #[cfg(target_arch = "x86_64")]
            Isa::Avx2 => match &segment.panels {
                Panels::F32(all) => self.avx2_dense(segment, all, panels, rows),
                Panels::Bf16(all) => self.avx2_dense(segment, all, panels, rows),
                Panels::Q8(all) => self.avx2_q8(segment, all, panels, rows),
                Panels::Q4(all) => self.avx2_q4(segment, all, panels, rows),
            },
            #[cfg(target_arch = "x86_64")]
            Isa::Avx512 => match &segment.panels {
                Panels::F32(all) => self.avx2_dense(segment, all, panels, rows),
                Panels::Bf16(all) => self.avx2_dense(segment, all, panels, rows),
                Panels::Q8(all) => {
                    let rest = self.avx512_pairs(segment, all, panels, rows.clone());
                    self.avx2_q8(segment, all, rest, rows);
                }
                Panels::Q4(all) => {
                    let rest = self.avx512_pairs(segment, all, panels, rows.clone());
                    self.avx2_q4(segment, all, rest, rows);
                }
            },
        }
    }

    fn portable(&self, segment: &Segment, panels: Range<usize>, rows: Range<usize>) {
        let (k, blocks) = (self.k, self.k.div_ceil(QUANT_LEN));
        for panel in panels {
            for row in rows.clone() {
                let (x, acts) = (self.x.row(row), || self.acts.row(row));
                match &segment.panels {
                    Panels::F32(all) => {
                        let sums = portable::f32_row(&all[panel * k..][..k], x);
                        self.emit(segment, panel * sums.len(), row, &sums);
                    }
                    Panels::Bf16(all) => {
                        let sums = portable::bf16_row(&all[panel * k..][..k], x);
                        self.emit(segment, panel * sums.len(), row, &sums);
                    }
                    Panels::Q8(all) => {
                        let sums = portable::q8_row(&all[panel * blocks..][..blocks], acts());
                        self.emit(segment, panel * sums.len(), row, &sums);
                    }
                    Panels::Q4(all) => {
                        let sums = portable::q4_row(&all[panel * blocks..][..blocks], acts());
                        self.emit(segment, panel * sums.len(), row, &sums);
                    }
                }
            }
        }
    }

    #[cfg(target_arch = "x86_64")]
    fn avx2_dense<C: avx2_dense::Column>(
        &self,
        segment: &Segment,
        all: &[C],
        mut panels: Range<usize>,
        rows: Range<usize>,
    ) {
        macro_rules! step {
            ($panels:literal, $heights:tt) => {
                while panels.len() >= $panels {
                    let packed = &all[panels.start * self.k..][..$panels * self.k];
                    tiles!(rows.clone(), $heights, |tile| {
                        // SAFETY: this code runs only for `Isa::Avx2` and `Isa::Avx512`, which exist only if the
                        // processor has AVX2, FMA and F16C.
                        let sums = unsafe {
                            avx2_dense::tile::<_, $panels>(packed, tile.map(|row| self.x.row(row)))
                        };
                        for (row, sums) in tile.into_iter().zip(sums) {
                            for (panel, sums) in (panels.start..).zip(sums) {
                                self.emit(segment, panel * sums.len(), row, &sums);
                            }
                        }
                    });
                    panels.start += $panels;
                }
            };
        }
        match rows.len() {
            1 => step!(4, [1]),
            2 => step!(2, [2]),
            _ => {}
        }
        step!(1, [6, 5, 4, 3, 2, 1]);
    }

    #[cfg(target_arch = "x86_64")]
    fn avx2_q8(
        &self,
        segment: &Segment,
        all: &[Q8Block],
        panels: Range<usize>,
        rows: Range<usize>,
    ) {
        let blocks = self.k.div_ceil(QUANT_LEN);
        let pass = (Q8_PASS_BYTES / (blocks * size_of::<ActBlock>())).max(4) / 4 * 4;
        for panels in cached::<Q8Block>(panels, blocks, 1) {
            for first in rows.clone().step_by(pass) {
                let near = first..rows.end.min(first + pass);
                for panel in panels.clone() {
                    let weights = &all[panel * blocks..][..blocks];
                    tiles!(near.clone(), [4, 3, 2, 1], |tile| {
                        let acts = tile.map(|row| self.acts.row(row));
                        // SAFETY: this code runs only for `Isa::Avx2` and `Isa::Avx512`, which exist only if the
                        // processor has AVX2, FMA and F16C.
                        let sums = unsafe { avx2_quant::q8_tile(weights, acts) };
                        for (row, sums) in tile.into_iter().zip(sums) {
                            self.emit(segment, panel * sums.len(), row, &sums);
                        }
                    });
                }
            }
        }
    }

    #[cfg(target_arch = "x86_64")]
    fn avx2_q4(
        &self,
        segment: &Segment,
        all: &[Q4Block],
        panels: Range<usize>,
        rows: Range<usize>,
    ) {
        let blocks = self.k.div_ceil(QUANT_LEN);
        let most = (Q4_PASS_BYTES / (blocks * size_of::<ActBlock>())).clamp(8, Q4_PASS_ROWS);
        // Choose the number of activation rows per pass over the weight panels so that the passes have about equally
        // many rows.
        let pass = rows.len().div_ceil(rows.len().div_ceil(most));
        let mut sums = [Sums::ZERO; Q4_PASS_ROWS];
        for panels in cached::<Q4Block>(panels, blocks, 1) {
            for first in rows.clone().step_by(pass) {
                let near = first..rows.end.min(first + pass);
                let sums = &mut sums[..near.len()];
                let acts = self.acts.rows(near.clone());
                for panel in panels.clone() {
                    let weights = &all[panel * blocks..][..blocks];
                    // SAFETY: this code runs only for `Isa::Avx2` and `Isa::Avx512`, which exist only if the processor
                    // has AVX2, FMA and F16C.
                    unsafe { avx2_quant::q4(weights, acts, sums) };
                    for (row, sums) in near.clone().zip(&*sums) {
                        self.emit(segment, panel * sums.0.len(), row, &sums.0);
                    }
                }
            }
        }
    }

    /// Stores consecutive outputs of one activation row, beginning with output `first` of the weight segment, and adds
    /// the bias. Outputs beyond the `n` of the segment are dropped, because the last panel is padded.
    #[inline]
    fn emit<const N: usize>(&self, segment: &Segment, first: usize, row: usize, sums: &[f32; N]) {
        let len = N.min(segment.n - first);
        let col = segment.first + first;
        // SAFETY: two work items of a product differ in their rows or in their panels, so no two write the same output.
        let out = unsafe { self.out.slice(row * self.out_cols + col, len) };
        match out.first_chunk_mut::<N>() {
            // Copies the outputs of full panels as an array of known length: the compiler makes vector stores of it.
            Some(whole) => *whole = *sums,
            None => store_some(out, sums),
        }
        if let Some(bias) = self.bias {
            out.iter_mut().zip(&bias.values[col..]).for_each(|(out, bias)| *out += bias);
        }
    }
}
