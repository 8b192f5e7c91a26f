//! Compiles the grammars of requests, each on a thread of its own, a few at a time. The time that a request waits for
//! its turn and for its grammar is bounded.

use crate::http::ApiError;
use crate::openai::Rule;
use crate::text::Text;
use actix_web::http::StatusCode;
use metrics::{counter, describe_counter, describe_histogram, histogram};
use std::sync::{Arc, OnceLock};
use tiercel_device::{Clock, Constraint, lower_thread_priority};
use tiercel_grammar::{Compiled, GrammarError, Grammars, STACK_BYTES, Source};
use tokio::sync::{Semaphore, oneshot};

/// Maximum number of grammars that the server compiles at once.
const TURNS: usize = 2;
/// Longest time that a request waits for its turn, us.
const WAIT_US: u64 = 5_000_000;
/// Longest time that a request waits for its grammar to be compiled, us. A compilation that takes longer goes on, keeps
/// its turn, and puts the grammar into the cache, where a retry finds it.
const COMPILE_US: u64 = 10_000_000;
/// Retry time in the answer to a client whose request got no turn, ms.
const RETRY_MS: u64 = 1_000;

/// Compiler of the grammars of requests.
pub(crate) struct Compiling {
    clock: Clock,
    text: Arc<Text>,
    vocab_size: u32,
    turns: Arc<Semaphore>,
    /// Compiler of grammars for the model's vocabulary. The first request with a grammar makes the compiler.
    grammars: Arc<OnceLock<Result<Grammars, GrammarError>>>,
}

/// Reason why a grammar has not been compiled.
#[derive(Debug, PartialEq, Eq)]
enum NotCompiled {
    /// The grammar cannot be used.
    Refused(GrammarError),
    /// The compilation takes too long.
    Slow,
    /// Other compilations left no turn in time.
    Busy,
    /// The operating system could not start a thread.
    NoThread,
}

/// Describes the metrics of compilations.
pub(crate) fn describe_compilations() {
    describe_counter!(
        "tiercel_grammars_total",
        "Grammars of requests, by result: compiled, cached, refused, slow, busy"
    );
    describe_histogram!(
        "tiercel_grammar_compile_seconds",
        "Time to compile a grammar that was not in the cache"
    );
}

impl Compiling {
    /// Makes the compiler of grammars for a model with `vocab_size` tokens.
    pub(crate) fn new(clock: Clock, text: Arc<Text>, vocab_size: u32) -> Compiling {
        let turns = Arc::new(Semaphore::new(TURNS));
        Compiling { clock, text, vocab_size, turns, grammars: Arc::default() }
    }

    /// Compiles the grammar of a request, or returns the compiled grammar from the cache.
    ///
    /// # Errors
    /// 400 for a grammar that cannot be used, 429 if other compilations leave no turn for 5 s or if the grammar is not
    /// compiled within 10 s, 503 if the system has no thread left.
    pub(crate) async fn compile(&self, rule: Rule) -> Result<Arc<dyn Constraint>, ApiError> {
        let Rule { source, param } = rule;
        let compiled = self.run(source).await;
        let result = match &compiled {
            Ok(Compiled { cached: true, .. }) => "cached",
            Ok(_) => "compiled",
            Err(NotCompiled::Refused(_)) => "refused",
            Err(NotCompiled::Slow) => "slow",
            Err(NotCompiled::Busy | NotCompiled::NoThread) => "busy",
        };
        counter!("tiercel_grammars_total", "result" => result).increment(1);
        compiled.map(|compiled| compiled.constraint).map_err(|why| why.into_error(&param))
    }

    async fn run(&self, source: Source) -> Result<Compiled, NotCompiled> {
        source.check_size().map_err(NotCompiled::Refused)?;
        if let Some(Ok(grammars)) = self.grammars.get()
            && let Some(constraint) = grammars.cached(&source)
        {
            return Ok(Compiled { constraint, cached: true });
        }
        let turn = self.clock.timeout_us(WAIT_US, Arc::clone(&self.turns).acquire_owned()).await;
        let Some(Ok(turn)) = turn else { return Err(NotCompiled::Busy) };
        let (answer, compiled) = oneshot::channel();
        let (grammars, text, vocab_size) =
            (self.grammars.clone(), self.text.clone(), self.vocab_size);
        let clock = self.clock.clone();
        let work = move || {
            lower_thread_priority();
            let began = clock.now();
            let compiled = compile(&grammars, &text, vocab_size, &source);
            if !matches!(&compiled, Ok(Compiled { cached: true, .. })) {
                let seconds = clock.now().since_us(began) as f64 / 1e6;
                histogram!("tiercel_grammar_compile_seconds").record(seconds);
            }
            // Ignore an error: nobody waits for the grammar if the client has left or the compilation took too long.
            let _ = answer.send(compiled);
            drop(turn);
        };
        let thread = std::thread::Builder::new().name("tiercel-grammar".into());
        thread.stack_size(STACK_BYTES).spawn(work).map_err(|error| {
            tracing::error!(%error, "cannot start a thread to compile a grammar");
            NotCompiled::NoThread
        })?;
        match self.clock.timeout_us(COMPILE_US, compiled).await {
            Some(Ok(compiled)) => compiled.map_err(NotCompiled::Refused),
            Some(Err(_)) => {
                let why = GrammarError::Failed("its thread ended".to_owned());
                Err(NotCompiled::Refused(why))
            }
            None => Err(NotCompiled::Slow),
        }
    }
}

