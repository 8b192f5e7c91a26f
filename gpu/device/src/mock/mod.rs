//! The mock device: a full implementation of the device boundary without hardware.
//!
//! Its KV memory holds fingerprints of token prefixes instead of keys and values. A step stores the fingerprints of the
//! tokens that it "computes" and checks the fingerprints that it reads; copies move fingerprints between the pools. So
//! a stale, lost, wrongly shared or half-copied block fails the step that reads the block. The output tokens are the
//! tokens of a script ([`MockScript`]), or else hashes of their prefixes ([`MockOracle`]), so that every stream can be
//! checked. A step "computes" by sleeping for its modelled time ([`MockProfile`]) on the engine's [`Clock`], on the
//! thread that opened the device, so the device behaves alike in simulated and in real time. The device injects faults
//! at random from a seed, and at given steps and times ([`MockFaults`]).

mod copier;
mod drift;
mod faults;
mod faults_file;
mod host;
mod memory;
mod oracle;
mod profile;
mod runner;
mod script;
mod sequences;
mod slices;
#[cfg(test)]
mod tests;
mod timed_faults;

pub use drift::MockDrift;
pub use faults::{MockFault, MockFaultKind, MockFaultLog, MockFaults};
pub use faults_file::MockFaultsError;
pub use host::{HostCosts, StepNoise};
pub use memory::Fingerprints;
pub use oracle::{MockOracle, mock_oracle};
pub use profile::{MockProfile, MockProfileError, ServerSizes};
pub use script::MockScript;
pub use timed_faults::{MockTimedFault, MockTimedFaultKind};

use crate::{Clock, Device, DeviceInfo, StepId, TokenId};
use memory::Memory;
use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;
use timed_faults::TimedFaults;
use tokio::sync::Notify;

/// Options with which a mock device is opened: speed, sizes, seed, noise, and injected faults.
#[derive(Debug, Clone)]
pub struct MockOptions {
    /// Speed of the mock device. Of the sizes that the options have too (blocks, vocabulary), those of the options
    /// count.
    pub profile: MockProfile,
    /// Clock of the engine, by whose time the mock device's steps and copies last.
    pub clock: Clock,
    /// Seed of the device's tokens, noise and faults.
    pub seed: u64,
    /// Random spread of step times, in addition to that of the profile: sigma of a log-normal factor with mean 1; 0 for
    /// none.
    pub noise_sigma: f64,
    /// Drift of the device's speed over time, if any.
    pub drift: Option<MockDrift>,
    /// Time that each step reports as its host time (`StepTiming::host_us`) in addition to that of the profile, us. The
    /// mock device does not spend this time.
    pub host_us: u64,
    /// Tokens per KV block.
    pub block_size: u32,
    /// Blocks in the device pool.
    pub device_blocks: u32,
    /// Blocks in the host pool; 0 for no host pool.
    pub host_blocks: u32,
    /// Size of the vocabulary, tokens.
    pub vocab_size: u32,
    /// Longest sequence (prompt + output) that the device accepts, tokens.
    pub max_model_len: u32,
    /// Tokens that the mock device never samples (end tokens for example), so that no output ends early.
    pub reserved_tokens: Vec<TokenId>,
    /// Token that ends an output. If set, the id of a prompt's last token is the length of the output, tokens (0 counts
    /// as 1), and the end token is the last of them; it is sampled nowhere else. `None`: the device does not end
    /// outputs.
    pub end_token: Option<TokenId>,
    /// Script with the outputs of certain prompts. All other outputs are made up. `None`: all outputs are made up.
    pub script: Option<Arc<dyn MockScript>>,
    /// Longest time that a step waits for masks of constrained sequences, us of real time; `None`: until all masks are
    /// ready, which simulated time needs.
    pub mask_wait_us: Option<u64>,
    /// How finely the content of KV memory is checked: by block or by token slot.
    pub fingerprints: Fingerprints,
    /// Faults to inject into steps and copies.
    pub faults: MockFaults,
    /// Log of the engine's mistakes that the mock device finds. Keep a clone of the log to read it.
    pub log: MockFaultLog,
}

impl MockOptions {
    /// Returns options for a mock device with the speed, sizes and noise of its profile, without further noise and
    /// without injected faults.
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
            script: None,
            mask_wait_us: None,
            fingerprints: Fingerprints::PerBlock,
            faults: MockFaults::default(),
            log: MockFaultLog::default(),
            profile,
        }
    }

    /// Returns an oracle that knows the tokens that a mock device with these options will sample, except the end
    /// tokens and scripted outputs.
    ///
    /// # Panics
    /// If every token is reserved.
    pub fn oracle(&self) -> MockOracle {
        let reserved: Vec<TokenId> =
            self.reserved_tokens.iter().copied().chain(self.end_token).collect();
        MockOracle::new(self.seed, self.vocab_size, &reserved)
    }

    /// Returns the size of one KV block, bytes.
    pub fn block_bytes(&self) -> u64 {
        self.profile.kv_bytes_per_token * u64::from(self.block_size)
    }
}

/// Opens mock devices.
#[derive(Debug)]
pub struct MockDevice;

/// State that the compute side and the copy side of a mock device share; both run on one thread.
struct Shared {
    memory: Memory,
    /// Reason for which the mock device is lost (all steps and copies fail); `None` while it works.
    lost: Option<String>,
    timed_faults: TimedFaults,
    /// The step that runs.
    running: Option<StepId>,
    /// Signal that a step has ended, for batches of copies whose fence names the step.
    step_ended: Rc<Notify>,
}

impl MockDevice {
    /// Opens a mock device whose work runs in local tasks of the calling thread. The tasks end when the device is
    /// dropped and all submitted work is done.
    ///
    /// # Panics
    /// If called outside of a tokio `LocalSet` (an actix arbiter is such a set), if the block size is 0, or if every
    /// token is reserved.
    pub fn open(options: MockOptions) -> Device {
        assert!(options.block_size > 0, "a block holds at least one token");
        let memory = Memory::new(
            options.fingerprints,
            options.block_size,
            options.device_blocks,
            options.host_blocks,
        );
        let timed_faults = TimedFaults::new(&options.faults.timed);
        let shared =
            Shared { memory, lost: None, timed_faults, running: None, step_ended: Rc::default() };
        let shared = Rc::new(RefCell::new(shared));
        let info = DeviceInfo {
            block_size: options.block_size,
            device_blocks: options.device_blocks,
            host_blocks: options.host_blocks,
            block_bytes: options.block_bytes(),
            max_model_len: options.max_model_len,
            vocab_size: options.vocab_size,
            ..options.profile.info()
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
            host_growth: None,
        }
    }
}
