//! Prints how long grammars take: the times to compile JSON schemas, and to compute the mask of each token of random
//! outputs.
//!
//! ```text
//! cargo run --release -p tiercel-model --example mask_times [DIRECTORY OF .json SCHEMAS | hostile]
//! ```
//!
//! Without a directory, the schemas of the tests of `tiercel-grammar` are used; with `hostile`, the hostile sources of
//! these tests. The vocabulary is the default model's.
#![allow(clippy::unwrap_used, reason = "an example fails by panicking")]

#[path = "../grammar/tests/common/mod.rs"]
mod common;

use common::hostile::hostile_sources;
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use serde_json::Value;
use std::path::{Path, PathBuf};
use tiercel_device::{Clock, Constraint, TokenId};
use tiercel_grammar::{Grammars, STACK_BYTES, Source, TokenText, Vocabulary};
use tiercel_model::source::Resolver;
use tiercel_model::tokenizer::Tokenizer;

/// Maximum number of tokens of an output.
const TOKENS: usize = 200;

/// Measured times of one kind, us.
#[derive(Default)]
struct Times(Vec<u64>);

impl Times {
    fn print(&mut self, what: &str) {
        self.0.sort_unstable();
        let at = |share: f64| self.0[((self.0.len() - 1) as f64 * share) as usize];
        let count = self.0.len();
        let (half, most, last) = (at(0.5), at(0.99), at(1.0));
        println!("{what}: {count}, p50 {half} us, p99 {most} us, longest {last} us");
    }
}

/// Returns the sources that an argument of the example names.
fn sources(argument: Option<PathBuf>) -> Vec<Source> {
    match argument {
        None => {
            common::schemas().into_iter().map(|(_, schema)| Source::JsonSchema(schema)).collect()
        }
        Some(word) if word == Path::new("hostile") => {
            hostile_sources().into_iter().map(|(_, source)| source).collect()
        }
        Some(directory) => schemas(&directory).into_iter().map(Source::JsonSchema).collect(),
    }
}

/// Returns the schemas of a directory.
fn schemas(directory: &Path) -> Vec<Value> {
    let files = std::fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().path());
    let mut files: Vec<PathBuf> =
        files.filter(|path| path.extension().is_some_and(|ext| ext == "json")).collect();
    files.sort();
    let schema = |path: &PathBuf| serde_json::from_slice(&std::fs::read(path).unwrap()).ok();
    files.iter().filter_map(schema).collect()
}

/// Follows a grammar with random tokens. Tokens that close a string, an array or an object are chosen more often.
/// Returns whether the output ended.
fn follow(constraint: &dyn Constraint, tokenizer: &Tokenizer, masks: &mut Times) -> bool {
    let (clock, mut dice) = (Clock::wall(), SmallRng::seed_from_u64(1));
    let mut state = constraint.start();
    for _ in 0..TOKENS {
        let began = clock.now();
        let Ok(mask) = state.mask() else { return false };
        masks.0.push(clock.now().since_us(began));
        if mask.allows(tokenizer.special().ends[0]) {
            return true;
        }
        let all: Vec<TokenId> = mask.tokens().collect();
        let closes =
            |token: &TokenId| matches!(tokenizer.token_bytes(*token), [b'"' | b']' | b'}', ..]);
        let closing: Vec<TokenId> = all.iter().copied().filter(closes).collect();
        let from = if !closing.is_empty() && dice.random_bool(0.3) { &closing } else { &all };
        if state.advance(from[dice.random_range(0..from.len())]).is_err() {
            return false;
        }
    }
    false
}

fn measure(argument: Option<PathBuf>) {
    let clock = Clock::wall();
    let files = Resolver::from_env().unwrap().resolve(None).unwrap().files;
    let tokenizer = Tokenizer::from_files(&files).unwrap();
    let text = |id| TokenText::of(tokenizer.token_bytes(id), tokenizer.is_special(id));
    let began = clock.now();
    let ends = &tokenizer.special().ends;
    let vocabulary = Vocabulary::new(tokenizer.vocab_size(), ends, text);
    let grammars = Grammars::new(&vocabulary).unwrap();
    println!("vocabulary of {}: {} us", vocabulary.size(), clock.now().since_us(began));
    let (mut compiled, mut refused, mut masks) =
        (Times::default(), Times::default(), Times::default());
    let (mut ended, mut cut) = (0, 0);
    for source in sources(argument) {
        let began = clock.now();
        let result = grammars.compile(&source);
        let us = clock.now().since_us(began);
        match result {
            Ok(result) => {
                compiled.0.push(us);
                match follow(&*result.constraint, &tokenizer, &mut masks) {
                    true => ended += 1,
                    false => cut += 1,
                }
            }
            Err(_) => refused.0.push(us),
        }
    }
    compiled.print("compiled");
    refused.print("refused");
    masks.print("masks");
    println!("outputs: {ended} came to their end, {cut} did not");
}

fn main() {
    let argument = std::env::args_os().nth(1).map(PathBuf::from);
    let thread = std::thread::Builder::new().stack_size(STACK_BYTES);
    thread.spawn(move || measure(argument)).unwrap().join().unwrap();
}
