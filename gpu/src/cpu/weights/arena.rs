//! Memory of packed weights. Matrices lie next to each other in large memory mappings: only large mappings get large
//! pages, and large pages make streaming the weights fast.
#![expect(unsafe_code, reason = "typed views of mapped memory")]

use super::blocks::{Bf16Column, F32Column, Q4Block, Q8Block};
use crate::OpError;
use crate::cpu::memory::map;
use memmap2::MmapRaw;
use std::marker::PhantomData;
use std::ops::Deref;
use std::sync::Arc;

/// Size of a memory mapping that several weight matrices share, bytes. A matrix that is larger gets a mapping of its
/// own.
const CHUNK_BYTES: usize = 32 << 20;
/// Alignment of a weight matrix in its memory mapping, bytes: a cache line. No element type needs more.
const ALIGNMENT: usize = 64;

/// Allocator of memory for packed weights. A memory mapping is freed when the last matrix in it is dropped and the
/// allocator takes no more memory from it.
#[derive(Debug, Default)]
pub(crate) struct Arena {
    chunk: Option<Arc<MmapRaw>>,
    /// Bytes of the current shared memory mapping that weight matrices have taken.
    used: usize,
    /// Bytes that weights must leave free: for the KV cache, whose mapped memory is not touched yet, and for
    /// activations.
    promised: usize,
}

/// Element types for which zeroed memory is a valid value. [`Arena::pack`] checks while the program is compiled that a
/// type is aligned to at most [`ALIGNMENT`] bytes.
///
/// # Safety
/// Zeroed memory must be a valid value of the type.
pub(crate) unsafe trait Zeroed: Copy + Send + Sync {}

// SAFETY: the element type of packed weights consists of arrays of numbers, and zero bits are the number zero.
unsafe impl Zeroed for F32Column {}
// SAFETY: the element type of packed weights consists of arrays of numbers, and zero bits are the number zero.
unsafe impl Zeroed for Bf16Column {}
// SAFETY: the element type of packed weights consists of arrays of numbers, and zero bits are the number zero.
unsafe impl Zeroed for Q8Block {}
// SAFETY: the element type of packed weights consists of arrays of numbers, and zero bits are the number zero.
unsafe impl Zeroed for Q4Block {}

/// Array of packed weights in a memory mapping, read-only once it is filled.
#[derive(Debug)]
pub(crate) struct Packed<T> {
    chunk: Arc<MmapRaw>,
    /// Offset of the packed weights from the start of their memory mapping, bytes.
    start: usize,
    len: usize,
    elements: PhantomData<T>,
}

impl Arena {
    /// Adds `bytes` to the memory that weights must leave free for later allocations (KV cache, activations).
    pub(crate) fn promise(&mut self, bytes: usize) {
        self.promised = self.promised.saturating_add(bytes);
    }

    /// Allocates memory for `len` packed elements, zeroed, and calls `fill` to write them.
    ///
    /// # Errors
    /// [`OpError::Memory`] if there is too little memory.
    pub(crate) fn pack<T: Zeroed>(
        &mut self,
        len: usize,
        fill: impl FnOnce(&mut [T]),
    ) -> Result<Packed<T>, OpError> {
        const { assert!(align_of::<T>() <= ALIGNMENT) };
        let refuse =
            |why: String| OpError::Memory { bytes: len.saturating_mul(size_of::<T>()), why };
        let bytes = len
            .checked_mul(size_of::<T>())
            .and_then(|bytes| bytes.checked_next_multiple_of(ALIGNMENT))
            .ok_or_else(|| refuse("more than an address can count".to_owned()))?;
        let (chunk, start) = self.carve(bytes).map_err(refuse)?;
        // SAFETY: `start..start + bytes` is inside the mapping. The range is aligned for `T`: the mapping starts at a
        // page, `start` is a sum of sizes that are rounded up to `ALIGNMENT`, and `T` is aligned to at most
        // `ALIGNMENT`. `carve` returns each range once, so nothing else refers to the range. The mapping is zeroed, and
        // zeroed memory is a valid `T`.
        fill(unsafe {
            std::slice::from_raw_parts_mut(chunk.as_mut_ptr().add(start).cast::<T>(), len)
        });
        Ok(Packed { chunk, start, len, elements: PhantomData })
    }

    /// Takes `bytes` bytes for a weight matrix from the current shared memory mapping, or from a new one. Returns the
    /// mapping and the offset in it.
    fn carve(&mut self, bytes: usize) -> Result<(Arc<MmapRaw>, usize), String> {
        if bytes > CHUNK_BYTES {
            return Ok((Arc::new(map(bytes, self.promised)?), 0));
        }
        let chunk = match self.chunk.take() {
            Some(chunk) if self.used + bytes <= CHUNK_BYTES => chunk,
            _ => {
                self.used = 0;
                Arc::new(map(CHUNK_BYTES, self.promised)?)
            }
        };
        let start = self.used;
        self.used += bytes;
        self.chunk = Some(chunk.clone());
        Ok((chunk, start))
    }
}

impl<T: Zeroed> Deref for Packed<T> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        // SAFETY: `pack` filled `len` elements at `start`, nothing writes them any more, and `chunk` keeps the mapping
        // alive.
        unsafe {
            std::slice::from_raw_parts(self.chunk.as_ptr().add(self.start).cast::<T>(), self.len)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slices_of_every_size_are_apart_aligned_and_zeroed() {
        let mut arena = Arena::default();
        let counts = [0, 1, 3, 1000, 60_000, 200_000, 7];
        let slices: Vec<Packed<Q8Block>> = counts
            .iter()
            .enumerate()
            .map(|(i, len)| {
                arena
                    .pack(*len, |blocks: &mut [Q8Block]| {
                        assert!(blocks.iter().all(|block| block.weights == [[0; 32]; 8]));
                        blocks.iter_mut().for_each(|block| block.weights = [[i as i8; 32]; 8]);
                    })
                    .unwrap()
            })
            .collect();
        for (i, (slice, len)) in slices.iter().zip(counts).enumerate() {
            assert_eq!((slice.len(), slice.as_ptr() as usize % ALIGNMENT), (len, 0));
            assert!(slice.iter().all(|block| block.weights == [[i as i8; 32]; 8]));
        }
    }

    #[test]
    #[cfg(target_os = "linux")]
    fn what_others_will_use_cannot_be_had() {
        let mut arena = Arena::default();
        let pack = |arena: &mut Arena, len| arena.pack(len, |_: &mut [Q4Block]| ()).map(|_| ());
        assert_eq!(pack(&mut arena, 1), Ok(()));
        arena.promise(usize::MAX / 2);
        arena.promise(usize::MAX / 2 + 2);
        assert!(matches!(pack(&mut arena, CHUNK_BYTES), Err(OpError::Memory { .. })));
        assert_eq!(pack(&mut arena, 1), Ok(()), "what is mapped already");
    }

    #[test]
    fn too_much_is_an_error() {
        let result = Arena::default().pack(1 << 50, |_: &mut [Q4Block]| ());
        assert!(matches!(result.map(|_| ()), Err(OpError::Memory { .. })));
        let result = Arena::default().pack(usize::MAX, |_: &mut [Q4Block]| ());
        assert!(matches!(result.map(|_| ()), Err(OpError::Memory { .. })));
    }
}
