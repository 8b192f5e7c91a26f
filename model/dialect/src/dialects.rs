//! Dialects of one answer.

use crate::{ReasoningDialect, ToolDialect};

/// Dialects that a parser recognizes in a model's text.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Dialects {
    /// Dialect of tool calls; with `None`, tool calls are content.
    pub tools: Option<ToolDialect>,
    /// Tags around reasoning; with `None`, reasoning and its tags are content.
    pub reasoning: Option<ReasoningDialect>,
    /// Whether the prompt ends with the tag that opens the reasoning, so that the text begins with reasoning.
    pub reasoning_open: bool,
}
