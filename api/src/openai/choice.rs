//! One choice of an answer while it is generated: turns its tokens into text, log-probabilities and a finish reason.

use crate::http::{ApiError, Record};
use crate::openai::tools::{AnswerParser, Parsing, Part};
use crate::replies::{Finish as RecordedFinish, Listener};
use crate::text::{ShownTokens, StreamDecoder, Text};
use futures_util::stream::{self, LocalBoxStream, StreamExt};
use std::rc::Rc;
use std::sync::Arc;
use tiercel_actors::{FinishReason, StreamEvent, TokenStream};
use tiercel_device::{SeqId, Tier, TokenId, TokenLogprobs};
use tiercel_model::tokenizer::StopMatcher;

/// Event of a choice while it is generated: more text, its end, or a failure.
#[derive(Debug)]
pub(crate) enum Event {
    /// More parts of the choice; at least one.
    Delta(Delta),
    /// The choice is complete; its parts, finish reason and token counts are final.
    Finished(Finish),
    /// The choice failed before its output was complete.
    Failed(ApiError),
}

/// New parts of a choice and the log-probabilities that belong to them.
#[derive(Debug, Default)]
pub(crate) struct Delta {
    pub(crate) parts: Vec<Part>,
    /// Number of output tokens of the choice so far, including the tokens of `parts`.
    pub(crate) completion_tokens: u32,
    pub(crate) logprobs: Vec<Logprobs>,
}

impl Delta {
    /// Adds a part. Texts of the same kind that follow each other are joined into one part, and an empty text is left
    /// out.
    fn push(&mut self, part: Part) {
        match (self.parts.last_mut(), part) {
            (_, Part::Content(text) | Part::Reasoning(text)) if text.is_empty() => {}
            (Some(Part::Content(text)), Part::Content(more))
            | (Some(Part::Reasoning(text)), Part::Reasoning(more)) => text.push_str(&more),
            (
                Some(Part::Arguments { index, json }),
                Part::Arguments { index: same, json: more },
            ) if *index == same => {
                json.push_str(&more);
            }
            (_, part) => self.parts.push(part),
        }
    }

    /// Adds the parts and the log-probabilities of a later delta.
    pub(crate) fn extend(&mut self, later: Delta) {
        later.parts.into_iter().for_each(|part| self.push(part));
        self.completion_tokens = later.completion_tokens;
        self.logprobs.extend(later.logprobs);
    }
}

/// Log-probabilities of one output token, and the token's position in the text.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Logprobs {
    pub(crate) token: TokenId,
    /// Position of the token in the choice's text: number of characters before the character that the token begins or
    /// continues.
    pub(crate) offset: usize,
    pub(crate) chosen: f32,
    /// Most likely tokens at this position with their log-probabilities, most likely first.
    pub(crate) top: Vec<(TokenId, f32)>,
}

/// End of a choice: the rest of its parts, its finish reason and its token counts.
#[derive(Debug)]
pub(crate) struct Finish {
    /// Last parts of the choice. Their text was held back, because the text could have become a stop string or markup.
    pub(crate) delta: Delta,
    /// OpenAI's finish reason: `stop`, `length` or `tool_calls`.
    pub(crate) reason: &'static str,
    pub(crate) completion_tokens: u32,
    /// Output tokens that are reasoning.
    pub(crate) reasoning_tokens: u32,
    /// Number of prompt tokens that were found in the prefix cache. 0 if unknown, and for all choices of a prompt but
    /// the first, so that a prompt counts once.
    pub(crate) cached_tokens: u32,
}

/// A choice of an answer while it is generated. Dropping the choice cancels its sequence.
pub(crate) struct Choice {
    index: u32,
    /// Whether the choice is the first of its prompt, so that the prompt's cached tokens are counted once however many
    /// choices it has.
    first: bool,
    tokens: TokenStream,
    text: Arc<Text>,
    decoder: StreamDecoder,
    stops: StopMatcher,
    /// Least number of output tokens: no stop string ends in the text of the first `min_tokens` tokens.
    min_tokens: u32,
    /// Parser that splits the choice's text into parts; `None` if the text is only content.
    parser: Option<AnswerParser>,
    pending: Delta,
    generated: u32,
    /// Number of characters of the choice decoded so far, including those held back for stop strings.
    decoded: usize,
    record: Rc<Record>,
    /// Listener that records the choice, if the server records answers.
    listener: Option<Listener>,
}

enum Step {
    Event(Event),
    /// The choice is complete before its sequence has ended: the text has a stop string or the only call that the
    /// request allows, or a token cuts the choice off.
    Ended(FinishReason),
}

impl Choice {
    pub(crate) fn new(
        (index, first): (u32, bool),
        tokens: TokenStream,
        (text, shown): (Arc<Text>, ShownTokens<'_>),
        (stops, min_tokens): (StopMatcher, u32),
        (parsing, record): (Option<&Parsing>, Rc<Record>),
    ) -> Choice {
        Choice {
            index,
            first,
            tokens,
            decoder: text.decoder(shown),
            text,
            stops,
            min_tokens,
            parser: parsing.map(Parsing::parser),
            pending: Delta::default(),
            generated: 0,
            decoded: 0,
            record,
            listener: None,
        }
    }

    /// Lets a recorder of answers listen to the choice.
    pub(crate) fn heard_by(&mut self, listener: Option<Listener>) {
        self.listener = listener;
    }

    /// Returns the id of the choice's sequence.
    pub(crate) fn seq(&self) -> SeqId {
        self.tokens.seq()
    }

    /// Returns the tier in which the choice's sequence is really served.
    pub(crate) fn tier(&self) -> Tier {
        self.tokens.tier()
    }

    /// Returns the events of the choice, each with the choice's index; the last event is `Finished` or `Failed`.
    pub(crate) fn into_events(self) -> LocalBoxStream<'static, (u32, Event)> {
        stream::unfold(Some(self), |choice| async move {
            let mut choice = choice?;
            let index = choice.index;
            let event = match choice.next().await {
                Step::Event(event) => event,
                Step::Ended(reason) => return Some(((index, choice.ended(reason).await), None)),
            };
            let rest = matches!(event, Event::Delta(_)).then_some(choice);
            Some(((index, event), rest))
        })
        .boxed_local()
    }

