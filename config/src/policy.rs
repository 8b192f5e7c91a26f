//! The choices that make up a scheduling policy. The name of a policy stands for one value of each choice
//! ([`Policy::preset`](crate::Policy)); every choice can also be set by itself.

use serde::{Deserialize, Serialize};

words! {
    /// Order in which requests are served.
    Order, ORDERS {
        /// Requests are served in the order of arrival.
        Arrival = "arrival",
        /// Requests are served by tier, then by their priority, then by arrival.
        Tier = "tier",
        /// Requests are served by predicted output length, the shortest first, then by arrival. Lengths are predicted
        /// from requests that have finished.
        Shortest = "shortest",
        /// Requests are served by start-time fair queueing between tenants (Goyal, Vin, Cheng 1997): a tenant with less
        /// usage goes first, whatever the tiers of its requests.
        Fair = "fair",
    }
}

words! {
    /// Times at which waiting sequences may start.
    Batching, BATCHINGS {
        /// Sequences start whenever a slot is free.
        Continuous = "continuous",
        /// Sequences start only when all running ones have finished.
        Static = "static",
    }
}

words! {
    /// Mix of decodes and prompts in a step.
    StepMix, STEP_MIXES {
        /// A step holds decodes first, then prompts as far as the step budget allows.
        Mixed = "mixed",
        /// A step holds prompts alone while any prompt can run, otherwise decodes.
        PromptsAlone = "prompts-alone",
    }
}

words! {
    /// Rule for the number of prompt tokens that a step may hold.
    Budget, BUDGETS {
        /// As many prompt tokens as `scheduler.max_num_batched_tokens` leaves beside the decodes.
        Fixed = "fixed",
        /// As under `fixed`, but no more prompt tokens than the TPOT targets of the streams allow.
        Slack = "slack",
    }
}

words! {
    /// Order in which prompts of one tier share a step.
    PrefillOrder, PREFILL_ORDERS {
        /// Prompts are ordered by rank.
        Rank = "rank",
        /// The prompt whose first token is due first goes first.
        Deadline = "deadline",
        /// The prompt with the fewest tokens left to compute goes first.
        Shortest = "shortest",
    }
}

words! {
    /// Number of blocks that a sequence is given when it starts.
    Allocation, ALLOCATIONS {
        /// A starting sequence is given the blocks that its next step needs.
        OnDemand = "on-demand",
        /// A starting sequence is given the blocks that its prompt and its longest allowed output would need.
        UpFront = "up-front",
    }
}

words! {
    /// Whether a sequence may be preempted so that another sequence starts. (In order to grow, a running sequence may
    /// preempt lower tiers in either case: otherwise two half-finished sequences could wait for each other for ever.)
    ToStart, TO_STARTS {
        /// No sequence is preempted so that another one starts.
        Never = "never",
        /// A sequence may be preempted so that a sequence of a higher tier starts.
        LowerTier = "lower-tier",
    }
}

words! {
    /// Rule that chooses which sequence is preempted first, among the preemptible sequences of the lowest tier unless
    /// the rule says otherwise.
    VictimRule, VICTIM_RULES {
        /// The victim is the sequence that is last in rank.
        Rank = "rank",
        /// The victim is the sequence with the fewest output tokens, on a tie the one preempted least often.
        LeastProgress = "least-progress",
        /// The victim is the sequence that arrived last, of any tier.
        LatestArrival = "latest-arrival",
        /// The victim is the sequence that started or resumed last, of any tier.
        ReverseFifo = "reverse-fifo",
        /// The victim is the sequence whose last token is longest ago.
        LeastRecent = "least-recent",
        /// The victim is the sequence with the most output tokens still allowed.
        LongestRemaining = "longest-remaining",
        /// The victim is the sequence that is furthest ahead of its TPOT target.
        Slack = "slack",
        /// The victim is the sequence with the lowest resume cost per freed block. Blocks shared with other sequences
        /// are not freed. Blocks with a copy in the host pool need no copy out.
        ResumeCost = "resume-cost",
    }
}

