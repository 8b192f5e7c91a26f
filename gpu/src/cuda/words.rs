//! 32-bit words that a step uploads for its kernels: tokens, positions, block tables. The words stay in device memory
//! until the step has ended.

use super::driver::{CudaError, DevicePtr, Driver};

/// Initial capacity of the memory for a step's uploaded data, in 32-bit words. A step that needs more allocates at
/// least twice its need.
const AT_FIRST: usize = 64 << 10;
/// Alignment of each uploaded list, in 32-bit words: 16 bytes, because kernels may read four words at once.
const ALIGNMENT: usize = 4;

/// A region of device memory for the 32-bit words that a step uploads: filled from the front, emptied as a whole.
#[derive(Debug)]
pub(super) struct Words {
    at: DevicePtr,
    capacity: usize,
    used: usize,
    /// Words that have an address at the end of the used part of the region but are not uploaded yet.
    deferred: Vec<u32>,
}

impl Words {
    /// Size of the device memory that [`Words::new`] allocates for the 32-bit numbers of a step (positions, block
    /// numbers), bytes.
    const BYTES_AT_FIRST: usize = AT_FIRST * 4;

    pub(super) fn new<D: Driver>(driver: &mut D) -> Result<Words, CudaError> {
        let at = driver.allocate(Words::BYTES_AT_FIRST)?;
        Ok(Words { at, capacity: AT_FIRST, used: 0, deferred: Vec::new() })
    }

    /// Uploads 32-bit words of a step and returns their device address. If the region is too small, the function
    /// allocates a new one of at least twice the need and abandons the old one; since the size doubles each time, the
    /// abandoned memory is less than the memory in use.
    pub(super) fn put<D: Driver>(
        &mut self,
        driver: &mut D,
        words: &[u32],
    ) -> Result<DevicePtr, CudaError> {
        self.upload_deferred(driver)?;
        let len = words.len().next_multiple_of(ALIGNMENT);
        if self.used + len > self.capacity {
            let capacity = (self.capacity + len) * 2;
            // Does not free the old region of device memory, because accepted launches still read words in it.
            let at = driver.allocate(capacity * 4)?;
            *self = Words { at, capacity, used: 0, deferred: Vec::new() };
        }
        let at = self.at.offset(self.used * 4);
        upload(driver, at, words)?;
        self.used += len;
        Ok(at)
    }

    /// Assigns a device address to 32-bit words of a step, for a later upload together with other words; `None` if
    /// there is no room.
    pub(super) fn defer(&mut self, words: &[u32]) -> Option<DevicePtr> {
        let len = words.len().next_multiple_of(ALIGNMENT);
        (self.used + len <= self.capacity).then(|| {
            let at = self.at.offset(self.used * 4);
            self.used += len;
            self.deferred.extend(words);
            self.deferred.resize(self.deferred.len() + len - words.len(), 0);
            at
        })
    }

    /// Uploads all deferred words of the step in one copy.
    pub(super) fn upload_deferred<D: Driver>(&mut self, driver: &mut D) -> Result<(), CudaError> {
        let words = std::mem::take(&mut self.deferred);
        match words.len() {
            0 => Ok(()),
            len => upload(driver, self.at.offset((self.used - len) * 4), &words),
        }
    }

    /// Marks the region of device memory as empty, after the step has ended.
    pub(super) fn clear(&mut self) {
        self.used = 0;
        self.deferred.clear();
    }
}

fn upload<D: Driver>(driver: &mut D, at: DevicePtr, words: &[u32]) -> Result<(), CudaError> {
    let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_ne_bytes()).collect();
    driver.upload(at, &bytes)
}
