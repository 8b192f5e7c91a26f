//! Compiled grammars as constraints on outputs (`tiercel_device::Constraint`).

use llguidance::Matcher;
use llguidance::api::StopReason;
use std::fmt;
use std::sync::atomic::AtomicBool;
use std::sync::{Mutex, PoisonError};
use tiercel_device::{Constraint, ConstraintState, NoToken, TokenId, TokenMask};

/// Maximum length of a reason of llguidance that is repeated to a client, characters.
const REASON_CHARS: usize = 300;

/// Compiled grammar, shared by the sequences that follow it.
pub(crate) struct Grammar {
    /// Parser before the first token. Each sequence gets a deep copy. Deep copies share no tables, so that sequences do
    /// not wait for each other and do not use up each other's limits.
    parser: Mutex<Matcher>,
    /// Whether a mask has taken long.
    slow: AtomicBool,
}

impl Grammar {
    pub(crate) fn new(parser: Matcher) -> Grammar {
        Grammar { parser: Mutex::new(parser), slow: AtomicBool::new(false) }
    }
}

impl fmt::Debug for Grammar {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Grammar")
    }
}

impl Constraint for Grammar {
    fn start(&self) -> Box<dyn ConstraintState> {
        let parser = self.parser.lock().unwrap_or_else(PoisonError::into_inner);
        Box::new(State { parser: parser.deep_clone() })
    }

    fn slow(&self) -> Option<&AtomicBool> {
        Some(&self.slow)
    }
}

/// State of one sequence: the parser after the output tokens of the sequence.
struct State {
    parser: Matcher,
}

impl State {
    /// Returns the reason why no token may come next, after the parser failed with `error`.
    fn reason(&self, error: &str) -> NoToken {
        match self.parser.stop_reason() {
            StopReason::NoExtension | StopReason::EndOfSentence => NoToken::Complete,
            _ => NoToken::Stuck(short(error)),
        }
    }
}

impl ConstraintState for State {
    fn mask(&mut self) -> Result<TokenMask, NoToken> {
        if self.parser.stop_reason() == StopReason::EndOfSentence {
            return Err(NoToken::Complete);
        }
        let mask = self.parser.compute_mask_or_eos();
        let mask = mask.map_err(|error| self.reason(&error.to_string()))?;
        match mask.is_zero() {
            false => Ok(TokenMask::from_words(mask.as_slice().to_vec())),
            // The output is complete, and the vocabulary has no end token.
            true => Err(NoToken::Complete),
        }
    }

    fn advance(&mut self, token: TokenId) -> Result<(), NoToken> {
        self.parser.consume_token(token).map_err(|error| self.reason(&error.to_string()))
    }
}

/// Shortens a message of llguidance to its first line and [`REASON_CHARS`] characters.
pub(crate) fn short(message: &str) -> String {
    let line = message.lines().map(str::trim).find(|line| !line.is_empty()).unwrap_or_default();
    match line.char_indices().nth(REASON_CHARS) {
        Some((at, _)) => format!("{}...", &line[..at]),
        None => line.to_owned(),
    }
}
