//! The choices that make up a scheduling policy. The name of a policy stands for one value of each choice
//! ([`Policy::preset`](crate::Policy)); every choice can also be set by itself.

use crate::Policy;

words! {
    /// Order in which requests are served.
    Order {
        /// Requests are served in the order of arrival.
        Arrival = "arrival",
        /// Requests are served by tier, then by their priority, then by arrival (under `scheduler.fair_tenants`, in the
        /// order of the tenants' fair queue before arrival).
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
    Batching {
        /// Sequences start whenever a slot and the blocks that they need are free.
        Continuous = "continuous",
        /// Sequences start until the first sequence of the batch has ended, and then only when all of the batch have.
        Static = "static",
    }
}

words! {
    /// Mix of decodes and prompts in a step.
    StepMix {
        /// A step holds decodes first, then prompts as far as the step budget allows.
        Mixed = "mixed",
        /// A step holds prompts alone while any prompt can run, otherwise decodes. While victims are being copied out
        /// to free blocks for a decode, steps hold decodes alone, so that no prompt takes these blocks.
        PromptsAlone = "prompts-alone",
    }
}

words! {
    /// Rule for the number of prompt tokens that a step may hold.
    Budget {
        /// As many prompt tokens as `scheduler.max_num_batched_tokens` leaves beside the decodes, at most
        /// `scheduler.max_prefill_tokens` if that is set.
        Fixed = "fixed",
        /// As under `fixed`, but no more prompt tokens than the TPOT targets of the streams allow.
        Slack = "slack",
    }
}

words! {
    /// Order in which prompts of one tier share a step. Under `deadline` and `shortest`, a prompt that was denied
    /// blocks goes before the others, and under `scheduler.fair_tenants` prompts of several tenants go in the order of
    /// the tenants' fair queue.
    PrefillOrder {
        /// Prompts share a step in the order of service.
        Rank = "rank",
        /// The prompt whose first token is due first goes first. Prompts of late requests go after those in time, the
        /// one with the fewest tokens left to compute first.
        Deadline = "deadline",
        /// The prompt with the fewest tokens left to compute goes first.
        Shortest = "shortest",
    }
}

words! {
    /// Number of blocks that a sequence is given when it starts.
    Allocation {
        /// A starting sequence is given the blocks that its next step needs.
        OnDemand = "on-demand",
        /// A starting sequence is given the blocks that its prompt and its longest allowed output would need.
        UpFront = "up-front",
    }
}

words! {
    /// Whether a sequence may be preempted so that another sequence starts. (In order to grow, a running sequence may
    /// preempt lower tiers in either case: otherwise two half-finished sequences could wait for each other for ever.)
    ToStart {
        /// No sequence is preempted so that another one starts.
        Never = "never",
        /// A sequence may be preempted so that a sequence of a higher tier starts.
        LowerTier = "lower-tier",
    }
}

words! {
    /// Rule that chooses which sequence is preempted first, among the preemptible sequences of the lowest tier unless
    /// the rule says otherwise.
    VictimRule {
        /// The victim is the sequence that is last in the order of service.
        Rank = "rank",
        /// The victim is the sequence with the fewest output tokens, on a tie the one preempted least often.
        LeastProgress = "least-progress",
        /// The victim is the sequence that arrived last, of any tier.
        LatestArrival = "latest-arrival",
        /// The victim is the sequence that started or resumed last, of any tier.
        ReverseFifo = "reverse-fifo",
        /// The victim is the sequence whose last token (or, before its first token, whose arrival) is longest ago.
        LeastRecent = "least-recent",
        /// The victim is the sequence with the most output tokens still allowed.
        LongestRemaining = "longest-remaining",
        /// The victim is a sequence without a TPOT target or without a first token, otherwise the one that is furthest
        /// ahead of its TPOT target.
        Slack = "slack",
        /// The victim is the sequence with the lowest resume cost per freed block. Blocks shared with other sequences
        /// are not freed. Blocks with a copy in the host pool need no copy out.
        ResumeCost = "resume-cost",
    }
}

words! {
    /// Release: the part of its blocks that a victim gives up. Blocks that the victim retains are taken later if other
    /// sequences need them while it waits.
    VictimRelease {
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
    ResumeFrom {
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
    AtLimit {
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
    AgeingCap {
        /// Ageing can lift a request to standard.
        Standard = "standard",
        /// Ageing can lift a request to premium.
        Premium = "premium",
    }
}

words! {
    /// Place at which a preempted sequence waits in the queue.
    ResumeOrder {
        /// A preempted sequence waits at its rank in the order of service, as if it had not been preempted.
        Rank = "rank",
        /// A preempted sequence waits before all sequences of its tier that have not started.
        First = "first",
        /// A preempted sequence waits after all sequences of its tier that have not started.
        Last = "last",
    }
}

words! {
    /// What happens to a preempted sequence's KV blocks.
    PreemptionMode {
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

settings! {
    /// Settings of batching and of the order of service.
    #[derive(Copy)]
    pub struct SchedulerSettings {
        /// Scheduling policy: a named set of values for the settings of `scheduler`, `preemption` and `shedding`, each
        /// of which can be overridden. `tiercel policy show NAME` prints them.
        policy: Policy, flag "policy";
        /// Most sequences in one step: its number of slots. On a GPU the default is 256.
        max_num_seqs: u32, in 1..=4096, flag "max-num-seqs";
        /// Most tokens (decode + prefill) in one step; at least scheduler.max_num_seqs. On a GPU the default is 1024.
        max_num_batched_tokens: u32, in 1..=65_536, flag "max-num-batched-tokens";
        /// Most steps that are at the device at once, if the device allows several (a GPU does). With 2, the device
        /// starts the next step without waiting for the host.
        steps_in_flight: u32, in 1..=2;
        /// Most prompt tokens in one step, beside its decodes; 0 for as many as scheduler.max_num_batched_tokens
        /// leaves.
        max_prefill_tokens: u32, in 0..=65_536;
        /// Order in which requests are served. arrival: first come, first served; tier: by tier, then priority, then
        /// arrival; shortest: the shortest predicted output first; fair: the tenant with the least usage first,
        /// whatever the tier.
        order: Order;
        /// When waiting requests start: whenever a slot is free (continuous), or only when all running requests have
        /// finished (static).
        batching: Batching;
        /// What a step holds: decodes, then prompts (mixed), or prompts alone while any prompt can run (prompts-alone).
        mix: StepMix;
        /// How many prompt tokens a step may hold: as many as scheduler.max_num_batched_tokens leaves (fixed), or also
        /// no more than the TPOT targets of the streams allow (slack).
        budget: Budget;
        /// Whether a prompt may be spread over several steps although it would fit into one. If false, a prompt longer
        /// than scheduler.max_num_batched_tokens is the only prompt in each of its steps.
        chunked_prefill: bool;
        /// Unit of chunk lengths, tokens: each chunk of a prompt but the last is a multiple of it; 0 or 1 for any
        /// length.
        chunk_alignment: u32, in 0..=1024;
        /// Most tokens of one prompt in one step; 0 for as many as the step may hold.
        long_prefill_token_threshold: u32, in 0..=65_536;
        /// Most tokens of one prompt in one step, as a share of the longest possible sequence, percent; 0 for no such
        /// limit.
        long_prefill_percent: f64, in 0.0..=100.0;
        /// Most prompts that a step may leave partly computed; 0 for any number.
        max_partial_prefills: u32, in 0..=4096;
        /// Background prompts fill a step only up to this share of scheduler.max_num_batched_tokens, percent, so that
        /// steps stay short for higher tiers. No limit if no request of a higher tier came for a minute, or while
        /// best-effort prompts of several tiers share the step (scheduler.fair_tiers).
        background_prefill_percent: u32, in 1..=100;
        /// Order in which prompts of one tier share a step: by rank, by the deadline of the first token, or the prompt
        /// with the fewest tokens left to compute first (shortest).
        prefill_order: PrefillOrder;
        /// Whether the tenants (API keys) of one tier are served by a fair queue: a tenant with less usage goes first.
        /// Only with scheduler.order = "tier".
        fair_tenants: bool;
        /// Whether best-effort requests (with neither a TTFT nor a TPOT target) share the device time that other
        /// requests leave, each tier as `shares` says, instead of the highest tier having all of it. Only with
        /// scheduler.order = "tier".
        fair_tiers: bool;
        /// Whether background streams are paused for a step, keeping their blocks, when a stream of a higher tier would
        /// miss its TPOT target with them in the step. While at least a quarter of the KV blocks is free and no request
        /// for blocks is denied, also when prompts of higher tiers whose first tokens can be in time need the time.
        pause_background: bool;
        /// KV blocks that a request gets when it starts: those that its next step needs (on-demand), or those that its
        /// prompt and its longest output would need (up-front).
        allocation: Allocation;
        /// Whether a request starts only if the device has KV blocks for all tokens that the request has to compute,
        /// not only for its next step.
        full_sequence_check: bool;
        /// Watermark: share of the KV blocks that must stay free after a request starts or resumes, percent. Running
        /// requests may use these blocks to grow.
        watermark_percent: f64, in 0.0..=50.0;
        /// Background's watermark: share of the KV blocks that must stay free after a background request starts or
        /// resumes, percent. Effective if a request of a higher tier came in the last minute and the share is larger
        /// than scheduler.watermark_percent.
        background_watermark_percent: f64, in 0.0..=50.0;
        /// Waiting time after which a request gains a tier, and again after each further such time, s; 0: never.
        ageing_s: f64, in 0.0..=86_400.0;
        /// Highest tier that a waiting request can gain by ageing (scheduler.ageing_s).
        ageing_cap: AgeingCap;
        ..Policy::default().preset().scheduler
    }
}

settings! {
    /// Settings of preemption.
    #[derive(Copy)]
    pub struct PreemptionSettings {
        /// What happens to a preempted request's KV blocks. swap: copied to the host pool; recompute: discarded and
        /// computed again; drop: the request ends with an error; auto: swap or recompute, whichever costs less. With
        /// auto, a request computes blocks that it finds in the host pool where that is faster than copying them in.
        mode: PreemptionMode, flag "preemption-mode";
        /// Whether a waiting request may preempt others to start: never, or those of lower tiers (lower-tier). To grow,
        /// a running request may always take blocks from lower tiers.
        to_start: ToStart;
        /// Rule that chooses which request is preempted first. latest-arrival and reverse-fifo (the last to start or
        /// resume) look at all tiers alike; all other rules take the lowest tier first.
        victim: VictimRule;
        /// KV blocks that a victim gives up: all its blocks, all that no other request uses too (unshared), or as many
        /// of its last ones as are needed (needed). Blocks that it retains are taken later if other requests need them
        /// while it waits.
        victim_release: VictimRelease;
        /// With preemption.victim_release = "needed": a victim gives up a multiple of this many blocks.
        victim_release_blocks: u32, in 1..=65_536;
        /// Whether premium requests may be preempted for other premium requests. (The request that is first in rank may
        /// always take blocks from any other to grow.)
        premium_yields: bool;
        /// Whether background requests may take blocks from each other to grow. (The request that is first in rank
        /// always may.)
        background_takes: bool;
        /// Fewest tokens that a request produces after its prefill, or after it resumed, before it may be preempted.
        min_tokens: u32, in 0..=65_536;
        /// Time that a request must have waited before it may preempt others to start, ms.
        delay_ms: u32, in 0..=600_000;
        /// Preemptions of one request after which preemption.at_limit applies.
        max_per_request: u32, in 0..=1_000_000;
        /// Treatment of a request that was preempted preemption.max_per_request times. spare: it is preempted only
        /// after all others, and only by running requests that are served before it, or by the request that is served
        /// first of all; promote: as spare, and it goes first of its tier; drop: the next preemption ends it with an
        /// error.
        at_limit: AtLimit;
        /// Place at which a preempted request waits: at its rank, or before (first) or after (last) all requests of its
        /// tier that have not started.
        resume: ResumeOrder;
        /// KV blocks that a preempted request may reuse when it resumes: all blocks of its text in the device pool and
        /// the host pool (cache), or only those that it retained or that were copied out for it (own-copies).
        resume_from: ResumeFrom;
        /// Mirroring: share of the link that copies full blocks of preemptible requests to the host pool ahead of need,
        /// percent; 0 for no mirroring.
        mirror_percent: u32, in 0..=100;
        /// Most bytes in transit between the device pool and the host pool at once, MiB.
        max_in_transit_mib: u64, in 1..=65_536;
        ..Policy::default().preset().preemption
    }
}
