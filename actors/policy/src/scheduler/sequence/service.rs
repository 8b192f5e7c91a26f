//! How one sequence is to be served: its place in the order of service, its latency targets and its tenant.

use crate::Weight;
use crate::accounting::AccountId;
use crate::admission::Patience;
use crate::blocks::Salt;
use crate::scheduler::queue::fair_queue::{FairTag, TierCharge};
use crate::scheduler::queue::priority_key::PriorityKey;
use tiercel_config::SloTargets;
use tiercel_device::Timestamp;

/// How one sequence is to be served: its place in the order of service, its latency targets and its tenant.
#[derive(Debug)]
pub(crate) struct Service {
    /// Priority: order within the tier. The lower number is served first.
    pub(crate) priority: i32,
    /// Tenant of the sequence: the salt that came with the request. With the prefix cache off, the block names of the
    /// sequence have another salt (`Text::salt`).
    pub(crate) tenant: Salt,
    /// Account of the tenant's tokens and device time.
    pub(crate) account: AccountId,
    /// Weight of the tenant in the fair queues when the request arrived.
    pub(crate) weight: Weight,
    /// Latency targets that the request states instead of its tier's.
    pub(crate) stated_targets: SloTargets,
    /// Whether the request may state tighter targets than those of its tier; `None` for what
    /// `slo.requests_may_tighten` says.
    pub(crate) may_tighten: Option<bool>,
    /// Latency targets that the request was promised when it entered its tier: the tier's for a prompt of this length,
    /// replaced by the targets that the request states, as far as the request may state them.
    pub(crate) targets: SloTargets,
    /// Patience: longest wait for the first token.
    pub(crate) patience: Patience,
    /// Whether the client has a retry credit: it came back at its retry time after an earlier refusal.
    pub(crate) has_retry_credit: bool,
    /// Priority key: what the sequence's rank in the order of service is made of.
    pub(crate) key: PriorityKey,
    /// Time at which the sequence gains a tier by ageing, if it still waits then; `None` if it cannot gain one.
    pub(crate) ages_at: Option<Timestamp>,
    /// Deadline: time by which the first token must come; `None` if the targets set none.
    pub(crate) deadline: Option<Timestamp>,
    /// Whether the request counts as late: its first token is expected after the deadline, and it does not starve (does
    /// not count as in time for good). A stream keeps the value that it had at its first token, and its rank keeps it
    /// too, until an operator changes its tier or the rules.
    pub(crate) late: bool,
    /// Whether the request is best effort: it has neither a TTFT nor a TPOT target, and tiers share the time left to
    /// such requests.
    pub(crate) best_effort: bool,
    /// Charge for the sequence in the tiers' fair queue; `None` before the start, or without a payer.
    pub(crate) tier_charge: Option<TierCharge>,
    /// Predicted output length, tokens.
    pub(crate) predicted_tokens: f64,
    /// Start tag of the sequence in the fair queue of all tenants, in which service is counted in tokens.
    pub(crate) token_tag: f64,
    /// Start tag and charge of the sequence in the fair queue of its tier's tenants (after ageing, of its effective
    /// tier's).
    pub(crate) tenant_tag: FairTag,
}

impl Service {
    /// Returns the tenant that is charged for the sequence in the fair queues, with the weight of the charge.
    pub(crate) fn weighted_tenant(&self) -> (Salt, Weight) {
        (self.tenant, self.weight)
    }

    /// Returns the tenant of the sequence and the sequence's start tag in the token queue.
    pub(crate) fn token_entry(&self) -> (Salt, f64) {
        (self.tenant, self.token_tag)
    }
}
