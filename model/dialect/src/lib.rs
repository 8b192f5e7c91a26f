//! How models write tool calls and reasoning in their text. The crate has parsers, which split the text of a model into
//! content, reasoning and calls while it arrives, and grammars (Lark, for llguidance), which make a model write valid
//! calls.

pub mod grammar;
mod parser;
mod piece;
mod reasoning_dialect;
mod tool_dialect;
mod tools;

pub use parser::{Dialects, HELD_BYTES_MAX, Parser};
pub use piece::Piece;
pub use reasoning_dialect::ReasoningDialect;
pub use tool_dialect::ToolDialect;
pub use tools::{Tool, Tools};

/// Name of a dialect that does not exist.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{given}` is no dialect; the dialects are {known}")]
pub struct UnknownDialect {
    /// The name as it was given.
    pub given: String,
    /// All names that exist, with commas between them.
    pub known: String,
}
