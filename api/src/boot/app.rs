//! State that all HTTP handlers share: the settings and, once the model is loaded, the engine.

use crate::boot::compiling::Compiling;
use crate::boot::metrics::Exporter;
use crate::boot::stage::{self, Stage};
use crate::boot::tokenizing::{NotTokenized, TextOf, Tokenizing};
use crate::control::{Audit, LatestDocument, LatestRows, Recorded, Traces};
use crate::http::{AccessLog, ApiError, BodyMemory, Caller, Keys, Meters};
use crate::live::LiveRequests;
use crate::openai::ModelFacts;
use crate::replies::Recorder;
use crate::spans::Spans;
use crate::standing::Standings;
use crate::text::{Forms, Text, TextError};
use actix_web::http::StatusCode;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, OnceLock};
use tiercel_actors::EngineHandle;
use tiercel_config::{EngineSettings, HttpSettings, Order};
use tiercel_device::{Clock, SamplingParams, Tier, Timestamp, TokenId};
use tiercel_model::template::{Conversation, Prompt};
use tiercel_policy::scheduler::Reservations;
use tokio::sync::watch;

/// Longest text that an HTTP worker tokenizes on its own thread, bytes. Longer texts are tokenized on another thread,
/// so that they do not block the worker's other connections.
const INLINE_TEXT_BYTES: usize = 4096;
/// Largest number of tokens that an HTTP worker decodes on its own thread.
const INLINE_TOKENS: usize = 1024;
/// Estimate of the markup that a chat template adds to each message, bytes; used to check the length of a conversation.
const MARKUP_BYTES: usize = 32;

/// State that all HTTP workers share: settings, API keys, metrics, access log and, after loading, the engine.
pub(crate) struct App {
    pub(crate) http: HttpSettings,
    pub(crate) clock: Clock,
    pub(crate) keys: Keys,
    pub(crate) metrics: Exporter,
    pub(crate) access: Arc<AccessLog>,
    pub(crate) audit: Audit,
    pub(crate) live: Arc<LiveRequests>,
    /// Rows of the listings of operators.
    pub(crate) rows: LatestRows,
    /// Rows of the listings of clients, so that no client waits for the thread of low priority that answers operators.
    pub(crate) own_rows: LatestRows,
    pub(crate) document: LatestDocument,
    pub(crate) meters: Arc<Meters>,
    pub(crate) bodies: Arc<BodyMemory>,
    /// What the server was when its recording began.
    pub(crate) recorded: Recorded,
    pub(crate) traces: Traces,
    /// Recorder of answers, if the setting `mock.record_file` names a file.
    pub(crate) recorder: Option<Arc<Recorder>>,
    serving: OnceLock<Serving>,
    /// End of the grace period of the drain, once the server drains.
    draining: OnceLock<Timestamp>,
    /// Time that running requests have to finish in the drain that an operator asked for, ms; `None` if no operator
    /// asked.
    drain_asked: watch::Sender<Option<u64>>,
}

/// A model as the API needs it: its tokenizer and chat template, its names and its default sampling parameters.
pub(crate) struct Model {
    pub(crate) text: Arc<Text>,
    /// Names by which clients may ask for the model; never empty. A request without a model name is answered under the
    /// first name.
    pub(crate) names: Vec<String>,
    /// Default sampling parameters, for those that a request leaves out.
    pub(crate) sampling: SamplingParams,
    /// System fingerprint, which every answer states.
    pub(crate) fingerprint: String,
    /// Forms in which the model writes tool calls and reasoning.
    pub(crate) forms: Forms,
}

/// A model that is being served, with its engine.
pub(crate) struct Serving {
    pub(crate) engine: EngineHandle,
    /// Where the engine's requests stand, for the comments of response streams.
    pub(crate) standings: Arc<Standings>,
    pub(crate) text: Arc<Text>,
    /// Names by which clients may ask for the served model; never empty.
    pub(crate) names: Vec<String>,
    /// Facts about the model. The server checks the fields of requests with these facts, and fills in the fields that a
    /// request leaves out.
    pub(crate) facts: ModelFacts,
    /// System fingerprint, which every answer states.
    pub(crate) fingerprint: Arc<str>,
    pub(crate) created_unix_s: u64,
    /// Context length, tokens (prompt and output together): the smaller of the model's limit and the capacity of the
    /// device pool.
    pub(crate) context_tokens: u32,
    /// Longest text that may fit into the context, bytes: `context_tokens` tokens of the longest token's length, but at
    /// most `Text::BYTES_MAX`. A longer text is refused without being tokenized.
    max_text_bytes: usize,
    /// Settings of the engine that are in effect.
    pub(crate) settings: tokio::sync::Mutex<EngineSettings>,
    /// Whether the scheduling policy serves requests in order of their tiers.
    tiers_matter: AtomicBool,
    /// Tokens that a request of each tier may have, prompt and output together: `context_tokens`, or what the KV blocks
    /// hold that are not reserved for other tiers, if that is less.
    request_tokens: [AtomicU32; Tier::ALL.len()],
    tokenizing: Tokenizing,
    /// Compiler of the grammars that requests state.
    pub(crate) compiling: Compiling,
}

