//! Splits the text after the reasoning into calls and content.

use super::form::{Form, Refusal, Step, is_space};
use super::hermes::Hermes;
use super::llama::Llama;
use super::mistral::Mistral;
use super::pythonic::Pythonic;
use super::qwen_xml::QwenXml;
use super::sink::Sink;
use crate::{ToolDialect, Tools};

/// Maximum length of buffered whitespace next to a call, bytes.
const SPACE_BYTES_MAX: usize = 64;

/// Search for calls in the text after the reasoning. Whitespace between the start of the text, its calls and its end is
/// markup.
#[derive(Debug)]
pub(super) struct Calls {
    dialect: Option<ToolDialect>,
    tools: Tools,
    /// Call parser that reads the current calls; `None` outside of calls.
    form: Option<Box<dyn Form>>,
    /// Whether the current call parser has found the beginning of a call.
    form_began: bool,
    /// Buffered text that may become a trigger.
    partial: String,
    /// Whitespace since the start of the text or the last markup.
    space: String,
    /// Whether only whitespace has come since the start of the text or the last markup.
    fresh: bool,
    /// Whether only whitespace has come so far, so that the answer may begin with a call without a trigger.
    first: bool,
    /// Whether the text has had markup.
    marked: bool,
}

impl Calls {
    pub(super) fn new(dialect: Option<ToolDialect>, tools: &Tools) -> Calls {
        Calls {
            dialect,
            tools: tools.clone(),
            form: None,
            form_began: false,
            partial: String::new(),
            space: String::new(),
            fresh: true,
            first: true,
            marked: false,
        }
    }

    /// Marks that markup ends here, so that following whitespace is markup too.
    pub(super) fn after_markup(&mut self) {
        self.fresh = true;
        self.marked = true;
        self.space.clear();
    }

    /// Parses the next character.
    pub(super) fn feed(&mut self, ch: char, out: &mut Sink) {
        let Some(refusal) = self.step(ch, out) else { return };
        let mut rest = self.content(refusal, out);
        while let Some(ch) = rest.pop() {
            if let Some(refusal) = self.step(ch, out) {
                rest.extend(self.content(refusal, out));
            }
        }
    }

    /// Ends the text, and passes on the buffered text as content.
    pub(super) fn finish(&mut self, out: &mut Sink) {
        let held = match self.form.take() {
            Some(mut form) => {
                let held = form.finish(out);
                if self.form_began {
                    self.after_markup();
                }
                held
            }
            None => std::mem::take(&mut self.partial),
        };
        if !held.is_empty() || !self.marked {
            out.content(&self.space);
        }
        out.content(&held);
    }

    /// Passes on the first part of a text that a call parser refused as content (`Refusal::content`). Returns the
    /// remaining characters in reverse order, so that `pop` returns the first of them.
    fn content(&mut self, refusal: Refusal, out: &mut Sink) -> Vec<char> {
        let (content, rest) = refusal.text.split_at(refusal.content);
        content.chars().for_each(|ch| self.plain(ch, out));
        rest.chars().rev().collect()
    }

    fn step(&mut self, ch: char, out: &mut Sink) -> Option<Refusal> {
        let Some(form) = &mut self.form else { return self.search(ch, out) };
        let calls = out.calls();
        let step = form.feed(ch, out);
        self.form_began |= out.calls() > calls;
        if step == Step::Taken {
            return None;
        }
        self.form = None;
        if self.form_began {
            self.after_markup();
        }
        self.first = false;
        match step {
            Step::Refused(refusal) => Some(refusal),
            Step::Taken | Step::Over => None,
        }
    }

    fn search(&mut self, ch: char, out: &mut Sink) -> Option<Refusal> {
        if self.first && self.partial.is_empty() && self.dialect.and_then(bare) == Some(ch) {
            self.open("");
            return self.step(ch, out);
        }
        self.partial.push(ch);
        let triggers = self.dialect.map_or(&[][..], ToolDialect::triggers);
        while !self.partial.is_empty() {
            let partial = self.partial.as_str();
            if let Some(trigger) = triggers.iter().find(|trigger| **trigger == partial) {
                self.open(trigger);
                self.partial.clear();
            } else if triggers.iter().any(|trigger| trigger.starts_with(partial)) {
                break;
            } else {
                let first = self.partial.remove(0);
                self.plain(first, out);
            }
        }
        None
    }

    /// Starts the call parser of the dialect. `opening` is the trigger, or empty for calls without a trigger.
    fn open(&mut self, opening: &str) {
        self.form_began = false;
        self.form = self.dialect.map(|dialect| -> Box<dyn Form> {
            match dialect {
                ToolDialect::Hermes => Box::new(Hermes::new(opening)),
                ToolDialect::QwenXml => Box::new(QwenXml::new(opening, &self.tools)),
                ToolDialect::Llama3Json => Box::new(Llama::new(opening)),
                ToolDialect::Pythonic => Box::new(Pythonic::new(opening)),
                ToolDialect::Mistral => Box::new(Mistral::new(opening)),
            }
        });
    }

    /// Passes on a character of the content. Whitespace after markup is buffered, because the next call would make it
    /// markup.
    fn plain(&mut self, ch: char, out: &mut Sink) {
        if self.fresh && is_space(ch) && self.space.len() < SPACE_BYTES_MAX {
            self.space.push(ch);
            return;
        }
        out.content(&self.space);
        out.content(ch.encode_utf8(&mut [0; 4]));
        self.space.clear();
        self.fresh = false;
        self.first = false;
    }
}

/// Returns the character that begins calls without a trigger at the start of an answer; `None` if calls need a trigger.
fn bare(dialect: ToolDialect) -> Option<char> {
    match dialect {
        ToolDialect::Llama3Json => Some('{'),
        ToolDialect::Pythonic => Some('['),
        ToolDialect::Hermes | ToolDialect::QwenXml | ToolDialect::Mistral => None,
    }
}
