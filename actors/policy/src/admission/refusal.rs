//! Refusals: reasons for not accepting a request, with texts for its client.

use tiercel_device::Tier;

/// Reason for which a request was refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// The request can never run on this server, because it exceeds the context or the KV memory: an error of the
    /// client.
    #[error("{0}")]
    NeverFits(String),
    /// The admission queue of the tier is full. The client may try again later.
    #[error("the {tier} queue is full ({limit}); retry in {} s", retry_after_ms.div_ceil(1000))]
    QueueFull {
        /// Tier of the full queue.
        tier: Tier,
        /// Text that says which limit the full queue has reached, the number of waiting requests or of waiting prompt
        /// tokens, and names the setting of that limit.
        limit: String,
        /// Time after which the client shall come back, ms: about the time in which the full queue drains.
        retry_after_ms: u64,
    },
    /// The first token would come too late to be of use. The client may try again later.
    #[error(
        "overloaded: a {tier} request that comes now would have its first token after {expected_ms} ms, \
         later than the limit of {limit_ms} ms (shedding.late = refuse); retry in {} s",
        retry_after_ms.div_ceil(1000)
    )]
    Late {
        /// Tier of the request.
        tier: Tier,
        /// Predicted TTFT of the request, ms.
        expected_ms: u64,
        /// Longest predicted TTFT with which the request would be accepted, ms.
        limit_ms: u64,
        /// Time after which the client shall come back, ms: about the time by which the predicted TTFT exceeds the
        /// limit.
        retry_after_ms: u64,
    },
    /// The expected wait of the request for its first token is longer than the patience that the request states. The
    /// client is told no retry time.
    #[error(
        "overloaded: this {tier} request would wait about {} s in all for its first token, longer than the \
         {patience_ms} ms that it allows (max_wait_ms)",
        expected_ms.div_ceil(1000)
    )]
    OutOfPatience {
        /// Tier of the request.
        tier: Tier,
        /// Expected wait of the request for its first token, ms: the wait before its arrival plus the expected wait in
        /// its queue, by the queue's recent drain rate.
        expected_ms: u64,
        /// Longest time that the request allows for its first token, ms.
        patience_ms: u64,
    },
    /// Random shedding refused the request, because its tier uses more than its due share of the device's time. The
    /// client may try again later.
    #[error(
        "overloaded: the {tier} tier had {had_percent} % of the device's time, its share is {due_percent} % \
         (shares.{tier}_percent); retry in {} s",
        retry_after_ms.div_ceil(1000)
    )]
    OverShare {
        /// Tier of the request.
        tier: Tier,
        /// Tier's share of the device time that all tiers used lately, percent.
        had_percent: u32,
        /// Share of the device's time that the tier is due, counted among the tiers that used any lately, percent.
        due_percent: u32,
        /// Time after which the client shall send the refused request again, ms.
        retry_after_ms: u64,
    },
    /// The server has no permit for this request: it holds as many requests as it may (`admission.max_requests`), or
    /// the permits left are reserved for higher tiers. The client may try again later.
    #[error(
        "the server holds as many requests as admission.max_requests allows ({limit}, {reserved} of them reserved for \
         tiers above {tier}); retry in {} s",
        retry_after_ms.div_ceil(1000)
    )]
    ServerFull {
        /// Largest number of requests that the server may hold.
        limit: u32,
        /// Tier of the request.
        tier: Tier,
        /// Permits (places for requests in the engine) that are reserved for higher tiers than the request's.
        reserved: u32,
        /// Time after which the client shall come back, ms: about the time in which the queue of the tier drains.
        retry_after_ms: u64,
    },
    /// The server drains for shutdown, so it accepts no request.
    #[error("the server is shutting down")]
    ShuttingDown,
    /// The engine has stopped, so it accepts no request.
    #[error("the engine has stopped")]
    EngineStopped,
}

impl Refusal {
    /// Returns the retry time (`Retry-After`) of the refusal, ms; `None` if coming back does not help.
    pub fn retry_after_ms(&self) -> Option<u64> {
        match self {
            Refusal::QueueFull { retry_after_ms, .. }
            | Refusal::Late { retry_after_ms, .. }
            | Refusal::OverShare { retry_after_ms, .. }
            | Refusal::ServerFull { retry_after_ms, .. } => Some(*retry_after_ms),
            Refusal::OutOfPatience { .. }
            | Refusal::NeverFits(_)
            | Refusal::ShuttingDown
            | Refusal::EngineStopped => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TIER: Tier = Tier::Standard;

    #[test]
    fn refusals_for_load_tell_their_retry_time() {
        let limit = String::from("2 requests waiting");
        let (expected_ms, limit_ms, retry_after_ms) = (900, 500, 4_200);
        let refusals = [
            Refusal::QueueFull { tier: TIER, limit, retry_after_ms },
            Refusal::Late { tier: TIER, expected_ms, limit_ms, retry_after_ms },
            Refusal::OverShare { tier: TIER, had_percent: 80, due_percent: 23, retry_after_ms },
            Refusal::ServerFull { limit: 8, tier: TIER, reserved: 1, retry_after_ms },
        ];
        for refusal in refusals {
            assert_eq!(refusal.retry_after_ms(), Some(4_200), "{refusal}");
        }
    }

    #[test]
    fn refusals_that_coming_back_does_not_change_tell_no_retry_time() {
        let refusals = [
            Refusal::OutOfPatience { tier: TIER, expected_ms: 900, patience_ms: 500 },
            Refusal::NeverFits(String::from("the prompt is too long")),
            Refusal::ShuttingDown,
            Refusal::EngineStopped,
        ];
        for refusal in refusals {
            assert_eq!(refusal.retry_after_ms(), None, "{refusal}");
        }
    }

    #[test]
    fn the_texts_of_refusals_name_the_limit_its_setting_and_the_retry_time() {
        let (limit, retry_after_ms) = (String::from("2 requests waiting"), 4_200);
        let texts = [
            (
                Refusal::QueueFull { tier: TIER, limit, retry_after_ms },
                "the standard queue is full (2 requests waiting); retry in 5 s",
            ),
            (
                Refusal::Late { tier: TIER, expected_ms: 900, limit_ms: 500, retry_after_ms },
                "overloaded: a standard request that comes now would have its first token after 900 ms, later than \
                 the limit of 500 ms (shedding.late = refuse); retry in 5 s",
            ),
            (
                Refusal::OutOfPatience { tier: TIER, expected_ms: 1_900, patience_ms: 500 },
                "overloaded: this standard request would wait about 2 s in all for its first token, longer than \
                 the 500 ms that it allows (max_wait_ms)",
            ),
            (
                Refusal::OverShare { tier: TIER, had_percent: 80, due_percent: 35, retry_after_ms },
                "overloaded: the standard tier had 80 % of the device's time, its share is 35 % \
                 (shares.standard_percent); retry in 5 s",
            ),
            (
                Refusal::ServerFull { limit: 8, tier: TIER, reserved: 1, retry_after_ms },
                "the server holds as many requests as admission.max_requests allows (8, 1 of them reserved for \
                 tiers above standard); retry in 5 s",
            ),
        ];
        for (refusal, text) in texts {
            assert_eq!(refusal.to_string(), text);
        }
    }
}
