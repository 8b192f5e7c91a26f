//! Profiles of the mock device: its speed and sizes, read from TOML.

use super::host::{HostCosts, StepNoise};
use crate::{DeviceInfo, DeviceProfile, Timestamp};
use serde::{Deserialize, Serialize};
use std::path::Path;

/// Speed and size of a mock device. The duration of a step, us, is
///
/// `step_base_us + decode_token_us * D + prefill_token_us * P + kv_token_us * K + prefill_context_us * C`,
/// plus `prefill_step_us` if `P > 0`, where `D` is the number of decode tokens, `P` of prefill tokens,
/// `K` the tokens of KV that the decode tokens read (their own included), and `C` the sum over prefill
/// tokens of the tokens before them.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MockProfile {
    /// Name of the device; `/metrics` and logs show it after the prefix `mock:`.
    pub name: String,
    /// Fixed cost of a step, us.
    pub step_base_us: f64,
    /// Cost of one decode token, us.
    pub decode_token_us: f64,
    /// Cost of one prefill token, us.
    pub prefill_token_us: f64,
    /// Cost of reading one token of KV in decode, us.
    pub kv_token_us: f64,
    /// Cost of one pair of a prefill token and a token before it in its sequence, us.
    pub prefill_context_us: f64,
    /// Cost that a step has in addition if it holds any prefill, us.
    pub prefill_step_us: f64,
    /// Bandwidth between the device pool and the host pool in each direction, bytes per second. The link is full
    /// duplex.
    pub link_bytes_per_s: f64,
    /// Bytes of KV per token: keys and values of all layers.
    pub kv_bytes_per_token: u64,
    /// Tokens per KV block.
    pub block_size: u32,
    /// Blocks in the device pool.
    pub device_blocks: u32,
    /// Blocks in the host pool.
    pub host_blocks: u32,
    /// Size of the vocabulary, tokens.
    pub vocab_size: u32,
    /// Longest sequence (prompt + output) that the device accepts, tokens.
    pub max_model_len: u32,
    /// Most steps in flight at once.
    pub max_steps_in_flight: u32,
    /// Pace of the device over time: for each second from the start of the engine, the factor on the duration of the
    /// steps that begin in it. Steps that begin later have the factor 1. A recording of a real server has it, because a
    /// machine is faster at one time than at another.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub pace: Vec<f64>,
    /// Settings of a server with this device (batch size, queue limits), where they differ from the defaults.
    #[serde(default, skip_serializing_if = "ServerSizes::is_default")]
    pub server: ServerSizes,
    /// Speed that the mock device reports to the engine at the start, if it differs from its real speed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub told: Option<DeviceProfile>,
    /// Time that a server with this device spends on requests and steps outside the device.
    #[serde(default, skip_serializing_if = "HostCosts::is_default")]
    pub host: HostCosts,
    /// Random spread of the step times of the device.
    #[serde(default, skip_serializing_if = "StepNoise::is_default")]
    pub noise: StepNoise,
}

/// Values of settings with which a server of the device is simulated; `None` for the default of the setting. Only the
/// simulator uses these values: a real server with a mock device has its own settings.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ServerSizes {
    /// Value of the setting `scheduler.max_num_seqs` (most sequences that run at once).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_num_seqs: Option<u32>,
    /// Value of the setting `scheduler.max_num_batched_tokens` (most tokens in one step).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_num_batched_tokens: Option<u32>,
    /// Value of the setting `admission.max_requests` (most requests in the engine).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_requests: Option<u32>,
    /// Value of the setting `admission.max_queued_requests_per_tier` (most requests of a tier that wait for their first
    /// token).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_queued_requests_per_tier: Option<u32>,
    /// Value of the setting `admission.max_queued_tokens_per_tier` (most prompt tokens of a tier's requests that wait
    /// for their first token).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_queued_tokens_per_tier: Option<u64>,
}

impl ServerSizes {
    fn is_default(&self) -> bool {
        *self == ServerSizes::default()
    }
}

