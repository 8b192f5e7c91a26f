//! Mirroring: how many blocks may be copied to the host ahead of need.

use tiercel_device::Timestamp;

/// Most blocks that are mirrored with one step, however long the last step took.
const MIRRORED_MAX: u32 = 64;

/// Limit of mirroring to a share of the copy link.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Mirroring {
    /// When blocks were last allotted for mirroring.
    at: Timestamp,
    /// Fraction of a block that is left over from the last allotment.
    rest: f64,
}

impl Mirroring {
    /// Returns the number of blocks that may be mirrored for the time since the last call, at `percent` of the link, if
    /// one block takes `block_us` to copy.
    pub(crate) fn blocks(&mut self, percent: u32, block_us: f64, now: Timestamp) -> u32 {
        let Mirroring { at, rest } = std::mem::replace(self, Mirroring { at: now, rest: 0.0 });
        let share = f64::from(percent) / 100.0;
        if share == 0.0 || !block_us.is_finite() {
            return 0;
        }
        let blocks = rest + now.since_us(at) as f64 * share / block_us;
        let blocks = blocks.min(f64::from(MIRRORED_MAX));
        self.rest = blocks.fract();
        blocks as u32
    }
}
