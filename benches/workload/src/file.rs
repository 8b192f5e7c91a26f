//! Workload files: what traffic to send. TOML, read strictly: an unknown or missing field is an error
//! that names the file, the field and what is allowed.

use crate::length::Length;
use crate::trace::Trace;
use serde::{Deserialize, Serialize};
use std::ops::Range;
use std::path::{Path, PathBuf};
use tiercel_device::Tier;

/// Most requests one run may send.
pub const MAX_REQUESTS: u64 = 1_000_000;
/// Most traffic classes in one workload.
pub const MAX_CLASSES: usize = 16;
/// Most closed-loop streams over all classes.
pub const MAX_STREAMS: u32 = 1024;
/// Longest run, seconds.
pub const MAX_DURATION_S: f64 = 86_400.0;
/// Most shared prefixes of a class.
pub const MAX_PREFIXES: u32 = 10_000;
/// Largest workload file, bytes.
const MAX_FILE_BYTES: u64 = 1 << 20;

/// A workload: classes of traffic that run side by side.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Workload {
    /// What reports call it.
    pub name: String,
    /// Arrival times and lengths are a function of this.
    pub seed: u64,
    /// Requests start within this time, seconds.
    pub duration_s: f64,
    /// Requests that start earlier are sent but not counted, seconds.
    #[serde(default)]
    pub warmup_s: f64,
    /// Requests that start in the last so many seconds are sent but not counted: they keep up the load
    /// for those before them.
    #[serde(default)]
    pub cooldown_s: f64,
    /// How long after `duration_s` running requests may take to finish before they count as
    /// unfinished, seconds.
    #[serde(default = "default_drain_s")]
    pub drain_s: f64,
    /// Limits under which the simulator runs it.
    #[serde(default)]
    pub simulation: Pool,
    /// Recorded traffic that classes with [`Arrival::Share`] divide among themselves.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub trace: Option<Trace>,
    /// The traffic.
    #[serde(rename = "class")]
    pub classes: Vec<Class>,
}

fn default_drain_s() -> f64 {
    60.0
}

/// Traffic of one kind.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Class {
    /// Tier the requests ask for: premium, standard or background.
    pub tier: Tier,
    /// When requests start.
    pub arrival: Arrival,
    /// The class is silent until then, seconds.
    #[serde(default)]
    pub start_s: f64,
    /// Shared beginnings of prompts; none by default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub prefix: Option<Prefix>,
    /// Prompt length; required unless a trace states it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub prompt_tokens: Option<Length>,
    /// Output length; required unless a trace states it. Sent as `max_tokens`; the simulator, which can end
    /// an output by a token, sends the longest possible instead unless `ignore_eos`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub output_tokens: Option<Length>,
    /// Whether outputs go on to their full length.
    #[serde(default)]
    pub ignore_eos: bool,
    /// How tokens are chosen.
    #[serde(default)]
    pub sampling: Sampling,
    /// What counts as compliant; without it, compliance is not reported.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub targets: Option<Targets>,
}

/// When the requests of a class start.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Arrival {
    /// Independently of the server, at random.
    Poisson(Poisson),
    /// Each stream sends its next request when the last one ended.
    Closed(Closed),
    /// As written down in a file.
    Trace(Trace),
    /// This share, above 0 to 1, of the requests of the workload's trace. The seed draws which class a request
    /// belongs to.
    Share(f64),
}

/// Parameters of [`Arrival::Poisson`].
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Poisson {
    /// Mean requests per second.
    pub rate_per_s: f64,
    /// Times of a higher rate; none by default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bursts: Option<Bursts>,
}

/// Regular bursts: the rate is multiplied at the end of every period.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Bursts {
    /// What the rate is multiplied by.
    pub factor: f64,
    /// Length of a burst, seconds.
    pub length_s: f64,
    /// From one burst's end to the next one's, seconds.
    pub period_s: f64,
}

/// Shared beginnings of prompts, as system prompts are. They come before the drawn prompt, and classes with
/// equal fields draw from the same ones.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Prefix {
    /// Share of the requests that have one, 0 to 1.
    pub share: f64,
    /// How many there are.
    pub count: u32,
    /// Exponent of their popularity: the n-th is asked for in proportion to `n^-zipf`.
    pub zipf: f64,
    /// Length of the shortest, tokens.
    pub min: u32,
    /// Length of the longest, tokens.
    pub max: u32,
}