words! {
    /// Release: the part of its blocks that a victim gives up. Blocks that the victim retains are taken later if other
    /// sequences need them while it waits.
    VictimGives, VICTIM_GIVES {
        /// A victim gives up all its blocks.
        All = "all",
        /// A victim gives up all blocks but those that other sequences use too, which would not come free anyway.
        Unshared = "unshared",
        /// A victim gives up its last blocks, as many as are needed.
        Needed = "needed",
    }
}

words! {
    /// Blocks that a preempted sequence may reuse when it resumes.
    ResumeFrom, RESUME_FROM {
        /// A resuming sequence may reuse all blocks of its text in the device pool and the host pool, whichever
        /// sequence computed them.
        Cache = "cache",
        /// A resuming sequence may reuse only blocks that it retained or that were copied out for it; the rest is
        /// computed again.
        OwnCopies = "own-copies",
    }
}

words! {
    /// Treatment of a sequence that was preempted `preemption.max_per_request` times.
    AtLimit, AT_LIMITS {
        /// The sequence is a victim only after sequences below the limit. Of waiting sequences, only the first in rank
        /// may preempt it to start; of running ones, only those before it in rank may preempt it to grow.
        Spare = "spare",
        /// As `spare`, and the sequence is served first of its tier from then on.
        Promote = "promote",
        /// The sequence ends with an error at the next preemption.
        Drop = "drop",
    }
}

words! {
    /// Highest tier that ageing can lift a request to.
    AgeingCap, AGEING_CAPS {
        /// Ageing can lift a request to standard.
        Standard = "standard",
        /// Ageing can lift a request to premium.
        Premium = "premium",
    }
}

words! {
    /// Place at which a preempted sequence waits in the queue.
    ResumeOrder, RESUME_ORDERS {
        /// A preempted sequence waits at its rank.
        Rank = "rank",
        /// A preempted sequence waits before all sequences of its tier that have not started.
        First = "first",
        /// A preempted sequence waits after all sequences of its tier that have not started.
        Last = "last",
    }
}

words! {
    /// What happens to a preempted sequence's KV blocks.
    PreemptionMode, PREEMPTION_MODES {
        /// Swap or recompute, whichever costs less for the victim on this device.
        Auto = "auto",
        /// Copy the blocks to the host pool, and back on resume. Blocks that do not fit there are computed again.
        Swap = "swap",
        /// Discard the blocks and compute them again on resume.
        Recompute = "recompute",
        /// End the victim's request with an error.
        Drop = "drop",
    }
}

