//! What the server notes of a running HTTP request, for the access log and for spans.

use actix_web::http::StatusCode;
use std::sync::Arc;
use tiercel_device::{Tier, Timestamp};

/// Data of an HTTP request.
#[derive(Debug, Default)]
pub(crate) struct Facts {
    pub(crate) id: Option<String>,
    /// Name of the client's API key, and of its tenant; `None` on a server without keys.
    pub(crate) key: Option<Arc<str>>,
    pub(crate) tenant: Option<Arc<str>>,
    pub(crate) tier: Option<Tier>,
    /// Name of the served model that the request is for.
    pub(crate) model: Option<Arc<str>>,
    /// Whether the client asked for a stream.
    pub(crate) streamed: bool,
    pub(crate) prompt_tokens: Option<u32>,
    pub(crate) cached_tokens: Option<u32>,
    pub(crate) output_tokens: Option<u32>,
    pub(crate) first_token: Option<Timestamp>,
    pub(crate) last_token: Option<Timestamp>,
    /// Number of choices of the request that have not ended yet.
    pub(crate) choices: u32,
    /// Number of all choices of the request.
    pub(crate) all_choices: u32,
    pub(crate) status: Option<StatusCode>,
    pub(crate) outcome: Option<&'static str>,
    /// Reason why the request was refused, if it was.
    pub(crate) refused: Option<String>,
}

impl Facts {
    /// Returns the mean time per output token after the first, of all choices together, ms, to a tenth; `None` if no
    /// choice has two tokens.
    pub(crate) fn tpot_ms(&self) -> Option<f64> {
        let after_first = self.output_tokens?.checked_sub(self.all_choices).filter(|n| *n > 0)?;
        let took_ms = self.last_token?.since_ms(self.first_token?);
        let mean_ms = took_ms * f64::from(self.all_choices) / f64::from(after_first);
        Some((mean_ms * 10.0).round() / 10.0)
    }

    /// Returns the outcome of the ended request: how its output ended, the code of its error, or `cancelled` if its
    /// client left before the response head, or before the last choice had ended.
    pub(crate) fn ended_as(&self) -> Option<&'static str> {
        let left = self.status.is_none() || self.choices > 0;
        if left { Some("cancelled") } else { self.outcome }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_time_per_token_is_the_mean_after_the_first_token_of_each_choice() {
        let at = |ms: u64| Some(Timestamp(ms * 1_000));
        let facts = |output: u32, choices: u32| Facts {
            output_tokens: Some(output),
            all_choices: choices,
            first_token: at(100),
            last_token: at(190),
            ..Facts::default()
        };
        assert_eq!(facts(10, 1).tpot_ms(), Some(10.0));
        // The request has two choices, each of 10 tokens and with the same time per token.
        assert_eq!(facts(20, 2).tpot_ms(), Some(10.0));
        assert_eq!([facts(1, 1), facts(1, 2), facts(2, 2)].map(|f| f.tpot_ms()), [None; 3]);
        assert_eq!(Facts::default().tpot_ms(), None);
    }
}
