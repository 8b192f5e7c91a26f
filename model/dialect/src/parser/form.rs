//! The interface between the search for calls in a text and the forms that calls have.

use super::sink::Sink;
use std::fmt::Debug;

/// Most bytes of a text that a parser holds back: a call whose name is not known after these is content.
pub const HELD_BYTES_MAX: usize = 16 * 1024;
/// Most bytes of a function's name.
pub(super) const NAME_BYTES_MAX: usize = 256;

/// What a form did with a character.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Step {
    /// The form took the character.
    Taken,
    /// The form took the character as its last one.
    Over,
    /// The text is no call, or no call any more.
    Refused(Refusal),
}

/// Text that a form gives back, the last character included.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Refusal {
    /// The text, verbatim.
    pub(super) text: String,
    /// Bytes at its start that are content; the others are searched for calls again.
    pub(super) content: usize,
}

/// Reader of calls in one form, from the text that opens them to their end.
pub(super) trait Form: Debug + Send {
    /// Takes the next character.
    fn feed(&mut self, ch: char, out: &mut Sink) -> Step;

    /// Ends the text, and returns what the form held back that is no markup of a complete call.
    fn finish(&mut self, out: &mut Sink) -> String;
}

/// Text that a form holds back until it knows the call, beginning with the text that opened it.
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

    /// Whether the text is longer than a form may hold back.
    pub(super) fn is_full(&self) -> bool {
        self.text.len() > HELD_BYTES_MAX
    }

    /// Gives back the whole text. Without an opening, its first character is content, so that the rest that is searched
    /// again is shorter.
    pub(super) fn refuse(&mut self) -> Step {
        let text = std::mem::take(&mut self.text);
        let first = text.chars().next().map_or(0, char::len_utf8);
        Step::Refused(Refusal { content: self.opening.max(first), text })
    }

    pub(super) fn take(&mut self) -> String {
        std::mem::take(&mut self.text)
    }

    /// Forgets the text, which was markup.
    pub(super) fn clear(&mut self) {
        self.text.clear();
        self.opening = 0;
    }
}

/// White space as JSON and the forms know it.
pub(super) fn is_space(ch: char) -> bool {
    matches!(ch, ' ' | '\t' | '\n' | '\r')
}

/// Gives a text back that is searched for calls from its first character on.
pub(super) fn give_back(text: String) -> Step {
    Step::Refused(Refusal { text, content: 0 })
}
