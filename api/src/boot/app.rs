//! What HTTP handlers see: the settings, and the engine once it serves.

use crate::boot::metrics::Exporter;
use crate::boot::tokenizing::{NotTokenized, Tokenizing};
use crate::http::{AccessLog, ApiError, Tenants};
use crate::openai::ModelFacts;
use crate::text::{Text, TextError};
use actix_web::http::StatusCode;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use tiercel_actors::EngineHandle;
use tiercel_config::{EngineSettings, HttpSettings, Order};
use tiercel_device::{Clock, SamplingParams, Tier, TokenId};
use tiercel_model::template::ChatMessage;

/// Longer texts are tokenized beside the HTTP worker, so that its other connections go on, bytes.
const INLINE_TEXT_BYTES: usize = 4096;
/// Counted for what a template writes around a message, bytes.
const MARKUP_BYTES: usize = 32;

/// How far the server is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Stage {
    /// The socket listens, the model is not ready.
    Loading,
    /// Requests are served.
    Ready,
    /// No new requests; running ones may finish.
    Draining,
}

/// Shared by all HTTP workers.
pub(crate) struct App {
    pub(crate) http: HttpSettings,
    pub(crate) clock: Clock,
    pub(crate) tenants: Tenants,
    pub(crate) metrics: Exporter,
    pub(crate) access: AccessLog,
    serving: OnceLock<Serving>,
    draining: AtomicBool,
}

/// What the API knows of a model.
pub(crate) struct Model {
    pub(crate) text: Arc<Text>,
    /// What clients call it; never empty. The first is in answers to requests that name none.
    pub(crate) names: Vec<String>,
    /// What a request that leaves them out is sampled with.
    pub(crate) sampling: SamplingParams,
}

/// A model being served.
pub(crate) struct Serving {
    pub(crate) engine: EngineHandle,
    pub(crate) text: Arc<Text>,
    /// As in [`Model`].
    pub(crate) names: Vec<String>,
    /// What requests are read against.
    pub(crate) facts: ModelFacts,
    pub(crate) created_unix_s: u64,
    /// Most tokens of prompt and output together: what the model can and what the KV pool holds.
    pub(crate) context_tokens: u32,
    /// Longer texts have more tokens than that, whatever they say, bytes.
    max_text_bytes: usize,
    /// Whether the policy tells tiers apart.
    tiers_matter: bool,
    tokenizing: Tokenizing,
}

impl App {
    pub(crate) fn new(http: HttpSettings, clock: Clock, metrics: Exporter) -> App {
        App {
            tenants: Tenants::new(&http.api_keys),
            access: AccessLog::new(http.access_log, clock.clone()),
            http,
            clock,
            metrics,
            serving: OnceLock::new(),
            draining: AtomicBool::new(false),
        }
    }

    pub(crate) fn stage(&self) -> Stage {
        match (self.draining.load(Ordering::Relaxed), self.serving.get()) {
            (true, _) => Stage::Draining,
            (false, None) => Stage::Loading,
            (false, Some(_)) => Stage::Ready,
        }
    }

    /// Starts to serve.
    pub(crate) fn ready(&self, serving: Serving) {
        let first = self.serving.set(serving).is_ok();
        debug_assert!(first, "a server loads one model");
    }

    /// Refuses new requests from now on.
    pub(crate) fn drain(&self) {
        self.draining.store(true, Ordering::Relaxed);
    }

    /// The model, if requests are accepted now.
    ///
    /// # Errors
    /// 503 while loading or draining.
    pub(crate) fn accepting(&self) -> Result<&Serving, ApiError> {
        match (self.stage(), self.serving.get()) {
            (Stage::Ready, Some(serving)) => Ok(serving),
            (Stage::Draining, _) => {
                Err(ApiError::unavailable("the server is shutting down", "shutting_down"))
            }
            _ => {
                Err(ApiError::unavailable("the model is still loading; try again soon", "loading"))
            }
        }
    }
}