    async fn next(&mut self) -> Step {
        loop {
            match self.tokens.next().await {
                Some(StreamEvent::Token { token, .. }) if self.text.cuts(token) => {
                    return Step::Ended(FinishReason::Length);
                }
                Some(StreamEvent::Token { token, logprobs }) => {
                    if self.token(token, logprobs) {
                        return Step::Ended(FinishReason::Stop);
                    }
                    if !self.pending.parts.is_empty() {
                        return Step::Event(Event::Delta(self.take_pending()));
                    }
                }
                Some(StreamEvent::Finished { reason, usage }) => {
                    let reason = if self.end_text() { FinishReason::Stop } else { reason };
                    let finish = self.finish(reason, usage.cached_tokens);
                    self.record.finished(finish.reason, finish.cached_tokens);
                    return Step::Event(Event::Finished(finish));
                }
                Some(StreamEvent::Failed(fault)) => {
                    return Step::Event(Event::Failed(fault.into()));
                }
                None => {
                    let message = "the engine stopped while it served this request";
                    let error = ApiError::unavailable(message, "engine_stopped");
                    return Step::Event(Event::Failed(error));
                }
            }
        }
    }

    /// Decodes an output token and adds its text to the choice; returns true if the text completes the choice.
    fn token(&mut self, token: TokenId, logprobs: Option<Box<TokenLogprobs>>) -> bool {
        self.generated += 1;
        self.record.token();
        if let Some(parser) = &mut self.parser {
            parser.token();
        }
        let before = self.decoded;
        let text = self.decoder.push(token);
        self.decoded += text.chars().count();
        if let Some(logprobs) = logprobs {
            let TokenLogprobs { chosen, top } = *logprobs;
            // Count the token's text offset back from the end of the decoded text if the token consists of whole
            // characters: its text may come after a replacement character for an unfinished character before it.
            let bytes = self.text.token_bytes(token);
            let whole = std::str::from_utf8(&bytes).ok().filter(|whole| text.ends_with(whole));
            let offset = whole.map_or(before, |whole| self.decoded - whole.chars().count());
            self.pending.logprobs.push(Logprobs { token, offset, chosen, top });
        }
        self.push(&text)
    }

    /// Ends a choice before its sequence ends, and tells the engine to stop the sequence. The choice's output is
    /// complete, whatever becomes of the sequence.
    async fn ended(mut self, reason: FinishReason) -> Event {
        if reason == FinishReason::Length {
            self.end_text();
        }
        let mut finish = self.finish(reason, 0);
        if let Some(usage) = self.tokens.stop().await
            && self.first
        {
            finish.cached_tokens = usage.cached_tokens;
        }
        self.record.finished(finish.reason, finish.cached_tokens);
        Event::Finished(finish)
    }

    /// Adds decoded text to the choice; returns true if the text completes the choice, for example by a stop string.
    fn push(&mut self, text: &str) -> bool {
        if let Some(listener) = &mut self.listener {
            listener.push(text);
        }
        if self.generated <= self.min_tokens {
            let text = self.stops.pass(text);
            return self.parse(&text);
        }
        let outcome = self.stops.push(text);
        self.parse(&outcome.text) || outcome.stopped.is_some()
    }

    /// Adds text without stop strings to the choice's parts; returns true if the text completes the choice.
    fn parse(&mut self, text: &str) -> bool {
        let (parts, complete) = match &mut self.parser {
            Some(parser) => parser.push(text),
            None => (vec![Part::Content(text.to_owned())], false),
        };
        parts.into_iter().for_each(|part| self.pending.push(part));
        complete
    }

    /// Ends the choice's text where its sequence ends; returns true if the end of the text completes the choice.
    fn end_text(&mut self) -> bool {
        let rest = self.decoder.finish();
        if self.push(&rest) {
            return true;
        }
        let held_back = self.stops.finish();
        self.parse(&held_back)
    }

    fn take_pending(&mut self) -> Delta {
        Delta { completion_tokens: self.generated, ..std::mem::take(&mut self.pending) }
    }

    fn finish(&mut self, reason: FinishReason, cached_tokens: u32) -> Finish {
        if let Some(listener) = self.listener.take() {
            listener.finish(match reason {
                FinishReason::Stop => RecordedFinish::Stop,
                FinishReason::Length => RecordedFinish::Length,
            });
        }
        let parts = self.parser.as_mut().map(AnswerParser::finish).unwrap_or_default();
        parts.into_iter().for_each(|part| self.pending.push(part));
        let delta = self.take_pending();
        let parser = self.parser.as_ref();
        Finish {
            delta,
            reason: match reason {
                FinishReason::Stop if parser.is_some_and(AnswerParser::has_calls) => "tool_calls",
                FinishReason::Stop => "stop",
                FinishReason::Length => "length",
            },
            completion_tokens: self.generated,
            reasoning_tokens: parser.map_or(0, AnswerParser::reasoning_tokens),
            cached_tokens: if self.first { cached_tokens } else { 0 },
        }
    }
}
