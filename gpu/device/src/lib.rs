//! The boundary between the engine and a device.
//!
//! The actors see a device only through this crate: typed ids, the clock, requests and answers of steps ([`StepBatch`],
//! [`StepDone`]), constraints on outputs ([`Constraint`]), requests and answers of copies ([`CopyBatch`],
//! [`CopyDone`]), and the two traits of devices that do the work ([`StepRunner`], [`CopyEngine`]). Real devices
//! (`tiercel-gpu`, driven by `tiercel-model`) and the mock device implement the same traits. This crate uses neither
//! candle nor cudarc, and no actor.

mod by_seq;
mod clock;
mod constraint;
mod copy;
mod copy_queue;
mod copy_thread;
mod guarded;
mod host_growth;
mod ids;
mod masks;
pub mod mix;
mod mock;
mod sampling;
mod step;
mod step_record;
mod threads;
mod worker;

pub use by_seq::{BySeq, SeqIdHasher};
pub use clock::{Clock, Timestamp, WallTimes};
pub use constraint::{Constraint, ConstraintState, NoToken, TokenMask};
pub use copy::{CopyBatch, CopyDirection, CopyDone, CopyEngine, CopyError, CopyPair};
pub use copy_queue::COPIES_IN_FLIGHT;
pub use copy_thread::{CopyThread, QueuedCopier};
pub use host_growth::HostGrowth;
pub use ids::{BlockId, CopyId, Epoch, HostBlockId, SeqId, StepId, Ticket, Tier, TokenId};
pub use masks::{ConstrainedOutput, MASK_WAIT_US, MaskThreads, MaskWait};
pub use mock::{
    Fingerprints, HostCosts, MockDevice, MockDrift, MockFault, MockFaultKind, MockFaultLog,
    MockFaults, MockFaultsError, MockOptions, MockOracle, MockProfile, MockProfileError,
    MockScript, MockTimedFault, MockTimedFaultKind, ServerSizes, StepNoise, mock_oracle,
};
pub use sampling::{MinTokens, SamplingParams};
pub use step::{
    DeviceInfo, DeviceProfile, NotSampled, Sampled, SeqSlice, SeqStart, SliceInput, StepBatch,
    StepDone, StepError, StepOutput, StepRunner, StepTiming, SubmitError, TokenLogprobs, Tokens,
};
pub use step_record::StepRecord;
pub use threads::{lower_thread_priority, thread_us};
pub use worker::{QueuedRunner, StepThread};

/// A device that is ready to serve: its sizes, its estimated speed, its compute side and its copy side.
pub struct Device {
    /// Sizes and limits of the device that the engine plans with.
    pub info: DeviceInfo,
    /// First estimate of the device's speed: measured when the device was opened, or set by the profile of a mock
    /// device. The engine corrects the estimate while it runs.
    pub profile: DeviceProfile,
    /// Compute side of the device, which runs steps.
    pub runner: Box<dyn StepRunner>,
    /// Copy side of the device, which copies KV blocks between the device pool and the host pool.
    pub copier: Box<dyn CopyEngine>,
    /// Blocks that the host pool gets while the engine runs; `None` if it has all of them at the start.
    pub host_growth: Option<Box<dyn HostGrowth>>,
}
