//! The engine: its six actors, the messages between them, and the code that creates and connects the actors.

mod admission;
mod block_manager;
mod checks;
mod engine;
mod executor;
mod handle;
mod lifeline;
mod messages;
mod observed;
mod request;
mod scheduler;
mod slo_monitor;
mod step_log;
mod streams;
mod swap_manager;
mod telemetry;
pub mod trace;
mod wiring;

pub use engine::{Engine, EngineStartError};
pub use handle::{EngineHandle, TokenStream};
pub use request::{
    Control, CostError, Counters, EngineStatus, FinishReason, Level, PredictionError, Refusal,
    Request, RequestFault, Resource, StreamEvent, Usage,
};
pub use telemetry::describe as describe_metrics;
