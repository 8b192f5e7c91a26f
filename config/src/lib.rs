//! Typed and validated settings of the server as plain data, from a file, the environment and flags.
//!
//! [`FIELDS`] names every setting once. The file, the environment, the flags and the table in `docs/configuration.md`
//! are all derived from this list, and a test compares the list with the types.
#![cfg_attr(test, allow(clippy::unwrap_used, reason = "tests state what must hold"))]

#[macro_use]
mod words;

mod docs;
mod engine;
mod error;
mod fields;
mod listen;
mod load;
mod patience;
mod policy;
mod presets;
mod pressure;
mod reservation;
mod server;
mod shares;
mod shedding;
mod slo;
mod suggest;

pub use docs::table;
pub use engine::{AdmissionSettings, EngineSettings, PrefixCacheSettings, StreamSettings};
pub use error::SettingsError;
pub use fields::{FIELDS, Field, Kind, field};
pub use load::{LoadError, Loader, Origin};
pub use patience::PatienceSettings;
pub use policy::{
    AgeingCap, Allocation, AtLimit, Batching, Budget, Order, PreemptionMode, PreemptionSettings,
    PrefillOrder, ResumeFrom, ResumeOrder, SchedulerSettings, StepMix, ToStart, VictimGives,
    VictimRule,
};
pub use presets::{Policy, Preset};
pub use pressure::PressureSettings;
pub use reservation::{Reservation, ReservationSettings};
pub use server::{
    DeviceKind, DeviceSettings, HttpSettings, KvElement, KvSettings, ModelSettings, ServerSettings,
    Weights,
};
pub use shares::SharesSettings;
pub use shedding::{Late, SheddingForm, SheddingSettings};
pub use slo::{SloSettings, SloTargets, Target, TierSlo};
