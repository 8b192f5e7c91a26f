//! KV memory in the scheduler: reservations of blocks and slots, choice of victims, and copies ahead of need
//! (mirroring).

pub(crate) mod mirroring;
pub(crate) mod reservation;
pub(crate) mod victims;

use crate::scheduler::memory::mirroring::Mirroring;
use crate::scheduler::memory::reservation::Reservations;

/// Share of the device's blocks that must be free for blocks to count as ample.
const AMPLE_SHARE: f64 = 0.25;

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

    /// Whether blocks are ample: the block store's last answer denied no request for blocks, and left at least the
    /// share [`AMPLE_SHARE`] of the `device_blocks` blocks of the device pool free.
    pub(crate) fn ample(&self, device_blocks: u32) -> bool {
        let least = AMPLE_SHARE * f64::from(device_blocks);
        !self.shortage && f64::from(self.free_blocks) >= least
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tiercel_config::ReservationSettings;

    #[test]
    fn blocks_are_ample_while_a_quarter_is_free_and_no_want_was_denied() {
        let ample = |free_blocks, shortage| {
            let reservations = Reservations::new(&ReservationSettings::default(), 100);
            let mut memory = Memory::new(reservations);
            (memory.free_blocks, memory.shortage) = (free_blocks, shortage);
            memory.ample(100)
        };
        assert_eq!([ample(24, false), ample(25, false), ample(25, true)], [false, true, false]);
    }
}
