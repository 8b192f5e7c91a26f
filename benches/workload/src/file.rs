//! Workload files, which say what traffic to send. A file is TOML and is read strictly: an unknown or missing field is
//! an error that names the file, the field and the allowed values.

use crate::length::Length;
use crate::trace::Trace;
use serde::{Deserialize, Serialize};
use std::ops::Range;
use std::path::{Path, PathBuf};
use tiercel_device::Tier;

/// Maximum number of requests of one run.
pub const MAX_REQUESTS: u64 = 1_000_000;
/// Maximum number of traffic classes in one workload.
pub const MAX_CLASSES: usize = 16;
/// Maximum number of closed-loop streams, all classes of a workload together.
pub const MAX_STREAMS: u32 = 1024;
/// Maximum length of a run, seconds.
pub const MAX_DURATION_S: f64 = 86_400.0;
/// Maximum number of shared prefixes of a class.
pub const MAX_PREFIXES: u32 = 10_000;
/// Maximum size of a workload file, bytes.
const MAX_FILE_BYTES: u64 = 1 << 20;

/// A workload: classes of traffic that are sent side by side.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Workload {
    /// Name of the workload in reports.
    pub name: String,
    /// Seed of the random arrival times and lengths.
    pub seed: u64,
    /// Duration of the workload: requests start within this time, seconds.
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
    /// Sizes of the engine that the simulator runs the workload on.
    #[serde(default)]
    pub simulation: Pool,
    /// Recorded traffic that classes with [`Arrival::Share`] divide among themselves.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub trace: Option<Trace>,
    /// Traffic classes of the workload.
    #[serde(rename = "class")]
    pub classes: Vec<Class>,
}

fn default_drain_s() -> f64 {
    60.0
}

/// Class of traffic: requests of one tier with their own arrivals and lengths.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Class {
    /// Tier the requests ask for: premium, standard or background.
    pub tier: Tier,
    /// Arrival process of the requests.
    pub arrival: Arrival,
    /// Time before which the class sends nothing, seconds.
    #[serde(default)]
    pub start_s: f64,
    /// Shared prefixes of prompts; none by default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub prefix: Option<Prefix>,
    /// Distribution of the prompt length; required unless a trace states the lengths.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub prompt_tokens: Option<Length>,
    /// Distribution of the output length; required unless a trace states the lengths. A server is sent the length as
    /// `max_tokens`. The simulator can end an output by a stop token; without `ignore_eos` it does that at this length
    /// and sends the longest possible `max_tokens`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub output_tokens: Option<Length>,
    /// Whether outputs ignore stop tokens and reach their full length.
    #[serde(default)]
    pub ignore_eos: bool,
    /// Sampling parameters of the requests.
    #[serde(default)]
    pub sampling: Sampling,
    /// Latency targets of the requests. Without targets, no share of requests in target is reported.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub targets: Option<Targets>,
}

/// Arrival process of a class of requests.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Arrival {
    /// Requests arrive at random (a Poisson process), whatever the server does.
    Poisson(Poisson),
    /// A fixed number of streams. Each stream sends its next request when its last one has ended.
    Closed(Closed),
    /// Requests arrive at the times of a trace file.
    Trace(Trace),
    /// The class sends this share, above 0 and at most 1, of the requests of the workload's trace. The seed draws which
    /// class sends a request.
    Share(f64),
}

/// Parameters of [`Arrival::Poisson`].
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Poisson {
    /// Mean arrival rate, requests per second.
    pub rate_per_s: f64,
    /// Bursts, in which the rate is multiplied; none by default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bursts: Option<Bursts>,
}

/// Regular bursts: at the end of every period, the arrival rate is multiplied by a factor.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Bursts {
    /// Factor that multiplies the arrival rate in a burst.
    pub factor: f64,
    /// Length of a burst, seconds.
    pub length_s: f64,
    /// Time from the end of one burst to the end of the next, seconds.
    pub period_s: f64,
}

/// Shared prefixes of prompts, like system prompts. A prefix comes before the drawn part of the prompt. Classes with
/// equal fields draw from the same prefixes.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Prefix {
    /// Share of the requests whose prompt begins with a shared prefix, 0 to 1.
    pub share: f64,
    /// Number of different prefixes.
    pub count: u32,
    /// Zipf exponent of the popularity of prefixes: the n-th prefix is drawn with weight `n^-zipf`.
    pub zipf: f64,
    /// Length of the shortest prefix, tokens.
    pub min: u32,
    /// Length of the longest prefix, tokens.
    pub max: u32,
}

