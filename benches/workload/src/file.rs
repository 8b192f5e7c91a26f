//! Workload files, which say what traffic to send. A file is TOML and is read strictly: an unknown or missing field is
//! an error that names the file, the field and the allowed values.

use crate::length::Length;
use crate::recording::{Recording, is_recording};
use crate::trace::Trace;
use serde::{Deserialize, Serialize};
use std::ops::Range;
use std::path::{Path, PathBuf};
use tiercel_device::Tier;

/// Maximum number of requests in one run of a workload.
pub const MAX_REQUESTS: u64 = 1_000_000;
/// Maximum number of traffic classes in one workload.
pub const MAX_CLASSES: usize = 16;
/// Maximum number of closed-loop streams (simulated users), all classes of a workload together.
pub const MAX_STREAMS: u32 = 1024;
/// Maximum duration of a workload, seconds.
pub const MAX_DURATION_S: f64 = 86_400.0;
/// Maximum number of different shared prompt prefixes of a traffic class.
pub const MAX_PREFIXES: u32 = 10_000;
/// Maximum size of a workload file, bytes.
const MAX_FILE_BYTES: u64 = 1 << 20;

/// A workload: classes of traffic that are sent to the server at the same time.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Workload {
    /// Name of the workload in reports.
    pub name: String,
    /// Seed of everything that is random in the workload: arrival times, lengths, shared prefixes and prompt texts.
    pub seed: u64,
    /// Duration of the workload, seconds. Open-loop requests are due within this time. The load client's closed-loop
    /// streams go on after it while an open-loop request still runs.
    pub duration_s: f64,
    /// Warm-up at the start of the run, seconds. Requests that start in the warm-up are sent but not counted.
    #[serde(default)]
    pub warmup_s: f64,
    /// Cool-down at the end of the duration, seconds. Requests that start in the cool-down keep up the load for earlier
    /// requests; they are sent but not counted.
    #[serde(default)]
    pub cooldown_s: f64,
    /// Time after `duration_s` in which running requests may finish before they count as unfinished, seconds.
    #[serde(default = "default_drain_s")]
    pub drain_s: f64,
    /// Sizes of the engine that the simulator runs the workload on; real servers ignore them.
    #[serde(default)]
    pub simulation: Pool,
    /// Recorded traffic (a trace file) whose requests the classes with [`Arrival::Share`] divide among themselves.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub trace: Option<Trace>,
    /// Traffic classes of the workload.
    #[serde(rename = "class")]
    pub classes: Vec<Class>,
}

fn default_drain_s() -> f64 {
    60.0
}

/// Traffic class: requests of one tier with their own arrival process and length distributions.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Class {
    /// Tier the requests ask for: premium, standard or background.
    pub tier: Tier,
    /// Arrival process of the class: at random, recorded, or in a closed loop.
    pub arrival: Arrival,
    /// Start time of the class, seconds after the start of the run; before it, the class sends nothing.
    #[serde(default)]
    pub start_s: f64,
    /// Prefixes that prompts of the class share with each other; none by default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub prefix: Option<Prefix>,
    /// Distribution of the prompt length; required unless the requests come from recorded traffic, which states the
    /// lengths.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub prompt_tokens: Option<Length>,
    /// Distribution of the output length; required unless the requests come from recorded traffic, which states the
    /// lengths. A server is sent the length as `max_tokens`. The simulator can end an output by a stop token; without
    /// `ignore_eos` it does that at this length and sends the longest possible `max_tokens`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub output_tokens: Option<Length>,
    /// Whether the requests ask the server to ignore stop tokens (`ignore_eos`), so that each output has its full
    /// length.
    #[serde(default)]
    pub ignore_eos: bool,
    /// Sampling parameters of the class's requests to a server. The simulator samples greedily.
    #[serde(default)]
    pub sampling: Sampling,
    /// Latency targets of the class. Without targets, the report does not say how many requests were in target.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub targets: Option<Targets>,
}

/// Arrival process of a traffic class: when its requests are sent.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Arrival {
    /// Open loop: requests arrive at random (a Poisson process), whatever the server does.
    Poisson(Poisson),
    /// Closed loop: a fixed number of streams (simulated users), each of which sends its next request when its last one
    /// has ended.
    Closed(Closed),
    /// Replay: requests arrive at the times of a file of recorded traffic.
    Trace(Trace),
    /// Replay of a part of the workload's recorded traffic: this share of its requests, above 0 and at most 1. Which
    /// class sends a request is drawn at random from the seed.
    Share(f64),
}

