//! The choices that make up a scheduling policy. A policy's name stands for one value of each
//! ([`Policy::preset`](crate::Policy)); every one can be set by itself.

use serde::{Deserialize, Serialize};

words! {
    /// Order of service.
    Order, ORDERS {
        /// First come, first served.
        Arrival = "arrival",
        /// By tier, then by the request's own priority, then by arrival.
        Tier = "tier",
        /// By the output length predicted from what finished before, then by arrival.
        Shortest = "shortest",
        /// By start-time fair queueing between tenants (Goyal, Vin, Cheng 1997): who had less service goes
        /// first, whatever its tier.
        Fair = "fair",
    }
}

words! {
    /// When sequences start.
    Batching, BATCHINGS {
        /// Whenever there is a place.
        Continuous = "continuous",
        /// Only when all that run have finished.
        Static = "static",
    }
}

words! {
    /// What a step is made of.
    StepMix, STEP_MIXES {
        /// Decodes first, then prompts as far as the budget goes.
        Mixed = "mixed",
        /// Prompts alone while there are any that can run, and decodes otherwise.
        PromptsAlone = "prompts-alone",
    }
}

words! {
    /// How many prompt tokens a step may hold.
    Budget, BUDGETS {
        /// What `scheduler.max_num_batched_tokens` leaves beside the decodes.
        Fixed = "fixed",
        /// Also no more than the streams' TPOT targets allow.
        Slack = "slack",
    }
}

words! {
    /// Order in which prompts of one tier share a step.
    PrefillOrder, PREFILL_ORDERS {
        /// As they are served.
        Rank = "rank",
        /// The one whose first token is due first.
        Deadline = "deadline",
        /// The one with the fewest tokens left.
        Shortest = "shortest",
    }
}

words! {
    /// How many blocks a sequence is given when it starts.
    Allocation, ALLOCATIONS {
        /// What its next step needs.
        OnDemand = "on-demand",
        /// What its prompt and its longest output would need.
        UpFront = "up-front",
    }
}

words! {
    /// For whom a sequence may be preempted so that another one starts. (One that runs may always take
    /// blocks from worse ones in order to grow: two half-finished sequences could wait for each other for
    /// ever otherwise.)
    ToStart, TO_STARTS {
        /// For nobody.
        Never = "never",
        /// For a better tier.
        LowerTier = "lower-tier",
    }
}

words! {
    /// Who gives way first, among those of the worst tier that may be taken.
    VictimRule, VICTIM_RULES {
        /// The worst-ranked.
        Rank = "rank",
        /// The one with the fewest output tokens, then the one preempted least.
        LeastProgress = "least-progress",
        /// The latest arrival of any tier.
        LatestArrival = "latest-arrival",
        /// The last one that started or resumed, of any tier.
        ReverseFifo = "reverse-fifo",
        /// The one whose last token is longest ago.
        LeastRecent = "least-recent",
        /// The one with the most output tokens still allowed.
        LongestRemaining = "longest-remaining",
        /// The one that is furthest ahead of its TPOT target.
        Slack = "slack",
        /// The one that costs least to resume for each block that comes free: what others share frees
        /// nothing, and what the host tier holds need not be copied out.
        ResumeCost = "resume-cost",
    }
}

words! {
    /// How much of its blocks a victim gives up. What it keeps it must give up later if others need it while
    /// it waits.
    VictimGives, VICTIM_GIVES {
        /// All of them.
        All = "all",
        /// All but those that others use too, which would not come free anyway.
        Unshared = "unshared",
        /// The last ones, as many as are needed.
        Needed = "needed",
    }
}

words! {
    /// What a preempted sequence may find when it resumes.
    ResumeFrom, RESUME_FROM {
        /// Whatever both tiers have of its text, by whomever it was computed.
        Cache = "cache",
        /// What it kept and what was copied out for it; the rest is computed again.
        OwnCopies = "own-copies",
    }
}

words! {
    /// What is done with a sequence that was preempted `preemption.max_per_request` times.
    AtLimit, AT_LIMITS {
        /// It goes last among victims; of those waiting to start only the first in line may take its blocks, of
        /// those that grow only better-ranked ones.
        Spare = "spare",
        /// The same, and it counts as the best of its tier from then on.
        Promote = "promote",
        /// It ends with an error.
        Drop = "drop",
    }
}

words! {
    /// As what a request counts at best by waiting.
    AgeingCap, AGEING_CAPS {
        /// As a standard one.
        Standard = "standard",
        /// As a premium one.
        Premium = "premium",
    }
}

words! {
    /// Where a preempted sequence waits.
    ResumeOrder, RESUME_ORDERS {
        /// Where its rank puts it.
        Rank = "rank",
        /// Before all of its tier that have not started.
        First = "first",
        /// After all of its tier that have not started.
        Last = "last",
    }
}

