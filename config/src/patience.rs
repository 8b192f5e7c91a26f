//! Patience: how long a request waits for its first token before it is turned away.

settings! {
    /// Patience by tier, s; 0: requests wait for ever. Targets only order the schedule; patience turns requests away.
    #[derive(Copy)]
    pub struct PatienceSettings {
        /// Premium: longest wait of a request for its first token before it is turned away (429), s; 0: for ever. A
        /// request may state its own patience (`max_wait_ms`, `x-tiercel-max-wait-ms`).
        premium_s: f64 = 0.0, in 0.0..=86_400.0;
        // The default (600 s) is as long as the client packages of OpenAI and of Anthropic wait for an answer by
        // default.
        /// Standard: longest wait of a request for its first token before it is turned away (429), s; 0: for ever.
        standard_s: f64 = 600.0, in 0.0..=86_400.0;
        /// Background: longest wait of a request for its first token before it is turned away (429), s; 0: for ever.
        background_s: f64 = 600.0, in 0.0..=86_400.0;
    }
}

impl PatienceSettings {
    /// Returns the patience by tier (system, premium, standard, background), s; 0: for ever.
    pub fn seconds(&self) -> [f64; 4] {
        [0.0, self.premium_s, self.standard_s, self.background_s]
    }
}