/// Parameters of a Poisson arrival process ([`Arrival::Poisson`]).
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Poisson {
    /// Mean arrival rate outside of bursts, requests per second.
    pub rate_per_s: f64,
    /// Regular bursts in which the arrival rate is multiplied; none by default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bursts: Option<Bursts>,
}

/// Regular bursts of a Poisson class: at the end of every period, the arrival rate is multiplied by a factor. Periods
/// are counted from the start of the run.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Bursts {
    /// Factor by which a burst multiplies the arrival rate of requests.
    pub factor: f64,
    /// Length of a burst of requests, seconds.
    pub length_s: f64,
    /// Time from the end of one burst to the end of the next, seconds.
    pub period_s: f64,
}

/// Shared prefixes of prompts, like system prompts: a prompt begins with the prefix, and its own text follows. In all
/// classes, prefixes of equal number have the same text; their lengths are equal if `min` and `max` are.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Prefix {
    /// Share of the requests whose prompt begins with a shared prefix, 0 to 1.
    pub share: f64,
    /// Number of different shared prefixes.
    pub count: u32,
    /// Zipf exponent of the popularity of shared prefixes: the n-th prefix is drawn with weight `n^-zipf`.
    pub zipf: f64,
    /// Lower limit of the lengths of shared prefixes, tokens. Lengths are drawn uniformly.
    pub min: u32,
    /// Upper limit of the lengths of shared prefixes, tokens. Lengths are drawn uniformly.
    pub max: u32,
}

/// Parameters of a closed loop ([`Arrival::Closed`]).
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Closed {
    /// Number of closed-loop streams (simulated users) that send requests at the same time.
    pub streams: u32,
}

/// Sampling parameters of a class's requests.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Sampling {
    /// Sampling temperature; 0 means greedy decoding.
    #[serde(default)]
    pub temperature: f64,
    /// Nucleus sampling parameter `top_p` of the requests; not sent if absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub top_p: Option<f64>,
    /// Sampling parameter `top_k` of the requests; not sent if absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub top_k: Option<u32>,
}

/// Latency targets of a class. A request is in target if it completed and met every target that is given. A request
/// that was refused, failed or did not finish meets no target.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Targets {
    /// Target for the time to first token, ms.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ttft_ms: Option<f64>,
    /// Increase of the TTFT target for every prompt token beyond `ttft_prompt_tokens`, ms.
    #[serde(default)]
    pub ttft_ms_per_token: f64,
    /// Prompt length for which the TTFT target is `ttft_ms`, tokens.
    #[serde(default)]
    pub ttft_prompt_tokens: u32,
    /// Time by which the TTFT target is shorter for each token that a prompt lacks to `ttft_prompt_tokens`, ms.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub ttft_ms_per_token_fewer: f64,
    /// Target for the TPOT: mean time per output token after the first, ms.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tpot_ms: Option<f64>,
    /// Target for the end-to-end time of a request, ms.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub e2e_ms: Option<f64>,
}

/// Whether a number is 0. A field that is 0 is not written, because older versions refuse files with unknown fields.
fn is_zero(number: &f64) -> bool {
    *number == 0.0
}

impl Targets {
    /// Returns the latency targets of a request whose prompt has the given length: the TTFT target depends on the
    /// length.
    #[must_use]
    pub fn of_prompt(&self, prompt_tokens: u32) -> Targets {
        let more = f64::from(prompt_tokens.saturating_sub(self.ttft_prompt_tokens));
        let fewer = f64::from(self.ttft_prompt_tokens.saturating_sub(prompt_tokens));
        let added_ms = self.ttft_ms_per_token * more - self.ttft_ms_per_token_fewer * fewer;
        Targets { ttft_ms: self.ttft_ms.map(|ms| ms + added_ms), ..*self }
    }
}

