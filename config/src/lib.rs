//! Typed and validated settings of the server as plain data, from a file, the environment and flags.
//!
//! `settings!` declares every setting once: its name, type, default, range, flag and help text. From the declarations
//! follow the types, [`FIELDS`] (which the file, the environment and the flags are read by), the checks of the ranges,
//! and the table in `docs/configuration.md`.
#![cfg_attr(test, allow(clippy::unwrap_used, reason = "tests state what must hold"))]

#[macro_use]
mod declare;
#[macro_use]
mod words;

mod cors;
#[cfg(test)]
mod docs;
mod engine;
mod error;
mod fields;
mod keys;
mod kind;
mod listen;
mod live;
mod load;
mod mock;
mod model;
mod patience;
mod policy;
mod presets;
mod pressure;
mod renamed;
mod reservation;
mod server;
mod shares;
mod shedding;
mod slo;
mod step_sizes;
mod suggest;

pub use declare::Field;
pub use engine::{AdmissionSettings, EngineSettings, PrefixCacheSettings, StreamSettings};
pub use error::SettingsError;
pub use fields::{FIELDS, field};
pub use keys::{AboveHighest, ApiKey, KeyTier, KeysError, Role, read_keys, utc_text};
pub use kind::{Kind, TARGET_MS};
pub use listen::is_loopback;
pub use live::{ChangeError, changeable, changed};
pub use load::{LoadError, Loader, Origin};
pub use mock::MockSettings;
pub use model::{ModelSettings, ReasoningParser, ToolParser, Weights};
pub use patience::PatienceSettings;
pub use policy::{
    AgeingCap, Allocation, AtLimit, Batching, Budget, Order, PreemptionMode, PreemptionSettings,
    PrefillOrder, ResumeFrom, ResumeOrder, SchedulerSettings, StepMix, ToStart, VictimRelease,
    VictimRule,
};
pub use presets::{Policy, Preset};
pub use pressure::PressureSettings;
pub use reservation::{Reservation, ReservationSettings};
pub use server::{
    DeviceKind, DeviceSettings, HttpSettings, KvElement, KvSettings, LogFormat, MetricsAt,
    ServerSettings,
};
pub use shares::SharesSettings;
pub use shedding::{Late, SheddingForm, SheddingSettings};
pub use slo::{SloSettings, SloTargets, Target, TierSlo};
pub use step_sizes::StatedSizes;
