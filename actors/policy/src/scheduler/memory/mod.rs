//! Memory: reservations of blocks and slots, victims, and copies ahead of need.

pub(crate) mod mirroring;
pub(crate) mod reservation;
pub(crate) mod victims;

use crate::scheduler::memory::mirroring::Mirroring;
use crate::scheduler::memory::reservation::Reservations;

/// Knowledge of the scheduler about the device pool: reservations, mirroring and free blocks.
#[derive(Debug)]
pub(crate) struct Memory {
    pub(crate) reservations: Reservations,
    pub(crate) mirroring: Mirroring,
    /// Free device blocks after the last grant.
    pub(crate) free_blocks: u32,
    /// Whether the last grant denied a want.
    pub(crate) shortage: bool,
}

impl Memory {
    /// Creates the knowledge of a pool that has granted nothing yet.
    pub(crate) fn new(reservations: Reservations) -> Memory {
        Memory { reservations, mirroring: Mirroring::default(), free_blocks: 0, shortage: false }
    }
}
