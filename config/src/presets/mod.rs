//! Policies by name: each is a preset of the settings of one scheduler. The engine's decisions depend on these settings
//! only, never on the name.

mod table;

use crate::policy::{PreemptionSettings, SchedulerSettings};
use crate::{EngineSettings, PrefixCacheSettings, SheddingSettings};

words! {
    /// Named scheduling policies.
    #[derive(Default)]
    Policy {
        /// Static batching: a batch of requests starts when all requests of the batch before have finished.
        Static = "static",
        /// Request-level scheduling: a request starts when another has ended, with whole prompts in steps without
        /// decodes and memory for its longest output.
        RequestLevel = "request-level",
        /// Policy of Orca (OSDI 2022): sequences are scheduled anew for every step, and steps compute whole prompts
        /// beside decodes.
        Orca = "orca",
        /// Sarathi-Serve (OSDI 2024): a step holds decodes first, then a limited number of prompt tokens, and leaves at
        /// most one prompt partly computed.
        Sarathi = "sarathi",
        /// DeepSpeed-FastGen: prompts are cut into chunks that, after the decodes, fill steps up to one size.
        Splitfuse = "splitfuse",
        /// vLLM's first scheduler: prompts before decodes, preemption by swap, the last sequence to start is the first
        /// victim.
        VllmV0 = "vllm-v0",
        /// vLLM's present scheduler under its priority policy.
        VllmV1 = "vllm-v1",
        /// SGLang: prefix cache, and preemption ("retraction") of the sequences with the least output.
        Sglang = "sglang",
        /// TensorRT-LLM's policy GUARANTEED_NO_EVICT: memory for the longest output, so that no sequence is preempted.
        TrtllmNoEvict = "trtllm-no-evict",
        /// TensorRT-LLM's policy MAX_UTILIZATION: memory on demand, the last sequence to start is the first victim.
        TrtllmMaxUtilization = "trtllm-max-utilization",
        /// First come, first served; tiers are ignored.
        Fcfs = "fcfs",
        /// The request with the shortest predicted output is served first.
        Sjf = "sjf",
        /// Higher tiers start first; no sequence is preempted so that one of a higher tier starts.
        Priority = "priority",
        /// Higher tiers start first and preempt lower ones when blocks or slots run out.
        PriorityPreempt = "priority+preempt",
        /// As `priority+preempt`, with steps sized by the streams' TPOT targets, and ageing.
        PriorityPreemptSlo = "priority+preempt+slo",
        /// As `sarathi`, with steps sized by the tightest TPOT slack of a stream, and the prompt with the fewest tokens
        /// left first.
        Adaptive = "adaptive",
        /// The default policy, and the best that the project knows.
        #[default]
        Tiercel = "tiercel",
        /// Policy for the most tokens per second.
        Throughput = "throughput",
        /// Policy for the shortest wait of premium requests.
        Latency = "latency",
        /// Policy for equal service to all tenants, whatever their tiers.
        Fairness = "fairness",
    }
}

/// Settings that the name of a policy stands for.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Preset {
    /// One sentence that describes the policy to users.
    pub about: &'static str,
    /// Settings of batching and of the order of service. The sizes in them are the engine's defaults.
    pub scheduler: SchedulerSettings,
    /// Largest number of sequences in a step, if the preset defines one; `None` keeps the current setting.
    pub max_num_seqs: Option<u32>,
    /// Largest number of tokens in a step, if the preset defines one; `None` keeps the current setting.
    pub max_num_batched_tokens: Option<u32>,
    /// Whether the prefix cache is on, if the preset defines it; `None` keeps the current setting.
    pub prefix_cache: Option<bool>,
    /// Settings of preemption.
    pub preemption: PreemptionSettings,
    /// Settings of shedding, and of requests whose first token would be late.
    pub shedding: SheddingSettings,
}

impl Policy {
    /// Names of the tables that hold the settings that the name of a policy may stand for.
    pub const TABLES: &[&str] = &["scheduler", "preemption", "prefix_cache", "shedding"];

