//! The parser: splits the text of a model into pieces while the text arrives.

use crate::{Piece, ReasoningDialect, ToolDialect, Tools};

/// What a parser looks for in a model's text.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Dialects {
    /// Form of tool calls; `None` leaves them in the content.
    pub tools: Option<ToolDialect>,
    /// Tags around reasoning; `None` leaves them in the content.
    pub reasoning: Option<ReasoningDialect>,
    /// Whether the prompt has opened the reasoning, so that the text begins with reasoning.
    pub reasoning_open: bool,
}

/// Splits the text of one answer into content, reasoning and calls. The pieces do not depend on where the text is cut
/// into pushes, except that neighbouring pieces of the same kind may be split.
#[derive(Debug)]
pub struct Parser {}

impl Parser {
    /// Returns a parser for one answer. `tools` tells the types of arguments that the model writes without JSON's
    /// quotes.
    pub fn new(_dialects: &Dialects, _tools: &Tools) -> Parser {
        Parser {}
    }

    /// Takes the next part of the text and returns what is certain with it.
    pub fn push(&mut self, text: &str) -> Vec<Piece> {
        vec![Piece::Content(text.to_owned())]
    }

    /// Ends the text, and returns what the parser held back. To be called once, after the last `push`.
    pub fn finish(&mut self) -> Vec<Piece> {
        Vec::new()
    }
}
