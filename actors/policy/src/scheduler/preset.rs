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

/// How many prompt tokens a step may hold.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Budget {
    /// What `scheduler.max_num_batched_tokens` leaves beside the decodes.
    Fixed,
    /// Also no more than the streams' TPOT targets allow.
    Slack,
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
    /// How much prompt a step may hold.
    pub budget: Budget,
    /// Whether background prompts only fill up a share of each step
    /// (`scheduler.background_prefill_percent`). A step cannot be interrupted: whatever it computes of
    /// prompts that nobody waits for, the better requests in it and behind it do wait for.
    pub pace_background: bool,
}

impl Preset {
    /// The preset behind a policy's name.
    pub fn of(policy: Policy) -> Preset {
        let fcfs = Preset {
            order: Order::Arrival,
            preempt_to_start: false,
            budget: Budget::Fixed,
            pace_background: false,
        };
        let priority = Preset { order: Order::Tier, ..fcfs };
        let preempting = Preset { preempt_to_start: true, ..priority };
        match policy {
            Policy::Fcfs => fcfs,
            Policy::Priority => priority,
            Policy::PriorityPreempt => preempting,
            Policy::Tiercel => {
                Preset { budget: Budget::Slack, pace_background: true, ..preempting }
            }
        }
    }
}
