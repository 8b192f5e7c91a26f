//! Settings of the whole server: of the engine, the model, the device, KV memory and HTTP.

use crate::engine::{EngineSettings, range};
use crate::{Kind, SettingsError, field};
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;

/// Most names that the model may have.
const MAX_NAMES: usize = 32;
/// Longest name that the model may have, bytes.
const MAX_NAME_BYTES: usize = 256;

/// All settings of `tiercel serve`. Each field is a table of the settings file; the tables of the engine stand beside
/// the others.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct ServerSettings {
    /// Settings of the model and its weights.
    pub model: ModelSettings,
    /// Settings of the device that computes, and of how much of it is used.
    pub device: DeviceSettings,
    /// Settings of KV memory.
    pub kv: KvSettings,
    /// Settings of the HTTP server.
    pub http: HttpSettings,
    /// Settings of the engine.
    #[serde(flatten)]
    pub engine: EngineSettings,
}

/// Settings of the model and its weights.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ModelSettings {
    /// Model to serve: a .gguf file, a Hugging Face directory, or `hf:ORG/NAME[@REV]`; `None` is the built-in default.
    pub source: Option<String>,
    /// Names that clients use for the model. The first is used in answers to requests that name no model. If the list
    /// is empty, the name is taken from the model's source.
    pub served_name: Vec<String>,
    /// Whether sampling parameters that a request leaves out are taken from the checkpoint.
    pub generation_config: bool,
    /// Form in which weights are held in memory.
    pub weights: Weights,
    /// Longest sequence (prompt + output), tokens; 0 takes what model and KV memory allow.
    pub max_model_len: u32,
}

impl Default for ModelSettings {
    fn default() -> Self {
        ModelSettings {
            source: None,
            served_name: Vec::new(),
            generation_config: true,
            weights: Weights::Auto,
            max_model_len: 0,
        }
    }
}

/// Form in which weights are held in memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Weights {
    /// The fastest form that keeps the source's quality on this device.
    #[default]
    Auto,
    /// IEEE single precision: exact, and the slowest form.
    F32,
    /// bfloat16 weights.
    Bf16,
    /// 8-bit integers in blocks, the Q8_0 form of GGUF files.
    Q8_0,
    /// The form in which the model's file holds the weights.
    Native,
}

/// Settings of the device that computes, and of how much of it is used.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct DeviceSettings {
    /// Kind of the device that computes.
    pub kind: DeviceKind,
    /// Number of compute threads; 0 takes one per core.
    pub threads: u32,
    /// Share of a GPU's free memory that may be used, percent.
    pub memory_percent: u32,
    /// Whether a GPU computes every row of a batch as if it were alone, so that results do not depend on the rest of
    /// the batch.
    pub exact: bool,
    /// Whether a GPU replays decode steps as CUDA graphs if it has run an equal sequence of launches before.
    pub graphs: bool,
}

impl Default for DeviceSettings {
    fn default() -> Self {
        DeviceSettings {
            kind: DeviceKind::Auto,
            threads: 0,
            memory_percent: 90,
            exact: false,
            graphs: true,
        }
    }
}

/// Kind of the device that computes.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum DeviceKind {
    /// The first GPU if one can be used, otherwise the CPU.
    #[default]
    Auto,
    /// The CPU computes.
    Cpu,
    /// An NVIDIA GPU, by its number.
    Cuda(u32),
    /// A mock device, which computes nothing and takes the times of the named profile.
    Mock(String),
}

impl TryFrom<String> for DeviceKind {
    type Error = String;

    fn try_from(text: String) -> Result<DeviceKind, String> {
        match text.as_str() {
            "auto" => Ok(DeviceKind::Auto),
            "cpu" => Ok(DeviceKind::Cpu),
            "cuda" => Ok(DeviceKind::Cuda(0)),
            other => {
                let gpu = other.strip_prefix("cuda:").and_then(|number| number.parse().ok());
                let profile = other.strip_prefix("mock:").filter(|profile| !profile.is_empty());
                gpu.map(DeviceKind::Cuda)
                    .or_else(|| profile.map(|profile| DeviceKind::Mock(profile.to_owned())))
                    .ok_or_else(|| {
                        format!(
                            "\"{other}\" is not a device: allowed is auto, cpu, cuda, cuda:N or mock:PROFILE"
                        )
                    })
            }
        }
    }
}

impl From<DeviceKind> for String {
    fn from(kind: DeviceKind) -> String {
        match kind {
            DeviceKind::Auto => "auto".into(),
            DeviceKind::Cpu => "cpu".into(),
            DeviceKind::Cuda(number) => format!("cuda:{number}"),
            DeviceKind::Mock(profile) => format!("mock:{profile}"),
        }
    }
}

/// Settings of KV memory.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct KvSettings {
    /// Element type of keys and values in memory.
    #[serde(rename = "type")]
    pub element: KvElement,
    /// Memory of the device pool, MiB; 0 chooses by the machine's free memory.
    pub cache_mib: u64,
    /// Memory of the host pool, MiB; 0 means that there is no host pool.
    pub host_mib: u64,
    /// Tokens per block.
    pub block_size: u32,
}

