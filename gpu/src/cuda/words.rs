//! Words that a step uploads: tokens, positions, block tables. They are kept until the step has ended.

use super::driver::{CudaError, DevicePtr, Driver};

/// What there is at first, words; a step that needs more gets twice as much as it needs.
const AT_FIRST: usize = 64 << 10;
/// Words of 16 bytes: kernels may read four at once.
const ALIGNMENT: usize = 4;

/// A stretch of device memory that is filled from the front and emptied at once.
#[derive(Debug)]
pub(super) struct Words {
    at: DevicePtr,
    capacity: usize,
    used: usize,
}

impl Words {
    /// Bytes that [`Words::new`] allocates.
    pub(super) const BYTES_AT_FIRST: usize = AT_FIRST * 4;

    pub(super) fn new<D: Driver>(driver: &mut D) -> Result<Words, CudaError> {
        Ok(Words { at: driver.allocate(Words::BYTES_AT_FIRST)?, capacity: AT_FIRST, used: 0 })
    }

    /// Uploads words. Memory that became too small is given up: it doubles, so less is lost than is used.
    pub(super) fn put<D: Driver>(
        &mut self,
        driver: &mut D,
        words: &[u32],
    ) -> Result<DevicePtr, CudaError> {
        let len = words.len().next_multiple_of(ALIGNMENT);
        if self.used + len > self.capacity {
            let capacity = (self.capacity + len) * 2;
            // Launches that were accepted still read the old ones, which stay.
            *self = Words { at: driver.allocate(capacity * 4)?, capacity, used: 0 };
        }
        let at = self.at.offset(self.used * 4);
        let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_ne_bytes()).collect();
        driver.upload(at, &bytes)?;
        self.used += len;
        Ok(at)
    }

    /// The step has ended.
    pub(super) fn clear(&mut self) {
        self.used = 0;
    }
}
