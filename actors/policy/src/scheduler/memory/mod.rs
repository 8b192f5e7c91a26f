//! KV memory in the scheduler: reservations of blocks and slots, choice of victims, and copies ahead of need
//! (mirroring).

pub(crate) mod mirroring;
pub(crate) mod reservation;
pub(crate) mod victims;

use crate::scheduler::memory::mirroring::Mirroring;
use crate::scheduler::memory::reservation::Reservations;

/// The scheduler's view of the device pool: reservations, mirroring, free blocks and shortage.
#[derive(Debug)]
pub(crate) struct Memory {
    pub(crate) reservations: Reservations,
    pub(crate) mirroring: Mirroring,
    /// Number of free device blocks after the block store's last answer.
    pub(crate) free_blocks: u32,
    /// Whether the block store's last answer denied a sequence's request for blocks.
    pub(crate) shortage: bool,
}

impl Memory {
    /// Creates the scheduler's view of a device pool before the block store's first answer.
    pub(crate) fn new(reservations: Reservations) -> Memory {
        Memory { reservations, mirroring: Mirroring::default(), free_blocks: 0, shortage: false }
    }
}
