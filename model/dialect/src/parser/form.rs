//! Interface between the search for calls in a text and the call parsers of the dialects.

use super::sink::Sink;
use std::fmt::Debug;

/// Maximum length of text that a parser buffers, bytes. A text that opens a call is content if the function's name is
/// not known within this length.
pub const HELD_BYTES_MAX: usize = 16 * 1024;
/// Maximum length of a function's name, bytes.
pub(crate) const NAME_BYTES_MAX: usize = 256;

/// Result of a call parser for one character.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Step {
    /// The character belongs to the calls, which go on.
    Taken,
    /// The character is the last character of the calls.
    Over,
    /// The text is no call, or does not continue the call.
    Refused(Refusal),
}

/// Text that a call parser refuses, which ends with the last parsed character.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Refusal {
    /// The refused text, unchanged.
    pub(super) text: String,
    /// Length of the first part of the text, which is content, bytes. The rest of the text is searched for calls again.
    pub(super) content: usize,
}

/// Call parser: reads calls of one dialect, from the trigger to the end of the calls.
pub(super) trait Form: Debug + Send {
    /// Parses the next character.
    fn feed(&mut self, ch: char, out: &mut Sink) -> Step;

    /// Ends the text, and returns the buffered text, except markup of a complete call.
    fn finish(&mut self, out: &mut Sink) -> String;
}

/// Text that a call parser buffers until the call is certain, beginning with the trigger.
#[derive(Debug, Default)]
pub(super) struct Held {
    text: String,
    opening: usize,
}

impl Held {
    pub(super) fn new(opening: &str) -> Held {
        Held { text: opening.to_owned(), opening: opening.len() }
    }

    pub(super) fn push(&mut self, ch: char) {
        self.text.push(ch);
    }

    /// Whether the buffered text exceeds the maximum length.
    pub(super) fn is_full(&self) -> bool {
        self.text.len() > HELD_BYTES_MAX
    }

    /// Refuses the whole buffered text. The trigger is content. Without a trigger, the first character is content, so
    /// that the rest, which is searched again, is shorter.
    pub(super) fn refuse(&mut self) -> Step {
        let text = std::mem::take(&mut self.text);
        let first = text.chars().next().map_or(0, char::len_utf8);
        Step::Refused(Refusal { content: self.opening.max(first), text })
    }

    pub(super) fn take(&mut self) -> String {
        std::mem::take(&mut self.text)
    }

    /// Discards the buffered text, which was markup.
    pub(super) fn clear(&mut self) {
        self.text.clear();
        self.opening = 0;
    }
}

/// Whether a character is whitespace in JSON. The call parsers use the same definition.
pub(super) fn is_space(ch: char) -> bool {
    matches!(ch, ' ' | '\t' | '\n' | '\r')
}

/// Refuses a text that is searched for calls again from its first character on.
pub(super) fn give_back(text: String) -> Step {
    Step::Refused(Refusal { text, content: 0 })
}
