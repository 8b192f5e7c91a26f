//! Latency against targets: sliding windows of what requests saw, and those that are late although they have not
//! seen it yet.

mod watch;
mod window;

pub use watch::{GroupReport, Observation, Promise, Watch};
pub use window::{Unfinished, Window, WindowReport};

use tiercel_config::{SloSettings, SloTargets};
use tiercel_device::Tier;

/// The targets of a tier; the system's own requests have none.
pub fn targets_of(settings: &SloSettings, tier: Tier) -> SloTargets {
    match tier {
        Tier::System => SloTargets::default(),
        Tier::Premium => settings.premium,
        Tier::Standard => settings.standard,
        Tier::Background => settings.background,
    }
}
