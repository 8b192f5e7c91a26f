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
    /// Whether background prompts only fill up a share of each step
    /// (`scheduler.background_prefill_percent`). A step cannot be interrupted: whatever it computes of
    /// prompts that nobody waits for, the better requests in it and behind it do wait for.
    pub pace_background: bool,
}

impl Preset {
    /// The preset behind a policy's name.
    pub fn of(policy: Policy) -> Preset {
        let (order, preempt_to_start, pace_background) = match policy {
            Policy::Fcfs => (Order::Arrival, false, false),
            Policy::Priority => (Order::Tier, false, false),
            Policy::PriorityPreempt => (Order::Tier, true, false),
            Policy::Tiercel => (Order::Tier, true, true),
        };
        Preset { order, preempt_to_start, pace_background }
    }
}
