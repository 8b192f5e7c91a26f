//! One choice under generation: tokens in; text, log-probabilities and an end out.

use crate::http::{ApiError, Record};
use crate::text::{StreamDecoder, Text};
use actix_web::http::StatusCode;
use futures_util::stream::{self, LocalBoxStream, StreamExt};
use std::rc::Rc;
use std::sync::Arc;
use tiercel_actors::{FinishReason, StreamEvent, TokenStream};
use tiercel_device::{Tier, TokenId, TokenLogprobs};
use tiercel_model::tokenizer::StopMatcher;

/// What happened to a choice.
#[derive(Debug)]
pub(crate) enum Event {
    /// More text, never empty.
    Delta(Delta),
    /// It is complete.
    Finished(Finish),
    /// It ended without a complete output.
    Failed(ApiError),
}

/// Text and the log-probabilities that belong to it.
#[derive(Debug, Default)]
pub(crate) struct Delta {
    pub(crate) text: String,
    pub(crate) logprobs: Vec<Logprobs>,
}

/// The log-probabilities of one token and its place in the text.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Logprobs {
    pub(crate) token: TokenId,
    /// Characters of the output before the one that this token begins or continues.
    pub(crate) offset: usize,
    pub(crate) chosen: f32,
    /// The best tokens, most likely first.
    pub(crate) top: Vec<(TokenId, f32)>,
}

/// The end of a choice.
#[derive(Debug)]
pub(crate) struct Finish {
    /// What was held back until the end.
    pub(crate) delta: Delta,
    /// OpenAI's word: `stop` or `length`.
    pub(crate) reason: &'static str,
    pub(crate) completion_tokens: u32,
    /// Prompt tokens found in the prefix cache; 0 if unknown, and but for the first choice of a prompt.
    pub(crate) cached_tokens: u32,
}

/// A choice. Dropping it cancels its sequence.
pub(crate) struct Choice {
    index: u32,
    /// Whether it is the first of its prompt: a prompt's tokens count once, however often it is used.
    first: bool,
    tokens: TokenStream,
    text: Arc<Text>,
    decoder: StreamDecoder,
    stops: StopMatcher,
    pending: Delta,
    generated: u32,
    /// Characters decoded, those held back included.
    decoded: usize,
    record: Rc<Record>,
}

enum Step {
    Event(Event),
    /// A stop string is complete.
    Stopped,
}

impl Choice {
    pub(crate) fn new(
        (index, first): (u32, bool),
        tokens: TokenStream,
        text: Arc<Text>,
        stop: &[String],
        record: Rc<Record>,
    ) -> Choice {
        Choice {
            index,
            first,
            tokens,
            decoder: text.decoder(),
            text,
            stops: StopMatcher::new(stop),
            pending: Delta::default(),
            generated: 0,
            decoded: 0,
            record,
        }
    }

    /// The tier it really runs in.
    pub(crate) fn tier(&self) -> Tier {
        self.tokens.tier()
    }

    /// Its events with its index; the last one is `Finished` or `Failed`.
    pub(crate) fn into_events(self) -> LocalBoxStream<'static, (u32, Event)> {
        stream::unfold(Some(self), |choice| async move {
            let mut choice = choice?;
            let index = choice.index;
            let event = match choice.next().await {
                Step::Event(event) => event,
                Step::Stopped => return Some(((index, choice.stopped().await), None)),
            };
            let rest = matches!(event, Event::Delta(_)).then_some(choice);
            Some(((index, event), rest))
        })
        .boxed_local()
    }

    async fn next(&mut self) -> Step {
        loop {
            match self.tokens.next().await {
                Some(StreamEvent::Token { token, logprobs }) => {
                    if self.token(token, logprobs) {
                        return Step::Stopped;
                    }
                    if !self.pending.text.is_empty() {
                        return Step::Event(Event::Delta(std::mem::take(&mut self.pending)));
                    }
                }
                Some(StreamEvent::Finished { reason, usage }) => {
                    let rest = self.decoder.finish();
                    let matched = self.push(&rest);
                    if !matched {
                        self.pending.text.push_str(&self.stops.finish());
                    }
                    let reason = if matched { FinishReason::Stop } else { reason };
                    let finish = self.finish(reason, usage.cached_tokens);
                    self.record.finished(finish.reason, finish.cached_tokens);
                    return Step::Event(Event::Finished(finish));
                }
                Some(StreamEvent::Failed(fault)) => {
                    return Step::Event(Event::Failed(fault.into()));
                }
                None => {
                    let message = "the engine stopped while it served this request";
                    let error = ApiError::new(StatusCode::INTERNAL_SERVER_ERROR, message);
                    return Step::Event(Event::Failed(error.code("engine_stopped")));
                }
            }
        }
    }

    /// Takes a token; true if it completes a stop string.
    fn token(&mut self, token: TokenId, logprobs: Option<Box<TokenLogprobs>>) -> bool {
        self.generated += 1;
        self.record.token();
        let before = self.decoded;
        let text = self.decoder.push(token);
        self.decoded += text.chars().count();
        if let Some(logprobs) = logprobs {
            let TokenLogprobs { chosen, top } = *logprobs;
            // Before a token that is whole, the replacement of a broken character may have come out.
            let bytes = self.text.token_bytes(token);
            let whole = std::str::from_utf8(&bytes).ok().filter(|whole| text.ends_with(whole));
            let offset = whole.map_or(before, |whole| self.decoded - whole.chars().count());
            self.pending.logprobs.push(Logprobs { token, offset, chosen, top });
        }
        self.push(&text)
    }

    /// Ends the sequence at its stop string. The output is complete, whatever becomes of the sequence.
    async fn stopped(mut self) -> Event {
        let mut finish = self.finish(FinishReason::Stop, 0);
        if let Some(usage) = self.tokens.stop().await
            && self.first
        {
            finish.cached_tokens = usage.cached_tokens;
        }
        self.record.finished(finish.reason, finish.cached_tokens);
        Event::Finished(finish)
    }

    /// Takes decoded text; true if it completes a stop string.
    fn push(&mut self, text: &str) -> bool {
        let outcome = self.stops.push(text);
        self.pending.text.push_str(&outcome.text);
        outcome.stopped.is_some()
    }

    fn finish(&mut self, reason: FinishReason, cached_tokens: u32) -> Finish {
        Finish {
            delta: std::mem::take(&mut self.pending),
            reason: match reason {
                FinishReason::Stop => "stop",
                FinishReason::Length => "length",
            },
            completion_tokens: self.generated,
            cached_tokens: if self.first { cached_tokens } else { 0 },
        }
    }
}