impl App {
    /// Makes the state of a server whose engine will have `places` places.
    pub(crate) fn new(
        (http, keys): (HttpSettings, Keys),
        (recorder, spans): (Option<Recorder>, Option<Spans>),
        places: u32,
        clock: Clock,
        metrics: Exporter,
    ) -> App {
        let meters = Arc::new(Meters::new(clock.clone(), places));
        let bodies = Arc::new(BodyMemory::new(http.max_body_kib as usize * 1024));
        stage::set(Stage::Loading);
        App {
            keys,
            access: Arc::new(AccessLog::new(http.access_log, spans, clock.clone())),
            http,
            clock,
            metrics,
            audit: Audit::new(),
            live: Arc::default(),
            rows: LatestRows::default(),
            own_rows: LatestRows::default(),
            document: LatestDocument::default(),
            meters,
            bodies,
            recorded: Recorded::default(),
            traces: Traces::default(),
            recorder: recorder.map(Arc::new),
            serving: OnceLock::new(),
            draining: OnceLock::new(),
            drain_asked: watch::Sender::new(None),
        }
    }

    /// Returns whose text it is that a caller sends in a tier.
    pub(crate) fn text_of(&self, tier: Tier, caller: &Caller) -> TextOf {
        let shared = self.keys.tenants() > 1;
        TextOf { tier, tenant: shared.then(|| caller.tenant.clone()) }
    }

    pub(crate) fn stage(&self) -> Stage {
        match (self.draining.get().is_some(), self.serving.get()) {
            (true, _) => Stage::Draining,
            (false, None) => Stage::Loading,
            (false, Some(_)) => Stage::Ready,
        }
    }

    /// Stores the loaded model and its engine; the server accepts requests from now on.
    pub(crate) fn ready(&self, serving: Serving) {
        let first = self.serving.set(serving).is_ok();
        debug_assert!(first, "a server loads one model");
        stage::set(self.stage());
    }

    /// Begins the shutdown: the server refuses new requests from now on. Running requests may finish for `grace_ms`.
    pub(crate) fn drain(&self, grace_ms: u64) {
        let first = self.draining.set(self.clock.now() + grace_ms * 1_000).is_ok();
        debug_assert!(first, "a server drains once");
        if first {
            stage::drains(Clock::unix_s() as f64 + grace_ms as f64 / 1_000.0);
        }
    }

    /// Returns the time left until the deadline of the drain, ms; `None` if the server does not drain.
    pub(crate) fn deadline_in_ms(&self) -> Option<u64> {
        let left_us = |deadline: &Timestamp| deadline.0.saturating_sub(self.clock.now().0);
        self.draining.get().map(|deadline| left_us(deadline) / 1_000)
    }

    /// Asks the server to drain; running requests may finish for `deadline_ms` milliseconds. Returns false if the
    /// server was asked before, still loads its model, or drains already.
    pub(crate) fn ask_to_drain(&self, deadline_ms: u64) -> bool {
        let first = |asked: &mut Option<u64>| {
            let first = asked.is_none() && self.stage() == Stage::Ready;
            if first {
                *asked = Some(deadline_ms);
            }
            first
        };
        self.drain_asked.send_if_modified(first)
    }

    /// Waits until an operator asks the server to drain. Returns the deadline for running requests, ms.
    pub(crate) async fn drain_asked(&self) -> u64 {
        let mut asked = self.drain_asked.subscribe();
        let deadline_ms = asked.wait_for(Option::is_some).await.ok().and_then(|asked| *asked);
        deadline_ms.expect("the app holds the sender, and the value that was waited for is there")
    }

