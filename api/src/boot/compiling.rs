//! Compiles the grammars of requests, each on a thread of its own, a few at a time. The time that a request waits for
//! its turn and for its grammar is bounded.
//!
//! A small source is compiled quickly. A source that is large, or that exceeds the limits of a quick compilation, gets
//! a full compilation. The processor time of both is charged to the tenant, with separate budgets (`turns.rs`). So
//! hostile sources of one tenant use little of the processors that the engine works on, and large sources do not hold
//! up the small ones of the same tenant.

mod turns;

use crate::boot::compiling::turns::{Lane, NoTurn, Turn, Turns};
use crate::http::ApiError;
use crate::openai::Rule;
use crate::text::Text;
use actix_web::http::StatusCode;
use metrics::{counter, describe_counter, describe_histogram, histogram};
use std::sync::{Arc, OnceLock};
use tiercel_device::{Clock, Constraint, lower_thread_priority, thread_us};
use tiercel_grammar::{Compiled, GrammarError, Grammars, STACK_BYTES, Source};
use tiercel_policy::blocks::Salt;
use tokio::sync::oneshot;

/// Longest time that a request waits for one compilation of its grammar, us; a quick and a full compilation count each
/// for themselves. A compilation that takes longer goes on, and puts the grammar into the cache, where a retry finds
/// it.
const COMPILE_US: u64 = 10_000_000;
/// Retry time in the answer to a client whose request got no turn, ms.
const RETRY_MS: u64 = 1_000;

/// Compiler of the grammars of requests.
pub(crate) struct Compiling {
    clock: Clock,
    text: Arc<Text>,
    vocab_size: u32,
    turns: Turns,
    /// Compiler of grammars for the model's vocabulary. The first request with a grammar makes the compiler.
    grammars: Arc<OnceLock<Result<Grammars, GrammarError>>>,
}

/// Function that compiles a source; `None` if the source needs a full compilation.
type Compile = fn(&Grammars, &Source) -> Option<Result<Compiled, GrammarError>>;

/// Reason why a grammar has not been compiled.
#[derive(Debug, PartialEq, Eq)]
enum NotCompiled {
    /// The grammar cannot be used.
    Refused(GrammarError),
    /// The compilation takes too long.
    Slow,
    /// The request got no turn.
    NoTurn(NoTurn),
    /// The operating system could not start a thread.
    NoThread,
}

/// Describes the metrics of compilations.
pub(crate) fn describe_compilations() {
    describe_counter!(
        "tiercel_grammars_total",
        "Grammars of requests, by result: compiled, cached, refused, slow, over_budget, busy"
    );
    describe_histogram!(
        "tiercel_grammar_compile_seconds",
        "Time to compile a grammar that was not in the cache"
    );
}

impl Compiling {
    /// Makes the compiler of grammars for a model with `vocab_size` tokens.
    pub(crate) fn new(clock: Clock, text: Arc<Text>, vocab_size: u32) -> Compiling {
        let turns = Turns::new(&clock);
        Compiling { clock, text, vocab_size, turns, grammars: Arc::default() }
    }

    /// Compiles the grammar of a tenant's request, or returns the compiled grammar from the cache.
    ///
    /// # Errors
    /// 400 for a grammar that cannot be used. 429 if other compilations leave no turn for 5 s, if the tenant is not
    /// within its budget for 5 s, or if the grammar is not compiled within 10 s. 503 if the system has no thread left.
    pub(crate) async fn compile(
        &self,
        rule: Rule,
        tenant: Salt,
    ) -> Result<Arc<dyn Constraint>, ApiError> {
        let Rule { source, param } = rule;
        let compiled = self.run(source, tenant).await;
        let result = match &compiled {
            Ok(Compiled { cached: true, .. }) => "cached",
            Ok(_) => "compiled",
            Err(NotCompiled::Refused(_)) => "refused",
            Err(NotCompiled::Slow) => "slow",
            Err(NotCompiled::NoTurn(NoTurn::OverBudget { .. })) => "over_budget",
            Err(NotCompiled::NoTurn(NoTurn::Busy) | NotCompiled::NoThread) => "busy",
        };
        counter!("tiercel_grammars_total", "result" => result).increment(1);
        compiled.map(|compiled| compiled.constraint).map_err(|why| why.into_error(&param))
    }

