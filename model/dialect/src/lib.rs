//! Dialects: the forms in which models write tool calls and reasoning. The crate has parsers, which split the text of a
//! model into content, reasoning and calls while the text arrives, and grammars (Lark, for llguidance), under which a
//! model writes only valid calls.

mod dialects;
pub mod grammar;
mod parser;
mod piece;
mod reasoning_dialect;
mod response;
mod tool_dialect;
mod tools;

pub use dialects::Dialects;
pub use parser::{HELD_BYTES_MAX, Parser};
pub use piece::Piece;
pub use reasoning_dialect::ReasoningDialect;
pub use response::{ResponseTemplate, ResponseTemplateError};
pub use tool_dialect::ToolDialect;
pub use tools::{Tool, Tools};

/// Error: no dialect has the given name.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{given}` is no dialect; the dialects are {known}")]
pub struct UnknownDialect {
    /// The given name.
    pub given: String,
    /// All names of dialects, separated by commas.
    pub known: String,
}
