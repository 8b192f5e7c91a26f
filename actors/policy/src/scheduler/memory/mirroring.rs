//! Mirroring: how many KV blocks of possible victims each step may copy to the host ahead of need.

use tiercel_device::Timestamp;

/// Most KV blocks that are copied to the host ahead of need with one step, however long the last step took.
const MIRRORED_MAX: u32 = 64;

/// Rate limit of mirroring (copies to the host ahead of need): a share of the bandwidth between device and host.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Mirroring {
    /// Time of the last allotment of blocks for mirroring.
    at: Timestamp,
    /// Fraction of a block that the last allotment left over, added to the next one.
    rest: f64,
}

impl Mirroring {
    /// Returns how many KV blocks may be copied to the host ahead of need now: as many as `percent` of the bandwidth
    /// copies in the time since the last call, at `block_us` per block.
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