    /// Returns the model and its engine, also while the server drains.
    ///
    /// # Errors
    /// 503 while the model is loading.
    pub(crate) fn loaded(&self) -> Result<&Serving, ApiError> {
        let loading =
            || ApiError::unavailable("the model is still loading; try again soon", "loading");
        self.serving.get().ok_or_else(loading)
    }

    /// Returns the model and its engine if the server accepts requests now.
    ///
    /// # Errors
    /// 503 while the model is loading or the server is draining.
    pub(crate) fn accepting(&self) -> Result<&Serving, ApiError> {
        match (self.stage(), self.serving.get()) {
            (Stage::Ready, Some(serving)) => Ok(serving),
            (Stage::Draining, _) => {
                Err(ApiError::unavailable("the server is shutting down", "shutting_down"))
            }
            _ => self.loaded(),
        }
    }
}

impl Serving {
    pub(crate) fn new(
        engine: EngineHandle,
        Model { text, names, sampling, fingerprint, forms }: Model,
        settings: &EngineSettings,
        clock: Clock,
    ) -> Serving {
        let info = engine.info();
        let pool = u64::from(info.device_blocks) * u64::from(info.block_size);
        let context_tokens = pool.min(u64::from(info.max_model_len)) as u32;
        let max_text_bytes = text.longest_token_bytes().saturating_mul(context_tokens as usize);
        let serving = Serving {
            facts: ModelFacts { vocab_size: info.vocab_size, sampling, forms },
            standings: Arc::new(Standings::new(engine.clone())),
            compiling: Compiling::new(clock, text.clone(), info.vocab_size),
            engine,
            text,
            names,
            fingerprint: fingerprint.into(),
            created_unix_s: Clock::unix_s(),
            context_tokens,
            max_text_bytes: max_text_bytes.min(Text::BYTES_MAX),
            settings: tokio::sync::Mutex::new(settings.clone()),
            tiers_matter: AtomicBool::default(),
            request_tokens: Default::default(),
            // Bound of the tokenizing queue: each request in the queue enters the engine next, so as many may wait as
            // the engine admits.
            tokenizing: Tokenizing::new(settings.admission.max_requests as usize),
        };
        serving.follow(settings);
        serving
    }

    /// Whether the scheduling policy serves requests in order of their tiers.
    pub(crate) fn tiers_matter(&self) -> bool {
        self.tiers_matter.load(Ordering::Relaxed)
    }

    /// Returns the number of tokens, prompt and output together, that a request of the tier may have: the context
    /// length, or what the KV blocks hold that are not reserved for other tiers, if that is less.
    pub(crate) fn request_tokens(&self, tier: Tier) -> u32 {
        self.request_tokens[tier.index()].load(Ordering::Relaxed)
    }

    /// Records which settings the engine follows from now on.
    pub(crate) fn follow(&self, settings: &EngineSettings) {
        self.tiers_matter.store(settings.scheduler.order == Order::Tier, Ordering::Relaxed);
        let info = self.engine.info();
        let reservations = Reservations::new(&settings.reservation, info.device_blocks);
        for tier in Tier::ALL {
            let reserved = reservations.reserved_for_others(tier);
            let pool = info.device_blocks.saturating_sub(reserved).saturating_mul(info.block_size);
            let tokens = pool.min(self.context_tokens);
            self.request_tokens[tier.index()].store(tokens, Ordering::Relaxed);
        }
    }

    pub(crate) fn vocab_size(&self) -> u32 {
        self.facts.vocab_size
    }

    /// Returns the model name for the answer to a request: the name that the request asks for, or the model's first
    /// name if it asks for none.
    ///
    /// # Errors
    /// 404 for a name that the model does not have.
    pub(crate) fn check_model(&self, asked: Option<&str>) -> Result<&str, ApiError> {
        let Some(asked) = asked else { return Ok(&self.names[0]) };
        if let Some(name) = self.names.iter().find(|name| *name == asked) {
            return Ok(name);
        }
        let short: String = asked.chars().take(100).collect();
        let names: Vec<String> = self.names.iter().map(|name| format!("{name:?}")).collect();
        let message =
            format!("the model {short:?} does not exist; this server has {}", names.join(", "));
        Err(ApiError::new(StatusCode::NOT_FOUND, message).about("model").code("model_not_found"))
    }

