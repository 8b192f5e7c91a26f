//! Text outside of all fields, in templates without an implicit field.

use super::text::FieldText;
use crate::parser::{HELD_BYTES_MAX, Sink};

/// Text outside of all fields. Whether the text is content or markup depends on the rest of the answer.
#[derive(Debug)]
pub(super) enum Outside {
    /// The answer has no field so far. The text is content if no field follows.
    Held(String),
    /// The text is content, because it is too long to be held back, or because a call was refused.
    Content(FieldText),
    /// The text is markup, because the answer has a field.
    Markup,
}

impl Outside {
    pub(super) fn new() -> Outside {
        Outside::Held(String::new())
    }

    /// Takes more text.
    pub(super) fn push(&mut self, text: &str, out: &mut Sink) {
        match self {
            Outside::Held(held) => {
                held.push_str(text);
                if held.len() > HELD_BYTES_MAX {
                    self.pass(out);
                }
            }
            Outside::Content(content) => out.content(&content.push(text)),
            Outside::Markup => (),
        }
    }

    /// Passes on the text of a refused call, and the text before it.
    pub(super) fn refuse(&mut self, text: &str, out: &mut Sink) {
        self.pass(out);
        match self {
            Outside::Content(content) => out.content(&content.verbatim(text)),
            Outside::Held(_) | Outside::Markup => out.content(text),
        }
    }

    /// Makes the text that follows content until a field follows, because it is the rest of a refused call.
    pub(super) fn resume(&mut self) {
        if matches!(self, Outside::Markup) {
            let mut content = FieldText::new(true);
            content.verbatim("");
            *self = Outside::Content(content);
        }
    }

    /// Passes on the text that is held back.
    pub(super) fn pass(&mut self, out: &mut Sink) {
        if let Outside::Held(held) = self {
            let mut content = FieldText::new(true);
            out.content(&content.push(held));
            *self = Outside::Content(content);
        }
    }
}
