//! Results that the scheduler reports: tokens to deliver, ends of sequences, and decisions on preemptions.

use tiercel_device::{SeqId, Tier, Timestamp, TokenId, TokenLogprobs};

/// Reason for which an output is complete.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FinishReason {
    /// The output is complete because a stop token was sampled, the HTTP side found a stop string, or the constraint of
    /// the request allows no further token.
    Stop,
    /// The output has `max_tokens` tokens, or the sequence is as long as the model's context.
    Length,
}

/// Token counts and number of preemptions of one sequence.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Usage {
    /// Number of prompt tokens.
    pub prompt_tokens: u32,
    /// Number of prompt tokens whose KV was found in the prefix cache when the sequence started.
    pub cached_tokens: u32,
    /// Number of output tokens, without a final stop token.
    pub completion_tokens: u32,
    /// Number of times that the sequence was preempted.
    pub preemptions: u32,
}

/// Reason for which an accepted request could not be completed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RequestFault {
    /// The request was preempted, and the policy ends preempted requests: always with `preemption.mode = drop`, or
    /// after `preemption.max_per_request` preemptions with `preemption.at_limit = drop`.
    #[error("preempted by a more important request; retry when the server is less busy")]
    Dropped,
    /// The request was ended before it started, because a request of a higher tier needed its permit (place in the
    /// engine).
    #[error(
        "overloaded: this request could not be started, because a request of a higher tier needed its place \
         (admission.max_requests); retry in {} s",
        retry_after_ms.div_ceil(1000)
    )]
    TurnedAway {
        /// Retry time: time after which the client shall come back, ms.
        retry_after_ms: u64,
    },
    /// The request got no first token within its patience.
    #[error(
        "overloaded: this request had no first token within {patience_ms} ms, {}",
        if *stated {
            "the longest wait that it allows (max_wait_ms)".to_owned()
        } else {
            format!(
                "the longest wait of its tier (patience.{tier}_s); retry in {} s",
                retry_after_ms.div_ceil(1000)
            )
        }
    )]
    OutOfPatience {
        /// Tier of the request.
        tier: Tier,
        /// Longest time that the request was to wait for its first token, ms.
        patience_ms: u64,
        /// Whether the request stated its patience itself (`max_wait_ms`), instead of having that of its tier.
        stated: bool,
        /// Retry time, ms; the client is not told it if the request stated its patience.
        retry_after_ms: u64,
    },
    /// The sampler could not use the model's output for the request.
    #[error("the model failed on this request: {0}")]
    Model(String),
    /// The constraint of the request, for example its grammar, allows no token that could continue the output.
    #[error("{0}")]
    Constraint(String),
    /// A step with this request alone failed, after an earlier step with the request had failed; or the device was
    /// lost.
    #[error("the device failed on this request's step: {0}")]
    Step(String),
    /// The client read nothing of its response stream for `stream.stall_timeout_ms`.
    #[error("the client stopped reading its stream")]
    Stalled,
    /// The server drains, and the request was not complete at the drain's deadline.
    #[error("the server is shutting down; send the request again, to another server or later")]
    ShuttingDown,
    /// An operator, or another client with the same API key, cancelled the request.
    #[error("this request was cancelled")]
    Cancelled,
}

/// Event of a sequence to pass on to its client: a token, or the end.
#[derive(Debug, Clone, PartialEq)]
pub enum Effect {
    /// A sampled output token, to be delivered to the client.
    Token {
        /// Sequence that the token belongs to.
        seq: SeqId,
        /// Tier of the sequence when the token was sampled.
        tier: Tier,
        /// Output token that was sampled.
        token: TokenId,
        /// Log probabilities of the token; `None` if the request did not ask for them.
        logprobs: Option<Box<TokenLogprobs>>,
        /// TTFT of the request, us, if this is its first token; otherwise `None`.
        ttft_us: Option<u64>,
    },
    /// The sequence ended and is no longer in the scheduler.
    Ended(EndReport),
}

/// Report of the end of a sequence.
#[derive(Debug, Clone, PartialEq)]
pub struct EndReport {
    /// Sequence that ended.
    pub seq: SeqId,
    /// Tier of the sequence at its end.
    pub tier: Tier,
    /// How the sequence ended; `None` if its client has gone.
    pub outcome: Option<Result<FinishReason, RequestFault>>,
    /// Token counts and number of preemptions of the sequence.
    pub usage: Usage,
    /// Time at which the sequence arrived.
    pub arrival: Timestamp,
    /// Time at which the first output token of the sequence was sampled; `None` if the sequence has no output.
    pub first_token_at: Option<Timestamp>,
    /// Time at which the last output token of the sequence was sampled; `None` if the sequence has no output.
    pub last_token_at: Option<Timestamp>,
}

/// Decision of the scheduler on a prepared preemption whose copies have ended, sent to the block store.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PreemptDecision {
    /// Commit the preemption: the victim gives up its blocks, because other sequences wait for blocks.
    Commit,
    /// Abort the preemption: the victim goes on with its blocks, because no sequence needs them any more.
    Abort,
    /// Do nothing: the preemption is of an older life of the sequence or of one that has ended (stale ticket), or the
    /// event was not the end of a prepared preemption.
    Stale,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_texts_of_requests_that_were_turned_away_name_the_setting_and_the_retry_time() {
        let (tier, patience_ms, retry_after_ms) = (Tier::Background, 600_000, 4_200);
        let impatient =
            |stated| RequestFault::OutOfPatience { tier, patience_ms, stated, retry_after_ms };
        let texts = [
            (
                impatient(false),
                "overloaded: this request had no first token within 600000 ms, the longest wait of its tier \
                 (patience.background_s); retry in 5 s",
            ),
            (
                impatient(true),
                "overloaded: this request had no first token within 600000 ms, the longest wait that it allows \
                 (max_wait_ms)",
            ),
            (
                RequestFault::TurnedAway { retry_after_ms },
                "overloaded: this request could not be started, because a request of a higher tier needed its \
                 place (admission.max_requests); retry in 5 s",
            ),
        ];
        for (fault, text) in texts {
            assert_eq!(fault.to_string(), text);
        }
    }
}