/// Parameters of [`Arrival::Closed`].
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Closed {
    /// Number of streams that send requests at the same time.
    pub streams: u32,
}

/// Sampling parameters of the requests.
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
    /// Time added to the target `ttft_ms` for every prompt token beyond `ttft_prompt_tokens`, ms.
    #[serde(default)]
    pub ttft_ms_per_token: f64,
    /// Prompt length up to which the target `ttft_ms` holds unchanged, tokens.
    #[serde(default)]
    pub ttft_prompt_tokens: u32,
    /// Target for the TPOT: mean time per output token after the first, ms.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tpot_ms: Option<f64>,
    /// Target for the end-to-end time of a request, ms.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub e2e_ms: Option<f64>,
}

impl Targets {
    /// Returns the targets of a request whose prompt has this length.
    #[must_use]
    pub fn of_prompt(&self, prompt_tokens: u32) -> Targets {
        let beyond = prompt_tokens.saturating_sub(self.ttft_prompt_tokens);
        let added_ms = self.ttft_ms_per_token * f64::from(beyond);
        Targets { ttft_ms: self.ttft_ms.map(|ms| ms + added_ms), ..*self }
    }
}

/// Sizes that the simulator gives the engine for a workload; a real server uses its own configuration instead. A size
/// that is left out comes from the device profile, or, if the profile states none, from the server's defaults.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Pool {
    /// Size of the device pool, KV blocks.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub device_blocks: Option<u32>,
    /// Size of the host pool, KV blocks; 0 for none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub host_blocks: Option<u32>,
    /// Maximum number of sequences that run at once: `scheduler.max_num_seqs`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_num_seqs: Option<u32>,
    /// Maximum number of tokens in one step: `scheduler.max_num_batched_tokens`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_num_batched_tokens: Option<u32>,
    /// Maximum number of requests in the engine: `admission.max_requests`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_requests: Option<u32>,
    /// Maximum number of requests of a tier that wait for their first token: `admission.max_queued_requests_per_tier`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_queued_requests_per_tier: Option<u32>,
    /// Maximum number of prompt tokens of a tier that wait for their first token:
    /// `admission.max_queued_tokens_per_tier`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_queued_tokens_per_tier: Option<u64>,
}

/// Reason why a workload cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum WorkloadError {
    /// The workload file, or a trace file that it names, cannot be read.
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
        /// Place and description of the problem, as the TOML parser reports them.
        problem: String,
    },
    /// A value of the file is out of its bounds.
    #[error("{path}: {field} {problem}")]
    Invalid {
        /// Path of the file with the invalid value.
        path: PathBuf,
        /// Name of the invalid field, such as `class[1].arrival.poisson.rate_per_s`.
        field: String,
        /// Description of the problem and of the allowed values.
        problem: String,
    },
}

impl Workload {
    /// Reads and checks a workload file and the trace files that it names.
    ///
    /// # Errors
    /// [`WorkloadError`], a single line that says what to change.
    pub fn load(path: &Path) -> Result<Workload, WorkloadError> {
        let text = read_limited(path, MAX_FILE_BYTES)?;
        let mut workload: Workload = toml::from_str(&text).map_err(|error| {
            WorkloadError::Parse { path: path.to_owned(), problem: error.to_string() }
        })?;
        let invalid = |(field, problem)| {
            Err(WorkloadError::Invalid { path: path.to_owned(), field, problem })
        };
        // Check the windows of the traces before reading the trace files.
        if let Some(wrong) = workload.trace_problem() {
            return invalid(wrong);
        }
        for trace in workload.traces_mut() {
            trace.read(path)?;
        }
        workload.problem().map_or(Ok(workload), invalid)
    }

    /// Returns the measured window, seconds. Only requests that are due within it are counted.
    pub fn window_s(&self) -> Range<f64> {
        self.warmup_s..self.duration_s - self.cooldown_s
    }

    /// Returns the workload with the rates of its Poisson classes and traces multiplied by `factor`. Closed streams do
    /// not change.
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
