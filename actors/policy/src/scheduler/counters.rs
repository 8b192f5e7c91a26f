//! Counters of the scheduler since its start, and numbers of waiting, running and preempted sequences.

/// Totals of steps, preemptions, copies and tokens since the start of the scheduler, for metrics.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counters {
    /// Number of steps that succeeded.
    pub steps: u64,
    /// Number of steps that failed.
    pub failed_steps: u64,
    /// Number of draws that were postponed to a later step, because the mask of the sequence was late.
    pub postponed_draws: u64,
    /// Number of preemptions that saved blocks in the host pool (swap), by tier.
    pub swaps: [u64; 4],
    /// Number of preemptions that saved no blocks in the host pool (recompute), by tier.
    pub recomputes: [u64; 4],
    /// Number of preemptions that ended the victim's request (drop), by tier.
    pub drops: [u64; 4],
    /// Number of tokens to compute again because a preemption lost their KV, counted when their sequences resume.
    pub recomputed_tokens: u64,
    /// Number of blocks in copies between the device pool and the host pool that ended, both directions and failed
    /// copies included.
    pub copied_blocks: u64,
    /// Sum over all successful steps of the number of sequences in the step; divided by the steps it is the mean batch
    /// size.
    pub slices: u64,
    /// Number of prompt tokens looked up in the prefix cache when sequences first got blocks.
    pub prefix_query_tokens: u64,
    /// Number of prompt tokens found in the prefix cache when sequences first got blocks.
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

/// Numbers of waiting, running and preempted sequences at one moment.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Census {
    /// Number of sequences that have not started yet: they wait, or a cached prefix is being copied in for them; by
    /// tier.
    pub waiting: [u32; 4],
    /// Number of sequences that hold their KV blocks, with no copy to wait for; some may be on hold.
    pub running: u32,
    /// Number of sequences that have started and are preempted: they hold no blocks, or their blocks are being copied.
    pub preempted: u32,
}
