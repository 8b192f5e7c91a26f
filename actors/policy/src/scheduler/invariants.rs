//! What must always hold of the scheduler's state.

use crate::scheduler::pipeline::InFlight;
use crate::scheduler::sequence::Phase;
use crate::scheduler::state::Scheduler;

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
        let in_flight = self.pipeline.in_flight();
        if in_flight.len() > self.pipeline.depth() {
            return Err(format!("{} steps are in flight, more than allowed", in_flight.len()));
        }
        for step in in_flight {
            self.check_step(step)?;
        }
        for sequence in self.sequences.iter() {
            let steps = in_flight.iter().map(|step| step.step);
            if let Some(violation) = sequence.ahead.violation(steps) {
                return Err(format!("{}: {violation}", sequence.id));
            }
        }
        for seq in &self.released {
            if self.sequences.contains(*seq) {
                return Err(format!("{seq} is released and live"));
            }
        }
        Ok(())
    }

    fn check_step(&self, step: &InFlight) -> Result<(), String> {
        if step.slices.is_empty() {
            return Err("an empty step is in flight".into());
        }
        for seq in &step.slices {
            // Its blocks may be taken for a step that follows this one, and it may open again only after it.
            if self.phase(*seq) == Some(Phase::Opening) {
                return Err(format!("{seq} is in {}, but opens", step.step));
            }
        }
        let tokens = step.work.decode_tokens + step.work.prefill_tokens;
        if tokens > self.settings.max_num_batched_tokens {
            return Err(format!("a step of {tokens} tokens exceeds max_num_batched_tokens"));
        }
        Ok(())
    }
}