words! {
    /// What happens to a preempted sequence's KV blocks.
    PreemptionMode, PREEMPTION_MODES {
        /// Per victim, whichever of swap and recompute costs less on this device.
        Auto = "auto",
        /// Copy to the host tier and back; recompute what does not fit there.
        Swap = "swap",
        /// Drop the blocks and compute them again on resume.
        Recompute = "recompute",
        /// End the victim with an error.
        Drop = "drop",
    }
}

/// Batching and ordering.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct SchedulerSettings {
    /// The preset that the other fields start from.
    pub policy: crate::Policy,
    /// Most sequences in one step.
    pub max_num_seqs: u32,
    /// Most tokens (decode + prefill) in one step.
    pub max_num_batched_tokens: u32,
    /// Most steps at the device at once, as far as it allows several.
    pub steps_in_flight: u32,
    /// Most prompt tokens in one step, beside its decodes; 0 for what `max_num_batched_tokens` leaves.
    pub max_prefill_tokens: u32,
    /// Who is served first.
    pub order: Order,
    /// When sequences start.
    pub batching: Batching,
    /// What a step is made of.
    pub mix: StepMix,
    /// How much prompt a step may hold.
    pub budget: Budget,
    /// Whether a prompt may be spread over several steps although it would fit into one. If not, one that is
    /// longer than `max_num_batched_tokens` has whole steps to itself.
    pub chunked_prefill: bool,
    /// Chunks other than a prompt's last are multiples of this many tokens; 0 or 1: any length.
    pub chunk_alignment: u32,
    /// Most tokens of one prompt computed in one step; 0 means up to the step's budget.
    pub long_prefill_token_threshold: u32,
    /// The same as a share of the longest sequence, percent; 0 for none.
    pub long_prefill_percent: f64,
    /// Most prompts that a step may leave partly computed; 0 for any number.
    pub max_partial_prefills: u32,
    /// Share of a step's tokens up to which it is filled with background prompts, percent, while better requests come.
    pub background_prefill_percent: u32,
    /// Order of prompts of one tier within a step.
    pub prefill_order: PrefillOrder,
    /// Whether background streams sit a step out, blocks and all, when a better stream's target cannot
    /// afford them.
    pub pause_background: bool,
    /// Whether tenants of a tier take turns by the service they had, with those prompts first that are due first only
    /// while they are all of one tenant. With `scheduler.order = "tier"` only.
    pub fair_tenants: bool,
    /// Whether tiers share what requests with targets leave, as [`crate::SharesSettings`] says. With
    /// `scheduler.order = "tier"` only.
    pub fair_tiers: bool,
    /// How many blocks a sequence is given when it starts.
    pub allocation: Allocation,
    /// Whether a sequence starts only if all it has to compute would fit.
    pub full_sequence_check: bool,
    /// Share of device blocks that must stay free after starting or resuming a sequence, percent.
    /// Running sequences may use them to grow.
    pub watermark_percent: f64,
    /// The same for background sequences, if it is more.
    pub background_watermark_percent: f64,
    /// After waiting so long, and again after as long, a request counts as one tier better; 0: never, s.
    pub ageing_s: f64,
    /// As what a request counts at best by waiting.
    pub ageing_cap: AgeingCap,
}

impl Default for SchedulerSettings {
    fn default() -> Self {
        crate::Policy::default().preset().scheduler
    }
}

/// Preemption.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct PreemptionSettings {
    /// What happens to the victim's blocks.
    pub mode: PreemptionMode,
    /// For whom a sequence is preempted to start.
    pub to_start: ToStart,
    /// Who gives way first.
    pub victim: VictimRule,
    /// How much a victim gives up.
    pub victim_gives: VictimGives,
    /// A victim that gives up what is needed gives up multiples of so many blocks, so that not every block that
    /// somebody grows by is a copy of its own.
    pub victim_gives_blocks: u32,
    /// Whether premium sequences give way to other premium sequences that start or grow. (The last resort
    /// is always open: the best-ranked sequence may take anybody's blocks to grow.)
    pub premium_yields: bool,
    /// Whether background sequences may take blocks from each other. (The best-ranked always may.)
    pub background_takes: bool,
    /// A sequence gives way only after this many tokens since its prompt was computed or it resumed.
    pub min_tokens: u32,
    /// A sequence that waits to start takes no blocks before it has waited this long, ms.
    pub delay_ms: u32,
    /// Preemptions of one sequence after which `at_limit` applies.
    pub max_per_request: u32,
    /// What then happens.
    pub at_limit: AtLimit,
    /// Where a victim waits.
    pub resume: ResumeOrder,
    /// What it may find when it resumes.
    pub resume_from: ResumeFrom,
    /// Share of the link that copies full blocks of preemptible sequences to the host ahead of need,
    /// percent; 0 for none.
    pub mirror_percent: u32,
    /// Most bytes in transit between the tiers at once, MiB.
    pub max_in_transit_mib: u64,
}

impl Default for PreemptionSettings {
    fn default() -> Self {
        crate::Policy::default().preset().preemption
    }
}
