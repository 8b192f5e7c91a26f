//! Totals since the start, and how many sequences are in which phase.

/// Totals of steps, preemptions, copies and tokens since the start of the scheduler.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counters {
    /// Steps that succeeded.
    pub steps: u64,
    /// Steps that failed.
    pub failed_steps: u64,
    /// Preemptions with blocks saved in the host pool, by tier.
    pub swaps: [u64; 4],
    /// Preemptions with all blocks discarded, by tier.
    pub recomputes: [u64; 4],
    /// Preemptions that ended the request, by tier.
    pub drops: [u64; 4],
    /// Tokens computed again because a preemption lost them.
    pub recomputed_tokens: u64,
    /// Blocks copied between the device pool and the host pool, both ways.
    pub copied_blocks: u64,
    /// Sum of the numbers of sequences in all steps.
    pub slices: u64,
    /// Prompt tokens looked up in the prefix cache at starts.
    pub prefix_query_tokens: u64,
    /// Prompt tokens found in the prefix cache at starts.
    pub prefix_hit_tokens: u64,
}

impl Counters {
    /// Counts a preemption that took effect, as a swap if blocks were saved in the host pool (`saved`), and as a
    /// recompute otherwise.
    pub(crate) fn count_preemption(&mut self, tier: usize, saved: bool) {
        let by_strategy = if saved { &mut self.swaps } else { &mut self.recomputes };
        by_strategy[tier] += 1;
    }

    /// Returns the number of all preemptions: swaps, recomputes and drops.
    pub fn preemptions(&self) -> u64 {
        [self.swaps, self.recomputes, self.drops].iter().flatten().sum()
    }
}

/// Number of sequences that wait, that run and that are preempted.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Census {
    /// Sequences that wait for their start, or for copies of a cached prefix before it, by tier.
    pub waiting: [u32; 4],
    /// Sequences that hold blocks and can be scheduled.
    pub running: u32,
    /// Sequences that have started and hold no blocks now, or whose blocks are being copied.
    pub preempted: u32,
}
