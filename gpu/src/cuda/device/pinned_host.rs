//! Pinned host memory of the host pool, in pieces. The thread that pins further pieces shares it with the copy thread.
#![expect(unsafe_code, reason = "bindings to the CUDA driver")]

use super::calls::driver::memory;
use super::context::Context;
use super::staging::pinned;
use crate::cuda::{CudaError, HostPlan, PinHost};
use std::sync::{Arc, OnceLock};

/// Pinned memory of a host pool; clones share it.
#[derive(Clone)]
pub struct PinnedHost {
    pieces: Arc<Pieces>,
}

struct Pieces {
    context: Context,
    plan: HostPlan,
    /// Address of each piece that is pinned. Pieces are pinned in order.
    at: Box<[OnceLock<Piece>]>,
}

/// Address of a piece of pinned memory.
struct Piece(*mut u8);

// SAFETY: an address may be used from any thread. Only `CudaCopies` touches the memory behind the address, through
// `PinnedHost::parts`, and one thread at a time uses a `CudaCopies`.
unsafe impl Send for Piece {}
// SAFETY: as above; the address never changes.
unsafe impl Sync for Piece {}

impl PinnedHost {
    /// Makes a host pool without pinned memory.
    pub(super) fn new(context: &Context, plan: HostPlan) -> PinnedHost {
        let at = (0..plan.pieces()).map(|_| OnceLock::new()).collect();
        PinnedHost { pieces: Arc::new(Pieces { context: context.clone(), plan, at }) }
    }

    /// Returns the addresses and lengths of the parts of pinned memory in which the `bytes` bytes of the pool from
    /// number `start` on lie: one part, or several if the bytes are in several pieces of memory.
    ///
    /// # Errors
    /// [`CudaError::Copy`] if some of these bytes are not pinned.
    pub(super) fn parts(
        &self,
        start: usize,
        bytes: usize,
    ) -> Result<Vec<(*mut u8, usize)>, CudaError> {
        let piece_bytes = self.pieces.plan.piece_bytes().max(1);
        let (mut start, end) = (start, start + bytes);
        let mut parts = Vec::with_capacity(1);
        while start < end {
            let (piece, offset) = (start / piece_bytes, start % piece_bytes);
            let len = (end - start).min(piece_bytes - offset);
            let held = self.pieces.plan.blocks_of(piece) as usize * self.pieces.plan.block_bytes;
            let Some(Piece(at)) = self.pieces.at.get(piece).and_then(OnceLock::get) else {
                let why = format!("byte {start} of the host pool is not pinned");
                return Err(CudaError::Copy(why));
            };
            assert!(offset + len <= held, "{len} bytes at {offset} of {held}");
            // SAFETY: the offset is inside the piece, which has `held` bytes.
            parts.push((unsafe { at.add(offset) }, len));
            start += len;
        }
        Ok(parts)
    }
}

impl PinHost for PinnedHost {
    fn pin(&mut self, piece: usize) -> Result<(), CudaError> {
        let Pieces { context, plan, at } = &*self.pieces;
        context.enter()?;
        let memory = pinned(plan.blocks_of(piece) as usize * plan.block_bytes)?;
        if let Err(Piece(unused)) = at[piece].set(Piece(memory)) {
            // SAFETY: the memory was allocated just now, and nothing uses it: the piece was pinned before.
            let _ = unsafe { memory::free_pinned(unused) };
        }
        Ok(())
    }
}

impl Drop for Pieces {
    fn drop(&mut self) {
        if self.context.enter().is_ok() {
            for Piece(at) in self.at.iter_mut().filter_map(OnceLock::take) {
                // SAFETY: each piece was allocated once, and is freed when no clone is left: the copy side waits for
                // its copies before it drops its clone.
                let _ = unsafe { memory::free_pinned(at) };
            }
        }
    }
}
