//! Parts of a fuzzing scenario.

use std::fmt;
use tiercel_actors::Request;
use tiercel_config::{EngineSettings, Policy};
use tiercel_device::{
    Clock, Fingerprints, MockFaults, MockOptions, MockOracle, MockProfile, Tier, Timestamp,
};

/// Fuzzing scenario: an engine, and the clients, commands and faults that it faces. Drawn from a seed.
#[derive(Debug, Clone)]
pub struct Scenario {
    /// Seed of the scenario, and of the device's tokens, noise and faults.
    pub seed: u64,
    /// Settings of the engine.
    pub settings: EngineSettings,
    /// Speed and sizes of the device.
    pub profile: MockProfile,
    /// Noise of step times: sigma of a log-normal factor.
    pub noise_sigma: f64,
    /// Faults that the device injects.
    pub faults: MockFaults,
    /// Clients that send requests.
    pub clients: Vec<Client>,
    /// Commands that the operator gives during the scenario.
    pub orders: Vec<Order>,
    /// Time at which the engine is drained.
    pub drain: DrainPlan,
}

/// Client of a scenario, with one request.
#[derive(Debug, Clone)]
pub struct Client {
    /// Time at which the client sends its request.
    pub at: Timestamp,
    /// Request of the client.
    pub request: Request,
    /// Behaviour of the client as a reader.
    pub habit: Habit,
}

/// Behaviour of a client that reads its stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Habit {
    /// Reads every event at once, to the end.
    Reads,
    /// Waits this long before each event, us.
    ReadsSlowly(u64),
    /// Waits this long before the first event, us, and then reads every event at once.
    ReadsLate(u64),
    /// Closes the stream this long after the request was accepted, us, whatever was read.
    LeavesAfter(u64),
    /// Closes the stream after this number of tokens.
    LeavesAt(u32),
    /// Stops the output after this number of tokens, as after a stop string.
    StopsAt(u32),
}

/// Command of the operator at a given time.
#[derive(Debug, Clone, Copy)]
pub struct Order {
    /// Time of the command.
    pub at: Timestamp,
    /// Command to give.
    pub act: Act,
}

/// Command of an operator. A client is named by its index in [`Scenario::clients`]; a command for a client that has no
/// sequence yet does nothing.
#[derive(Debug, Clone, Copy)]
pub enum Act {
    /// Changes the tier and priority of a request.
    Reprioritize {
        /// Index of the request's client.
        client: usize,
        /// New tier of the request.
        tier: Tier,
        /// New priority of the request.
        priority: i32,
    },
    /// Pauses a request and resumes it later.
    Pause {
        /// Index of the request's client.
        client: usize,
        /// Length of the pause, us.
        for_us: u64,
    },
    /// Switches the engine to another policy.
    SetPolicy(Policy),
}

/// When the engine is drained.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DrainPlan {
    /// After every client is done and all blocks are free.
    AtTheEnd,
    /// In the middle of the scenario, whether or not clients are still active.
    Amid {
        /// Time at which the drain begins.
        at: Timestamp,
        /// Time limit for running requests to finish, ms.
        grace_ms: u64,
    },
}

impl Scenario {
    /// Returns the options of the mock device, which keeps a fingerprint of every token's slot in memory.
    pub(super) fn device(&self, clock: Clock) -> MockOptions {
        MockOptions {
            seed: self.seed,
            noise_sigma: self.noise_sigma,
            faults: self.faults.clone(),
            fingerprints: Fingerprints::PerSlot,
            // A host this slow makes the engine keep two steps in flight whenever possible.
            host_us: 10_000,
            ..MockOptions::new(self.profile.clone(), clock)
        }
    }

    /// Returns the oracle, which knows every output of the device.
    pub(super) fn oracle(&self) -> MockOracle {
        MockOracle::new(self.seed, self.profile.vocab_size, &[])
    }

    /// Returns the scenario with only the first `clients` clients.
    pub(super) fn with_first(&self, clients: usize) -> Scenario {
        let mut fewer = self.clone();
        fewer.clients.truncate(clients);
        fewer
    }

    /// Whether the device is lost at some step.
    pub(super) fn loses_device(&self) -> bool {
        self.faults.lost_at_step.is_some()
    }
}

impl fmt::Display for Scenario {
    /// Prints a one-line description of the scenario.
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
