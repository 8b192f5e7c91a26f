//! What a scenario is made of.

use std::fmt;
use tiercel_actors::Request;
use tiercel_config::{EngineSettings, Policy};
use tiercel_device::{
    Clock, Fingerprints, MockFaults, MockOptions, MockOracle, MockProfile, Tier, Timestamp,
};

/// Everything that happens to one engine, drawn from a seed.
#[derive(Debug, Clone)]
pub struct Scenario {
    /// The seed; also that of the device's tokens, noise and faults.
    pub seed: u64,
    /// The engine.
    pub settings: EngineSettings,
    /// The device's speed and sizes.
    pub profile: MockProfile,
    /// Spread of step times.
    pub noise_sigma: f64,
    /// What the device breaks.
    pub faults: MockFaults,
    /// Who sends requests.
    pub clients: Vec<Client>,
    /// What an operator does meanwhile.
    pub orders: Vec<Order>,
    /// How it ends.
    pub drain: DrainPlan,
}

/// One client with one request.
#[derive(Debug, Clone)]
pub struct Client {
    /// When it comes.
    pub at: Timestamp,
    /// What it asks for.
    pub request: Request,
    /// How it behaves.
    pub habit: Habit,
}

/// How a client treats its stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Habit {
    /// Reads at once to the end.
    Reads,
    /// Takes this long for every event, us.
    ReadsSlowly(u64),
    /// Reads nothing for this long, us, and then the rest.
    ReadsLate(u64),
    /// Goes away this long after it came, us, whatever it got.
    LeavesAfter(u64),
    /// Goes away when it has this many tokens.
    LeavesAt(u32),
    /// Has seen enough when it has this many tokens, as after a stop string.
    StopsAt(u32),
}

/// Something an operator does.
#[derive(Debug, Clone, Copy)]
pub struct Order {
    /// When.
    pub at: Timestamp,
    /// What.
    pub act: Act,
}

/// What an operator can do. Clients are named by their place in [`Scenario::clients`]; nothing happens to one
/// that has no sequence yet.
#[derive(Debug, Clone, Copy)]
pub enum Act {
    /// Change a request's tier and priority.
    Reprioritize {
        /// Whose.
        client: usize,
        /// The new tier.
        tier: Tier,
        /// The new priority.
        priority: i32,
    },
    /// Pause a request for a while.
    Pause {
        /// Whose.
        client: usize,
        /// How long, us.
        for_us: u64,
    },
    /// Switch the policy.
    SetPolicy(Policy),
}

/// How a scenario ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DrainPlan {
    /// When every client is done and everything has come back.
    AtTheEnd,
    /// In the middle, whoever is there.
    Amid {
        /// When.
        at: Timestamp,
        /// Time to finish, ms.
        grace_ms: u64,
    },
}

impl Scenario {
    /// The device, which keeps a fingerprint of every slot.
    pub(super) fn device(&self, clock: Clock) -> MockOptions {
        MockOptions {
            seed: self.seed,
            noise_sigma: self.noise_sigma,
            faults: self.faults.clone(),
            fingerprints: Fingerprints::PerSlot,
            // Two steps are in flight as often as can be.
            host_us: 10_000,
            ..MockOptions::new(self.profile.clone(), clock)
        }
    }

    /// Knows every output of the device.
    pub(super) fn oracle(&self) -> MockOracle {
        MockOracle::new(self.seed, self.profile.vocab_size, &[])
    }

    /// The same without all but the first clients.
    pub(super) fn with_first(&self, clients: usize) -> Scenario {
        let mut fewer = self.clone();
        fewer.clients.truncate(clients);
        fewer
    }

    /// Whether the device is to be lost.
    pub(super) fn loses_device(&self) -> bool {
        self.faults.lost_at_step.is_some()
    }
}

impl fmt::Display for Scenario {
    /// One line: what is special about it.
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
