//! Policies are presets of one scheduler: a struct of choices. Nothing else names a policy.

use tiercel_config::Policy;

/// Order of service.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Order {
    /// First come, first served.
    Arrival,
    /// By tier, then by the request's own priority, then by arrival.
    Tier,
}

/// The choices that make up a policy.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Preset {
    /// Who is served first.
    pub order: Order,
    /// Whether a sequence may take blocks and slots from running sequences of lower tiers to start.
    /// (To grow, a running sequence may always take blocks from worse-ranked ones: without that, two
    /// half-finished sequences could wait for each other for ever.)
    pub preempt_to_start: bool,
}

impl Preset {
    /// The preset behind a policy's name.
    pub fn of(policy: Policy) -> Preset {
        match policy {
            Policy::Fcfs => Preset { order: Order::Arrival, preempt_to_start: false },
            Policy::Priority => Preset { order: Order::Tier, preempt_to_start: false },
            Policy::PriorityPreempt | Policy::Tiercel => {
                Preset { order: Order::Tier, preempt_to_start: true }
            }
        }
    }
}
