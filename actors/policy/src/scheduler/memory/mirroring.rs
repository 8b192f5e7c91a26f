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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_share_of_the_link_s_time_since_the_last_step_goes_into_copies_and_fractions_add_up() {
        let mut mirroring = Mirroring::default();
        // 50 % of 22 us copy 2.75 blocks of 4 us. The 0.75 are left for the next step: 0.75 + 10 * 0.5 / 4 = 2. After
        // 7 us there is 0.875 of a block, and 1 us later a whole one.
        let blocks = [22, 32, 39, 40].map(|now| mirroring.blocks(50, 4.0, Timestamp(now)));
        assert_eq!(blocks, [2, 2, 0, 1]);
    }

    #[test]
    fn a_long_step_copies_no_more_than_the_limit_and_the_rest_is_lost() {
        let mut mirroring = Mirroring::default();
        assert_eq!(mirroring.blocks(50, 4.0, Timestamp(1_000_006)), MIRRORED_MAX);
        assert_eq!(mirroring.blocks(50, 4.0, Timestamp(1_000_013)), 0, "0.875 of a block");
    }

    #[test]
    fn without_mirroring_or_a_link_nothing_is_copied_and_the_fraction_is_forgotten() {
        for (percent, block_us) in [(0, 4.0), (50, f64::INFINITY)] {
            let mut mirroring = Mirroring::default();
            assert_eq!(mirroring.blocks(50, 4.0, Timestamp(6)), 0, "0.75 of a block");
            assert_eq!(mirroring.blocks(percent, block_us, Timestamp(100)), 0);
            assert_eq!(mirroring.blocks(50, 4.0, Timestamp(104)), 0, "0.5 of a block");
        }
    }
}