impl Default for KvSettings {
    fn default() -> Self {
        KvSettings { element: KvElement::F16, cache_mib: 0, host_mib: 0, block_size: 16 }
    }
}

/// Element type of keys and values in memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum KvElement {
    /// IEEE single precision: exact.
    F32,
    /// IEEE half precision: half the memory of f32, 11 bits of precision.
    #[default]
    F16,
    /// bfloat16: half the memory of f32, 8 bits of precision, the range of f32.
    Bf16,
}

/// Settings of the HTTP server.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct HttpSettings {
    /// Address to listen on; port 0 takes any free one.
    pub listen: String,
    /// API keys, of which clients must send one as `Authorization: Bearer KEY`; an empty list lets every client in.
    pub api_keys: Vec<String>,
    /// Whether the log has a line for each request.
    pub access_log: bool,
    /// Largest request body, KiB.
    pub max_body_kib: u32,
    /// Most open HTTP connections.
    pub max_connections: u32,
    /// Longest wait for a request's head, and again for its body, ms.
    pub request_timeout_ms: u64,
    /// How long an idle connection stays open, ms.
    pub keep_alive_ms: u64,
    /// Longest time for which the HTTP status of a response stream is held back until its first token, ms. Until then
    /// the status can still say that the request is turned away. The default is a little less than the minute for which
    /// most proxies wait.
    pub head_wait_ms: u64,
    /// Time of silence after which a response stream sends an SSE comment, ms.
    pub comment_interval_ms: u64,
    /// Longest time that running requests may take to finish on shutdown, ms.
    pub drain_grace_ms: u64,
}

impl Default for HttpSettings {
    fn default() -> Self {
        HttpSettings {
            listen: "127.0.0.1:8080".into(),
            api_keys: Vec::new(),
            access_log: false,
            max_body_kib: 4096,
            max_connections: 2048,
            request_timeout_ms: 10_000,
            keep_alive_ms: 75_000,
            head_wait_ms: 58_000,
            comment_interval_ms: 5_000,
            drain_grace_ms: 30_000,
        }
    }
}

impl ServerSettings {
    /// Checks that every setting of the server is in its range and that the rules between settings are kept.
    ///
    /// # Errors
    /// Fails if a setting cannot be used. The error names the first such field and what is allowed.
    pub fn check(&self) -> Result<(), SettingsError> {
        self.engine.check()?;
        let integers: [(&'static str, u64); 13] = [
            ("model.max_model_len", self.model.max_model_len.into()),
            ("device.threads", self.device.threads.into()),
            ("device.memory_percent", self.device.memory_percent.into()),
            ("kv.cache_mib", self.kv.cache_mib),
            ("kv.host_mib", self.kv.host_mib),
            ("kv.block_size", self.kv.block_size.into()),
            ("http.max_body_kib", self.http.max_body_kib.into()),
            ("http.max_connections", self.http.max_connections.into()),
            ("http.request_timeout_ms", self.http.request_timeout_ms),
            ("http.keep_alive_ms", self.http.keep_alive_ms),
            ("http.head_wait_ms", self.http.head_wait_ms),
            ("http.comment_interval_ms", self.http.comment_interval_ms),
            ("http.drain_grace_ms", self.http.drain_grace_ms),
        ];
        for (path, value) in integers {
            if let Some(Kind::Integer { low, high }) = field(path).map(|field| field.kind) {
                range(path, value, low, high)?;
            }
        }
        if !self.kv.block_size.is_multiple_of(8) {
            return Err(SettingsError::Conflict {
                field: "kv.block_size",
                why: "must be a multiple of 8, the width of the vector kernels",
            });
        }
        check_names(&self.model.served_name)?;
        if self.http.api_keys.iter().any(|key| key.trim().is_empty()) {
            return Err(SettingsError::Conflict {
                field: "http.api_keys",
                why: "holds an empty key, which would let everyone in; remove it",
            });
        }
        // Without API keys a client can make up any number of tenants, and each of them would get a metric of its own.
        if self.engine.slo.max_tenants > 0 && self.http.api_keys.is_empty() {
            return Err(SettingsError::Conflict {
                field: "slo.max_tenants",
                why: "must be 0 without http.api_keys, because tenants are told apart by their API keys",
            });
        }
        Ok(())
    }
}

fn check_names(names: &[String]) -> Result<(), SettingsError> {
    let refuse = |why| Err(SettingsError::Conflict { field: "model.served_name", why });
    if names.iter().any(|name| name.trim().is_empty() || name.len() > MAX_NAME_BYTES) {
        return refuse("each name must have 1 to 256 bytes");
    }
    if names.len() > MAX_NAMES {
        return refuse("there may be at most 32 names");
    }
    if names.iter().collect::<BTreeSet<_>>().len() < names.len() {
        return refuse("holds a name twice; remove one of them");
    }
    Ok(())
}
