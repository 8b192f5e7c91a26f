//! A device without hardware: a second implementation of the device boundary, not a stub.
//!
//! It keeps fingerprints of the token prefix that was "computed" into KV memory, checks them whenever a
//! step reads them, and moves them with copies, so that a stale, lost, wrongly shared or half-copied
//! block fails the step that reads it. Its tokens are a hash of the prefix ([`MockOracle`]), so every
//! stream can be checked. It "computes" by sleeping its modelled time ([`MockProfile`]) on the engine's
//! [`Clock`], on the thread that opened it: it runs alike in simulated and in real time. It injects
//! faults by seed ([`MockFaults`]).

mod copier;
mod drift;
mod faults;
mod faults_file;
mod host;
mod memory;
mod oracle;
mod profile;
mod runner;
mod sequences;
mod slices;
#[cfg(test)]
mod tests;

pub use drift::MockDrift;
pub use faults::{MockFault, MockFaultKind, MockFaultLog, MockFaults};
pub use faults_file::MockFaultsError;
pub use host::{HostCosts, StepNoise};
pub use memory::Fingerprints;
pub use oracle::{MockOracle, mock_oracle};
pub use profile::{MockProfile, MockProfileError, ServerSizes};

use crate::{Clock, Device, DeviceInfo, TokenId};
use memory::Memory;
use std::cell::RefCell;
use std::rc::Rc;

/// What to open.
#[derive(Debug, Clone)]
pub struct MockOptions {
    /// How fast it is. Its sizes are overridden by the fields below.
    pub profile: MockProfile,
    /// The engine's clock.
    pub clock: Clock,
    /// Decides tokens, noise and faults.
    pub seed: u64,
    /// Spread of step times: sigma of a log-normal factor with mean 1; 0 for none.
    pub noise_sigma: f64,
    /// How its speed changes over time, if it does.
    pub drift: Option<MockDrift>,
    /// What the device's host says it takes to start a step, us; in simulated time nothing takes it.
    pub host_us: u64,
    /// Tokens per block.
    pub block_size: u32,
    /// Blocks of the device tier.
    pub device_blocks: u32,
    /// Blocks of the host tier; 0 for none.
    pub host_blocks: u32,
    /// Size of the vocabulary.
    pub vocab_size: u32,
    /// Longest sequence, tokens.
    pub max_model_len: u32,
    /// Tokens that are never sampled, so that no stream ends early.
    pub reserved_tokens: Vec<TokenId>,
    /// With it the device plays a model that ends its outputs: the last token of a prompt says how many
    /// tokens the output has, of which this one is the last. It is sampled nowhere else.
    pub end_token: Option<TokenId>,
    /// How closely memory is watched.
    pub fingerprints: Fingerprints,
    /// What to break.
    pub faults: MockFaults,
    /// Where to record what the engine got wrong; keep a clone to read it.
    pub log: MockFaultLog,
}

impl MockOptions {
    /// A device as the profile says, without noise and faults.
    pub fn new(profile: MockProfile, clock: Clock) -> MockOptions {
        MockOptions {
            clock,
            seed: 0,
            noise_sigma: 0.0,
            drift: None,
            host_us: 0,
            block_size: profile.block_size,
            device_blocks: profile.device_blocks,
            host_blocks: profile.host_blocks,
            vocab_size: profile.vocab_size,
            max_model_len: profile.max_model_len,
            reserved_tokens: Vec::new(),
            end_token: None,
            fingerprints: Fingerprints::PerBlock,
            faults: MockFaults::default(),
            log: MockFaultLog::default(),
            profile,
        }
    }

    /// Knows the tokens this device will sample.
    ///
    /// # Panics
    /// If every token is reserved.
    pub fn oracle(&self) -> MockOracle {
        let reserved: Vec<TokenId> =
            self.reserved_tokens.iter().copied().chain(self.end_token).collect();
        MockOracle::new(self.seed, self.vocab_size, &reserved)
    }

    /// Bytes of one block.
    pub fn block_bytes(&self) -> u64 {
        self.profile.kv_bytes_per_token * u64::from(self.block_size)
    }
}

/// Opens mock devices.
#[derive(Debug)]
pub struct MockDevice;

/// What the compute side and the copy side share; both run on one thread.
struct Shared {
    memory: Memory,
    /// Why the device is lost, once it is.
    lost: Option<String>,
}

impl MockDevice {
    /// Opens a device whose work runs in local tasks of the calling thread. They end when the device
    /// is dropped and what was submitted is done.
    ///
    /// # Panics
    /// Outside of a tokio `LocalSet` (an actix arbiter is one), if the block size is 0, or if every
    /// token is reserved.
    pub fn open(options: MockOptions) -> Device {
        assert!(options.block_size > 0, "a block holds at least one token");
        let memory = Memory::new(
            options.fingerprints,
            options.block_size,
            options.device_blocks,
            options.host_blocks,
        );
        let shared = Rc::new(RefCell::new(Shared { memory, lost: None }));
        let info = DeviceInfo {
            name: format!("mock:{}", options.profile.name),
            block_size: options.block_size,
            device_blocks: options.device_blocks,
            host_blocks: options.host_blocks,
            block_bytes: options.block_bytes(),
            max_steps_in_flight: options.profile.max_steps_in_flight,
            max_model_len: options.max_model_len,
            vocab_size: options.vocab_size,
        };
        let mut profile = options.profile.device_profile();
        if options.host_blocks == 0 {
            profile.link_bytes_per_s = 0.0;
        }
        Device {
            info,
            profile,
            copier: Box::new(copier::MockCopier::start(&options, &shared)),
            runner: Box::new(runner::MockRunner::start(options, shared)),
        }
    }
}
