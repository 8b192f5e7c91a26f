//! What becomes of requests for which there is no time.

use serde::{Deserialize, Serialize};

words! {
    /// What becomes of a standard request that cannot have its first token in time.
    Late, LATES {
        /// It waits for its turn as if nothing was.
        Wait = "wait",
        /// It is served after those that can be in time, before background.
        BestEffort = "best-effort",
        /// It is turned away when it comes and told when to come back; if its lateness shows only later, it is
        /// served as under `best-effort`.
        Refuse = "refuse",
    }
}

words! {
    /// Who is refused when there is too much to do.
    SheddingForm, SHEDDING_FORMS {
        /// Whoever would come too late, by the time there is for prompts.
        Forecast = "forecast",
        /// At random, the more the further a tier's share of the device's time is above what it is due, and only under
        /// load; premium never.
        Share = "share",
    }
}

/// Shedding.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct SheddingSettings {
    /// Who is refused when there is too much to do.
    pub form: SheddingForm,
    /// With the form `share`: nobody is refused below this load, percent of the places in a step or of the blocks, whichever
    /// is more. Refusing ends when it is 10 below.
    pub load_percent: f64,
    /// What becomes of a standard request that cannot have its first token in time.
    pub late: Late,
}

impl Default for SheddingSettings {
    fn default() -> Self {
        crate::Policy::default().preset().shedding
    }
}
