//! Socket of a client's connection, which limits how much the client may send, and how long it may keep the connection
//! without sending or reading.
//!
//! actix's own timers have gaps: there is one for the head of a connection's first request, but none for later heads,
//! for an answer that the client does not read, or for a body that is no longer wanted. The timers of this socket have
//! no gaps: at any time either the server or the client must act next, and the client's time to act is limited.
//!
//! actix also reads ahead while a handler runs, and so notices a client that leaves. But when 128 KiB of further
//! requests wait in its buffer, actix stops reading and spins without noticing anything. So this socket closes the
//! connection of a client that sends more than 32 KiB after the end of a request that is still being answered. Bytes
//! that came in one burst with that request and those before it cannot be told apart, so the socket also closes a
//! connection that actix flushes again and again without reading.
//!
//! The socket also tells the listener when its connection is idle, and closes an idle connection that was evicted.

use crate::http::ApiError;
use crate::http::connections::Seat;
use crate::http::exchange::Exchange;
use crate::http::stream::Stream;
use actix_web::http::StatusCode;
use std::io::{Error, ErrorKind, Result};
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, ready};
use tiercel_config::HttpSettings;
use tiercel_device::Clock;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// Maximum number of bytes that a client may send after the end of a request that is still being answered. A client
/// that sends more is disconnected.
const AHEAD_BYTES_MAX: usize = 32 * 1024;
/// Maximum number of flushes between two reads while a request is being answered. actix reads before each flush, unless
/// its buffer is full or the request's body waits for its reader.
const FLUSHES_MAX: u32 = 20_000;
/// Maximum number of bytes that the socket passes to actix before it yields to other tasks, so that a request that has
/// arrived is begun before more bytes are read.
const TURN_BYTES: usize = 16 * 1024;
/// Error message for a client whose bytes cannot be read as HTTP.
const NOT_HTTP: &str =
    "this is not an HTTP/1.1 request that can be read; send one with a small, valid head";

/// Timeouts for the client's side of a connection, us: for sending a request head, for being idle, and for reading an
/// answer.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Patience {
    /// Longest time between the first and the last byte of a request head, us. For the first request of a connection,
    /// the time begins when the connection has its seat, and includes the TLS handshake.
    pub(crate) head_us: u64,
    /// Longest idle time of a connection, us: from the end of an answer to the first byte of the next request.
    pub(crate) idle_us: u64,
    /// Longest time that a write of an answer may be blocked because the client does not read, us.
    pub(crate) stall_us: u64,
}

impl Patience {
    /// Returns the timeouts of the settings. For a client that does not read, the timeout is the sum of two times: the
    /// time after which the engine ends its request, and the request timeout, in which the client may still read the
    /// error.
    pub(super) fn new(settings: &HttpSettings, stall_timeout_ms: u64) -> Patience {
        Patience {
            head_us: settings.request_timeout_ms * 1_000,
            idle_us: settings.keep_alive_ms * 1_000,
            stall_us: (stall_timeout_ms + settings.request_timeout_ms) * 1_000,
        }
    }
}

/// Socket of a client's connection, with timers and limits.
pub(crate) struct Socket {
    stream: Stream,
    seat: Seat,
    exchange: Rc<Exchange>,
    clock: Clock,
    patience: Patience,
    /// Bytes passed to actix since the socket last yielded to other tasks.
    turn: usize,
    /// Number of complete answers of the connection when the timers were last checked.
    answered: u64,
    /// What the client must send next, with its timer. `None` while the server must act, or until the timer of the
    /// client's next action is set.
    due: Option<Due>,
    /// Stall timer, which runs while a write of the answer is blocked because the client does not read.
    stall: Option<Timer>,
    /// Number of flushes since actix last read.
    flushes: u32,
    /// Bytes received since a write of the answer first blocked; `None` once all of the answer has been written.
    behind: Option<usize>,
    /// Whether nothing has been received yet.
    fresh: bool,
}

type Timer = Pin<Box<dyn Future<Output = ()>>>;

enum Due {
    /// The client must begin a new request.
    Request(Timer),
    /// The client must complete the request head that it has begun.
    Head(Timer),
}

