//! Passes on the arguments of a call that are a JSON object, while they arrive.

use super::form::{Step, give_back};
use super::json::{Scan, Scanner};
use super::sink::Sink;

/// The arguments of a call that has begun, from their opening brace on.
#[derive(Debug)]
pub(super) struct Arguments(Scanner);

impl Arguments {
    pub(super) fn new() -> Arguments {
        Arguments(Scanner::new())
    }

    /// Takes the next character, the first of which is the opening brace. At the closing brace, the arguments and the
    /// call are over. A character that is no JSON is given back.
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
