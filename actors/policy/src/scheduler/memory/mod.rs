//! Memory: reservations of blocks and slots, victims, and copies ahead of need.

pub(crate) mod mirroring;
pub(crate) mod reservation;
pub(crate) mod victims;

use crate::scheduler::memory::mirroring::Mirroring;
use crate::scheduler::memory::reservation::Reservations;

/// What the scheduler knows of the device pool.
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
    /// A pool of which nothing is known yet.
    pub(crate) fn new(reservations: Reservations) -> Memory {
        Memory { reservations, mirroring: Mirroring::default(), free_blocks: 0, shortage: false }
    }
}
