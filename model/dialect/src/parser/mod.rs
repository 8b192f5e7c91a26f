//! Parser that splits the text of a model into pieces while the text arrives.
//!
//! Each character goes first through [`reasoning`], which separates the reasoning at the start of the text, and then
//! through [`calls`], which searches for triggers and hands the text after a trigger to the call parser of the dialect
//! ([`form`]). Therefore the pieces cannot depend on where the text is split. A call parser refuses a text that is no
//! call.

mod arguments;
mod calls;
mod closing;
mod form;
mod hermes;
mod json;
mod json_call;
mod llama;
mod mistral;
mod python;
mod pythonic;
mod qwen_xml;
mod reasoning;
mod sink;
mod typed;
mod xml_value;

pub use form::HELD_BYTES_MAX;
pub(crate) use typed::Kind;

use crate::{Piece, ReasoningDialect, ToolDialect, Tools};
use calls::Calls;
use reasoning::Reasoning;
use sink::Sink;

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

/// Parser that splits the text of one answer into content, reasoning and calls. The split of the text into pushes
/// affects only how content, reasoning and arguments are split into pieces.
///
/// The parser loses no text: a text that is neither reasoning nor a call nor markup is content, unchanged. Markup
/// consists of tags, whitespace next to calls, and line breaks next to the tags of reasoning. The parser buffers text
/// that may become markup (at most [`HELD_BYTES_MAX`] bytes). A call of a function that the request does not offer is a
/// call too, as in vLLM.
#[derive(Debug)]
pub struct Parser {
    reasoning: Option<Reasoning>,
    calls: Calls,
    out: Sink,
}

impl Parser {
    /// Creates the parser of one answer. `tools` tells the types of arguments that the model writes without JSON
    /// quotes.
    pub fn new(dialects: &Dialects, tools: &Tools) -> Parser {
        Parser {
            reasoning: dialects.reasoning.map(|dialect| Reasoning::new(dialect, dialects)),
            calls: Calls::new(dialects.tools, tools),
            out: Sink::default(),
        }
    }

    /// Parses the next part of the text, and returns the pieces that are certain.
    pub fn push(&mut self, text: &str) -> Vec<Piece> {
        for ch in text.chars() {
            match &mut self.reasoning {
                Some(reasoning) => reasoning.feed(ch, &mut self.calls, &mut self.out),
                None => self.calls.feed(ch, &mut self.out),
            }
        }
        self.out.take()
    }

    /// Ends the text, and returns the pieces of the buffered text. Call `finish` once, after the last `push`.
    pub fn finish(&mut self) -> Vec<Piece> {
        if let Some(reasoning) = &mut self.reasoning {
            reasoning.finish(&mut self.calls, &mut self.out);
        }
        self.calls.finish(&mut self.out);
        self.out.take()
    }
}