    /// Returns the name of the policy, as in settings.
    pub fn name(self) -> &'static str {
        let known = Policy::ALL.iter().find(|(policy, _)| *policy == self);
        known.map(|(_, name)| *name).expect("every policy is in the table of all")
    }

    /// Returns the settings that the policy's name stands for, as the text of a settings file. Sizes are left out
    /// because they depend on the machine, unless the policy is known by them.
    pub fn to_toml(self) -> String {
        let preset = self.preset();
        let mut settings = EngineSettings::default();
        settings.use_policy(self);
        let mut tables = toml::Table::try_from(settings)
            .expect("plain data of strings, numbers and tables always serializes");
        tables.retain(|name, _| Policy::TABLES.contains(&name));
        let mut leave_out = |table: &str, key: &str, out: bool| {
            if let Some(table) = tables.get_mut(table).and_then(toml::Value::as_table_mut)
                && out
            {
                table.remove(key);
            }
        };
        leave_out("scheduler", "max_num_seqs", preset.max_num_seqs.is_none());
        let no_tokens = preset.max_num_batched_tokens.is_none();
        leave_out("scheduler", "max_num_batched_tokens", no_tokens);
        leave_out("scheduler", "steps_in_flight", true);
        leave_out("preemption", "max_in_transit_mib", true);
        leave_out("prefix_cache", "enabled", preset.prefix_cache.is_none());
        tables.retain(|_, table| table.as_table().is_some_and(|table| !table.is_empty()));
        let text = toml::to_string(&tables).expect("tables of plain values always serialize");
        format!("# {}\n{text}", preset.about)
    }
}

impl EngineSettings {
    /// Sets all settings that the policy's name stands for. Sizes that the policy does not state stay as they are.
    pub fn use_policy(&mut self, policy: Policy) {
        let preset = policy.preset();
        let SchedulerSettings { max_num_seqs, max_num_batched_tokens, steps_in_flight, .. } =
            self.scheduler;
        self.scheduler = SchedulerSettings {
            max_num_seqs: preset.max_num_seqs.unwrap_or(max_num_seqs),
            max_num_batched_tokens: preset.max_num_batched_tokens.unwrap_or(max_num_batched_tokens),
            steps_in_flight,
            ..preset.scheduler
        };
        let max_in_transit_mib = self.preemption.max_in_transit_mib;
        self.preemption = PreemptionSettings { max_in_transit_mib, ..preset.preemption };
        self.shedding = preset.shedding;
        if let Some(enabled) = preset.prefix_cache {
            self.prefix_cache = PrefixCacheSettings { enabled };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn every_policy_is_valid_and_differs_from_every_other() {
        let mut seen = BTreeSet::new();
        for (policy, name) in Policy::ALL {
            let mut settings = EngineSettings::default();
            settings.use_policy(*policy);
            settings.check().unwrap_or_else(|error| panic!("{name}: {error}"));
            assert_eq!(settings.scheduler.policy, *policy);
            settings.scheduler.policy = Policy::default();
            assert!(seen.insert(toml::to_string(&settings).unwrap()), "{name} is another's double");
            assert!(!policy.preset().about.is_empty());
        }
    }

    #[test]
    fn a_policy_leaves_the_sizes_it_does_not_state() {
        let mut settings = EngineSettings::default();
        (settings.scheduler.max_num_seqs, settings.scheduler.max_num_batched_tokens) = (7, 77);
        settings.preemption.max_in_transit_mib = 5;
        settings.use_policy(Policy::PriorityPreempt);
        assert_eq!(settings.scheduler.max_num_seqs, 7);
        assert_eq!(settings.scheduler.max_num_batched_tokens, 77);
        assert_eq!(settings.preemption.max_in_transit_mib, 5);
        settings.use_policy(Policy::Static);
        assert_eq!(settings.scheduler.max_num_seqs, 32);
    }

    #[test]
    fn the_default_settings_are_those_of_the_default_policy() {
        let mut settings = EngineSettings::default();
        settings.use_policy(Policy::default());
        assert_eq!(settings, EngineSettings::default());
    }

    #[test]
    fn a_policy_written_as_a_file_is_read_back_as_itself() {
        for (policy, name) in Policy::ALL {
            let mut loader = crate::Loader::default();
            for line in policy.to_toml().lines() {
                assert!(!line.contains("max_in_transit"), "{line}");
            }
            let path =
                std::env::temp_dir().join(format!("tiercel-policy-{}.toml", std::process::id()));
            std::fs::write(&path, policy.to_toml()).unwrap();
            loader.file(&path).unwrap();
            std::fs::remove_file(&path).unwrap();
            let (read, _) = loader.finish().unwrap();
            let mut expected = EngineSettings::default();
            expected.use_policy(*policy);
            assert_eq!(read.engine, expected, "{name}");
        }
    }
}