    async fn run(&self, source: Source, tenant: Salt) -> Result<Compiled, NotCompiled> {
        source.check_size().map_err(NotCompiled::Refused)?;
        if let Some(known) = self.known(&source) {
            return known;
        }
        let source = Arc::new(source);
        if source.is_small() {
            let quick = Grammars::compile_quickly;
            if let Some(done) = self.in_turn(&self.turns.quick, &source, tenant, quick).await? {
                return Ok(done);
            }
        }
        let full = |grammars: &Grammars, source: &Source| Some(grammars.compile(source));
        let done = self.in_turn(&self.turns.full, &source, tenant, full).await?;
        Ok(done.expect("a full compilation has a result"))
    }

    /// Returns the result of an earlier compilation of the source, if the cache has it.
    fn known(&self, source: &Source) -> Option<Result<Compiled, NotCompiled>> {
        let grammars = self.grammars.get()?.as_ref().ok()?;
        grammars.known(source).map(|known| known.map_err(NotCompiled::Refused))
    }

    /// Waits for a turn and compiles a source. Returns `None` if the compilation ended without a result.
    async fn in_turn(
        &self,
        lane: &Lane,
        source: &Arc<Source>,
        tenant: Salt,
        compile: Compile,
    ) -> Result<Option<Compiled>, NotCompiled> {
        let turn = lane.turn(tenant).await;
        // Another request may have had the same source compiled meanwhile.
        if let Some(known) = self.known(source) {
            return known.map(Some);
        }
        let turn = Arc::new(turn.map_err(NotCompiled::NoTurn)?);
        let (answer, compiled) = oneshot::channel();
        self.start(Arc::clone(source), Arc::clone(&turn), compile, answer)?;
        match self.clock.timeout_us(COMPILE_US, compiled).await {
            Some(Ok(compiled)) => compiled.map_err(NotCompiled::Refused),
            Some(Err(_)) => {
                let why = GrammarError::Failed("its thread ended".to_owned());
                Err(NotCompiled::Refused(why))
            }
            None => {
                turn.outlast(COMPILE_US);
                Err(NotCompiled::Slow)
            }
        }
    }

