//! Typed settings of the server as plain data: file, environment and flags, validated.

mod engine;
mod error;

pub use engine::{
    AdmissionSettings, EngineSettings, Policy, PreemptionMode, PreemptionSettings,
    PrefixCacheSettings, SchedulerSettings, SloSettings, SloTargets, StreamSettings,
};
pub use error::SettingsError;