/// Settings of batching and of the order of service.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct SchedulerSettings {
    /// Policy whose preset gives the other fields their initial values.
    pub policy: crate::Policy,
    /// Most sequences in one step.
    pub max_num_seqs: u32,
    /// Most tokens (decode + prefill) in one step.
    pub max_num_batched_tokens: u32,
    /// Most steps in flight at once, as far as the device allows several.
    pub steps_in_flight: u32,
    /// Most prompt tokens in one step, beside its decodes; 0 for what `max_num_batched_tokens` leaves.
    pub max_prefill_tokens: u32,
    /// Order in which requests are served.
    pub order: Order,
    /// Times at which waiting sequences may start.
    pub batching: Batching,
    /// Mix of decodes and prompts in a step.
    pub mix: StepMix,
    /// Rule for the number of prompt tokens that a step may hold.
    pub budget: Budget,
    /// Whether a prompt may be spread over several steps although it would fit into one. If not, a prompt that is
    /// longer than `max_num_batched_tokens` is the only prompt in several steps.
    pub chunked_prefill: bool,
    /// Unit of chunk lengths, tokens: every chunk but the last of a prompt has a multiple of this length. 0 or 1: any
    /// length.
    pub chunk_alignment: u32,
    /// Most tokens of one prompt computed in one step; 0 means up to the step's budget.
    pub long_prefill_token_threshold: u32,
    /// Most tokens of one prompt computed in one step, as a share of the longest possible sequence, percent; 0 for no
    /// such limit.
    pub long_prefill_percent: f64,
    /// Most prompts that a step may leave partly computed; 0 for any number.
    pub max_partial_prefills: u32,
    /// Share of a step's tokens up to which background prompts may fill the step, percent. It limits background prompts
    /// only while requests of higher tiers arrive.
    pub background_prefill_percent: u32,
    /// Order in which prompts of one tier share a step.
    pub prefill_order: PrefillOrder,
    /// Whether background streams are paused for a step, without losing their blocks, when a stream of a higher tier
    /// would miss its TPOT target with them in the step.
    pub pause_background: bool,
    /// Whether tenants of one tier are served in the order of a fair queue. `prefill_order` then orders the prompts of
    /// a tier only while all of them are of one tenant. With `scheduler.order = "tier"` only.
    pub fair_tenants: bool,
    /// Whether best-effort requests of all tiers share the time that requests with targets leave, as
    /// [`crate::SharesSettings`] says. With `scheduler.order = "tier"` only.
    pub fair_tiers: bool,
    /// Number of blocks that a sequence is given when it starts.
    pub allocation: Allocation,
    /// Whether a sequence starts only if the device has blocks for all tokens that the sequence has to compute, not
    /// just for its next step.
    pub full_sequence_check: bool,
    /// Watermark: share of device blocks that must stay free after a sequence is started or resumed, percent. Running
    /// sequences may use these blocks to grow.
    pub watermark_percent: f64,
    /// Watermark for background sequences, percent of the device blocks; effective if larger than `watermark_percent`.
    pub background_watermark_percent: f64,
    /// Waiting time after which a request gains a tier, and after each further such time another one, s; 0: never.
    pub ageing_s: f64,
    /// Highest tier that ageing can lift a request to.
    pub ageing_cap: AgeingCap,
}

impl Default for SchedulerSettings {
    fn default() -> Self {
        crate::Policy::default().preset().scheduler
    }
}

/// Settings of preemption.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct PreemptionSettings {
    /// What happens to a victim's KV blocks.
    pub mode: PreemptionMode,
    /// Whether a sequence may be preempted so that another sequence starts.
    pub to_start: ToStart,
    /// Rule that chooses which sequence is preempted first.
    pub victim: VictimRule,
    /// Release: the part of its blocks that a victim gives up.
    pub victim_gives: VictimGives,
    /// Unit, in blocks, of a release under `victim_gives = "needed"`: a victim gives up a multiple of this number. A
    /// unit above 1 avoids a separate copy for each block by which another sequence grows.
    pub victim_gives_blocks: u32,
    /// Whether premium sequences may be preempted for other premium sequences that start or grow. (As a last resort,
    /// the sequence that is first in rank may always take blocks from any other to grow.)
    pub premium_yields: bool,
    /// Whether background sequences may take blocks from each other to grow. (The sequence that is first in rank always
    /// may.)
    pub background_takes: bool,
    /// Fewest tokens that a sequence produces after its prefill or after a resume before it may be preempted.
    pub min_tokens: u32,
    /// Time that a sequence must have waited before it may preempt other sequences to start, ms.
    pub delay_ms: u32,
    /// Preemptions of one sequence after which `at_limit` applies.
    pub max_per_request: u32,
    /// Treatment of a sequence that was preempted `max_per_request` times.
    pub at_limit: AtLimit,
    /// Place at which a preempted sequence waits in the queue.
    pub resume: ResumeOrder,
    /// Blocks that a preempted sequence may reuse when it resumes.
    pub resume_from: ResumeFrom,
    /// Share of the link that mirroring may use to copy full blocks of preemptible sequences to the host pool ahead of
    /// need, percent; 0 for no mirroring.
    pub mirror_percent: u32,
    /// Most bytes in transit between the device pool and the host pool at once, MiB.
    pub max_in_transit_mib: u64,
}

impl Default for PreemptionSettings {
    fn default() -> Self {
        crate::Policy::default().preset().preemption
    }
}