    /// Starts a thread that compiles a source.
    fn start(
        &self,
        source: Arc<Source>,
        turn: Arc<Turn>,
        compile: Compile,
        answer: oneshot::Sender<Result<Option<Compiled>, GrammarError>>,
    ) -> Result<(), NotCompiled> {
        let (grammars, text) = (Arc::clone(&self.grammars), self.text.clone());
        let (vocab_size, clock) = (self.vocab_size, self.clock.clone());
        let work = move || {
            lower_thread_priority();
            // The first request with a grammar makes the compiler of grammars for the vocabulary.
            let grammars = grammars.get_or_init(|| Grammars::new(&text.vocabulary(vocab_size)));
            let (began, began_us) = (clock.now(), thread_us());
            let compiled = match grammars {
                Ok(grammars) => compile(grammars, &source).transpose(),
                Err(error) => Err(error.clone()),
            };
            turn.charge(thread_us().saturating_sub(began_us));
            drop(turn);
            if let Ok(Some(Compiled { cached: false, .. })) = &compiled {
                let seconds = clock.now().since_us(began) as f64 / 1e6;
                histogram!("tiercel_grammar_compile_seconds").record(seconds);
            }
            // Ignore an error: nobody waits for the grammar if the client has left or the compilation took too long.
            let _ = answer.send(compiled);
        };
        let thread = std::thread::Builder::new().name("tiercel-grammar".into());
        thread.stack_size(STACK_BYTES).spawn(work).map(drop).map_err(|error| {
            tracing::error!(%error, "cannot start a thread to compile a grammar");
            NotCompiled::NoThread
        })
    }
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
            NotCompiled::NoTurn(NoTurn::Busy) => {
                retry_later(format!("too many grammars are being compiled; retry in {RETRY_MS} ms"))
            }
            NotCompiled::NoTurn(NoTurn::OverBudget { wait_us }) => {
                let message = format!(
                    "compiling grammars for this tenant, such as the one of '{param}', has taken more processor time \
                     than a tenant may use; retry in {} s, or use grammars that the server knows already",
                    wait_us.div_ceil(1_000_000)
                );
                ApiError::new(StatusCode::TOO_MANY_REQUESTS, message)
                    .code("rate_limit_exceeded")
                    .retry_after_ms(wait_us.div_ceil(1_000))
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
    use crate::boot::compiling::turns::{FULL, QUICK};
    use futures_util::future::poll_immediate;

    const TENANT: Salt = Salt([1; 16]);

    fn compiling() -> Compiling {
        Compiling::new(Clock::wall(), Arc::new(Text::of_bytes()), 300)
    }

    fn rule(regex: impl Into<String>) -> Rule {
        Rule { source: Source::Regex(regex.into()), param: "guided_regex".into() }
    }

    async fn run(compiling: &Compiling, regex: &str) -> Result<Compiled, NotCompiled> {
        compiling.run(Source::Regex(regex.into()), TENANT).await
    }

    #[test]
    fn a_compiled_grammar_is_found_again() {
        actix_rt::System::new().block_on(async {
            let compiling = compiling();
            let first = run(&compiling, "a+").await.unwrap();
            let again = run(&compiling, "a+").await.unwrap();
            assert!(!first.cached && again.cached);
            assert!(*first.constraint == *again.constraint);
        });
    }

    #[test]
    fn a_grammar_in_the_cache_needs_no_turn() {
        actix_rt::System::new().block_on(async {
            let compiling = compiling();
            run(&compiling, "a+").await.unwrap();
            let _turns =
                compiling.turns.quick.permits.clone().acquire_many_owned(QUICK as u32).await;
            let compile = |regex| compiling.compile(rule(regex), TENANT);
            assert!(poll_immediate(compile("a+")).await.is_some());
            assert!(poll_immediate(compile("b+")).await.is_none());
        });
    }

    #[test]
    fn large_and_hard_sources_need_a_full_turn_and_small_ones_do_not() {
        actix_rt::System::new().block_on(async {
            let compiling = compiling();
            let full = compiling.turns.full.permits.clone().acquire_many_owned(FULL as u32).await;
            let large = Source::Regex("a".repeat(9_000));
            let hard = "start: T\nT: /(.*a){30}/ & /(.*b){30}/ & /(.*c){30}/ & /(.*d){30}/";
            let hard = Source::Lark(hard.to_owned());
            assert!(run(&compiling, "a+").await.is_ok());
            let mut waiting =
                Vec::from([large, hard].map(|source| Box::pin(compiling.run(source, TENANT))));
            for one in &mut waiting {
                assert!(compiling.clock.timeout_us(500_000, one).await.is_none());
            }
            drop(full);
            let done = futures_util::future::join_all(waiting).await;
            assert!(done[0].is_ok(), "{:?}", done[0]);
            assert!(matches!(done[1], Err(NotCompiled::Refused(GrammarError::TooComplex(_)))));
        });
    }

    #[test]
    fn a_grammar_that_cannot_be_used_is_a_400_that_names_its_field() {
        actix_rt::System::new().block_on(async {
            let error = compiling().compile(rule("a("), TENANT).await.unwrap_err();
            assert_eq!(error.body()["error"]["param"], "guided_regex");
            assert!(error.to_string().starts_with("'guided_regex': line 1"), "{error}");
        });
    }

    #[test]
    fn a_turn_is_waited_for_and_then_refused_with_a_retry_time() {
        actix_rt::System::new().block_on(async {
            let compiling = compiling();
            let turns =
                compiling.turns.quick.permits.clone().acquire_many_owned(QUICK as u32).await;
            let mut waiting = Box::pin(compiling.compile(rule("a"), TENANT));
            assert!(poll_immediate(&mut waiting).await.is_none());
            drop(turns);
            assert!(waiting.await.is_ok());
            for (why, code) in [
                (NotCompiled::NoTurn(NoTurn::Busy), "queue_full"),
                (NotCompiled::Slow, "queue_full"),
                (NotCompiled::NoTurn(NoTurn::OverBudget { wait_us: 1 }), "rate_limit_exceeded"),
            ] {
                let error = why.into_error("guided_regex");
                assert_eq!((error.is_refusal(), error.outcome()), (true, Some(code)));
            }
        });
    }
}
