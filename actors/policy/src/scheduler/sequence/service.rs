//! Service of a sequence: its order, its targets and its tenant.

use crate::admission::Patience;
use crate::blocks::Salt;
use crate::scheduler::queue::fair_queue::FairTag;
use crate::scheduler::queue::priority_key::PriorityKey;
use tiercel_config::SloTargets;
use tiercel_device::{Tier, Timestamp};

/// How a sequence is to be served: its order, its targets and its tenant.
#[derive(Debug)]
pub(crate) struct Service {
    /// Priority: order within the tier. The lower number is served first.
    pub(crate) priority: i32,
    /// Tenant that the sequence counts for. With the prefix cache off, the salt of the sequence's block names is
    /// another one.
    pub(crate) tenant: Salt,
    /// Targets that the request states instead of its tier's.
    pub(crate) asked: SloTargets,
    /// Targets in effect: the tier's targets for a prompt of this length, or those that the request states.
    pub(crate) targets: SloTargets,
    /// Patience: longest wait for the first token.
    pub(crate) patience: Patience,
    /// Priority key: what the rank of the sequence is made of.
    pub(crate) key: PriorityKey,
    /// When the sequence gains a tier by ageing, if it still waits then.
    pub(crate) ages_at: Option<Timestamp>,
    /// Deadline: time by which the first token must come; `None` if the targets set none.
    pub(crate) deadline: Option<Timestamp>,
    /// Whether the request is late: its first token is expected after the deadline.
    pub(crate) late: bool,
    /// Whether the request is best effort: it has neither a TTFT nor a TPOT target, and tiers share the time that is
    /// left.
    pub(crate) best_effort: bool,
    /// Tier whose share of the time pays for the best-effort sequence, and the charge of that tier, us; `None` before
    /// the sequence has started.
    pub(crate) charged: Option<(Tier, f64)>,
    /// Expected output, tokens.
    pub(crate) predicted_tokens: f64,
    /// Start tag in the fair queue of all tenants, tokens.
    pub(crate) token_tag: f64,
    /// Tag in the fair queue of the tier's tenants.
    pub(crate) tenant_tag: FairTag,
}