/// Reason for which the profile of a mock device could not be loaded.
#[derive(Debug, thiserror::Error)]
pub enum MockProfileError {
    /// There is no built-in device profile of the name that was asked for.
    #[error("there is no mock device \"{0}\": built in are {names}; the path of a .toml profile also works", names = names())]
    Unknown(String),
    /// The file of the mock device profile could not be read.
    #[error("cannot read the mock device profile {path}: {source}")]
    Read {
        /// Path of the profile's file.
        path: String,
        /// I/O error from reading the profile's file.
        source: std::io::Error,
    },
    /// The text of the device profile is not TOML, or its fields do not fit.
    #[error("the mock device profile is malformed: {0}")]
    Parse(#[from] toml::de::Error),
    /// A field of the device profile has an unusable value.
    #[error("the mock device profile is unusable: {field} must be {must}")]
    Value {
        /// Name of the profile's field with the unusable value.
        field: &'static str,
        /// Rule that the value of the profile's field must obey.
        must: &'static str,
    },
}

const BUILT_IN: [(&str, &str); 3] = [
    ("llama70b-tp8-a100", include_str!("../../profiles/llama70b-tp8-a100.toml")),
    ("llama70b-h100", include_str!("../../profiles/llama70b-h100.toml")),
    ("tiny", include_str!("../../profiles/tiny.toml")),
];

fn names() -> String {
    BUILT_IN.map(|(name, _)| name).join(", ")
}

impl MockProfile {
    /// Returns the names of the built-in mock device profiles.
    pub fn built_in() -> impl Iterator<Item = &'static str> {
        BUILT_IN.iter().map(|(name, _)| *name)
    }

    /// Returns the built-in mock device profile of that name; if the name ends in `.toml`, it is the path of a file
    /// that is read instead.
    ///
    /// # Errors
    /// [`MockProfileError`] if there is no such profile, or if it cannot be read or used.
    pub fn named(name: &str) -> Result<MockProfile, MockProfileError> {
        if name.ends_with(".toml") {
            return MockProfile::from_file(Path::new(name));
        }
        match BUILT_IN.iter().find(|(known, _)| *known == name) {
            Some((_, text)) => MockProfile::parse(text),
            None => Err(MockProfileError::Unknown(name.to_owned())),
        }
    }

    /// Reads the profile of a mock device from a TOML file.
    ///
    /// # Errors
    /// [`MockProfileError`] if the file cannot be read or the profile cannot be used.
    pub fn from_file(path: &Path) -> Result<MockProfile, MockProfileError> {
        let text = std::fs::read_to_string(path).map_err(|source| MockProfileError::Read {
            path: path.display().to_string(),
            source,
        })?;
        MockProfile::parse(&text)
    }

    /// Parses the profile of a mock device from TOML text.
    ///
    /// # Errors
    /// [`MockProfileError`] if the text is malformed or the profile is unusable.
    pub fn parse(text: &str) -> Result<MockProfile, MockProfileError> {
        let profile: MockProfile = toml::from_str(text)?;
        profile.check()?;
        Ok(profile)
    }

    /// Returns the profile as TOML text, which can be parsed again.
    ///
    /// # Panics
    /// Never: plain numbers and tables always serialize.
    pub fn to_toml(&self) -> String {
        toml::to_string(self).expect("plain numbers and tables always serialize")
    }

    /// Checks that every value of the profile can be used.
    ///
    /// # Errors
    /// [`MockProfileError::Value`], which names the first field that cannot be used.
    pub fn check(&self) -> Result<(), MockProfileError> {
        let costs = [
            ("step_base_us", self.step_base_us),
            ("decode_token_us", self.decode_token_us),
            ("prefill_token_us", self.prefill_token_us),
            ("kv_token_us", self.kv_token_us),
            ("prefill_context_us", self.prefill_context_us),
            ("prefill_step_us", self.prefill_step_us),
            ("host.step_us", self.host.step_us),
            ("host.sequence_us", self.host.sequence_us),
            ("host.request_us", self.host.request_us),
            ("host.prompt_token_us", self.host.prompt_token_us),
        ];
        for (field, cost) in costs {
            if !(cost.is_finite() && cost >= 0.0) {
                return Err(MockProfileError::Value { field, must: "a number of us from 0 up" });
            }
        }
        if !(self.link_bytes_per_s.is_finite() && self.link_bytes_per_s > 0.0) {
            let field = "link_bytes_per_s";
            return Err(MockProfileError::Value { field, must: "a number of bytes above 0" });
        }
        let counts = [
            ("kv_bytes_per_token", self.kv_bytes_per_token),
            ("block_size", u64::from(self.block_size)),
            ("device_blocks", u64::from(self.device_blocks)),
            ("max_model_len", u64::from(self.max_model_len)),
            ("max_steps_in_flight", u64::from(self.max_steps_in_flight)),
        ];
        for (field, count) in counts {
            if count == 0 {
                return Err(MockProfileError::Value { field, must: "at least 1" });
            }
        }
        if !self.pace.iter().all(|factor| (0.01..=100.0).contains(factor)) {
            return Err(MockProfileError::Value {
                field: "pace",
                must: "factors from 0.01 to 100",
            });
        }
        if let Some((field, must)) = self.noise.problem() {
            return Err(MockProfileError::Value { field, must });
        }
        if self.vocab_size < 2 {
            return Err(MockProfileError::Value { field: "vocab_size", must: "at least 2" });
        }
        Ok(())
    }

