//! Form of a model's output that a grammar describes.

use crate::{ReasoningDialect, ToolDialect};

/// Function that returns the id of the special token with the given text; `None` if the tokenizer has no such special
/// token, so that the text is written with ordinary tokens.
pub type SpecialTokens<'a> = &'a dyn Fn(&str) -> Option<u32>;

/// Form of a model's output around calls.
#[derive(Clone, Copy)]
pub struct Output<'a> {
    /// Dialect of the calls.
    pub dialect: ToolDialect,
    /// Tags around the reasoning before the answer; `None` if the model does not reason or its reasoning is forbidden.
    pub reasoning: Option<ReasoningDialect>,
    /// Whether the prompt ends with the tag that opens the reasoning, so that the output begins with reasoning.
    pub reasoning_open: bool,
    /// Special tokens of the tokenizer.
    pub special: SpecialTokens<'a>,
}