impl Socket {
    /// Makes the socket of a connection, whose client has `head_us` microseconds for the head of its first request.
    pub(super) fn new(
        stream: Stream,
        seat: Seat,
        clock: Clock,
        (patience, head_us): (Patience, u64),
    ) -> Socket {
        let due = Some(Due::Head(timer(&clock, head_us)));
        Socket {
            stream,
            seat,
            exchange: Rc::default(),
            clock,
            patience,
            turn: 0,
            answered: 0,
            due,
            stall: None,
            flushes: 0,
            behind: None,
            fresh: true,
        }
    }

    /// Returns the connection's state (whether server or client must act next), which the socket shares with the
    /// requests that arrive on it.
    pub(crate) fn exchange(&self) -> Rc<Exchange> {
        self.exchange.clone()
    }

    /// Fails if the client has not sent its next request, or the rest of a request head, in time, or if the connection
    /// was evicted while idle. Otherwise registers the timer, so that the task is woken at the timeout. actix flushes
    /// after each answer, so this check always runs after an answer.
    fn check_due(&mut self, cx: &mut Context<'_>) -> Result<()> {
        let answered = self.exchange.answered();
        if self.exchange.is_answering() || answered != self.answered {
            self.answered = answered;
            self.due = None;
        }
        // No timer for the client's next request is needed while a request is being answered; if the client does not
        // read the answer, the stall timer runs.
        if self.exchange.is_answering() || self.stall.is_some() {
            // A connection whose next request came just when it was evicted may finish that request.
            self.seat.set_busy();
            return Ok(());
        }
        if self.due.is_none() && self.exchange.has_begun() {
            self.due = Some(Due::Head(timer(&self.clock, self.patience.head_us)));
        } else if self.due.is_none() {
            self.due = Some(Due::Request(timer(&self.clock, self.patience.idle_us)));
            self.seat.set_idle();
        }
        if self.seat.poll_evicted(cx).is_ready() {
            return Err(Error::from(ErrorKind::ConnectionAborted));
        }
        let late = match &mut self.due {
            Some(Due::Request(timer) | Due::Head(timer)) => timer.as_mut().poll(cx).is_ready(),
            None => false,
        };
        if late { Err(Error::from(ErrorKind::TimedOut)) } else { Ok(()) }
    }

    /// Starts the stall timer, if it does not run, and fails when it ends.
    fn check_stall(&mut self, cx: &mut Context<'_>) -> Poll<Error> {
        let Socket { clock, patience, stall, behind, .. } = self;
        behind.get_or_insert(0);
        let stall = stall.get_or_insert_with(|| timer(clock, patience.stall_us));
        stall.as_mut().poll(cx).map(|()| Error::from(ErrorKind::TimedOut))
    }

    /// Counts received bytes. Fails if the client has sent too much while its request is being answered, or if the
    /// connection was evicted before the bytes came, and starts the timer when a new request head begins.
    fn received(&mut self, bytes: usize) -> Result<()> {
        self.turn += bytes;
        if bytes > 0 {
            self.fresh = false;
            if !self.seat.set_busy() {
                return Err(Error::from(ErrorKind::ConnectionAborted));
            }
        }
        self.behind = self.behind.map(|behind| behind + bytes);
        if self.exchange.arrived(bytes).max(self.behind.unwrap_or(0)) > AHEAD_BYTES_MAX {
            return Err(Error::from(ErrorKind::ConnectionAborted));
        }
        let begun = matches!(self.due, Some(Due::Head(_)));
        if bytes > 0 && !begun && !self.exchange.is_answering() {
            self.due = Some(Due::Head(timer(&self.clock, self.patience.head_us)));
        }
        Ok(())
    }
}

/// Returns the status line if `bytes` begin with an HTTP error response (4xx) without a body. Only actix's parser sends
/// such a response, before it closes a connection whose input is not HTTP.
fn refusal_without_body(bytes: &[u8]) -> Option<&str> {
    if !bytes.starts_with(b"HTTP/1.1 4") {
        return None;
    }
    let end = bytes.windows(2).position(|pair| pair == b"\r\n")?;
    let bare = bytes[end..].starts_with(b"\r\ncontent-length: 0\r\n");
    bare.then(|| std::str::from_utf8(&bytes[..end]).ok()).flatten()
}

