//! One choice under generation: tokens in; text, log-probabilities and an end out.

use crate::http::ApiError;
use crate::text::{StreamDecoder, Text};
use actix_web::http::StatusCode;
use futures_util::stream::{self, LocalBoxStream, StreamExt};
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
    pub(crate) logprobs: Vec<(TokenId, TokenLogprobs)>,
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
    decoder: StreamDecoder,
    stops: StopMatcher,
    pending: Delta,
    generated: u32,
}

impl Choice {
    pub(crate) fn new(
        (index, first): (u32, bool),
        tokens: TokenStream,
        text: &Text,
        stop: &[String],
    ) -> Choice {
        Choice {
            index,
            first,
            tokens,
            decoder: text.decoder(),
            stops: StopMatcher::new(stop),
            pending: Delta::default(),
            generated: 0,
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
            let event = choice.next().await;
            // The choice is dropped with its last event: a matched stop string cancels the rest.
            let rest = matches!(event, Event::Delta(_)).then_some(choice);
            Some(((index, event), rest))
        })
        .boxed_local()
    }

    async fn next(&mut self) -> Event {
        loop {
            match self.tokens.next().await {
                Some(StreamEvent::Token { token, logprobs }) => {
                    if let Some(event) = self.token(token, logprobs) {
                        return event;
                    }
                }
                Some(StreamEvent::Finished { reason, usage }) => {
                    let rest = self.decoder.finish();
                    let matched = self.text(&rest);
                    if !matched {
                        self.pending.text.push_str(&self.stops.finish());
                    }
                    let reason = if matched { FinishReason::Stop } else { reason };
                    return self.finish(reason, usage.cached_tokens);
                }
                Some(StreamEvent::Failed(fault)) => return Event::Failed(fault.into()),
                None => {
                    let message = "the engine stopped while it served this request";
                    let error = ApiError::new(StatusCode::INTERNAL_SERVER_ERROR, message);
                    return Event::Failed(error.code("engine_stopped"));
                }
            }
        }
    }

    fn token(&mut self, token: TokenId, logprobs: Option<Box<TokenLogprobs>>) -> Option<Event> {
        self.generated += 1;
        if let Some(logprobs) = logprobs {
            self.pending.logprobs.push((token, *logprobs));
        }
        let text = self.decoder.push(token);
        if self.text(&text) {
            return Some(self.finish(FinishReason::Stop, 0));
        }
        let ready = !self.pending.text.is_empty();
        ready.then(|| Event::Delta(std::mem::take(&mut self.pending)))
    }

    /// Takes decoded text; true if it completes a stop string.
    fn text(&mut self, text: &str) -> bool {
        let outcome = self.stops.push(text);
        self.pending.text.push_str(&outcome.text);
        outcome.stopped.is_some()
    }

    fn finish(&mut self, reason: FinishReason, cached_tokens: u32) -> Event {
        Event::Finished(Finish {
            delta: std::mem::take(&mut self.pending),
            reason: match reason {
                FinishReason::Stop => "stop",
                FinishReason::Length => "length",
            },
            completion_tokens: self.generated,
            cached_tokens: if self.first { cached_tokens } else { 0 },
        })
    }
}
