//! Settings of shedding, and of requests whose first token would be late.

use crate::Policy;

words! {
    /// Treatment of a standard request that cannot have its first token in time.
    Late {
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
    SheddingForm {
        /// Refuses requests whose first token is forecast to be late, if `shedding.late` is `refuse`. Premium is never
        /// refused.
        Forecast = "forecast",
        /// Refuses requests at random under load. The probability grows with the excess of the tier's usage over its
        /// share. Premium is never refused, nor are clients that come back at the time they were told.
        Share = "share",
    }
}

settings! {
    /// Settings of shedding.
    #[derive(Copy)]
    pub struct SheddingSettings {
        /// Rule that decides which requests are refused. forecast: those whose first token would be late (see
        /// shedding.late). share: under load, requests at random, the more the further their tier's usage is above its
        /// share of the device's time, but never premium, nor clients that come back when told to.
        form: SheddingForm;
        /// With shedding.form = "share": load from which requests are refused, percent. The load is the share of slots
        /// or of KV blocks in use, whichever is larger. Refusing ends 10 percentage points lower.
        load_percent: f64, in 10.0..=100.0;
        /// Treatment of a standard request that cannot have its first token in time. wait: as a request in time;
        /// best-effort: served after standard requests in time; refuse: refused on arrival, or served as under
        /// best-effort if the lateness shows only later.
        late: Late;
        ..Policy::default().preset().shedding
    }
}
