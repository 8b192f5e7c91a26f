//! Generates the response to a checked request: submits every choice to the engine, then streams or collects the
//! output.

use crate::boot::{App, Serving};
use crate::http::{Answering, ApiError, Caller, Metered, Record};
use crate::live::LiveRequest;
use crate::openai::choice::{Choice, Event};
use crate::openai::request::{Common, MAX_CHOICES, MaxTokens};
use crate::openai::response::{Collected, Envelope, Style, Totals};
use crate::openai::sse::{self, Comments};
use crate::openai::tools::{Parsing, ReasoningLimit};
use crate::replies::Listener;
use crate::text::ShownTokens;
use actix_web::HttpResponse;
use actix_web::http::header;
use futures_util::stream::{SelectAll, StreamExt};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::AtomicU8;
use tiercel_actors::Request;
use tiercel_actors::recording::Origin;
use tiercel_device::{Clock, MinTokens, SamplingParams, TokenId};
use tiercel_model::tokenizer::StopMatcher;

/// Maximum number of log-probabilities in an answer that is not streamed, over all choices of the answer. A
/// log-probability takes about 100 bytes of JSON.
const MAX_LISTED: usize = 1 << 20;

/// A checked generation request, ready to be submitted to the engine.
pub(crate) struct Job {
    pub(crate) style: Style,
    /// Model name that the response states.
    pub(crate) model: String,
    pub(crate) common: Common,
    pub(crate) prompts: Vec<Arc<[TokenId]>>,
    /// Name of the request's field that held the prompts, for error messages.
    pub(crate) prompt_param: &'static str,
    /// Maximum number of output tokens if the request states none; `None` is as many as fit into the context and
    /// beside the reservations of other tiers.
    pub(crate) default_max_tokens: Option<u32>,
    pub(crate) caller: Caller,
    /// Id of the HTTP request (`X-Request-Id`).
    pub(crate) request_id: Arc<str>,
    /// Whether the client says that this request is a retry of a refused one.
    pub(crate) returning: bool,
    /// Listener that records the first choice, if the server records answers.
    pub(crate) listener: Option<Listener>,
    /// Rules for splitting the choices into content, reasoning and calls; `None` if the choices are only content.
    pub(crate) parsing: Option<Parsing>,
    /// Limit of the reasoning, if the request states a budget of reasoning tokens.
    pub(crate) limit: Option<ReasoningLimit>,
}

/// Counts a request with `choices` choices towards the limits of its key and of its tenant, before its prompts are
/// tokenized.
///
/// # Errors
/// The answer to the request, if it has too many choices, or if these limits refuse it whatever its number of tokens.
pub(crate) fn enter(
    app: &App,
    caller: &Caller,
    choices: usize,
) -> Result<Metered, Box<HttpResponse>> {
    let shared = app.keys.tenants() > 1;
    let entered = match choices > MAX_CHOICES {
        true => {
            let message =
                format!("{choices} choices (prompts times n) are more than {MAX_CHOICES}");
            Err(ApiError::param("n", message))
        }
        false => app.meters.enter(caller, (choices as u32, shared)),
    };
    entered.map_err(|over| {
        let mut response = HttpResponse::from_error(over);
        app.meters.tell(caller, response.headers_mut());
        Box::new(response)
    })
}

/// Answers a checked generation request. The response, also one with an error, says what is left of the rates of the
/// caller's key.
pub(crate) async fn answer(
    app: &App,
    serving: &Serving,
    job: (Job, Metered),
    of_request: (Answering, Rc<Record>),
) -> Result<HttpResponse, ApiError> {
    let caller = job.0.caller.clone();
    let mut response = match run(app, serving, job, of_request).await {
        Ok(response) => response,
        Err(error) => HttpResponse::from_error(error),
    };
    app.meters.tell(&caller, response.headers_mut());
    Ok(response)
}

