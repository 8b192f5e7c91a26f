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
    /// The last of those in use, which have a place and are not there yet.
    deferred: Vec<u32>,
}

impl Words {
    /// Bytes that [`Words::new`] allocates.
    pub(super) const BYTES_AT_FIRST: usize = AT_FIRST * 4;

    pub(super) fn new<D: Driver>(driver: &mut D) -> Result<Words, CudaError> {
        let at = driver.allocate(Words::BYTES_AT_FIRST)?;
        Ok(Words { at, capacity: AT_FIRST, used: 0, deferred: Vec::new() })
    }

    /// Uploads words. Memory that became too small is given up: it doubles, so less is lost than is used.
    pub(super) fn put<D: Driver>(
        &mut self,
        driver: &mut D,
        words: &[u32],
    ) -> Result<DevicePtr, CudaError> {
        self.upload_deferred(driver)?;
        let len = words.len().next_multiple_of(ALIGNMENT);
        if self.used + len > self.capacity {
            let capacity = (self.capacity + len) * 2;
            // Launches that were accepted still read the old ones, which stay.
            let at = driver.allocate(capacity * 4)?;
            *self = Words { at, capacity, used: 0, deferred: Vec::new() };
        }
        let at = self.at.offset(self.used * 4);
        upload(driver, at, words)?;
        self.used += len;
        Ok(at)
    }

    /// Gives words a place, to be uploaded with others; `None` if there is no room.
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

    /// Uploads at once all that was deferred.
    pub(super) fn upload_deferred<D: Driver>(&mut self, driver: &mut D) -> Result<(), CudaError> {
        let words = std::mem::take(&mut self.deferred);
        match words.len() {
            0 => Ok(()),
            len => upload(driver, self.at.offset((self.used - len) * 4), &words),
        }
    }

    /// The step has ended.
    pub(super) fn clear(&mut self) {
        self.used = 0;
        self.deferred.clear();
    }
}

fn upload<D: Driver>(driver: &mut D, at: DevicePtr, words: &[u32]) -> Result<(), CudaError> {
    let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_ne_bytes()).collect();
    driver.upload(at, &bytes)
}
