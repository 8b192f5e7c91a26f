//! Sends a response as a stream of server-sent events.

use crate::http::{ApiError, Record};
use crate::openai::choice::{Choice, Event};
use crate::openai::response::{Envelope, Totals};
use crate::openai::usage_in::UsageIn;
use crate::standing::Standings;
use actix_web::web::Bytes;
use futures_util::future::{Either, select};
use futures_util::stream::{self, LocalBoxStream, SelectAll, Stream, StreamExt};
use serde::Serialize;
use std::collections::VecDeque;
use std::convert::Infallible;
use std::pin::pin;
use std::rc::Rc;
use std::sync::Arc;
use tiercel_device::{Clock, SeqId};

/// When and how a response stream sends comments while it has no event. A comment says where the request stands, and
/// keeps clients and proxies from timing out. Readers of server-sent events skip lines that begin with a colon.
pub(crate) struct Comments {
    pub(crate) clock: Clock,
    /// Longest time for which the head of the response waits for the first event, us.
    pub(crate) first_token_wait_us: u64,
    /// Time without an event after which a comment is sent, us.
    pub(crate) interval_us: u64,
    pub(crate) standings: Arc<Standings>,
}

impl Comments {
    /// Waits for `wait_us`, and returns the comment about a request with these sequences.
    async fn next(&self, wait_us: u64, sequences: &[SeqId]) -> Bytes {
        self.clock.sleep_us(wait_us).await;
        Bytes::from(format!(": {}\n\n", self.standings.of(sequences).await))
    }
}

/// Stream of the server-sent events of one response. The HTTP connection pulls the events, so a client that reads
/// slowly fills only the bounded buffers of its own choices.
struct EventStream {
    envelope: Envelope,
    events: SelectAll<LocalBoxStream<'static, (u32, Event)>>,
    totals: Totals,
    ready: VecDeque<Bytes>,
    comments: Comments,
    /// Sequences of the choices.
    sequences: Vec<SeqId>,
    /// Time without an event after which the next comment is sent, us.
    wait_us: u64,
    ended: bool,
    record: Rc<Record>,
}

/// Opens the body of a streamed response; `totals` holds the number of prompt tokens. Waits for the first event of a
/// choice, but at most `first_token_wait_us`: until then a request that is turned away can still be answered with an
/// error status. A response whose head is sent without an event begins with a comment; in a chat answer, after the
/// opening chunk of each choice.
///
/// # Errors
/// [`ApiError`] if the first event is the failure of a choice.
pub(crate) async fn open(
    envelope: Envelope,
    choices: Vec<Choice>,
    (totals, record): (Totals, Rc<Record>),
    comments: Comments,
) -> Result<impl Stream<Item = Result<Bytes, Infallible>>, ApiError> {
    let openings = (0..choices.len() as u32).filter_map(|index| envelope.opening(index));
    let mut state = EventStream {
        sequences: choices.iter().map(Choice::seq).collect(),
        ready: openings.map(|chunk| data(&chunk)).collect(),
        events: choices.into_iter().map(Choice::into_events).collect(),
        envelope,
        totals,
        wait_us: comments.interval_us,
        comments,
        ended: false,
        record,
    };
    let Comments { clock, first_token_wait_us, .. } = &state.comments;
    match clock.timeout_us(*first_token_wait_us, state.events.next()).await {
        Some(Some((_, Event::Failed(error)))) => return Err(error),
        Some(Some((index, event))) => state.event(index, event),
        Some(None) => state.end(),
        None => state.wait_us = 0,
    }
    Ok(stream::unfold(state, |mut state| async move {
        let bytes = state.next().await?;
        Some((Ok(bytes), state))
    }))
}

impl EventStream {
    async fn next(&mut self) -> Option<Bytes> {
        loop {
            if let Some(bytes) = self.ready.pop_front() {
                return Some(bytes);
            }
            if self.ended {
                return None;
            }
            match self.event_or_comment().await {
                Ok(Some((index, event))) => self.event(index, event),
                Ok(None) => self.end(),
                Err(comment) => return Some(comment),
            }
        }
    }

    /// Waits for the next event of a choice; `Ok(None)` if all choices are complete, and the comment that is due if
    /// there is no event for too long. An event that comes while the comment is looked up goes first.
    async fn event_or_comment(&mut self) -> Result<Option<(u32, Event)>, Bytes> {
        let comment = pin!(self.comments.next(self.wait_us, &self.sequences));
        match select(self.events.next(), comment).await {
            Either::Left((event, _)) => Ok(event),
            Either::Right((comment, _)) => {
                self.wait_us = self.comments.interval_us;
                Err(comment)
            }
        }
    }

    fn event(&mut self, index: u32, event: Event) {
        match event {
            Event::Delta(delta) => {
                self.ready.extend(self.envelope.delta(index, delta).iter().map(data));
            }
            Event::Finished(finish) => {
                self.ready.extend(self.envelope.delta(index, finish.delta).iter().map(data));
                self.totals.completion_tokens += finish.completion_tokens;
                self.totals.reasoning_tokens += finish.reasoning_tokens;
                self.totals.cached_tokens += finish.cached_tokens;
                let closing = self.envelope.closing(index, finish.reason, finish.completion_tokens);
                self.ready.push_back(data(&closing));
            }
            // The response head is already sent with status 200, so send the error as the last event of the response
            // stream.
            Event::Failed(error) => {
                self.record.failed(&error);
                self.ready.push_back(data(&error.body()));
                self.events.clear();
                self.ended = true;
            }
        }
    }

    fn end(&mut self) {
        if self.envelope.usage_in != UsageIn::Nothing {
            self.ready.push_back(data(&self.envelope.usage(self.totals)));
        }
        self.ready.push_back(Bytes::from_static(b"data: [DONE]\n\n"));
        self.ended = true;
    }
}

fn data(value: &impl Serialize) -> Bytes {
    let json = serde_json::to_string(value).expect("the keys of chunks are texts");
    Bytes::from(format!("data: {json}\n\n"))
}