/// Runs a checked generation request. A streamed response begins when the engine has accepted every choice and the
/// first event of a choice has come, for which it waits at most `http.first_token_wait_ms`. A response that is not
/// streamed begins when all choices are complete.
///
/// # Errors
/// [`ApiError`] for a request that cannot run, that was refused, or that failed before the head of its response was
/// sent.
async fn run(
    app: &App,
    serving: &Serving,
    (mut job, mut metered): (Job, Metered),
    (answering, record): (Answering, Rc<Record>),
) -> Result<HttpResponse, ApiError> {
    let count = job.prompts.len() * job.common.n as usize;
    let id = response_id(job.style);
    let prompt_tokens = job.prompts.iter().map(|prompt| prompt.len() as u32).sum();
    let totals = Totals { prompt_tokens, ..Totals::default() };
    // Check the length of all prompts before the request is charged to its key.
    let limits = output_limits(serving, &job)?;
    let output_tokens =
        limits.iter().map(|max| u64::from(*max)).sum::<u64>() * u64::from(job.common.n);
    metered.charge(u64::from(prompt_tokens), output_tokens)?;
    constrain(serving, &mut job).await?;
    record.submitted(&id, prompt_tokens, count as u32);
    let submitting = app.live.submitting().await;
    let choices = submit(serving, &mut job, &limits, (&id, &record)).await?;
    metered.accepted(record.clone());
    let listed = app.live.enter(LiveRequest {
        id: id.clone(),
        request_id: job.request_id.clone(),
        key: job.caller.key.clone(),
        tenant: job.caller.tenant.clone(),
        salt: job.caller.salt,
        sequences: choices.iter().map(Choice::seq).collect(),
        tier: AtomicU8::new(choices.first().map_or(job.common.tier, Choice::tier).index() as u8),
    });
    drop(submitting);
    let envelope = envelope(serving, &job, id, listed.request());
    if !job.common.stream {
        return collect(envelope, choices, totals).await;
    }
    let comments = Comments {
        clock: app.clock.clone(),
        first_token_wait_us: app.http.first_token_wait_ms * 1_000,
        interval_us: app.http.comment_interval_ms * 1_000,
        standings: serving.standings.clone(),
    };
    let body = sse::open(envelope, choices, (totals, record), comments).await?;
    let body = body.inspect(move |_| _ = (&answering, &listed, &metered));
    Ok(HttpResponse::Ok()
        .content_type("text/event-stream; charset=utf-8")
        .insert_header((header::CACHE_CONTROL, "no-cache"))
        // Tell proxies such as nginx not to buffer the event stream.
        .insert_header(("x-accel-buffering", "no"))
        .streaming(body))
}

/// Compiles the grammar of a request, if the request has a grammar. Adds the constraint of the request's budget of
/// reasoning tokens, if the request has a budget.
async fn constrain(serving: &Serving, job: &mut Job) -> Result<(), ApiError> {
    if let Some(rule) = job.common.rule.take() {
        let compiled = serving.compiling.compile(rule, job.caller.salt).await;
        let constraint = compiled.inspect_err(|why| {
            if why.is_refusal() {
                serving.engine.count_refused(job.common.tier);
            }
        })?;
        job.common.sampling.constraint = Some(constraint);
        // An output that follows a grammar ends at an end token, even with `ignore_eos`.
        job.common.ignore_eos = false;
    }
    if let Some(limit) = job.limit.take() {
        let other = job.common.sampling.constraint.take();
        job.common.sampling.constraint = Some(Arc::new(limit.beside(other)));
    }
    Ok(())
}

