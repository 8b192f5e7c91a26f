//! Compiles sources to grammars, within limits, and keeps the compiled grammars in a cache.

use crate::cache::Cache;
use crate::constraint::{Grammar, short};
use crate::{GrammarError, Source, Vocabulary, gbnf, lark, schema};
use llguidance::api::{GrammarInit, ParserLimits, TopLevelGrammar};
use llguidance::earley::SlicedBiasComputer;
use llguidance::toktrie::InferenceCapabilities;
use llguidance::{Logger, Matcher, ParserFactory, TokenParser};
use serde_json::json;
use std::fmt::Display;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tiercel_device::Constraint;

/// Size of the stack that a thread needs to compile any source within the limits, bytes. llguidance's compiler recurses
/// for each rule or reference that leads to another rule or reference.
pub const STACK_BYTES: usize = 512 << 20;

/// Maximum number of compiled grammars in a cache.
const CACHE_ENTRIES: usize = 64;
/// Maximum total size of the compiled grammars in a cache, as far as their sizes are known, bytes.
const CACHE_BYTES: usize = 128 << 20;

/// Maximum number of refused sources that are remembered.
const REFUSED_ENTRIES: usize = 256;

/// Estimated memory of a compiled grammar's rules, bytes for each byte of the source.
const SOURCE_FACTOR: usize = 64;

/// Limits of llguidance's parser. A source that exceeds a limit is refused; an output that exceeds a limit ends.
const LIMITS: ParserLimits = ParserLimits {
    max_items_in_row: 2_000,
    initial_lexer_fuel: 1_000_000,
    step_lexer_fuel: 200_000,
    step_max_items: 50_000,
    max_lexer_states: 20_000,
    max_grammar_size: 200_000,
    precompute_large_lexemes: true,
    verbose_errors: false,
};

/// Limits of the first attempt at a small source. Few sources exceed these limits and not [`LIMITS`]; a hostile source
/// exceeds them after some 10 ms, and [`LIMITS`] after up to 500 ms.
const QUICK_LIMITS: ParserLimits =
    ParserLimits { initial_lexer_fuel: 20_000, max_grammar_size: 10_000, ..LIMITS };

/// Compiler of grammars for one vocabulary, with caches of the compiled grammars and of the refused sources.
pub struct Grammars {
    factory: ParserFactory,
    /// Grammars that were compiled quickly. They have a cache of their own, so that many of them do not displace those
    /// that take long to compile.
    quick: Mutex<Cache<Arc<dyn Constraint>>>,
    /// Grammars of full compilations.
    full: Mutex<Cache<Arc<dyn Constraint>>>,
    refused: Mutex<Cache<GrammarError>>,
}

/// A compiled grammar.
#[derive(Debug, Clone)]
pub struct Compiled {
    /// The grammar as a constraint on outputs.
    pub constraint: Arc<dyn Constraint>,
    /// Whether the grammar was in the cache, so that it was not compiled again.
    pub cached: bool,
}

impl std::fmt::Debug for Grammars {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Grammars")
    }
}

impl Grammars {
    /// Creates a compiler for a vocabulary, which takes up to a second for a large vocabulary.
    ///
    /// # Errors
    /// [`GrammarError::Failed`] if llguidance cannot use the vocabulary.
    pub fn new(vocabulary: &Vocabulary) -> Result<Grammars, GrammarError> {
        let slices = SlicedBiasComputer::general_slices();
        let (tokens, abilities) = (&vocabulary.tokens, InferenceCapabilities::default());
        let factory = guarded(|| ParserFactory::new(tokens, abilities, &slices))?;
        let cache = || Mutex::new(Cache::new(CACHE_ENTRIES, CACHE_BYTES));
        let refused = Mutex::new(Cache::new(REFUSED_ENTRIES, usize::MAX));
        Ok(Grammars { factory, quick: cache(), full: cache(), refused })
    }

    /// Compiles a small source within tight limits, which takes some tens of ms at most. Any result is the one that
    /// [`Self::compile`] would return. Returns `None` if the source is large or exceeds the tight limits. Needs a stack
    /// of [`STACK_BYTES`].
    pub fn compile_quickly(&self, source: &Source) -> Option<Result<Compiled, GrammarError>> {
        if !source.is_small() {
            return None;
        }
        match self.compile_within(source, QUICK_LIMITS, &self.quick) {
            Err(GrammarError::TooComplex(_)) => None,
            Err(error) => Some(Err(self.refuse(source, error))),
            done => Some(done),
        }
    }

    /// Compiles a source, or returns the compiled grammar from the cache. Compiling may take seconds, and needs a stack
    /// of [`STACK_BYTES`].
    ///
    /// # Errors
    /// [`GrammarError`] with the mistake in the source and its place.
    pub fn compile(&self, source: &Source) -> Result<Compiled, GrammarError> {
        let result = self.compile_within(source, LIMITS, &self.full);
        result.map_err(|error| self.refuse(source, error))
    }

    /// Remembers why a source was refused.
    fn refuse(&self, source: &Source, error: GrammarError) -> GrammarError {
        lock(&self.refused).insert(source.digest().0, 0, error.clone());
        error
    }

