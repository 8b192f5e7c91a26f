//! Messages, the six actors and the wiring of an engine.

mod handle;
mod request;

pub use handle::{EngineHandle, TokenStream};
pub use request::{
    Control, EngineStatus, FinishReason, Refusal, Request, RequestFault, StreamEvent, Usage,
};
