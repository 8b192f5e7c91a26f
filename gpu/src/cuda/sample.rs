//! Drawing tokens on the device: a token of each row comes back, and not the row.

use super::driver::{Arg, CudaError, Driver};
use super::kernels::{SAMPLE_SHARED_BYTES, SAMPLE_THREADS};
use super::memory::CudaTensor;
use super::ops::CudaOps;
use crate::Draw;
use tiercel_device::TokenId;

/// What the kernel answers where no logit can be used.
const NO_TOKEN: u32 = u32::MAX;

impl<D: Driver> CudaOps<D> {
    /// Draws from rows of logits, of whose columns the first `vocab` are tokens.
    pub(super) fn draw(
        &mut self,
        x: &CudaTensor,
        vocab: usize,
        draws: &[Draw],
    ) -> Result<Vec<Option<TokenId>>, CudaError> {
        assert!(x.wide && vocab <= x.cols, "{vocab} tokens in {} columns", x.cols);
        assert!(draws.iter().all(|draw| draw.row < x.rows), "draws from {} rows", x.rows);
        let words = self.put(draws.iter().flat_map(words));
        let tokens = self.put(draws.iter().map(|_| NO_TOKEN));
        let args = [
            Arg::Ptr(x.at),
            Arg::U32(x.cols as u32),
            Arg::U32(vocab as u32),
            Arg::Ptr(words),
            Arg::Ptr(tokens),
        ];
        let block = (SAMPLE_THREADS, SAMPLE_SHARED_BYTES);
        self.launch_shared("sample", (draws.len(), 1), block, &args);
        if let Some(fault) = &self.fault {
            return Err(fault.clone());
        }
        let mut bytes = vec![0; draws.len() * 4];
        self.driver.download(tokens, &mut bytes)?;
        let drawn = bytes.chunks_exact(4).map(|b| u32::from_ne_bytes([b[0], b[1], b[2], b[3]]));
        Ok(drawn.map(|token| (token != NO_TOKEN).then_some(token)).collect())
    }
}

/// A draw as the kernel reads it.
fn words(draw: &Draw) -> [u32; 6] {
    // At most 2^32 - 1: a fraction is below 1.
    let at = (draw.at * 4_294_967_296.0) as u32;
    let Draw { row, temperature, top_k, top_p, min_p, .. } = *draw;
    [temperature.to_bits(), top_k, top_p.to_bits(), min_p.to_bits(), at, row as u32]
}