impl Serving {
    pub(crate) fn new(
        engine: EngineHandle,
        Model { text, names, sampling }: Model,
        settings: &EngineSettings,
    ) -> Serving {
        let info = engine.info();
        let pool = u64::from(info.device_blocks) * u64::from(info.block_size);
        let context_tokens = pool.min(u64::from(info.max_model_len)) as u32;
        let max_text_bytes = text.longest_token_bytes().saturating_mul(context_tokens as usize);
        Serving {
            facts: ModelFacts { vocab_size: info.vocab_size, sampling },
            engine,
            text,
            names,
            created_unix_s: Clock::unix_s(),
            context_tokens,
            max_text_bytes: max_text_bytes.min(Text::BYTES_MAX),
            tiers_matter: settings.scheduler.order == Order::Tier,
            // Whoever is here wants to be in the engine next.
            tokenizing: Tokenizing::new(settings.admission.max_requests as usize),
        }
    }

    /// The tier whose treatment a request of that tier really gets.
    pub(crate) fn tier_used(&self, tier: Tier) -> Tier {
        if self.tiers_matter { tier } else { Tier::Standard }
    }

    pub(crate) fn vocab_size(&self) -> u32 {
        self.facts.vocab_size
    }

    /// The model's name that a request uses; without one, the first.
    ///
    /// # Errors
    /// 404 for any other.
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

    /// A text as tokens, with the tokens the model wants around a text if `special`.
    ///
    /// # Errors
    /// 400 for a text the tokenizer cannot read or that is too long, 429 if too many wait.
    pub(crate) async fn tokenize(
        &self,
        tier: Tier,
        prompt: String,
        special: bool,
    ) -> Result<Arc<[TokenId]>, ApiError> {
        let bytes = prompt.len();
        self.encode((tier, "prompt"), bytes, move |text| text.encode(&prompt, special)).await
    }

    /// A conversation as tokens, by the model's template; `open` begins the assistant's answer.
    ///
    /// # Errors
    /// 400 for a conversation the template refuses or that is too long, 429 if too many wait.
    pub(crate) async fn tokenize_chat(
        &self,
        tier: Tier,
        messages: Vec<ChatMessage>,
        open: bool,
    ) -> Result<Arc<[TokenId]>, ApiError> {
        let bytes =
            messages.iter().map(|message| message.content.len() + MARKUP_BYTES).sum::<usize>();
        self.encode((tier, "messages"), bytes, move |text| text.encode_chat(&messages, open)).await
    }

    async fn encode(
        &self,
        (tier, param): (Tier, &'static str),
        bytes: usize,
        work: impl FnOnce(&Text) -> Result<Vec<TokenId>, TextError> + Send + 'static,
    ) -> Result<Arc<[TokenId]>, ApiError> {
        if bytes > self.max_text_bytes {
            return Err(self.too_many_bytes(param, bytes));
        }
        let tokens = if bytes <= INLINE_TEXT_BYTES {
            let tokens = work(&self.text);
            // A request may hold many texts; the worker's other connections go first.
            tokio::task::yield_now().await;
            tokens
        } else {
            let text = self.text.clone();
            let done = self.tokenizing.run(tier, move || work(&text)).await;
            done.inspect_err(|why| {
                if *why == NotTokenized::Full {
                    self.engine.count_refused(tier);
                }
            })?
        };
        let tokens = tokens.map_err(|error| match error {
            TextError::TooLong => self.too_many_bytes(param, bytes),
            TextError::Unreadable(why) => ApiError::param(param, why),
        })?;
        // Tokenizers may know tokens that the model was never given a row for.
        match tokens.iter().find(|token| **token >= self.vocab_size()) {
            Some(token) => Err(ApiError::param(
                param,
                format!("the text holds markup (token {token}) that this model does not know"),
            )),
            None => Ok(tokens.into()),
        }
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
