//! Shared parts of the tests of grammars: a vocabulary, the vendored schemas, and random outputs that follow a grammar.
#![allow(dead_code, reason = "each test uses a part")]

pub(crate) mod hostile;

use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use serde_json::Value;
use std::sync::Arc;
use tiercel_device::{Constraint, NoToken, TokenId};
use tiercel_grammar::{
    Compiled, GrammarError, Grammars, STACK_BYTES, Source, TokenText, Vocabulary,
};

/// End token of the test vocabulary.
pub(crate) const END: TokenId = 256;
/// Tokens of several bytes. The vocabulary also has one token for each byte.
const WORDS: [&str; 40] = [
    "{\"", "\":", "\": ", "\", \"", "\",\"", ", ", ": ", "[]", "{}", "},", "],", "\"}", "\"]",
    "true", "false", "null", "tr", "nul", "00", "10", "123", "-1", "0.5", "e+", "the", " the",
    "name", "a\"", "\\n", "\\\"", "é", "日本", "ab", "cat", "dog", "kind", "http://", "2024-",
    "-0", ".com",
];

/// Returns the bytes of a token of the test vocabulary.
pub(crate) fn token_bytes(token: TokenId) -> Vec<u8> {
    match token {
        0..256 => vec![token as u8],
        END => Vec::new(),
        _ => WORDS[token as usize - 257].as_bytes().to_vec(),
    }
}

/// Returns the compiler for the test vocabulary.
pub(crate) fn grammars() -> Grammars {
    let text = |id| match id {
        END => TokenText::Special(b"<|end|>".to_vec()),
        id => TokenText::Bytes(token_bytes(id)),
    };
    Grammars::new(&Vocabulary::new(257 + WORDS.len(), &[END], text)).unwrap()
}

/// Runs a function that compiles grammars on a thread with a stack of [`STACK_BYTES`].
pub(crate) fn with_stack<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> T {
    std::thread::Builder::new().stack_size(STACK_BYTES).spawn(work).unwrap().join().unwrap()
}

/// Compiles one source on a thread with a stack of [`STACK_BYTES`].
pub(crate) fn compile(source: Source) -> Result<Arc<dyn Constraint>, GrammarError> {
    with_stack(move || grammars().compile(&source).map(|Compiled { constraint, .. }| constraint))
}

/// Returns the vendored schemas with their names.
pub(crate) fn schemas() -> Vec<(String, Value)> {
    let files = [include_str!("../schemas/ours.jsonl"), include_str!("../schemas/suite.jsonl")];
    let read = |line: &str| {
        let line: Value = serde_json::from_str(line).unwrap();
        (line["name"].as_str().unwrap().to_owned(), line["schema"].clone())
    };
    files.iter().flat_map(|file| file.lines()).map(read).collect()
}

/// Reason for which a random output ended.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Ending {
    /// The end token was chosen.
    Complete,
    /// The output reached its maximum length.
    Cut,
    /// The grammar left no token. Holds the reason.
    Stuck(String),
}

/// Returns a random output of at most `limit` tokens that follows a grammar. The end token, and tokens that close a
/// string, an array or an object, are chosen more often than others, so that most outputs end.
pub(crate) fn random_output(
    constraint: &dyn Constraint,
    seed: u64,
    limit: usize,
) -> (Vec<u8>, Ending) {
    let mut dice = SmallRng::seed_from_u64(seed);
    let mut state = constraint.start();
    let mut output = Vec::new();
    for _ in 0..limit {
        let mask = match state.mask() {
            Ok(mask) => mask,
            Err(NoToken::Complete) => return (output, Ending::Complete),
            Err(NoToken::Stuck(why)) => return (output, Ending::Stuck(why)),
        };
        let all: Vec<TokenId> = mask.tokens().collect();
        assert!(!all.is_empty(), "an empty mask");
        let closing: Vec<TokenId> = all
            .iter()
            .copied()
            .filter(|token| {
                *token == END || b"\"]}".contains(token_bytes(*token).last().unwrap_or(&0))
            })
            .collect();
        let from = if !closing.is_empty() && dice.random_bool(0.4) { &closing } else { &all };
        let token = from[dice.random_range(0..from.len())];
        if token == END {
            return (output, Ending::Complete);
        }
        output.extend(token_bytes(token));
        if let Err(error) = state.advance(token) {
            panic!("an allowed token was refused: {error}");
        }
    }
    (output, Ending::Cut)
}