/// Returns an HTTP response with the given status line and a JSON error body, as OpenAI's clients read it.
pub(super) fn envelope(status_line: &str, message: &str, code: &'static str) -> Vec<u8> {
    let body = ApiError::new(StatusCode::BAD_REQUEST, message).code(code).body();
    let body = body.to_string();
    let length = body.len();
    format!(
        "{status_line}\r\ncontent-type: application/json\r\ncontent-length: {length}\r\n\
         connection: close\r\n\r\n{body}"
    )
    .into_bytes()
}

fn timer(clock: &Clock, us: u64) -> Timer {
    let clock = clock.clone();
    Box::pin(async move { clock.sleep_us(us).await })
}

impl AsyncRead for Socket {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<Result<()>> {
        self.check_due(cx)?;
        self.flushes = 0;
        if self.turn >= TURN_BYTES {
            self.turn = 0;
            cx.waker().wake_by_ref();
            return Poll::Pending;
        }
        let before = buffer.filled().len();
        let read = Pin::new(&mut self.stream).poll_read(cx, buffer);
        if read.is_pending() {
            self.turn = 0;
            if self.fresh {
                self.seat.set_idle();
                // Register for the eviction, or notice that it has come already.
                self.check_due(cx)?;
            }
        }
        ready!(read)?;
        Poll::Ready(self.received(buffer.filled().len() - before))
    }
}

impl AsyncWrite for Socket {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<Result<usize>> {
        let refusal =
            refusal_without_body(bytes).map(|line| envelope(line, NOT_HTTP, "invalid_http"));
        let out = refusal.as_ref().map_or(bytes, Vec::as_slice);
        let written = Pin::new(&mut self.stream).poll_write(cx, out);
        if written.is_pending() {
            return Poll::Ready(Err(ready!(self.check_stall(cx))));
        }
        // A write has succeeded, so the client reads: clear its timers, which begin anew when it must act again.
        (self.stall, self.due) = (None, None);
        match (refusal, ready!(written)?) {
            (None, taken) => Poll::Ready(Ok(taken)),
            (Some(refusal), taken) if taken == refusal.len() => Poll::Ready(Ok(bytes.len())),
            // An error response that is only partly written aborts the connection, which would end after a whole one
            // too.
            (Some(_), _) => Poll::Ready(Err(Error::from(ErrorKind::ConnectionAborted))),
        }
    }

    /// Flushes the connection and checks the client's timers. actix calls this when it has nothing left to write. TLS
    /// may still have a part of the answer that the client does not read.
    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<()>> {
        self.flushes += 1;
        if self.exchange.is_answering() && self.flushes > FLUSHES_MAX {
            return Poll::Ready(Err(Error::from(ErrorKind::ConnectionAborted)));
        }
        let flushed = Pin::new(&mut self.stream).poll_flush(cx)?;
        if flushed.is_pending() {
            return Poll::Ready(Err(ready!(self.check_stall(cx))));
        }
        if self.stall.take().is_some() {
            self.due = None;
        }
        self.behind = None;
        self.check_due(cx)?;
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_refusals_without_a_body_get_one() {
        let bare = b"HTTP/1.1 431 Too Large\r\ncontent-length: 0\r\nconnection: close\r\n\r\n";
        assert_eq!(refusal_without_body(bare), Some("HTTP/1.1 431 Too Large"));
        for whole in [
            "HTTP/1.1 400 Bad Request\r\ncontent-length: 12\r\n\r\n{\"error\": 1}",
            "HTTP/1.1 204 No Content\r\ncontent-length: 0\r\n\r\n",
            "HTTP/1.1 4",
            "data: HTTP/1.1 400 x\r\ncontent-length: 0\r\n",
        ] {
            assert_eq!(refusal_without_body(whole.as_bytes()), None, "{whole}");
        }
    }
}
