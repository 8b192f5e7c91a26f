//! What the admission gate knows about an arriving request.

use crate::Weight;
use crate::blocks::Salt;
use tiercel_config::SloTargets;
use tiercel_device::Tier;

/// Facts about an arriving request from which the admission gate decides.
#[derive(Debug, Clone, Copy)]
pub struct Applicant {
    /// Tier (importance) of the request.
    pub tier: Tier,
    /// Tenant of the request.
    pub tenant: Salt,
    /// Weight of the tenant in the fair queues.
    pub weight: Weight,
    /// Length of the prompt, tokens.
    pub prompt: u32,
    /// Largest number of output tokens that the request may generate.
    pub max_tokens: u32,
    /// Latency targets that the request itself states. A stated target may only be looser than the target of the
    /// request's tier, unless the request may tighten its targets.
    pub targets: SloTargets,
    /// Whether the request may tighten its targets; `None` for what `slo.requests_may_tighten` says.
    pub may_tighten: Option<bool>,
    /// Longest wait for a first token that the request states, ms; `None` stands for the setting of its tier.
    pub max_wait_ms: Option<u64>,
    /// Time that the request waited before it was submitted, ms. This time counts towards its patience.
    pub waited_ms: u64,
    /// Whether the request is a further choice of a client request of which a choice was submitted before.
    pub sibling: bool,
    /// Whether the client claims that it comes back after an earlier refusal (or after its queued request was ended).
    pub returning: bool,
}

impl Applicant {
    /// Returns the number of prompt tokens that the request adds to its admission queue: the length of its prompt, or 0
    /// for a further choice of a client request. If further choices added tokens, a client request whose choices
    /// together exceed the limit would be refused at every retry. The setting `admission.max_requests` bounds the
    /// number of choices.
    pub fn counted_tokens(&self) -> u32 {
        if self.sibling { 0 } else { self.prompt }
    }
}