    /// Tokenizes a text; `special` adds the special tokens that the model expects around a text, such as the
    /// beginning-of-text token.
    ///
    /// # Errors
    /// 400 for a text that the tokenizer cannot read or that is too long, 429 if too many texts wait to be tokenized,
    /// 500 if the tokenizer panics on a long text.
    pub(crate) async fn tokenize(
        &self,
        of: TextOf,
        prompt: String,
        special: bool,
    ) -> Result<Arc<[TokenId]>, ApiError> {
        let bytes = prompt.len();
        let encode = move |text: &Text| {
            let tokens = text.encode(&prompt, special)?;
            Ok(Prompt { tokens, tail: String::new() })
        };
        Ok(self.encode((of, "prompt"), (bytes, bytes), encode).await?.tokens.into())
    }

    /// Renders a conversation with the model's chat template and tokenizes it.
    ///
    /// # Errors
    /// 400 for a conversation that the template refuses or that is too long, 429 if too many texts wait to be
    /// tokenized, 500 if the tokenizer panics on a long conversation.
    pub(crate) async fn tokenize_chat(
        &self,
        of: TextOf,
        conversation: Conversation,
    ) -> Result<Prompt, ApiError> {
        let markup = conversation.messages.len() * MARKUP_BYTES;
        let bytes = (conversation.text_bytes() + markup, conversation.bytes() + markup);
        self.encode((of, "messages"), bytes, move |text| text.encode_chat(&conversation)).await
    }

    /// Tokenizes a text: calls `work`, which makes the text from the request's field `param` and returns its tokens.
    /// The text has about `bytes` bytes; `bytes_max` is a high estimate. A text of at most [`INLINE_TEXT_BYTES`] is
    /// tokenized on this thread, a longer text on another thread.
    async fn encode(
        &self,
        (of, param): (TextOf, &'static str),
        (bytes, bytes_max): (usize, usize),
        work: impl FnOnce(&Text) -> Result<Prompt, TextError> + Send + 'static,
    ) -> Result<Prompt, ApiError> {
        if bytes > self.max_text_bytes {
            return Err(self.too_many_bytes(param, bytes));
        }
        let prompt = if bytes_max <= INLINE_TEXT_BYTES {
            let prompt = work(&self.text);
            // Yield to the HTTP worker's other connections after each short text, because a request may consist of many
            // short texts.
            tokio::task::yield_now().await;
            prompt
        } else {
            self.on_another_thread(of, work).await?
        };
        let prompt = prompt.map_err(|error| match error {
            TextError::TooLong => self.too_many_bytes(param, bytes),
            TextError::Unreadable(why) => ApiError::param(param, why),
        })?;
        // Refuse token ids beyond the model's vocabulary: a tokenizer may know tokens for which the model has no row in
        // its embedding.
        match prompt.tokens.iter().find(|token| **token >= self.vocab_size()) {
            Some(token) => Err(ApiError::param(
                param,
                format!(
                    "the text holds markup (token {token}) that this model does not know; leave it out"
                ),
            )),
            None => Ok(prompt),
        }
    }

    /// Returns the text of some tokens. Many tokens are decoded on another thread.
    ///
    /// # Errors
    /// 429 if too many texts wait to be tokenized or decoded, 500 if the tokenizer panics on many tokens.
    pub(crate) async fn decode(
        &self,
        of: TextOf,
        tokens: Vec<TokenId>,
    ) -> Result<String, ApiError> {
        if tokens.len() <= INLINE_TOKENS {
            return Ok(self.text.decode(&tokens));
        }
        Ok(self.on_another_thread(of, move |text| text.decode(&tokens)).await?)
    }

    /// Runs `work` on a thread for tokenizing, as soon as one is free for the tier and the tenant.
    async fn on_another_thread<T: Send + 'static>(
        &self,
        of: TextOf,
        work: impl FnOnce(&Text) -> T + Send + 'static,
    ) -> Result<T, NotTokenized> {
        let text = self.text.clone();
        let tier = of.tier;
        let done = self.tokenizing.run(of, move || work(&text)).await;
        done.inspect_err(|why| {
            if *why == NotTokenized::Full {
                self.engine.count_refused(tier);
            }
        })
    }

    fn too_many_bytes(&self, param: &str, bytes: usize) -> ApiError {
        let Serving { context_tokens, max_text_bytes, .. } = self;
        let message = format!(
            "This model's maximum context length is {context_tokens} tokens, which is at most \
             {max_text_bytes} bytes. However, your {param} resulted in {bytes} bytes. Please reduce \
             the length of the {param}."
        );
        ApiError::too_long(param, message)
    }
}