/// Optional engine sizes in a workload file. The simulator runs the workload with them; a real server ignores them and
/// uses its own configuration. A size that is left out comes from the device profile, or, if the profile states none,
/// from the server's defaults.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Pool {
    /// Size of the simulated device pool, KV blocks; by default the device profile's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub device_blocks: Option<u32>,
    /// Size of the simulated host pool, KV blocks; 0 for none; by default the device profile's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub host_blocks: Option<u32>,
    /// Value that the simulator gives the setting `scheduler.max_num_seqs` (maximum number of sequences in a step) for
    /// this workload; by default the device profile's, or else the server's default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_num_seqs: Option<u32>,
    /// Value that the simulator gives the setting `scheduler.max_num_batched_tokens` (maximum number of tokens in a
    /// step) for this workload; by default the device profile's, or else the server's default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_num_batched_tokens: Option<u32>,
    /// Value that the simulator gives the setting `admission.max_requests` (maximum number of requests in the engine)
    /// for this workload; by default the device profile's, or else the server's default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_requests: Option<u32>,
    /// Value that the simulator gives the setting `admission.max_queued_requests_per_tier` (maximum number of requests
    /// of a tier that wait for their first token) for this workload; by default the device profile's, or else the
    /// server's default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_queued_requests_per_tier: Option<u32>,
    /// Value that the simulator gives the setting `admission.max_queued_tokens_per_tier` (maximum number of prompt
    /// tokens of a tier's requests that wait for their first token) for this workload; by default the device profile's,
    /// or else the server's default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_queued_tokens_per_tier: Option<u64>,
}

/// Reason why a workload cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum WorkloadError {
    /// The workload file, or a file of recorded traffic that it names, cannot be read or is too large.
    #[error("cannot read {path}: {source}")]
    Read {
        /// Path of the unreadable file.
        path: PathBuf,
        /// Cause of the failed read.
        source: std::io::Error,
    },
    /// The file is not a workload: it is not TOML, lacks a field, or has an unknown field or a value of the wrong type.
    #[error("{path} is not a workload file: {problem}")]
    Parse {
        /// Path of the workload file.
        path: PathBuf,
        /// Position in the file and description of the problem, as the TOML parser reports them.
        problem: String,
    },
    /// A value of the workload file is out of its bounds, or a file of recorded traffic that it names has a bad line or
    /// no request to send.
    #[error("{path}: {field} {problem}")]
    Invalid {
        /// Path of the workload file or file of recorded traffic that has the problem.
        path: PathBuf,
        /// Name of the invalid field, such as `class[1].arrival.poisson.rate_per_s`, or place of the bad line in
        /// recorded traffic, such as `line 7`.
        field: String,
        /// Description of what is wrong with the value or line, mostly with what is allowed instead.
        problem: String,
    },
}

impl Workload {
    /// Reads and checks a workload file and the files of recorded traffic that it names. The file may also be a
    /// [`Recording`].
    ///
    /// # Errors
    /// [`WorkloadError`], which says which file is wrong and what is wrong in it.
    pub fn load(path: &Path) -> Result<Workload, WorkloadError> {
        if is_recording(path) {
            return Recording::load(path).map(|recording| recording.workload);
        }
        let text = read_limited(path, MAX_FILE_BYTES)?;
        let mut workload: Workload = toml::from_str(&text).map_err(|error| {
            WorkloadError::Parse { path: path.to_owned(), problem: error.to_string() }
        })?;
        let invalid = |(field, problem)| {
            Err(WorkloadError::Invalid { path: path.to_owned(), field, problem })
        };
        // Check the parameters of the recorded traffic before reading its files, which may be large.
        if let Some(wrong) = workload.trace_problem() {
            return invalid(wrong);
        }
        for trace in workload.traces_mut() {
            trace.read(path)?;
        }
        workload.problem().map_or(Ok(workload), invalid)
    }

    /// Returns the measured window: the time between warm-up and cool-down, seconds after the start. Only requests that
    /// are due within it are counted.
    pub fn window_s(&self) -> Range<f64> {
        self.warmup_s..self.duration_s - self.cooldown_s
    }

    /// Returns the workload with the request rates of its Poisson classes and recorded traffic multiplied by `factor`.
    /// Closed-loop streams do not change.
    #[must_use]
    pub fn at_load(mut self, factor: f64) -> Workload {
        for class in &mut self.classes {
            if let Arrival::Poisson(poisson) = &mut class.arrival {
                poisson.rate_per_s *= factor;
            }
        }
        for trace in self.traces_mut() {
            trace.time_factor /= factor;
        }
        self
    }
}

/// Reads a text file; fails if the file is larger than `limit` bytes.
fn read_limited(path: &Path, limit: u64) -> Result<String, WorkloadError> {
    use std::io::Read;
    let failed = |source| WorkloadError::Read { path: path.to_owned(), source };
    let file = std::fs::File::open(path).map_err(failed)?;
    let mut text = String::new();
    file.take(limit + 1).read_to_string(&mut text).map_err(failed)?;
    if text.len() as u64 > limit {
        let problem = format!("larger than {limit} bytes");
        return Err(failed(std::io::Error::new(std::io::ErrorKind::FileTooLarge, problem)));
    }
    Ok(text)
}
