//! Host pool of a GPU: pinned memory in pieces, of which the first few are pinned when the model is opened, and the
//! others while the engine already runs. Pinning takes the operating system some tenths of a second per GiB.

use super::driver::CudaError;
use crate::available_bytes;
use tiercel_device::HostGrowth;

/// Size of a piece of the host pool, bytes, if a block is not larger. Steps wait while a piece is pinned. One H100
/// pinned 16 GB in 9 s. At this rate, a piece takes 18 ms, the time of about two steps.
const PIECE_BYTES: usize = 32 << 20;
/// Number of pieces that are pinned before the engine starts, 256 MiB: enough to measure the speed of the link, and for
/// the first preempted sequences.
const FIRST_PIECES: usize = 8;
/// Host memory that pinning leaves to other programs and to the page cache, bytes: the pool stops growing before less
/// is free.
const LEFT_FREE_BYTES: u64 = 2 << 30;

/// Sizes of a host pool.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HostPlan {
    /// Size of a KV block, bytes.
    pub block_bytes: usize,
    /// Number of KV blocks of the complete pool.
    pub blocks: u32,
    /// Number of KV blocks of each piece but the last, which may have fewer; at least 1.
    pub piece_blocks: u32,
}

impl HostPlan {
    /// Returns the plan of a pool of `blocks` blocks in pieces of at most 32 MiB, or of one block if a block is larger.
    pub fn new(block_bytes: usize, blocks: u32) -> HostPlan {
        let piece_blocks = (PIECE_BYTES / block_bytes.max(1)).clamp(1, u32::MAX as usize) as u32;
        HostPlan { block_bytes, blocks, piece_blocks }
    }

    /// Returns the number of pieces of the complete pool.
    pub fn pieces(&self) -> usize {
        self.blocks.div_ceil(self.piece_blocks) as usize
    }

    /// Returns the number of blocks of piece number `piece`, counted from 0; 0 if there is no such piece.
    pub fn blocks_of(&self, piece: usize) -> u32 {
        let first = (piece as u64).saturating_mul(u64::from(self.piece_blocks));
        let left = u64::from(self.blocks).saturating_sub(first);
        left.min(u64::from(self.piece_blocks)) as u32
    }

    /// Returns the distance between the starts of two pieces in the numbering of the pool's bytes.
    pub fn piece_bytes(&self) -> usize {
        self.piece_blocks as usize * self.block_bytes
    }
}

/// Pins the memory of a host pool.
pub trait PinHost: Send + 'static {
    /// Pins the memory of piece number `piece`, counted from 0, which is the first that is not pinned.
    ///
    /// # Errors
    /// [`CudaError::Memory`]; nothing is pinned then.
    fn pin(&mut self, piece: usize) -> Result<(), CudaError>;
}

/// A host pool with the pieces that are pinned so far.
#[derive(Debug)]
pub struct HostPool<P> {
    memory: P,
    plan: HostPlan,
    pinned: usize,
    /// Returns the bytes of host memory that are free, if that is known.
    free_bytes: fn() -> Option<u64>,
}

impl<P: PinHost> HostPool<P> {
    /// Pins the first pieces of a host pool (`FIRST_PIECES`), or all pieces if the pool has fewer.
    ///
    /// # Errors
    /// [`CudaError::Memory`].
    pub fn start(memory: P, plan: HostPlan) -> Result<HostPool<P>, CudaError> {
        HostPool::start_with(memory, plan, FIRST_PIECES, available_bytes)
    }

    /// Implements [`HostPool::start`] with another number of pieces that are pinned at the start, and with another
    /// source of the free host memory, for tests.
    ///
    /// # Errors
    /// [`CudaError::Memory`].
    pub fn start_with(
        memory: P,
        plan: HostPlan,
        first_pieces: usize,
        free_bytes: fn() -> Option<u64>,
    ) -> Result<HostPool<P>, CudaError> {
        let mut pool = HostPool { memory, plan, pinned: 0, free_bytes };
        for _ in 0..first_pieces {
            pool.pin_next()?;
        }
        Ok(pool)
    }

    fn pin_next(&mut self) -> Result<u32, CudaError> {
        let blocks = self.plan.blocks_of(self.pinned);
        if blocks > 0 {
            self.memory.pin(self.pinned)?;
            self.pinned += 1;
        }
        Ok(blocks)
    }
}

