//! Settings of the whole server: of the engine, the model, the device, KV memory and HTTP.

use crate::cors;
use crate::declare::{Field, SettingsTable, within};
use crate::engine::EngineSettings;
use crate::kind::OfKind;
use crate::listen::is_loopback;
use crate::mock::MockSettings;
use crate::model::ModelSettings;
use crate::step_sizes::StatedSizes;
use crate::{Kind, SettingsError};
use serde::{Deserialize, Serialize};

/// Length of a day, ms: the upper limit of settings that are times.
const DAY_MS: u64 = 86_400_000;

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
    /// Settings of a mock device, and of the recording of answers for it.
    pub mock: MockSettings,
    /// Settings of the HTTP server.
    pub http: HttpSettings,
    /// Settings of the engine.
    #[serde(flatten)]
    pub engine: EngineSettings,
    /// Which sizes of a step a user states. The others have defaults that depend on the device.
    #[serde(skip)]
    pub stated: StatedSizes,
}

settings! {
    /// Settings of the device that computes, and of how much of it is used.
    pub struct DeviceSettings {
        /// Device that computes: the CPU (cpu), an NVIDIA GPU (cuda, or cuda:N by its number), or a mock device that
        /// returns made-up text (mock:PROFILE). auto takes the first GPU that can be used, otherwise the CPU.
        kind: DeviceKind = DeviceKind::Auto, flag "device";
        /// Number of CPU threads that compute; 0 takes one per core.
        threads: u32 = 0, in 0..=1024, flag "threads";
        /// Share of a GPU's free memory that weights, activations and the KV cache may take together, percent.
        memory_percent: u32 = 90, in 1..=100;
        /// Whether a GPU computes every row of a batch as if the row were alone. Output is then bit for bit independent
        /// of how a prompt is cut into chunks and of other sequences in the batch, and prompts are slower. The CPU
        /// always computes like that.
        exact: bool = false;
        /// Whether a GPU runs decode steps as CUDA graphs: one call of the driver instead of hundreds of kernel
        /// launches.
        graphs: bool = true;
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

impl OfKind for DeviceKind {
    const KIND: Kind = Kind::Device;
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
                            "\"{other}\" is not a device: allowed is {}",
                            Kind::Device.allowed()
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

settings! {
    /// Settings of KV memory.
    pub struct KvSettings {
        /// Element type of the KV cache. q8 takes about half the memory of f16 and bf16. On a GPU, f32 and f16 mean
        /// bf16.
        element: KvElement = KvElement::F16, flag "kv-type", name "type";
        /// Size of the KV cache on the device, MiB; 0 chooses it by the free memory.
        cache_mib: u64 = 0, in 0..=1 << 24, flag "kv-cache-mib";
        /// Size of the host pool, the host memory that blocks of preempted requests are swapped to, MiB; 0 for no host
        /// pool. Without this setting, a GPU has a host pool of half of the free host memory, at most twice the size of
        /// its KV cache, the CPU has no host pool, and a mock device has the host pool of its profile.
        host_mib: Option<u64> = None, in 0..=1 << 24, flag "host-kv-mib";
        /// Tokens per KV block; a multiple of 8.
        block_size: u32 = 16, in 8..=256, flag "block-size";
    }
}

words! {
    /// Element type of keys and values in memory.
    KvElement {
        /// IEEE single precision: exact.
        F32 = "f32",
        /// IEEE half precision: half the memory of f32, 11 bits of precision.
        F16 = "f16",
        /// bfloat16: half the memory of f32, 8 bits of precision, the range of f32.
        Bf16 = "bf16",
        /// 8-bit integers with a scale for each token and kv head: about half the memory of f16.
        Q8 = "q8",
    }
}

settings! {
    /// Settings of the HTTP server.
    pub struct HttpSettings {
        /// Address that the server listens on; port 0 takes a free port.
        listen: String = "127.0.0.1:8080".into(), as Kind::Address, flag "listen";
        /// File with the hashes of the API keys and their rights (docs/operator.md). A client must send one of the keys
        /// as `Authorization: Bearer KEY`, except for `/health`, `/ready`, `/version`, `/openapi.json` and `/metrics`. SIGHUP makes the server read the file
        /// again.
        keys_file: Option<String> = None, as Kind::File, flag "keys-file";
        /// API keys in plain text, each with the rights of a standard client. http.keys_file is better: it holds
        /// hashes, and gives each key its rights.
        api_keys: Vec<String> = Vec::new();
        /// Address of the control API, by which operators see and change requests (docs/operator.md). auto takes the
        /// port after that of http.listen on this machine alone, if that port is free; off turns the control API off.
        control_listen: String = "auto".into(), as Kind::Listener, flag "control-listen";
        /// Certificate of the server and those of its certificate authority (PEM). With it and http.tls_key_file, both
        /// listeners speak TLS only. SIGHUP makes the server read both files again.
        tls_cert_file: Option<String> = None, as Kind::File, flag "tls-cert-file";
        /// Private key of the certificate in http.tls_cert_file (PEM, not encrypted).
        tls_key_file: Option<String> = None, as Kind::File, flag "tls-key-file";
        /// CORS: origins whose web pages may use the public listener from a browser, in the form that browsers send,
        /// such as `https://chat.example.org`; * for all origins. Without this setting, no page of another origin may
        /// use the listener. Of all web pages, only the live page may use the control API, whatever this setting is.
        /// The flag may be repeated.
        cors_origins: Vec<String> = Vec::new(), flag "cors-origin";
        /// Listeners that answer `/metrics`, which needs no key. The other listener answers 404.
        metrics: MetricsAt = MetricsAt::Both;
        /// Whether a server without keys may listen on an address that other machines can reach, and serve everybody.
        allow_anonymous: bool = false, flag "allow-anonymous";
        /// Whether the log has a line for each request. Refused requests are logged in any case, at most ten lines a
        /// second.
        access_log: bool = false, flag "access-log";
        /// Form of the lines of the log, lines about requests included: text for people, or json with one object a line
        /// for programs.
        log_format: LogFormat = LogFormat::Text, flag "log-format";
        /// Largest body of an HTTP request, KiB.
        max_body_kib: u32 = 4096, in 1..=65_536;
        /// Most open HTTP connections. One more takes the place of the connection that has been idle longest; if none
        /// is idle, it waits.
        max_connections: u32 = 2048, in 1..=65_536;
        /// Most open HTTP connections of one client address (of an IPv6 address, its /64 network); 0 for no limit. One
        /// more takes the place of the address's own longest idle connection; if none is idle, it is closed at once.
        /// The limit has an effect only below max_connections. The control listener takes at most 48 of one address,
        /// also with 0.
        max_connections_per_address: u32 = 1536, in 0..=65_536;
        /// Longest wait for the head of an HTTP request, and again for its body, ms.
        request_timeout_ms: u64 = 10_000, in 1_000..=DAY_MS;
        /// Time that an idle HTTP connection stays open, ms.
        keep_alive_ms: u64 = 75_000, in 1_000..=DAY_MS;
        // The default (58 s) is a little less than the minute for which most proxies wait for an answer.
        /// Longest time that the HTTP status of a response stream is held back until its first token, ms. Until then
        /// the status can still say that the request is turned away.
        first_token_wait_ms: u64 = 58_000, in 0..=DAY_MS;
        /// Time without output after which a response stream sends an SSE comment, which says where the request stands,
        /// ms.
        comment_interval_ms: u64 = 5_000, in 10..=DAY_MS;
        /// Longest time that running requests may take to finish on shutdown, ms.
        drain_grace_ms: u64 = 30_000, in 0..=DAY_MS, flag "drain-grace-ms";
    }
}

words! {
    /// Form of the lines of the log.
    LogFormat {
        /// Lines for people.
        Text = "text",
        /// One JSON object a line.
        Json = "json",
    }
}

words! {
    /// Listeners that answer `/metrics`.
    MetricsAt {
        /// The listener for clients.
        Public = "public",
        /// The listener of the control API.
        Control = "control",
        /// Both listeners.
        Both = "both",
    }
}

impl HttpSettings {
    /// Whether the listeners speak TLS.
    pub fn has_tls(&self) -> bool {
        self.tls_cert_file.is_some()
    }

    /// Checks that TLS has both of its files, and that `/metrics` is not moved to a listener that is off.
    fn check_listeners(&self) -> Result<(), SettingsError> {
        let refuse = |field, why| Err(SettingsError::Conflict { field, why });
        match (&self.tls_cert_file, &self.tls_key_file) {
            (None, Some(_)) => refuse(
                "http.tls_cert_file",
                "is missing, but http.tls_key_file is stated; state both files (--tls-cert-file and \
                 --tls-key-file), or neither",
            ),
            (Some(_), None) => refuse(
                "http.tls_key_file",
                "is missing, but http.tls_cert_file is stated; state both files (--tls-cert-file and \
                 --tls-key-file), or neither",
            ),
            _ if self.metrics == MetricsAt::Control && self.control_listen == "off" => refuse(
                "http.metrics",
                "is control, but http.control_listen is off; state public, or an address of the control API",
            ),
            _ => Ok(()),
        }
    }

    /// Whether the settings state or name API keys.
    pub fn has_keys(&self) -> bool {
        !self.api_keys.is_empty() || self.keys_file.is_some()
    }
}

impl ServerSettings {
    /// Returns all settings of the server, in the order of the documentation.
    pub(crate) fn fields() -> Vec<Field> {
        within("model", ModelSettings::fields())
            .chain(within("device", DeviceSettings::fields()))
            .chain(within("kv", KvSettings::fields()))
            .chain(within("mock", MockSettings::fields()))
            .chain(within("http", HttpSettings::fields()))
            .chain(EngineSettings::fields())
            .collect()
    }

    /// Checks that every setting of the server is in its range and that the rules between settings are kept.
    ///
    /// # Errors
    /// Fails if a setting cannot be used. The error names the first such field and what is allowed.
    pub fn check(&self) -> Result<(), SettingsError> {
        self.engine.check()?;
        for (table, checked) in [
            ("model", self.model.check_ranges()),
            ("device", self.device.check_ranges()),
            ("kv", self.kv.check_ranges()),
            ("mock", self.mock.check_ranges()),
            ("http", self.http.check_ranges()),
        ] {
            checked.map_err(|error| error.within(table))?;
        }
        if !self.kv.block_size.is_multiple_of(8) {
            return Err(SettingsError::Conflict {
                field: "kv.block_size",
                why: "must be a multiple of 8, the width of the vector kernels",
            });
        }
        self.mock.check(&self.device.kind)?;
        self.model.check_names()?;
        if self.http.api_keys.iter().any(|key| key.trim().is_empty()) {
            return Err(SettingsError::Conflict {
                field: "http.api_keys",
                why: "holds an empty key, which would let everyone in; remove it",
            });
        }
        // Without API keys all clients are one tenant, so no tenant could have metrics apart from those of its tier.
        if self.engine.slo.max_tenants > 0 && !self.http.has_keys() {
            return Err(SettingsError::Conflict {
                field: "slo.max_tenants",
                why: "must be 0 without http.keys_file or http.api_keys, because tenants are told apart by their API keys",
            });
        }
        if !self.http.has_keys() && !self.http.allow_anonymous && !is_loopback(&self.http.listen) {
            return Err(SettingsError::Conflict {
                field: "http.listen",
                why: "lets other machines in, and the server has no API keys; state http.keys_file \
                      (--keys-file), or --allow-anonymous to serve everybody",
            });
        }
        self.http.check_listeners()?;
        cors::check(&self.http.cors_origins)?;
        let control = self.http.control_listen.as_str();
        let chosen = ["auto", "off"].contains(&control);
        if self.http.keys_file.is_none() && !chosen && !is_loopback(control) {
            return Err(SettingsError::Conflict {
                field: "http.control_listen",
                why: "lets other machines control the server, and no key has the role of an operator; \
                      state http.keys_file (--keys-file) with such a key, or listen on 127.0.0.1",
            });
        }
        Ok(())
    }
}