/// Parameters of [`Arrival::Closed`].
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Closed {
    /// Number of streams.
    pub streams: u32,
}

/// Sampling fields of the requests.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Sampling {
    /// 0 is greedy.
    #[serde(default)]
    pub temperature: f64,
    /// Sent if given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub top_p: Option<f64>,
    /// Sent if given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub top_k: Option<u32>,
}

/// Latency targets of a class; a request is compliant if it meets every one given, and a request that
/// was refused, failed or did not finish meets none.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Targets {
    /// Time to first token.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ttft_ms: Option<f64>,
    /// Added to `ttft_ms` for every prompt token beyond `ttft_prompt_tokens`.
    #[serde(default)]
    pub ttft_ms_per_token: f64,
    /// See `ttft_ms_per_token`.
    #[serde(default)]
    pub ttft_prompt_tokens: u32,
    /// Mean time per output token after the first.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tpot_ms: Option<f64>,
    /// Whole request.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub e2e_ms: Option<f64>,
}

impl Targets {
    /// The targets of a request with a prompt of this length.
    #[must_use]
    pub fn of_prompt(&self, prompt_tokens: u32) -> Targets {
        let beyond = prompt_tokens.saturating_sub(self.ttft_prompt_tokens);
        let added_ms = self.ttft_ms_per_token * f64::from(beyond);
        Targets { ttft_ms: self.ttft_ms.map(|ms| ms + added_ms), ..*self }
    }
}

/// Sizes that the simulator gives the engine for this traffic; a server is configured by itself. What is left out
/// is as the device profile says, and where that says nothing either as a server has it by default.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Pool {
    /// Device blocks of KV memory.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub device_blocks: Option<u32>,
    /// Host blocks of KV memory; 0 for none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub host_blocks: Option<u32>,
    /// Most sequences that run at once: `scheduler.max_num_seqs`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_num_seqs: Option<u32>,
    /// Most tokens in one step: `scheduler.max_num_batched_tokens`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_num_batched_tokens: Option<u32>,
    /// Most requests in the engine: `admission.max_requests`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_requests: Option<u32>,
    /// Most requests of a tier that wait for their first token: `admission.max_queued_requests_per_tier`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_queued_requests_per_tier: Option<u32>,
    /// Most prompt tokens of a tier that wait for their first token: `admission.max_queued_tokens_per_tier`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_queued_tokens_per_tier: Option<u64>,
}

/// Why a workload can't be used.
#[derive(Debug, thiserror::Error)]
pub enum WorkloadError {
    /// The file, or the trace it names, can't be read.
    #[error("cannot read {path}: {source}")]
    Read {
        /// Which file.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// Not TOML, a missing or unknown field, or a value of the wrong type.
    #[error("{path} is not a workload file: {problem}")]
    Parse {
        /// Which file.
        path: PathBuf,
        /// Where and what, as the TOML reader says it.
        problem: String,
    },
    /// A value that can't be used.
    #[error("{path}: {field} {problem}")]
    Invalid {
        /// Which file.
        path: PathBuf,
        /// Which field, such as `class[1].arrival.poisson.rate_per_s`.
        field: String,
        /// What is wrong and what is allowed.
        problem: String,
    },
}

impl Workload {
    /// Reads and checks a workload file and the traces it names.
    ///
    /// # Errors
    /// [`WorkloadError`], one line that says what to change.
    pub fn load(path: &Path) -> Result<Workload, WorkloadError> {
        let text = read_limited(path, MAX_FILE_BYTES)?;
        let mut workload: Workload = toml::from_str(&text).map_err(|error| {
            WorkloadError::Parse { path: path.to_owned(), problem: error.to_string() }
        })?;
        let invalid = |(field, problem)| {
            Err(WorkloadError::Invalid { path: path.to_owned(), field, problem })
        };
        // A window that makes no sense is told before its file is read.
        if let Some(wrong) = workload.trace_problem() {
            return invalid(wrong);
        }
        for trace in workload.traces_mut() {
            trace.read(path)?;
        }
        workload.problem().map_or(Ok(workload), invalid)
    }

    /// Requests due within this time are counted, seconds.
    pub fn window_s(&self) -> Range<f64> {
        self.warmup_s..self.duration_s - self.cooldown_s
    }

    /// The same traffic with the rates of its Poisson classes and traces multiplied.
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

/// Reads a text file that may not be larger than `limit` bytes.
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
