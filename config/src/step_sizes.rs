//! Default sizes of a step, which depend on the device.

use crate::ServerSettings;

/// Default of `scheduler.max_num_seqs` on a GPU. With the 64 slots of the CPU, the simulated H100 makes a third fewer
/// tokens (docs/simulation.md, "Sizes of a step").
const GPU_SEQS: u32 = 256;
/// Default of `scheduler.max_num_batched_tokens` on a GPU. More tokens gain under 1 % of throughput on the simulated
/// H100, and make derived TTFT targets of long prompts longer.
const GPU_TOKENS: u32 = 1024;

/// Which sizes of a step a user states, by a file, the environment, a flag or the chosen policy.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct StatedSizes {
    /// Whether `scheduler.max_num_seqs` is stated.
    seqs: bool,
    /// Whether `scheduler.max_num_batched_tokens` is stated.
    pub(crate) tokens: bool,
}

impl StatedSizes {
    /// Records that the setting of this name is stated.
    pub(crate) fn add(&mut self, path: &str) {
        self.seqs |= path == "scheduler.max_num_seqs";
        self.tokens |= path == "scheduler.max_num_batched_tokens";
    }
}

impl ServerSettings {
    /// Returns these settings for a server on a GPU: the settings that state no size of a step get the default of a
    /// GPU. The slots are then at most as many as the stated tokens, and the tokens at least as many as the stated
    /// slots.
    pub fn on_gpu(&self) -> ServerSettings {
        let mut settings = self.clone();
        let scheduler = &mut settings.engine.scheduler;
        if !self.stated.tokens {
            scheduler.max_num_batched_tokens = GPU_TOKENS.max(scheduler.max_num_seqs);
        }
        if !self.stated.seqs {
            scheduler.max_num_seqs = GPU_SEQS.min(scheduler.max_num_batched_tokens);
        }
        settings
    }
}

#[cfg(test)]
mod tests {
    use crate::Loader;

    #[test]
    fn steps_on_a_gpu_are_larger_unless_their_sizes_are_stated() {
        let sizes = |assignments: &[&str]| {
            let mut loader = Loader::default();
            for assignment in assignments {
                loader.assignment(assignment).expect("allowed");
            }
            let settings = loader.finish().expect("consistent").0.on_gpu();
            settings.engine.check().expect("consistent on a GPU too");
            let scheduler = settings.engine.scheduler;
            (scheduler.max_num_seqs, scheduler.max_num_batched_tokens)
        };
        assert_eq!(sizes(&[]), (256, 1024));
        assert_eq!(sizes(&["scheduler.max_num_seqs=64"]), (64, 1024), "although 64 is a default");
        assert_eq!(sizes(&["scheduler.max_num_batched_tokens=256"]), (256, 256));
        assert_eq!(sizes(&["scheduler.max_num_batched_tokens=128"]), (128, 128));
        assert_eq!(sizes(&["scheduler.policy=throughput"]), (256, 2048), "the policy has its own");
        assert_eq!(sizes(&["scheduler.policy=splitfuse"]), (256, 512), "the policy has its own");
        assert_eq!(sizes(&["scheduler.policy=fcfs"]), (256, 1024));
        let both = ["scheduler.max_num_seqs=7", "scheduler.max_num_batched_tokens=99"];
        assert_eq!(sizes(&both), (7, 99));
    }
}
