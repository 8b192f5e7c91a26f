//! Drawing of tokens from logits on the GPU, so that the host receives a token of each row instead of the row of
//! logits.

use super::driver::{Arg, Driver, SLOT_BYTES};
use super::kernels::{SAMPLE_SHARED_BYTES, SAMPLE_THREADS};
use super::memory::CudaTensor;
use super::ops::CudaOps;
use crate::Draw;

impl<D: Driver> CudaOps<D> {
    /// Draws tokens from rows of logits on the GPU. The first `vocab` columns of a row are tokens, the rest is padding.
    /// Row 0 of `x` is the step's sampled row number `first`.
    pub(super) fn draw(&mut self, x: &CudaTensor, vocab: usize, first: usize, draws: &[Draw]) {
        assert!(x.wide && vocab <= x.cols, "{vocab} tokens in {} columns", x.cols);
        assert!(draws.iter().all(|draw| draw.row < x.rows), "draws from {} rows", x.rows);
        assert!(first + x.rows <= SLOT_BYTES / 4, "more rows than one step samples");
        let words = self.put(draws.iter().flat_map(words));
        let tokens = self.steps.draws(first, draws.iter().map(|draw| draw.row));
        let args = [
            Arg::Ptr(x.at),
            Arg::U32(x.cols as u32),
            Arg::U32(vocab as u32),
            Arg::Ptr(words),
            Arg::Ptr(tokens),
        ];
        let block = (SAMPLE_THREADS, SAMPLE_SHARED_BYTES);
        self.launch_shared("sample", (draws.len(), 1), block, &args);
    }
}

/// Encodes the parameters of a draw as the 32-bit words that the sampling kernel reads.
fn words(draw: &Draw) -> [u32; 6] {
    // Scale the random number `draw.at` to a 32-bit integer, which cannot overflow because `draw.at` is below 1.
    let at = (draw.at * 4_294_967_296.0) as u32;
    let Draw { row, temperature, top_k, top_p, min_p, .. } = *draw;
    [temperature.to_bits(), top_k, top_p.to_bits(), min_p.to_bits(), at, row as u32]
}
