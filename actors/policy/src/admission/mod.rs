//! Admission rules: which requests can never fit, when a queue is full, which requests would be too late, when refused
//! clients shall retry, and how much the clients of an API key may ask for.

mod applicant;
mod compile_budgets;
mod drain;
mod forecast;
mod gate;
mod key_limits;
mod patience;
mod rate;
mod refusal;
mod retry_credits;
mod share_shedder;
mod tenants;

pub use applicant::Applicant;
pub use compile_budgets::{CompileBudget, CompileBudgets};
pub use drain::{DrainRate, retry_after_ms};
pub use forecast::{Capacity, Forecast, Margin};
pub use gate::{Gate, Left};
pub use key_limits::{Charge, KeyLimits, KeyUsage, OverLimit, Remaining};
pub use patience::Patience;
pub use rate::Rate;
pub use refusal::Refusal;
pub use retry_credits::RetryCredits;
pub use share_shedder::{ShareReport, ShareShedder};
pub use tenants::Tenants;

use tiercel_config::AdmissionSettings;
use tiercel_device::DeviceInfo;

/// Checks that a request can run on a device when it is alone: the prompt must leave room for an output token in the
/// context, and prompt and output (up to the context length) must fit into the device pool less the blocks that are
/// `reserved` for other tiers.
///
/// # Errors
/// Returns a text that says which limit the request exceeds and what would fit.
pub fn fits(prompt: u32, max_tokens: u32, info: &DeviceInfo, reserved: u32) -> Result<(), String> {
    if prompt >= info.max_model_len {
        return Err(format!(
            "the prompt has {prompt} tokens but the context holds {} including the output; \
             shorten the prompt",
            info.max_model_len
        ));
    }
    let longest = prompt.saturating_add(max_tokens).min(info.max_model_len);
    let blocks = info.device_blocks.saturating_sub(reserved);
    let pool = blocks.saturating_mul(info.block_size);
    if longest.div_ceil(info.block_size) > blocks {
        let advice = match pool.saturating_sub(prompt) {
            0 => "shorten the prompt".to_owned(),
            room => format!("ask for at most {room} output tokens"),
        };
        return Err(format!(
            "prompt ({prompt}) + max_tokens ({max_tokens}) exceed the KV memory of this server \
             ({pool} tokens); {advice}"
        ));
    }
    Ok(())
}

/// Size of the admission queue of one tier: the accepted requests that wait for their first token.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Queue {
    /// Number of requests in the admission queue.
    pub requests: u32,
    /// Prompt tokens of the requests in the admission queue, without further choices of the same client request
    /// ([`Applicant::counted_tokens`]).
    pub tokens: u64,
}

impl Queue {
    /// Adds a request to the queue, and `tokens` to the prompt tokens of the queue (see
    /// [`Applicant::counted_tokens`]). The limit on prompt tokens does not apply while the queue has no prompt tokens,
    /// nor to a request that adds none.
    ///
    /// # Errors
    /// Returns a text with the number of waiting requests, or of waiting prompt tokens, that has reached its limit, and
    /// with the name of the setting of this limit.
    pub fn enter(&mut self, tokens: u32, limits: &AdmissionSettings) -> Result<(), String> {
        if self.requests >= limits.max_queued_requests_per_tier {
            return Err(format!(
                "{} requests waiting; limit: admission.max_queued_requests_per_tier",
                self.requests
            ));
        }
        let total = self.tokens + u64::from(tokens);
        if self.tokens > 0 && tokens > 0 && total > limits.max_queued_tokens_per_tier {
            return Err(format!(
                "{} prompt tokens waiting; limit: admission.max_queued_tokens_per_tier",
                self.tokens
            ));
        }
        self.add(tokens);
        Ok(())
    }

    /// Adds a request to the queue, and `tokens` to the prompt tokens of the queue, even if the queue is full.
    pub(crate) fn add(&mut self, tokens: u32) {
        self.requests += 1;
        self.tokens += u64::from(tokens);
    }

    /// Removes a request from the queue, and `tokens` from the prompt tokens of the queue.
    pub fn leave(&mut self, tokens: u32) {
        self.requests = self.requests.saturating_sub(1);
        self.tokens = self.tokens.saturating_sub(u64::from(tokens));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn info() -> DeviceInfo {
        DeviceInfo {
            name: "test".into(),
            block_size: 16,
            device_blocks: 10,
            host_blocks: 0,
            block_bytes: 1,
            max_steps_in_flight: 1,
            max_model_len: 1000,
            vocab_size: 10,
        }
    }

    #[test]
    fn the_pool_bounds_prompt_and_output_to_the_block() {
        assert!(fits(100, 60, &info(), 0).is_ok());
        assert!(fits(100, 45, &info(), 1).expect_err("one block less").contains("144"));
        assert!(fits(100, 61, &info(), 0).expect_err("161 tokens need 11 blocks").contains("160"));
        let full = fits(160, 1, &info(), 0).expect_err("no block for the output");
        assert!(full.ends_with("shorten the prompt"), "{full}");
        assert!(fits(1000, 1, &info(), 0).expect_err("no room for output").contains("context"));
        assert!(fits(u32::MAX, u32::MAX, &info(), 0).is_err());
    }

    #[test]
    fn both_limits_hold_and_places_return() {
        let limits = AdmissionSettings {
            max_queued_requests_per_tier: 2,
            max_queued_tokens_per_tier: 100,
            ..AdmissionSettings::default()
        };
        let mut queue = Queue::default();
        queue.enter(500, &limits).expect("one always fits");
        assert!(queue.enter(1, &limits).expect_err("tokens").contains("500 prompt tokens"));
        queue.leave(500);
        queue.enter(10, &limits).expect("room");
        queue.enter(10, &limits).expect("room");
        assert!(queue.enter(10, &limits).expect_err("requests").contains("2 requests"));
        queue.leave(10);
        assert_eq!(queue, Queue { requests: 1, tokens: 10 });
    }

    #[test]
    fn a_request_that_counts_as_no_token_enters_a_queue_that_is_over_its_limit_on_tokens() {
        let limits =
            AdmissionSettings { max_queued_tokens_per_tier: 100, ..AdmissionSettings::default() };
        let mut queue = Queue::default();
        queue.enter(500, &limits).expect("the queue is empty");
        queue.enter(0, &limits).expect("the request counts as no token");
        assert!(queue.enter(1, &limits).is_err(), "501 tokens would wait");
        assert_eq!(queue, Queue { requests: 2, tokens: 500 });
        queue.leave(500);
        queue.enter(500, &limits).expect("no token waits");
    }

    #[test]
    fn waiting_prompts_may_have_exactly_as_many_tokens_as_the_limit() {
        let limits =
            AdmissionSettings { max_queued_tokens_per_tier: 100, ..AdmissionSettings::default() };
        let mut queue = Queue::default();
        queue.enter(60, &limits).expect("the queue is empty");
        assert!(queue.enter(41, &limits).is_err(), "101 tokens would wait");
        queue.enter(40, &limits).expect("100 tokens wait");
        assert_eq!(queue, Queue { requests: 2, tokens: 100 });
        assert!(queue.enter(1, &limits).is_err(), "101 tokens would wait");
    }
}
