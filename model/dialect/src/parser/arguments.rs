//! Parses arguments of a call that are a JSON object, and passes them on while they arrive.

use super::form::{Step, give_back};
use super::json::{Scan, Scanner};
use super::sink::Sink;

/// Parser of the arguments of a call that has begun, from the opening brace on.
#[derive(Debug)]
pub(super) struct Arguments(Scanner);

impl Arguments {
    pub(super) fn new() -> Arguments {
        Arguments(Scanner::new())
    }

    /// Parses the next character; the first character must be the opening brace. The closing brace ends the arguments
    /// and the call. A character that makes the JSON invalid is refused.
    pub(super) fn feed(&mut self, ch: char, out: &mut Sink) -> Step {
        let mut json = String::new();
        let scan = self.0.feed(ch, &mut json);
        out.arguments(&json);
        match scan {
            Scan::More => Step::Taken,
            Scan::End => {
                out.end();
                Step::Over
            }
            Scan::Before | Scan::Invalid => give_back(ch.to_string()),
        }
    }
}
