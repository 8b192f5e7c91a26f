//! The engine: its six actors, the messages between them, and the code that creates and connects the actors.

mod admission;
mod block_manager;
mod checks;
mod engine;
mod executor;
mod handle;
mod host_growth;
pub mod kit;
mod lifeline;
pub mod messages;
mod observed;
pub mod recording;
mod request;
mod scheduler;
mod slo_monitor;
mod step_log;
mod streams;
mod swap_manager;
mod telemetry;
mod timeline;
mod token_stream;
pub mod trace;
mod wiring;

pub use admission::Admission;
pub use block_manager::{BlockManager, BlockPeers};
pub use checks::Checks;
pub use engine::{Engine, EngineStartError};
pub use executor::Executor;
pub use handle::EngineHandle;
pub use lifeline::{Lifeline, Obituary};
pub use request::{
    Changed, Control, CostError, Counters, Drained, EngineStatus, FinishReason, Level, PartyUsage,
    PredictionError, Refusal, Request, RequestFault, Resource, SequenceState, SequenceView,
    Snapshot, StreamEvent, TenantUsage, Usage, UsageReport, Work,
};
pub use scheduler::{Peers, SchedulerActor, Snapshots, ToAdmission, ToBlockManager, ToMonitor};
pub use slo_monitor::SloMonitor;
pub use step_log::StepLog;
pub use swap_manager::SwapManager;
pub use telemetry::{MICROSECOND_COUNTERS, describe as describe_metrics};
pub use timeline::{EndedTimeline, Happening, Moment, Timeline};
pub use token_stream::TokenStream;
