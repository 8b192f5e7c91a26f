//! Reads the text that closes a call, with white space before it.

use super::form::{Refusal, Step, give_back, is_space};

/// Most white space before the text, bytes.
const SPACE_BYTES_MAX: usize = 64;

/// A text that may follow a complete call. Without it, the call is as complete.
#[derive(Debug)]
pub(super) struct Closing {
    expected: &'static str,
    read: String,
}

impl Closing {
    pub(super) fn new(expected: &'static str) -> Closing {
        Closing { expected, read: String::new() }
    }

    /// Takes the next character. Other text than the expected one is given back.
    pub(super) fn feed(&mut self, ch: char) -> Step {
        self.read.push(ch);
        let text = self.read.trim_start_matches(is_space);
        if text == self.expected {
            return Step::Over;
        }
        let space = self.read.len() - text.len();
        if self.expected.starts_with(text) && space <= SPACE_BYTES_MAX {
            return Step::Taken;
        }
        give_back(std::mem::take(&mut self.read))
    }

    /// Takes several characters; what is after the expected text, or other text, is given back.
    pub(super) fn feed_all(&mut self, text: &str) -> Step {
        for (at, ch) in text.char_indices() {
            let rest = &text[at + ch.len_utf8()..];
            match self.feed(ch) {
                Step::Taken => (),
                Step::Over if rest.is_empty() => return Step::Over,
                Step::Over => return give_back(rest.to_owned()),
                Step::Refused(Refusal { text: read, .. }) => return give_back(read + rest),
            }
        }
        Step::Taken
    }
}