async fn submit(
    serving: &Serving,
    job: &mut Job,
    limits: &[u32],
    (id, record): (&str, &Rc<Record>),
) -> Result<Vec<Choice>, ApiError> {
    let id: Arc<str> = id.into();
    let mut stop_tokens = job.common.stop_token_ids.clone();
    if !job.common.ignore_eos {
        stop_tokens.extend_from_slice(serving.text.end_tokens());
    }
    let stop_tokens: Arc<[TokenId]> = stop_tokens.into();
    let stops = StopMatcher::new(&job.common.stop).showing_stop(job.common.include_stop);
    let cache_salt = job.common.cache_salt.take().map(|name| job.caller.salt.within(&name));
    let mut choices = Vec::new();
    let count = job.prompts.len() * job.common.n as usize;
    for (prompt, max_tokens) in job.prompts.iter().zip(limits) {
        let seed = job.common.seed.unwrap_or_else(rand::random);
        for copy in 0..job.common.n {
            let seed = seed.wrapping_add(u64::from(copy));
            let request = Request {
                waited_ms: record.waited_ms(),
                sibling: !choices.is_empty(),
                cache_salt,
                ..request(job, (prompt, *max_tokens), (seed, &stop_tokens))
            };
            let origin = Origin { id: id.clone(), choice: choices.len() as u32 };
            let unsent = (count - choices.len()) as u32;
            let answer =
                serving.engine.submit_as(request, unsent, Some(&origin), record.timeline()).await;
            let tokens = answer.inspect_err(|refusal| {
                // The engine has refused one choice, so all other choices of the request are refused with it. Report
                // the other choices to admission, because they will come back with the retry. Of a request that is a
                // retry itself, report only the choices that the engine had accepted: only these have used up their
                // retry credits.
                let recorder = serving.engine.recorder();
                choices
                    .iter()
                    .for_each(|choice: &Choice| recorder.refused_with_another(choice.seq()));
                let others = if job.returning { choices.len() } else { count - 1 };
                let client = (job.common.tier, job.caller.salt);
                serving.engine.told(client, refusal, (others, false));
            })?;
            let place = (choices.len() as u32, copy == 0);
            let more = (job.parsing.as_ref(), record.clone());
            let text = (serving.text.clone(), shown(job));
            let stops = (stops.clone(), job.common.min_tokens);
            choices.push(Choice::new(place, tokens, text, stops, more));
        }
    }
    if let Some(first) = choices.first_mut() {
        first.heard_by(job.listener.take());
    }
    Ok(choices)
}

/// Returns the request to the engine for one choice: its prompt, its maximum number of output tokens, its sampling seed
/// and the tokens that end it.
fn request(
    job: &Job,
    (prompt, max_tokens): (&Arc<[TokenId]>, u32),
    (seed, stop_tokens): (u64, &Arc<[TokenId]>),
) -> Request {
    let min_tokens = match job.common.min_tokens {
        0 => MinTokens::default(),
        count => MinTokens { count, ends: stop_tokens.to_vec() },
    };
    Request {
        tier: job.common.tier,
        priority: job.common.priority,
        salt: job.caller.salt,
        cache_salt: None,
        weight: job.caller.weight,
        prompt: prompt.clone(),
        max_tokens,
        stop_tokens: stop_tokens.clone(),
        sampling: Arc::new(SamplingParams { seed, min_tokens, ..job.common.sampling.clone() }),
        targets: job.common.targets,
        may_tighten: job.caller.rights.may_tighten,
        max_wait_ms: job.common.max_wait_ms,
        waited_ms: 0,
        sibling: false,
        returning: job.returning,
    }
}

/// Returns the control tokens that the text of the answer spells out.
fn shown(job: &Job) -> ShownTokens<'_> {
    match &job.parsing {
        _ if !job.common.skip_special_tokens => ShownTokens::All,
        Some(parsing) => ShownTokens::Only(parsing.shown()),
        None => ShownTokens::None,
    }
}

/// Returns the maximum number of output tokens of each choice, by prompt.
///
/// # Errors
/// 400 if a prompt and the stated number of output tokens do not fit into the context, or if the maximum is below the
/// least number of output tokens.
fn output_limits(serving: &Serving, job: &Job) -> Result<Vec<u32>, ApiError> {
    let limit = |prompt: &Arc<[TokenId]>| max_tokens(serving, job, prompt.len());
    let limits: Vec<u32> = job.prompts.iter().map(limit).collect::<Result<_, ApiError>>()?;
    // If the request states no number and a prompt does not fit beside the reservations of other tiers, its limit is
    // one token, and admission refuses the request.
    let least = job.common.min_tokens;
    let stated = matches!(job.common.max_tokens, Some(MaxTokens::Stated { .. }));
    match limits.iter().find(|most| **most < least && (stated || **most > 1)) {
        Some(most) => {
            let message = format!(
                "'min_tokens' is {least}, and the request has at most {most} output tokens"
            );
            Err(ApiError::param("min_tokens", message))
        }
        None => Ok(limits),
    }
}

