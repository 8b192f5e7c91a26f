//! A host pool that gets more blocks while the engine runs.

/// Host pool whose blocks are not all usable when the engine starts, because making them usable takes long. Blocks
/// become usable in the order of their numbers, up to [`DeviceInfo::host_blocks`](crate::DeviceInfo::host_blocks).
pub trait HostGrowth: Send {
    /// Returns the number of blocks that are usable.
    fn usable_blocks(&self) -> u32;

    /// Makes more blocks usable and returns their number, which is 0 if the pool is complete. The call may take tens of
    /// milliseconds, and steps of the device may wait until it ends.
    ///
    /// # Errors
    /// Says why no more blocks can be made usable. Those that are usable stay so.
    fn grow(&mut self) -> Result<u32, String>;
}
