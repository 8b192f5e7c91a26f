//! Sends a response as a stream of server-sent events.

use crate::http::{ApiError, Record};
use crate::openai::choice::{Choice, Event};
use crate::openai::response::{Envelope, Totals};
use actix_web::web::Bytes;
use futures_util::stream::{self, LocalBoxStream, SelectAll, Stream, StreamExt};
use serde_json::Value;
use std::collections::VecDeque;
use std::convert::Infallible;
use std::rc::Rc;
use tiercel_device::Clock;

/// Comment that a response stream sends when it has had no event for a while, so that clients and proxies do not time
/// out. Readers of server-sent events skip lines that begin with a colon.
const COMMENT: &[u8] = b": waiting\n\n";

/// Stream of the server-sent events of one response. The HTTP connection pulls the events, so a client that reads
/// slowly fills only the bounded buffers of its own choices.
struct EventStream {
    envelope: Envelope,
    events: SelectAll<LocalBoxStream<'static, (u32, Event)>>,
    totals: Totals,
    ready: VecDeque<Bytes>,
    clock: Clock,
    comment_interval_us: u64,
    ended: bool,
    record: Rc<Record>,
}

/// Opens the body of a streamed response; `totals` holds the number of prompt tokens. Waits for the first event of a
/// choice, but at most `first_token_wait_us`: until then a request that is turned away can still be answered with an
/// error status.
///
/// # Errors
/// [`ApiError`] if the first event is the failure of a choice.
pub(crate) async fn open(
    envelope: Envelope,
    choices: Vec<Choice>,
    (totals, record): (Totals, Rc<Record>),
    clock: Clock,
    (first_token_wait_us, comment_interval_us): (u64, u64),
) -> Result<impl Stream<Item = Result<Bytes, Infallible>>, ApiError> {
    let openings = (0..choices.len() as u32).filter_map(|index| envelope.opening(index));
    let mut state = EventStream {
        ready: openings.map(|chunk| data(&chunk)).collect(),
        events: choices.into_iter().map(Choice::into_events).collect(),
        envelope,
        totals,
        clock,
        comment_interval_us,
        ended: false,
        record,
    };
    match state.clock.timeout_us(first_token_wait_us, state.events.next()).await {
        Some(Some((_, Event::Failed(error)))) => return Err(error),
        Some(Some((index, event))) => state.event(index, event),
        Some(None) => state.end(),
        None => {}
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
            let next = self.events.next();
            match self.clock.timeout_us(self.comment_interval_us, next).await {
                None => return Some(Bytes::from_static(COMMENT)),
                Some(Some((index, event))) => self.event(index, event),
                Some(None) => self.end(),
            }
        }
    }

    fn event(&mut self, index: u32, event: Event) {
        match event {
            Event::Delta(delta) => {
                self.ready.push_back(data(&self.envelope.delta(index, &delta)));
            }
            Event::Finished(finish) => {
                if !finish.delta.text.is_empty() || !finish.delta.logprobs.is_empty() {
                    self.ready.push_back(data(&self.envelope.delta(index, &finish.delta)));
                }
                self.totals.completion_tokens += finish.completion_tokens;
                self.totals.cached_tokens += finish.cached_tokens;
                self.ready.push_back(data(&self.envelope.closing(index, finish.reason)));
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
        if self.envelope.include_usage {
            self.ready.push_back(data(&self.envelope.usage(self.totals)));
        }
        self.ready.push_back(Bytes::from_static(b"data: [DONE]\n\n"));
        self.ended = true;
    }
}

fn data(value: &Value) -> Bytes {
    Bytes::from(format!("data: {value}\n\n"))
}