/// Returns the maximum number of output tokens after a prompt of `prompt_len` tokens. If the request states a number,
/// the maximum is this number, whatever blocks are reserved for other tiers. If the request states none, the maximum is
/// the default of the endpoint, but not above the room: the number of tokens that fit into the context and into the
/// blocks that are not reserved for other tiers. If the endpoint has no default, or if the request states that there is
/// no limit, the maximum is the room.
///
/// # Errors
/// 400 if the prompt and the stated number of output tokens do not fit into the context.
fn max_tokens(serving: &Serving, job: &Job, prompt_len: usize) -> Result<u32, ApiError> {
    let context = serving.context_tokens;
    let prompt = u32::try_from(prompt_len).unwrap_or(u32::MAX);
    if prompt == 0 {
        return Err(ApiError::param(job.prompt_param, "the prompt has no tokens"));
    }
    let Some(room) = context.checked_sub(prompt).filter(|room| *room > 0) else {
        let message = format!(
            "This model's maximum context length is {context} tokens. However, your {param} resulted in \
             {prompt} tokens, which leaves none for the completion. Please reduce the length of the \
             {param}.",
            param = job.prompt_param
        );
        return Err(ApiError::too_long(job.prompt_param, message));
    };
    match job.common.max_tokens {
        Some(MaxTokens::Stated { tokens: wanted, param }) if wanted > room => {
            let message = format!(
                "This model's maximum context length is {context} tokens. However, you requested {} \
                 tokens ({prompt} in the {in_prompt}, {wanted} in the completion). Please reduce the \
                 length of the {in_prompt}, or ask for at most {room} with '{param}'.",
                u64::from(prompt) + u64::from(wanted),
                in_prompt = job.prompt_param,
            );
            Err(ApiError::too_long(param, message))
        }
        Some(MaxTokens::Stated { tokens: wanted, .. }) => Ok(wanted),
        Some(MaxTokens::NoLimit) | None => {
            // If the prompt does not fit beside the reservations, ask for one output token: admission then refuses the
            // request and names the limit.
            let room = serving.request_tokens(job.common.tier).saturating_sub(prompt).max(1);
            let default = job.default_max_tokens.filter(|_| job.common.max_tokens.is_none());
            Ok(default.unwrap_or(room).min(room))
        }
    }
}

fn response_id(style: Style) -> String {
    let prefix = match style {
        Style::Chat => "chatcmpl",
        Style::Text => "cmpl",
    };
    format!("{prefix}-{:032x}", rand::random::<u128>())
}

fn envelope(serving: &Serving, job: &Job, id: String, request: Arc<LiveRequest>) -> Envelope {
    Envelope {
        style: job.style,
        id,
        created: Clock::unix_s(),
        model: job.model.clone(),
        fingerprint: serving.fingerprint.clone(),
        request,
        tiers_matter: serving.tiers_matter(),
        usage_in: job.common.usage_in,
        prompt_tokens: job
            .prompts
            .iter()
            .flat_map(|prompt| std::iter::repeat_n(prompt.len() as u32, job.common.n as usize))
            .collect(),
        logprobs: job.common.sampling.logprobs.is_some(),
        text: serving.text.clone(),
    }
}

/// Collects all choices of an answer that is not streamed.
///
/// # Errors
/// [`ApiError`] of a choice that failed, or if the answer would hold more than [`MAX_LISTED`] log-probabilities.
async fn collect(
    envelope: Envelope,
    choices: Vec<Choice>,
    mut totals: Totals,
) -> Result<HttpResponse, ApiError> {
    let mut collected: Vec<Collected> = (0..choices.len() as u32)
        .map(|index| Collected { index, delta: Default::default(), reason: "stop" })
        .collect();
    let mut listed = 0;
    let mut events: SelectAll<_> = choices.into_iter().map(Choice::into_events).collect();
    while let Some((index, event)) = events.next().await {
        let choice = &mut collected[index as usize];
        let delta = match event {
            Event::Delta(delta) => delta,
            Event::Finished(finish) => {
                totals.completion_tokens += finish.completion_tokens;
                totals.reasoning_tokens += finish.reasoning_tokens;
                totals.cached_tokens += finish.cached_tokens;
                choice.reason = finish.reason;
                finish.delta
            }
            Event::Failed(error) => return Err(error),
        };
        listed += delta.logprobs.iter().map(|token| 1 + token.top.len()).sum::<usize>();
        if listed > MAX_LISTED {
            let message = format!(
                "the answer has more than {MAX_LISTED} log-probabilities; ask for fewer of them, or set 'stream'"
            );
            return Err(ApiError::param("logprobs", message));
        }
        choice.delta.extend(delta);
    }
    Ok(HttpResponse::Ok().json(envelope.full(collected, totals)))
}
