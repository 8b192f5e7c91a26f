//! Requests of kernel launches, and of uploads of the data (positions, block tables) that launches read. After a
//! request that the driver did not accept, all later work of the step is skipped.

use super::driver::{Arg, CudaError, DevicePtr, Driver, Launch, Work};
use super::ops::CudaOps;

impl<D: Driver> CudaOps<D> {
    /// Calls `what` on the GPU's driver, unless earlier work of the step failed; an error becomes the step's fault.
    pub(super) fn attempt(&mut self, what: impl FnOnce(&mut D) -> Result<(), CudaError>) {
        if self.fault.is_none() {
            self.fault = what(&mut self.driver).err();
        }
    }

    pub(super) fn launch(
        &mut self,
        kernel: &'static str,
        blocks: (usize, usize),
        threads: u32,
        args: &[Arg],
    ) {
        self.launch_shared(kernel, blocks, (threads, 0), args);
    }

    pub(super) fn launch_shared(
        &mut self,
        kernel: &'static str,
        blocks: (usize, usize),
        (threads, shared_bytes): (u32, u32),
        args: &[Arg],
    ) {
        if blocks.0 > 0 && blocks.1 > 0 {
            let grid = (blocks.0 as u32, blocks.1 as u32);
            let args = args.to_vec();
            self.work(Work::Launch(Launch { kernel, grid, threads, shared_bytes, args }));
        }
    }

    /// Uploads 32-bit words (positions, tokens) that launches read until the end of the step, and returns their device
    /// address. If a CUDA graph runs at the end of the step, the upload is deferred until then.
    pub(super) fn put(&mut self, words: impl IntoIterator<Item = u32>) -> DevicePtr {
        let words: Vec<u32> = words.into_iter().collect();
        self.put_words(&words)
    }

    pub(super) fn put_words(&mut self, words: &[u32]) -> DevicePtr {
        let mut at = DevicePtr::default();
        let steps = &mut self.steps;
        if self.graphs.defers()
            && let Some(place) = steps.defer(words)
        {
            return place;
        }
        if self.fault.is_none() {
            match steps.put(&mut self.driver, words) {
                Ok(place) => at = place,
                Err(error) => self.fault = Some(error),
            }
        }
        at
    }
}
