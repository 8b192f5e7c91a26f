//! Types that describe a fuzzing scenario: device, settings, clients, operator commands, and drain of the engine.

use std::fmt;
use tiercel_actors::Request;
use tiercel_config::{EngineSettings, Policy, Reservation, Target};
use tiercel_device::{
    Clock, Fingerprints, MockFaults, MockOptions, MockOracle, MockProfile, Tier, Timestamp,
};

/// Fuzzing scenario, drawn from a seed: an engine, and the clients, operator commands and faults that it must survive.
#[derive(Debug, Clone)]
pub struct Scenario {
    /// Seed that determines the scenario and the device's tokens, noise and faults.
    pub seed: u64,
    /// Settings of the engine.
    pub settings: EngineSettings,
    /// Speeds and sizes of the mock device.
    pub profile: MockProfile,
    /// Random noise of step times: sigma of the log-normal factor that multiplies each.
    pub noise_sigma: f64,
    /// Faults that the mock device injects (failed or slow steps and copies).
    pub faults: MockFaults,
    /// Clients of the fuzzing scenario; each sends one request.
    pub clients: Vec<Client>,
    /// Commands that the operator gives during the scenario.
    pub orders: Vec<Order>,
    /// Time at which the engine is drained (shut down).
    pub drain: DrainPlan,
}

/// Client of a fuzzing scenario, with one request.
#[derive(Debug, Clone)]
pub struct Client {
    /// Time at which the client sends its request.
    pub at: Timestamp,
    /// Request of the client.
    pub request: Request,
    /// How the client reads its response stream: at once, slowly, late, or only in part.
    pub habit: Habit,
}

/// How a client of a fuzzing scenario reads its response stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Habit {
    /// The client reads every event at once, to the end of the stream.
    Reads,
    /// The client waits this long before it reads each event, us.
    ReadsSlowly(u64),
    /// The client waits this long before it reads the first event, us, and then reads every event at once.
    ReadsLate(u64),
    /// The client closes the stream this long after its request was accepted, us, whatever it has read by then.
    LeavesAfter(u64),
    /// The client closes the stream after it has read this number of tokens.
    LeavesAt(u32),
    /// The client ends the output after it has read this number of tokens, as the server does when it finds a stop
    /// string.
    StopsAt(u32),
}

/// Command that the operator gives to the engine at a given time of the fuzzing scenario.
#[derive(Debug, Clone, Copy)]
pub struct Order {
    /// Time at which the operator gives the command.
    pub at: Timestamp,
    /// Command that the operator gives.
    pub act: Act,
}

/// Command that the operator gives to the engine during a fuzzing scenario. A request is named by the index of its
/// client in [`Scenario::clients`]; a command for a request that was not accepted yet does nothing.
#[derive(Debug, Clone, Copy)]
pub enum Act {
    /// Changes the tier and priority of a request.
    Reprioritize {
        /// Index of the client whose request is changed.
        client: usize,
        /// New tier of the request.
        tier: Tier,
        /// New priority of the request.
        priority: i32,
    },
    /// Pauses a request and resumes it later.
    Pause {
        /// Index of the client whose request is paused.
        client: usize,
        /// Time for which the request is paused, us.
        for_us: u64,
    },
    /// Cancels a request.
    Cancel {
        /// Index of the client whose request is cancelled.
        client: usize,
    },
    /// Switches the engine to another policy.
    SetPolicy(Policy),
    /// Changes settings: the settings of another policy, the number of sequences in a step, latency targets,
    /// reservations and the limits of waiting.
    Adjust {
        /// Policy whose settings the engine follows from then on.
        policy: Policy,
        /// Most sequences and most tokens in a step, as a share of the numbers at the start, percent.
        seqs_percent: u32,
        /// TTFT and TPOT target of premium and of standard from then on.
        target: Target,
        /// Use that other tiers may make of reservations from then on.
        kind: Reservation,
        /// Share of the blocks and of the slots that is reserved for premium from then on, percent.
        reserved_percent: f64,
        /// How requests may wait from then on.
        waiting: Waiting,
    },
    /// Reads the API keys again: requests of a tenant that are sent from then on have another weight, and may or may
    /// not tighten their targets.
    ReloadKeys {
        /// Number of the tenant.
        tenant: u8,
        /// Weight of the tenant in the fair queues.
        weight: f64,
        /// Whether requests of the tenant may tighten their targets.
        may_tighten: bool,
    },
    /// Looks at all live requests, and at one of them.
    Look {
        /// Index of the client whose request is inspected.
        client: usize,
    },
}

/// Settings about waiting that the operator changes in a fuzzing scenario.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Waiting {
    /// Patience of every tier, s; 0 for ever.
    pub patience_s: f64,
    /// Shares of premium and of standard, percent; background has the rest.
    pub shares_percent: [f64; 2],
    /// Most requests of a tier that may wait for their first token.
    pub queued_requests: u32,
    /// Most prompt tokens of a tier that may wait for their first token.
    pub queued_tokens: u64,
    /// Time after which a waiting request moves up a tier, s; 0 for never.
    pub ageing_s: f64,
}

