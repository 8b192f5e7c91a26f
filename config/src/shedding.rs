//! Settings of shedding, and of requests whose first token would be late.

use serde::{Deserialize, Serialize};

words! {
    /// Treatment of a standard request that cannot have its first token in time.
    Late, LATES {
        /// A late request waits like a request in time.
        Wait = "wait",
        /// A late request is served after standard requests in time, and before background.
        BestEffort = "best-effort",
        /// A late request is refused on arrival, with a retry time. If the lateness shows only after arrival, the
        /// request is served as under `best-effort`.
        Refuse = "refuse",
    }
}

words! {
    /// Rule that decides which requests are refused under overload.
    SheddingForm, SHEDDING_FORMS {
        /// Refuses requests whose first token is forecast to be late, given the time that steps have for prompts.
        Forecast = "forecast",
        /// Refuses requests at random under load. The probability grows with the excess of the tier's usage over its
        /// share. Premium is never refused.
        Share = "share",
    }
}

/// Settings of shedding.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct SheddingSettings {
    /// Rule that decides which requests are refused under overload.
    pub form: SheddingForm,
    /// With the form `share`: load from which requests are refused, percent. The load is the share of slots or of
    /// device blocks in use, the larger of the two. Refusing ends when the load is 10 percentage points lower.
    pub load_percent: f64,
    /// Treatment of a standard request that cannot have its first token in time.
    pub late: Late,
}

impl Default for SheddingSettings {
    fn default() -> Self {
        crate::Policy::default().preset().shedding
    }
}
