//! Drawing of tokens from logits on the GPU, so that the host receives a token of each row instead of the row of
//! logits.

use super::driver::{Arg, DevicePtr, Driver, SLOT_BYTES};
use super::kernels::{SAMPLE_SHARED_BYTES, SAMPLE_THREADS};
use super::memory::CudaTensor;
use super::ops::CudaOps;
use crate::Draw;

/// Number of tokens in a word of a mask.
const MASK_WORD: usize = u32::BITS as usize;
/// Number that the sampling kernel reads in place of the number of a mask for a draw that may take any token.
const NO_MASK: u32 = u32::MAX;

impl<D: Driver> CudaOps<D> {
    /// Draws tokens from rows of logits on the GPU. The first `vocab` columns of a row are tokens, the rest is padding.
    /// Row 0 of `x` is the step's sampled row number `first`.
    pub(super) fn draw(&mut self, x: &CudaTensor, vocab: usize, first: usize, draws: &[Draw<'_>]) {
        assert!(x.wide && vocab <= x.cols, "{vocab} tokens in {} columns", x.cols);
        assert!(draws.iter().all(|draw| draw.row < x.rows), "draws from {} rows", x.rows);
        assert!(first + x.rows <= SLOT_BYTES / 4, "more rows than one step samples");
        self.put_masks(x, vocab, draws);
        let mut masks = 0..;
        let words = self.put(draws.iter().flat_map(|draw| {
            let mask = draw.mask.and_then(|_| masks.next()).unwrap_or(NO_MASK);
            words(draw, mask)
        }));
        let tokens = self.steps.draws(first, draws.iter().map(|draw| draw.row));
        let args = [
            Arg::Ptr(x.at),
            Arg::U32(x.cols as u32),
            Arg::U32(vocab as u32),
            Arg::Ptr(words),
            Arg::Ptr(x.masks),
            Arg::U32(vocab.div_ceil(MASK_WORD) as u32),
            Arg::Ptr(tokens),
        ];
        let block = (SAMPLE_THREADS, SAMPLE_SHARED_BYTES);
        self.launch_shared("sample", (draws.len(), 1), block, &args);
    }

    /// Uploads the masks of draws in order, one after the other, to the room for masks of the logits `x`. Earlier draws
    /// with masks have run when the GPU overwrites their masks, because it works in order.
    fn put_masks(&mut self, x: &CudaTensor, vocab: usize, draws: &[Draw<'_>]) {
        let mask_bytes = vocab.div_ceil(MASK_WORD) * 4;
        let mut bytes = Vec::new();
        for mask in draws.iter().filter_map(|draw| draw.mask) {
            let start = bytes.len();
            // A mask made for fewer tokens allows none of the others.
            bytes.resize(start + mask_bytes, 0);
            for (to, word) in bytes[start..].chunks_exact_mut(4).zip(mask.words()) {
                to.copy_from_slice(&word.to_ne_bytes());
            }
        }
        if bytes.is_empty() {
            return;
        }
        assert!(x.masks != DevicePtr::default() && bytes.len() <= x.mask_bytes(), "room for masks");
        assert!(self.graphs.is_plain(), "draws with masks come after a flush");
        self.attempt(|driver| driver.upload(x.masks, &bytes));
    }
}

/// Encodes the parameters of a draw as the 32-bit words of the sampling kernel's struct `Sampling`. `mask` is the
/// number of the draw's mask among the uploaded masks.
fn words(draw: &Draw<'_>, mask: u32) -> [u32; 7] {
    // Scale the random number `draw.at` to a 32-bit integer, which cannot overflow because `draw.at` is below 1.
    let at = (draw.at * 4_294_967_296.0) as u32;
    let Draw { row, temperature, top_k, top_p, min_p, .. } = *draw;
    [temperature.to_bits(), top_k, top_p.to_bits(), min_p.to_bits(), at, row as u32, mask]
}