impl<P: PinHost> HostGrowth for HostPool<P> {
    fn usable_blocks(&self) -> u32 {
        (self.pinned as u64 * u64::from(self.plan.piece_blocks)).min(u64::from(self.plan.blocks))
            as u32
    }

    fn grow(&mut self) -> Result<u32, String> {
        let bytes = u64::from(self.plan.blocks_of(self.pinned)) * self.plan.block_bytes as u64;
        match (self.free_bytes)() {
            Some(free) if bytes > 0 && free < bytes.saturating_add(LEFT_FREE_BYTES) => {
                Err(format!(
                    "{free} bytes of host memory are free, and a piece of {bytes} bytes must leave \
                 {LEFT_FREE_BYTES}; state a smaller kv.host_mib"
                ))
            }
            _ => self.pin_next().map_err(|error| error.to_string()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Memory of which only the first pieces can be pinned.
    struct Pinned {
        pieces: Vec<usize>,
        most: usize,
    }

    impl PinHost for Pinned {
        fn pin(&mut self, piece: usize) -> Result<(), CudaError> {
            if piece >= self.most {
                let why = "no more pages".to_owned();
                return Err(CudaError::Memory { bytes: 1, what: "pinned host", why });
            }
            self.pieces.push(piece);
            Ok(())
        }
    }

    const PLAN: HostPlan = HostPlan { block_bytes: 1 << 20, blocks: 10, piece_blocks: 4 };

    fn pool(most: usize, free: fn() -> Option<u64>) -> HostPool<Pinned> {
        HostPool::start_with(Pinned { pieces: Vec::new(), most }, PLAN, 1, free).unwrap()
    }

    #[test]
    fn the_first_piece_is_pinned_at_the_start_and_the_last_one_is_shorter() {
        let mut pool = pool(3, || None);
        assert_eq!((pool.usable_blocks(), PLAN.pieces(), PLAN.piece_bytes()), (4, 3, 4 << 20));
        assert_eq!((pool.grow(), pool.usable_blocks()), (Ok(4), 8));
        assert_eq!((pool.grow(), pool.usable_blocks()), (Ok(2), 10));
        assert_eq!((pool.grow(), pool.usable_blocks()), (Ok(0), 10));
        assert_eq!(pool.memory.pieces, [0, 1, 2]);
    }

    #[test]
    fn several_pieces_can_be_pinned_at_the_start_and_at_most_all() {
        let pool = |first_pieces, most| {
            let memory = Pinned { pieces: Vec::new(), most };
            HostPool::start_with(memory, PLAN, first_pieces, || Some(0))
        };
        assert_eq!(pool(2, 3).unwrap().usable_blocks(), 8);
        assert_eq!(pool(9, 3).unwrap().memory.pieces, [0, 1, 2]);
        assert!(pool(2, 1).is_err(), "the second piece cannot be pinned");
    }

    #[test]
    fn what_is_pinned_is_kept_if_no_more_can_be() {
        let mut pool = pool(2, || None);
        assert_eq!(pool.grow(), Ok(4));
        let error = pool.grow().expect_err("the third piece cannot be pinned");
        assert!(error.contains("no more pages") && error.contains("kv.host_mib"), "{error}");
        assert_eq!(pool.usable_blocks(), 8);
    }

    #[test]
    fn the_pool_stops_growing_before_the_host_has_too_little_memory() {
        let mut enough = pool(3, || Some(LEFT_FREE_BYTES + (4 << 20)));
        assert_eq!(enough.grow(), Ok(4));
        let mut less = pool(3, || Some(LEFT_FREE_BYTES + (4 << 20) - 1));
        let error = less.grow().expect_err("one byte is missing");
        assert!(error.contains("2151677951 bytes of host memory are free"), "{error}");
        assert_eq!(less.memory.pieces, [0]);
    }

    #[test]
    fn a_pool_without_blocks_pins_nothing() {
        let plan = HostPlan::new(1 << 20, 0);
        assert_eq!((plan.piece_blocks, plan.pieces()), (32, 0));
        let memory = Pinned { pieces: Vec::new(), most: 0 };
        let mut pool = HostPool::start_with(memory, plan, 1, || Some(0)).unwrap();
        assert_eq!((pool.usable_blocks(), pool.grow()), (0, Ok(0)));
        assert_eq!(HostPlan::new(1 << 30, 3).piece_blocks, 1);
    }
}