/// Compiles the source of a grammar. The first call makes the compiler of grammars for the vocabulary.
fn compile(
    grammars: &OnceLock<Result<Grammars, GrammarError>>,
    text: &Text,
    vocab_size: u32,
    source: &Source,
) -> Result<Compiled, GrammarError> {
    let grammars = grammars.get_or_init(|| Grammars::new(&text.vocabulary(vocab_size)));
    grammars.as_ref().map_err(Clone::clone)?.compile(source)
}

impl NotCompiled {
    fn into_error(self, param: &str) -> ApiError {
        match self {
            NotCompiled::Refused(
                error @ (GrammarError::Unsupported { .. } | GrammarError::NotSupported(_)),
            ) => ApiError::unsupported(param, format!("'{param}': {error}")),
            NotCompiled::Refused(error) => ApiError::param(param, format!("'{param}': {error}")),
            NotCompiled::Slow => {
                let seconds = COMPILE_US / 1_000_000;
                retry_later(format!(
                    "the grammar of '{param}' was not compiled within {seconds} s, because the server is busy or the \
                     grammar is large; retry in {RETRY_MS} ms, or simplify the grammar"
                ))
            }
            NotCompiled::Busy => {
                retry_later(format!("too many grammars are being compiled; retry in {RETRY_MS} ms"))
            }
            NotCompiled::NoThread => {
                ApiError::unavailable("the server cannot compile a grammar now", "no_thread")
            }
        }
    }
}

fn retry_later(message: String) -> ApiError {
    let error = ApiError::new(StatusCode::TOO_MANY_REQUESTS, message);
    error.code("queue_full").retry_after_ms(RETRY_MS)
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures_util::future::poll_immediate;

    fn compiling() -> Compiling {
        Compiling::new(Clock::wall(), Arc::new(Text::of_bytes()), 300)
    }

    fn rule(regex: &str) -> Rule {
        Rule { source: Source::Regex(regex.into()), param: "guided_regex".into() }
    }

    #[test]
    fn a_compiled_grammar_is_found_again() {
        actix_rt::System::new().block_on(async {
            let compiling = compiling();
            let first = compiling.run(Source::Regex("a+".into())).await.unwrap();
            let again = compiling.run(Source::Regex("a+".into())).await.unwrap();
            assert!(!first.cached && again.cached);
            assert!(*first.constraint == *again.constraint);
        });
    }

    #[test]
    fn a_grammar_in_the_cache_needs_no_turn() {
        actix_rt::System::new().block_on(async {
            let compiling = compiling();
            compiling.run(Source::Regex("a+".into())).await.unwrap();
            let _turns = compiling.turns.clone().acquire_many_owned(TURNS as u32).await.unwrap();
            assert!(poll_immediate(compiling.compile(rule("a+"))).await.is_some());
            assert!(poll_immediate(compiling.compile(rule("b+"))).await.is_none());
        });
    }

    #[test]
    fn a_grammar_that_cannot_be_used_is_a_400_that_names_its_field() {
        actix_rt::System::new().block_on(async {
            let error = compiling().compile(rule("a(")).await.unwrap_err();
            assert_eq!(error.body()["error"]["param"], "guided_regex");
            assert!(error.to_string().starts_with("'guided_regex': line 1"), "{error}");
        });
    }

    #[test]
    fn a_turn_is_waited_for_and_then_refused_with_a_retry_time() {
        actix_rt::System::new().block_on(async {
            let compiling = compiling();
            let turns = compiling.turns.clone().acquire_many_owned(TURNS as u32).await.unwrap();
            let mut waiting = Box::pin(compiling.compile(rule("a")));
            assert!(poll_immediate(&mut waiting).await.is_none());
            drop(turns);
            assert!(waiting.await.is_ok());
            for why in [NotCompiled::Busy, NotCompiled::Slow] {
                let error = why.into_error("guided_regex");
                assert_eq!((error.is_refusal(), error.outcome()), (true, Some("queue_full")));
            }
        });
    }
}
