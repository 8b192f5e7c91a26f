//! The parser: splits the text of a model into pieces while the text arrives.
//!
//! The text goes character by character through [`reasoning`], which separates the reasoning at its start, to [`calls`],
//! which looks for texts that open calls and gives what follows to the [`form`] of the dialect. So the pieces cannot
//! depend on where the text is cut. A form that finds no call gives its text back.

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

/// Splits the text of one answer into content, reasoning and calls. Where the text is cut into pushes decides only how
/// content, reasoning and arguments are cut into pieces.
///
/// The parser loses no text: what is neither reasoning nor a call is content, verbatim. White space next to calls and
/// line breaks next to the tags of reasoning are markup, as tags are. The parser holds back text that may become markup
/// (at most [`HELD_BYTES_MAX`] bytes). Calls of functions that the request does not have are calls, as in vLLM.
#[derive(Debug)]
pub struct Parser {
    reasoning: Option<Reasoning>,
    calls: Calls,
    out: Sink,
}

impl Parser {
    /// Returns a parser for one answer. `tools` tells the types of arguments that the model writes without JSON's
    /// quotes.
    pub fn new(dialects: &Dialects, tools: &Tools) -> Parser {
        Parser {
            reasoning: dialects.reasoning.map(|dialect| Reasoning::new(dialect, dialects)),
            calls: Calls::new(dialects.tools, tools),
            out: Sink::default(),
        }
    }

    /// Takes the next part of the text and returns what is certain with it.
    pub fn push(&mut self, text: &str) -> Vec<Piece> {
        for ch in text.chars() {
            match &mut self.reasoning {
                Some(reasoning) => reasoning.feed(ch, &mut self.calls, &mut self.out),
                None => self.calls.feed(ch, &mut self.out),
            }
        }
        self.out.take()
    }

    /// Ends the text, and returns what the parser held back. To be called once, after the last `push`.
    pub fn finish(&mut self) -> Vec<Piece> {
        if let Some(reasoning) = &mut self.reasoning {
            reasoning.finish(&mut self.calls, &mut self.out);
        }
        self.calls.finish(&mut self.out);
        self.out.take()
    }
}
