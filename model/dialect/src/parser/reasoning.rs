//! Parser that separates the reasoning at the start of a text from the rest of the text.

use super::calls::Calls;
use super::form::is_space;
use super::sink::Sink;
use crate::{Dialects, ReasoningDialect, ToolDialect};

/// Maximum length of buffered whitespace, bytes.
const SPACE_BYTES_MAX: usize = 64;

/// Parser of the reasoning of one answer, which stands at the start of the answer. Line breaks next to the tags are
/// markup. A tag in the middle of the answer is content.
#[derive(Debug)]
pub(super) struct Reasoning {
    dialect: ReasoningDialect,
    /// Whether a call ends the reasoning, because models of the tool dialect sometimes leave out the tag that closes
    /// the reasoning.
    ends_with_call: bool,
    place: Place,
    /// Buffered text that may become a tag.
    partial: String,
    /// Buffered line breaks of the reasoning.
    breaks: String,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Place {
    Start,
    /// After the tag that opens the reasoning, before the first character that is no line break.
    Fresh,
    Inside,
    /// After the tag that closes the reasoning.
    Closed,
    Over,
}

impl Reasoning {
    pub(super) fn new(dialect: ReasoningDialect, dialects: &Dialects) -> Reasoning {
        Reasoning {
            dialect,
            ends_with_call: dialects.tools == Some(ToolDialect::QwenXml),
            place: if dialects.reasoning_open { Place::Fresh } else { Place::Start },
            partial: String::new(),
            breaks: String::new(),
        }
    }

    /// Whether the text is within the reasoning.
    pub(super) fn is_inside(&self) -> bool {
        matches!(self.place, Place::Fresh | Place::Inside)
    }

    /// Whether the rest of the text has no reasoning.
    pub(super) fn is_over(&self) -> bool {
        matches!(self.place, Place::Closed | Place::Over)
    }

    /// Parses the next character. Text after the reasoning goes to `calls`.
    pub(super) fn feed(&mut self, ch: char, calls: &mut Calls, out: &mut Sink) {
        match self.place {
            Place::Start => self.start(ch, calls, out),
            Place::Fresh | Place::Inside => self.inside(ch, calls, out),
            Place::Closed if ch == '\n' => (),
            Place::Closed | Place::Over => {
                self.place = Place::Over;
                calls.feed(ch, out);
            }
        }
    }

    /// Ends the text, and passes on the buffered text.
    pub(super) fn finish(&mut self, calls: &mut Calls, out: &mut Sink) {
        match self.place {
            Place::Start => self.pass_on(calls, out),
            Place::Fresh | Place::Inside => {
                let partial = std::mem::take(&mut self.partial);
                partial.chars().for_each(|ch| self.write(ch, out));
                calls.after_markup();
            }
            Place::Closed | Place::Over => (),
        }
    }

    fn start(&mut self, ch: char, calls: &mut Calls, out: &mut Sink) {
        self.partial.push(ch);
        let text = self.partial.trim_start_matches(is_space);
        let space = self.partial.len() - text.len();
        if text == self.dialect.open_tag() {
            self.partial.clear();
            self.place = Place::Fresh;
        } else if !self.dialect.open_tag().starts_with(text) || space > SPACE_BYTES_MAX {
            self.pass_on(calls, out);
        }
    }

    /// Ends the reasoning, and hands the buffered text to the search for calls.
    fn pass_on(&mut self, calls: &mut Calls, out: &mut Sink) {
        self.place = Place::Over;
        std::mem::take(&mut self.partial).chars().for_each(|ch| calls.feed(ch, out));
    }

    fn inside(&mut self, ch: char, calls: &mut Calls, out: &mut Sink) {
        self.partial.push(ch);
        while !self.partial.is_empty() {
            if self.partial == self.dialect.close_tag() {
                self.partial.clear();
                self.place = Place::Closed;
                calls.after_markup();
            } else if self.ends_with_call && is_call(&self.partial) == Some(true) {
                calls.after_markup();
                self.pass_on(calls, out);
            } else if self.dialect.close_tag().starts_with(&self.partial)
                || self.ends_with_call && is_call(&self.partial) == Some(false)
            {
                break;
            } else {
                let first = self.partial.remove(0);
                self.write(first, out);
            }
        }
    }

    fn write(&mut self, ch: char, out: &mut Sink) {
        match (self.place, ch) {
            (Place::Fresh, '\n') => (),
            (_, '\n') if self.breaks.len() < SPACE_BYTES_MAX => self.breaks.push(ch),
            _ => {
                self.place = Place::Inside;
                out.reasoning(&std::mem::take(&mut self.breaks));
                out.reasoning(ch.encode_utf8(&mut [0; 4]));
            }
        }
    }
}

/// Returns `Some(true)` if a text opens a call, `Some(false)` if the text is a prefix of such an opening, otherwise
/// `None`.
fn is_call(text: &str) -> Option<bool> {
    let (call, function) = ("<tool_call>", "<function=");
    let Some(rest) = text.strip_prefix(call) else {
        return call.starts_with(text).then_some(false);
    };
    let rest_text = rest.trim_start_matches(is_space);
    let space = rest.len() - rest_text.len();
    (function.starts_with(rest_text) && space <= SPACE_BYTES_MAX).then_some(rest_text == function)
}
