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
pub(crate) use form::NAME_BYTES_MAX;
pub(crate) use json::{Scan, Scanner, quoted};
pub(crate) use sink::Sink;
pub(crate) use typed::Kind;

use crate::response::Regions;
use crate::{Dialects, Piece, ResponseTemplate, Tools};
use calls::Calls;
use reasoning::Reasoning;
use std::sync::Arc;

/// Parser that splits the text of one answer into content, reasoning and calls. The split of the text into pushes
/// affects only how content, reasoning and arguments are split into pieces.
///
/// The parser loses no text: a text that is neither reasoning nor a call nor markup is content, unchanged. Markup
/// consists of tags, whitespace next to calls, and line breaks next to the tags of reasoning. The parser buffers text
/// that may become markup (at most [`HELD_BYTES_MAX`] bytes). A call of a function that the request does not offer is a
/// call too, as in vLLM.
#[derive(Debug)]
pub struct Parser {
    form: AnswerForm,
    out: Sink,
}

/// Form of the answer, and the state of its parser.
#[derive(Debug)]
enum AnswerForm {
    Dialects { reasoning: Option<Reasoning>, calls: Box<Calls> },
    Template(Box<Regions>),
}

impl Parser {
    /// Creates the parser of one answer. `tools` tells the types of arguments that the model writes without JSON
    /// quotes.
    pub fn new(dialects: &Dialects, tools: &Tools) -> Parser {
        let reasoning = dialects.reasoning.map(|dialect| Reasoning::new(dialect, dialects));
        let calls = Box::new(Calls::new(dialects.tools, tools));
        Parser { form: AnswerForm::Dialects { reasoning, calls }, out: Sink::default() }
    }

    /// Creates the parser of one answer that has the form of `template`, to a prompt that ends with `prompt`. `tools`
    /// are the functions that the request offers; with `None`, calls are content.
    ///
    /// Content and reasoning are passed on while they arrive, except text that may become a delimiter, and whitespace
    /// at the ends of a field. A call is passed on as a whole when its field ends. A text between the delimiters of a
    /// call that is no call is content, unchanged and with its delimiters. Of a template whose field `content` has an
    /// opening delimiter, the text outside of all fields is markup, unless the answer has no field and no call. Text
    /// before the first field or call is content, too, if this text is longer than [`HELD_BYTES_MAX`] or contains a
    /// text that is no call.
    pub fn of_template(
        template: &Arc<ResponseTemplate>,
        prompt: &str,
        tools: Option<&Tools>,
    ) -> Parser {
        let regions = Box::new(Regions::new(template, prompt, tools));
        Parser { form: AnswerForm::Template(regions), out: Sink::default() }
    }

    /// Whether the text that the parser expects next is reasoning, or a tag that closes the reasoning.
    pub fn is_in_reasoning(&self) -> bool {
        match &self.form {
            AnswerForm::Template(regions) => regions.is_reasoning(),
            AnswerForm::Dialects { reasoning, .. } => {
                reasoning.as_ref().is_some_and(Reasoning::is_inside)
            }
        }
    }

    /// Whether the parser may still find reasoning. A template may have reasoning anywhere in an answer.
    pub fn may_reason(&self) -> bool {
        match &self.form {
            AnswerForm::Template(_) => true,
            AnswerForm::Dialects { reasoning, .. } => {
                reasoning.as_ref().is_some_and(|reasoning| !reasoning.is_over())
            }
        }
    }

    /// Parses the next part of the text, and returns the pieces that are certain.
    pub fn push(&mut self, text: &str) -> Vec<Piece> {
        match &mut self.form {
            AnswerForm::Template(regions) => regions.feed(text, &mut self.out),
            AnswerForm::Dialects { reasoning: Some(reasoning), calls } => {
                text.chars().for_each(|ch| reasoning.feed(ch, calls, &mut self.out));
            }
            AnswerForm::Dialects { reasoning: None, calls } => {
                text.chars().for_each(|ch| calls.feed(ch, &mut self.out));
            }
        }
        self.out.take()
    }

    /// Ends the text, and returns the pieces of the buffered text. Call `finish` once, after the last `push`.
    pub fn finish(&mut self) -> Vec<Piece> {
        match &mut self.form {
            AnswerForm::Template(regions) => regions.finish(&mut self.out),
            AnswerForm::Dialects { reasoning, calls } => {
                if let Some(reasoning) = reasoning {
                    reasoning.finish(calls, &mut self.out);
                }
                calls.finish(&mut self.out);
            }
        }
        self.out.take()
    }
}