    fn compile_within(
        &self,
        source: &Source,
        limits: ParserLimits,
        cache: &Mutex<Cache<Arc<dyn Constraint>>>,
    ) -> Result<Compiled, GrammarError> {
        source.check_size()?;
        if let Some(known) = self.known(source) {
            return known;
        }
        let grammar = GrammarInit::Serialized(lower(source)?);
        let (logger, abilities) = (Logger::new(0, 0), InferenceCapabilities::default());
        let create =
            || self.factory.create_parser_from_init_ext(grammar, logger, abilities, limits);
        let (constraint, parser_bytes) = check(guarded(create)?)?;
        let (key, source_bytes) = source.digest();
        let bytes = source_bytes * SOURCE_FACTOR + parser_bytes;
        lock(cache).insert(key, bytes, Arc::clone(&constraint));
        Ok(Compiled { constraint, cached: false })
    }

    /// Returns the compiled grammar of a source, or the reason why the source was refused, if the cache has either.
    pub fn known(&self, source: &Source) -> Option<Result<Compiled, GrammarError>> {
        let key = source.digest().0;
        let compiled = || lock(&self.quick).get(&key).or_else(|| lock(&self.full).get(&key));
        match compiled() {
            Some(constraint) => Some(Ok(Compiled { constraint, cached: true })),
            None => lock(&self.refused).get(&key).map(Err),
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Converts a source to llguidance's form of a grammar.
fn lower(source: &Source) -> Result<TopLevelGrammar, GrammarError> {
    Ok(match source {
        Source::JsonObject => {
            TopLevelGrammar::from_json_schema(schema::prepare(&json!({"type": "object"}))?)
        }
        Source::JsonSchema(schema) => TopLevelGrammar::from_json_schema(schema::prepare(schema)?),
        Source::Regex(regex) => TopLevelGrammar::from_regex(&lark::check_regex(regex)?),
        Source::Choice(choices) => {
            let escaped: Vec<String> =
                choices.iter().map(|choice| regex_syntax::escape(choice)).collect();
            TopLevelGrammar::from_regex(&escaped.join("|"))
        }
        Source::Lark(grammar) => TopLevelGrammar::from_lark(lark::prepare(grammar)?),
        Source::Gbnf(grammar) => TopLevelGrammar::from_lark(gbnf::to_lark(grammar)?),
    })
}

/// Checks a compiled grammar: llguidance must have followed the whole source, and at least one token must be allowed
/// first. Returns the grammar and the size of its tables, bytes.
fn check(mut parser: TokenParser) -> Result<(Arc<dyn Constraint>, usize), GrammarError> {
    if let Some(warning) = parser.grammar_warnings().first() {
        return Err(GrammarError::unsupported("the grammar", short(warning)));
    }
    let mut matcher = Matcher::new(Ok(parser.clone()));
    matcher.compute_mask_or_eos().map_err(|error| classify(&error.to_string()))?;
    Ok((Arc::new(Grammar::new(matcher)), parser.parser.lexer_stats().num_bytes))
}

/// Runs a function of llguidance, and converts its errors and panics to [`GrammarError`]s.
fn guarded<T, E: Display>(work: impl FnOnce() -> Result<T, E>) -> Result<T, GrammarError> {
    match catch_unwind(AssertUnwindSafe(work)) {
        Ok(Ok(done)) => Ok(done),
        Ok(Err(error)) => Err(classify(&format!("{error:#}"))),
        Err(_) => Err(GrammarError::Failed("it panicked".to_owned())),
    }
}

/// Words in llguidance's error messages about exceeded limits.
const LIMIT_WORDS: [&str; 8] = [
    "too large",
    "too big",
    "too complex",
    "too many",
    "too deep",
    "fuel",
    "stack level exceeded",
    "unable to determine if regex is empty",
];

/// Words in llguidance's error messages about features that llguidance lacks.
const MISSING_WORDS: [&str; 7] = [
    "not supported",
    "only supported",
    "unimplemented",
    "not disjoint",
    "are disjoint",
    "retrieving it failed",
    "unknown format",
];

/// Converts an error message of llguidance to an error.
fn classify(message: &str) -> GrammarError {
    let reason = short(message);
    let lower = message.to_lowercase();
    if message.contains("panic: ") {
        GrammarError::Failed(reason)
    } else if lower.contains("noextension") {
        GrammarError::Unsatisfiable("no token may come first".to_owned())
    } else if lower.contains("unsatisfiable") {
        GrammarError::Unsatisfiable(reason)
    } else if message.contains("oneOf constraints are not supported") {
        GrammarError::Unsupported {
            at: "the JSON schema".to_owned(),
            feature: "a 'oneOf' of which several options may hold".to_owned(),
            instead: "use 'anyOf', or give the options different values of a required property",
        }
    } else if MISSING_WORDS.iter().any(|word| lower.contains(word)) {
        GrammarError::NotSupported(reason)
    } else if LIMIT_WORDS.iter().any(|word| lower.contains(word)) {
        GrammarError::TooComplex(reason)
    } else {
        GrammarError::Invalid(reason)
    }
}