impl Waiting {
    fn apply(&self, settings: &mut EngineSettings) {
        let Waiting { patience_s, shares_percent: [premium, standard], .. } = *self;
        let patience = &mut settings.patience;
        for of_tier in
            [&mut patience.premium_s, &mut patience.standard_s, &mut patience.background_s]
        {
            *of_tier = patience_s;
        }
        settings.shares.premium_percent = premium;
        settings.shares.standard_percent = standard;
        settings.shares.background_percent = 100.0 - premium - standard;
        settings.admission.max_queued_requests_per_tier = self.queued_requests;
        settings.admission.max_queued_tokens_per_tier = self.queued_tokens;
        settings.scheduler.ageing_s = self.ageing_s;
    }
}

impl Act {
    /// Returns the settings that the command sets in an engine that was started with the settings `started`; `None` for
    /// every command other than [`Act::Adjust`].
    pub(super) fn adjusted(&self, started: &EngineSettings) -> Option<EngineSettings> {
        let Act::Adjust { policy, seqs_percent, target, kind, reserved_percent, waiting } = *self
        else {
            return None;
        };
        let mut settings = started.clone();
        let sizes = settings.scheduler;
        settings.use_policy(policy);
        settings.scheduler.max_num_seqs = (sizes.max_num_seqs * seqs_percent / 100).max(1);
        settings.scheduler.max_num_batched_tokens = (sizes.max_num_batched_tokens * seqs_percent
            / 100)
            .max(settings.scheduler.max_num_seqs);
        for tier in [&mut settings.slo.premium, &mut settings.slo.standard] {
            (tier.ttft_ms, tier.tpot_ms, tier.ttft_ms_per_token) = (target, target, 0.0);
        }
        settings.reservation.kind = kind;
        settings.reservation.premium_blocks_percent = reserved_percent;
        settings.reservation.premium_slots_percent = reserved_percent;
        waiting.apply(&mut settings);
        Some(settings)
    }
}

/// Time at which a fuzzing scenario drains (shuts down) its engine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DrainPlan {
    /// The engine is drained after every client is done and all blocks are free.
    AtTheEnd,
    /// The engine is drained in the middle of the scenario, even while clients still have running requests.
    Amid {
        /// Simulated time at which the operator begins to drain the engine (to shut it down).
        at: Timestamp,
        /// Grace period in which running requests may finish before the drain ends them, ms.
        grace_ms: u64,
    },
}

impl Scenario {
    /// Returns the options of the mock device for this scenario. The device keeps a fingerprint of each token's KV in
    /// its place in the block, to find KV with wrong content.
    pub(super) fn device(&self, clock: Clock) -> MockOptions {
        MockOptions {
            seed: self.seed,
            noise_sigma: self.noise_sigma,
            faults: self.faults.clone(),
            fingerprints: Fingerprints::PerSlot,
            // The mock device reports 10 ms of host time for each step: so slow a host makes the engine keep two steps
            // in flight whenever it can.
            host_us: 10_000,
            ..MockOptions::new(self.profile.clone(), clock)
        }
    }

    /// Returns the oracle, which computes the output that the mock device must give for any prompt.
    pub(super) fn oracle(&self) -> MockOracle {
        MockOracle::new(self.seed, self.profile.vocab_size, &[])
    }

    /// Returns a copy of the scenario with only its first `clients` clients.
    pub(super) fn with_first(&self, clients: usize) -> Scenario {
        let mut fewer = self.clone();
        fewer.clients.truncate(clients);
        fewer
    }

    /// Returns the settings at the start of the scenario, and the settings that each command [`Act::Adjust`] sets.
    /// Settings that [`Act::SetPolicy`] brings about are left out.
    pub(super) fn all_settings(&self) -> Vec<EngineSettings> {
        let changed = self.orders.iter().filter_map(|order| order.act.adjusted(&self.settings));
        std::iter::once(self.settings.clone()).chain(changed).collect()
    }

    /// Whether the mock device is lost (fails for good) at some step of the scenario.
    pub(super) fn loses_device(&self) -> bool {
        self.faults.lost_at_step.is_some()
    }
}

impl fmt::Display for Scenario {
    /// Prints the fuzzing scenario in one line: policy, sizes, numbers of requests and commands, drain and faults.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Scenario { settings, profile, faults, clients, orders, drain, .. } = self;
        let scheduler = &settings.scheduler;
        let MockProfile { block_size, device_blocks, host_blocks, max_model_len, .. } = profile;
        write!(
            f,
            "{:?}, {:?} at most {}, prefix cache {}, {device_blocks} + {host_blocks} blocks of {block_size}, \
             sequences of up to {max_model_len}, steps of {} sequences and {} tokens, {} requests, {} orders",
            scheduler.policy,
            settings.preemption.mode,
            settings.preemption.max_per_request,
            if settings.prefix_cache.enabled { "on" } else { "off" },
            scheduler.max_num_seqs,
            scheduler.max_num_batched_tokens,
            clients.len(),
            orders.len(),
        )?;
        if let DrainPlan::Amid { at, grace_ms } = drain {
            write!(f, ", drained within {grace_ms} ms at {} us", at.0)?;
        }
        if *faults != MockFaults::default() {
            write!(f, ", {faults:?}")?;
        }
        Ok(())
    }
}