    /// Returns the speed that the device reports to the engine when it is opened. If the profile does not state one
    /// (`told`), it is the real speed, except that the extra cost of a step with prefill (`prefill_step_us`) is
    /// missing, as in the first estimate of a real server.
    pub fn device_profile(&self) -> DeviceProfile {
        self.told.unwrap_or(DeviceProfile {
            step_base_us: self.step_base_us,
            decode_token_us: self.decode_token_us,
            prefill_token_us: self.prefill_token_us,
            kv_token_us: self.kv_token_us,
            prefill_context_us: self.prefill_context_us,
            link_bytes_per_s: self.link_bytes_per_s,
        })
    }

    /// Returns the factor on the duration of a step that begins at `now`, by the device's pace.
    pub(super) fn pace_at(&self, now: Timestamp) -> f64 {
        let second = usize::try_from(now.0 / 1_000_000).unwrap_or(usize::MAX);
        self.pace.get(second).copied().unwrap_or(1.0)
    }

    /// Returns the sizes and limits of the device that the engine plans with.
    pub fn info(&self) -> DeviceInfo {
        DeviceInfo {
            name: format!("mock:{}", self.name),
            block_size: self.block_size,
            device_blocks: self.device_blocks,
            host_blocks: self.host_blocks,
            block_bytes: self.kv_bytes_per_token * u64::from(self.block_size),
            max_steps_in_flight: self.max_steps_in_flight,
            max_model_len: self.max_model_len,
            vocab_size: self.vocab_size,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_built_in_profile_parses_under_its_own_name() {
        for name in MockProfile::built_in() {
            assert_eq!(MockProfile::named(name).expect("a good profile").name, name);
        }
    }

    #[test]
    fn a_profile_that_is_written_is_read_again() {
        let mut profile = MockProfile::named("llama70b-h100").expect("built in");
        profile.told = Some(profile.device_profile());
        profile.host.step_us = 300.5;
        profile.noise.slow_s = 4.0;
        let again = MockProfile::parse(&profile.to_toml()).expect("its own text");
        assert_eq!(again, profile);
    }

    #[test]
    fn the_pace_is_that_of_the_second() {
        let mut profile = MockProfile::named("tiny").expect("built in");
        profile.pace = vec![2.0, 0.5];
        let at = [0, 999_999, 1_000_000, 2_000_000].map(|us| profile.pace_at(Timestamp(us)));
        assert_eq!(at, [2.0, 2.0, 0.5, 1.0]);
        assert_eq!(MockProfile::parse(&profile.to_toml()).expect("its own text"), profile);
        profile.pace[1] = 0.0;
        let wrong = profile.check().expect_err("no step takes no time").to_string();
        assert!(wrong.contains("pace"), "{wrong}");
    }

    /// Last line of the TOML text of the device profile `tiny`, after which the tests may add tables.
    const LAST_LINE: &str = "max_steps_in_flight = 2";

    #[test]
    fn unknown_and_unusable_profiles_say_what_would_do() {
        let unknown = MockProfile::named("tpu").expect_err("no such profile").to_string();
        assert!(unknown.contains("llama70b-h100, tiny"), "{unknown}");
        let text = include_str!("../../profiles/tiny.toml");
        for (from, to, field) in [
            ("block_size = 16", "block_size = 0", "block_size"),
            ("step_base_us = 200.0", "step_base_us = nan", "step_base_us"),
            ("link_bytes_per_s = 1e9", "link_bytes_per_s = 0.0", "link_bytes_per_s"),
            ("vocab_size = 1000", "vocab_size = 1", "vocab_size"),
            ("vocab_size = 1000", "vocab_size = 1000\nplan_us = 10", "unknown field `plan_us`"),
            ("vocab_size = 1000", "", "missing field `vocab_size`"),
            (LAST_LINE, "max_steps_in_flight = 2\n[host]\nstep_us = -1.0", "host.step_us"),
            (LAST_LINE, "max_steps_in_flight = 2\n[noise]\ntail_share = 2.0", "noise.tail_share"),
        ] {
            let wrong = MockProfile::parse(&text.replace(from, to)).expect_err(field).to_string();
            assert!(wrong.contains(field), "{wrong}");
        }
    }
}
