//! The socket under a connection: bounds what a client may send, and how long it may keep a connection
//! without sending or reading.
//!
//! actix has timers of its own, with gaps: for the head of a connection's first request but of no later
//! one, none for an answer that nobody reads, and none for a body that is no longer wanted. These here
//! have none: it is either the server's turn or the client's, and the client's turn ends.
//!
//! actix also reads ahead while a handler runs, and that is how it notices a client that leaves. But it
//! stops when 128 KiB of further requests wait in its buffer, and then spins without noticing anything.
//! So a client that sends much behind a running request is hung up on before that.

use crate::http::ApiError;
use crate::http::exchange::Exchange;
use actix_web::http::StatusCode;
use std::io::{Error, ErrorKind, Result};
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, ready};
use tiercel_device::Clock;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;

/// Most bytes that may arrive while a request is being answered.
const AHEAD_BYTES_MAX: usize = 32 * 1024;
/// Most bytes handed on before other work gets its turn; a request that has arrived is then begun
/// before more is read.
const TURN_BYTES: usize = 16 * 1024;

/// How long a client may take, us.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Patience {
    /// From the first byte of a request's head to its last; for the first request, from the connection.
    pub(crate) head_us: u64,
    /// From the end of an answer to the next request's first byte.
    pub(crate) idle_us: u64,
    /// Without taking a byte of what is being written.
    pub(crate) stall_us: u64,
}

/// A client's socket.
pub(crate) struct Socket {
    stream: TcpStream,
    exchange: Rc<Exchange>,
    clock: Clock,
    patience: Patience,
    /// Bytes handed on in this turn.
    turn: usize,
    /// How many answers had ended when last looked.
    answered: u64,
    /// What the client is to do; `None` while it is the server's turn, or just begun.
    due: Option<Due>,
    /// Runs while the client takes nothing.
    stall: Option<Timer>,
    /// Bytes that have arrived since the client did not take all it was given; `None` when it has.
    behind: Option<usize>,
}

type Timer = Pin<Box<dyn Future<Output = ()>>>;

enum Due {
    /// To begin a request.
    Request(Timer),
    /// To end the head it has begun.
    Head(Timer),
}

impl Socket {
    pub(crate) fn new(stream: TcpStream, clock: Clock, patience: Patience) -> Socket {
        // A token must not wait for the acknowledgement of the one before. If the socket refuses, it
        // is broken, and reading from it will tell.
        let _ = stream.set_nodelay(true);
        let due = Some(Due::Head(timer(&clock, patience.head_us)));
        Socket {
            stream,
            exchange: Rc::default(),
            clock,
            patience,
            turn: 0,
            answered: 0,
            due,
            stall: None,
            behind: None,
        }
    }

    /// Shared with the requests that arrive here.
    pub(crate) fn exchange(&self) -> Rc<Exchange> {
        self.exchange.clone()
    }

    /// Fails if the client's turn has lasted too long; otherwise sees to it that this is looked at again.
    /// actix flushes after whatever it did, so this is always called after an answer.
    fn check_due(&mut self, cx: &mut Context<'_>) -> Result<()> {
        let answered = self.exchange.answered();
        if self.exchange.is_answering() || answered != self.answered {
            self.answered = answered;
            self.due = None;
        }
        // A client that takes nothing of an answer has a timer of its own.
        if self.exchange.is_answering() || self.stall.is_some() {
            return Ok(());
        }
        let idle = || Due::Request(timer(&self.clock, self.patience.idle_us));
        let late = match self.due.get_or_insert_with(idle) {
            Due::Request(timer) | Due::Head(timer) => timer.as_mut().poll(cx).is_ready(),
        };
        if late { Err(Error::from(ErrorKind::TimedOut)) } else { Ok(()) }
    }

    /// Bytes have arrived.
    fn received(&mut self, bytes: usize) -> Result<()> {
        self.turn += bytes;
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

/// The status line, if these bytes begin with a refusal that has no body: what no handler sends, but
/// actix's parser does before it hangs up on what is no HTTP.
fn refusal_without_body(bytes: &[u8]) -> Option<&str> {
    if !bytes.starts_with(b"HTTP/1.1 4") {
        return None;
    }
    let end = bytes.windows(2).position(|pair| pair == b"\r\n")?;
    let bare = bytes[end..].starts_with(b"\r\ncontent-length: 0\r\n");
    bare.then(|| std::str::from_utf8(&bytes[..end]).ok()).flatten()
}

/// That refusal as OpenAI's clients read it.
fn envelope(status_line: &str) -> Vec<u8> {
    let message =
        "this is not an HTTP/1.1 request that can be read; send one with a small, valid head";
    let body = ApiError::new(StatusCode::BAD_REQUEST, message).code("invalid_http").body();
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
        if self.turn >= TURN_BYTES {
            self.turn = 0;
            cx.waker().wake_by_ref();
            return Poll::Pending;
        }
        let before = buffer.filled().len();
        let read = Pin::new(&mut self.stream).poll_read(cx, buffer);
        if read.is_pending() {
            self.turn = 0;
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
        let refusal = refusal_without_body(bytes).map(envelope);
        let out = refusal.as_ref().map_or(bytes, Vec::as_slice);
        let written = Pin::new(&mut self.stream).poll_write(cx, out);
        if written.is_pending() {
            let Socket { clock, patience, stall, behind, .. } = &mut *self;
            behind.get_or_insert(0);
            let stall = stall.get_or_insert_with(|| timer(clock, patience.stall_us));
            ready!(stall.as_mut().poll(cx));
            return Poll::Ready(Err(Error::from(ErrorKind::TimedOut)));
        }
        // It takes what it is given: whatever it is to do next has time again.
        (self.stall, self.due) = (None, None);
        match (refusal, ready!(written)?) {
            (None, taken) => Poll::Ready(Ok(taken)),
            (Some(refusal), taken) if taken == refusal.len() => Poll::Ready(Ok(bytes.len())),
            // The connection ends with it, so half of one is as good as none.
            (Some(_), _) => Poll::Ready(Err(Error::from(ErrorKind::ConnectionAborted))),
        }
    }

    /// actix calls this when it has nothing left to write.
    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<()>> {
        self.behind = None;
        self.check_due(cx)?;
        Pin::new(&mut self.stream).poll_flush(cx)
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
