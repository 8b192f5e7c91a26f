//! The boundary between the engine and a device.
//!
//! The actors see a device only through this crate: typed ids, the clock, what a step asks for
//! ([`StepBatch`]) and answers ([`StepDone`]), what a copy asks for ([`CopyBatch`]) and answers
//! ([`CopyDone`]), and the two traits that do the work ([`StepRunner`], [`CopyEngine`]). Real devices
//! (`tiercel-gpu`, driven by `tiercel-model`) and the mock device implement the same traits.
//! No candle, no cudarc and no actor is visible from here.

mod by_seq;
mod clock;
mod copy;
mod ids;
mod mock;
mod sampling;
mod step;
mod step_record;
mod worker;

pub use by_seq::{BySeq, SeqIdHasher};
pub use clock::{Clock, Timestamp};
pub use copy::{CopyBatch, CopyDirection, CopyDone, CopyEngine, CopyError, CopyPair};
pub use ids::{BlockId, CopyId, Epoch, HostBlockId, SeqId, StepId, Ticket, Tier, TokenId};
pub use mock::{
    Fingerprints, HostCosts, MockDevice, MockDrift, MockFault, MockFaultKind, MockFaultLog,
    MockFaults, MockFaultsError, MockOptions, MockOracle, MockProfile, MockProfileError,
    ServerSizes, StepNoise, mock_oracle,
};
pub use sampling::SamplingParams;
pub use step::{
    DeviceInfo, DeviceProfile, Sampled, SeqFault, SeqSlice, SeqStart, SliceInput, StepBatch,
    StepDone, StepError, StepOutput, StepRunner, StepTiming, SubmitError, TokenLogprobs, Tokens,
};
pub use step_record::StepRecord;
pub use worker::{BlockingCopier, CopyThread, QueuedRunner, StepThread};

/// A device ready to serve: its facts, its compute side and its copy side.
pub struct Device {
    /// Sizes and limits the engine plans with.
    pub info: DeviceInfo,
    /// First estimate of the device's speed; the engine refines it online.
    pub profile: DeviceProfile,
    /// Runs steps.
    pub runner: Box<dyn StepRunner>,
    /// Copies blocks between the device tier and the host tier.
    pub copier: Box<dyn CopyEngine>,
}
