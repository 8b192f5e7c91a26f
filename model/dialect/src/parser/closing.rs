//! Parser of the closing delimiter of a call, with whitespace before the delimiter.

use super::form::{Refusal, Step, give_back, is_space};

/// Maximum length of the whitespace before the delimiter, bytes.
const SPACE_BYTES_MAX: usize = 64;

/// Closing delimiter that may follow a complete call. A call without the delimiter is complete too.
#[derive(Debug)]
pub(super) struct Closing {
    expected: &'static str,
    read: String,
}

impl Closing {
    pub(super) fn new(expected: &'static str) -> Closing {
        Closing { expected, read: String::new() }
    }

    /// Parses the next character. Text other than the delimiter is refused.
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

    /// Parses several characters. Text after the delimiter, and text other than the delimiter, is refused.
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
