//! What must always hold of the scheduler's state.

use crate::scheduler::sequence::Phase;
use crate::scheduler::state::{Scheduler, Stage};

impl Scheduler {
    /// Checks the scheduler's own state.
    ///
    /// # Errors
    /// Says what does not hold.
    pub fn check(&self) -> Result<(), String> {
        for sequence in self.sequences.iter() {
            if let Some(violation) = sequence.violation(self.limits.block_size) {
                return Err(violation);
            }
        }
        if let Some(violation) = self.sequences.violation() {
            return Err(violation);
        }
        if let Stage::Stepping(in_flight) = &self.stage {
            if in_flight.slices.is_empty() {
                return Err("an empty step is in flight".into());
            }
            for slice in &in_flight.slices {
                let phase = self.phase(slice.seq);
                if !matches!(phase, None | Some(Phase::Running)) {
                    return Err(format!("{} is in a step and {phase:?}", slice.seq));
                }
            }
            let tokens = in_flight.work.decode_tokens + in_flight.work.prefill_tokens;
            if tokens > self.settings.max_num_batched_tokens {
                return Err(format!("a step of {tokens} tokens exceeds the budget"));
            }
        }
        for seq in &self.released {
            if self.sequences.contains(*seq) {
                return Err(format!("{seq} is released and live"));
            }
        }
        Ok(())
    }
}
