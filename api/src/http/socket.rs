//! The socket under a connection: bounds what a client may send behind a request that is being answered.
//!
//! actix reads ahead while a handler runs, and that is how it notices a client that leaves. But it stops
//! when 128 KiB of further requests wait in its buffer, and then spins without noticing anything. So
//! a client that sends much behind a running request is hung up on before that.

use actix_web::HttpRequest;
use std::cell::Cell;
use std::io::{Error, ErrorKind, Result};
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, ready};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;

/// Most bytes that may arrive while a request is being answered.
const AHEAD_BYTES_MAX: usize = 32 * 1024;
/// Most bytes handed on before other work gets its turn; a request that has arrived is then begun
/// before more is read.
const TURN_BYTES: usize = 16 * 1024;

/// A client's socket.
pub(crate) struct Socket {
    stream: TcpStream,
    ahead: Rc<Ahead>,
    /// Bytes handed on in this turn.
    turn: usize,
}

/// Bytes that arrived behind the request that is being answered; `None` while there is none.
#[derive(Default)]
pub(crate) struct Ahead {
    bytes: Cell<Option<usize>>,
}

impl Socket {
    pub(crate) fn new(stream: TcpStream) -> Socket {
        // A token must not wait for the acknowledgement of the one before. If the socket refuses, it
        // is broken, and reading from it will tell.
        let _ = stream.set_nodelay(true);
        Socket { stream, ahead: Rc::default(), turn: 0 }
    }

    /// Shared with the requests that arrive here.
    pub(crate) fn ahead(&self) -> Rc<Ahead> {
        self.ahead.clone()
    }
}

/// Held from a request's last byte to the end of its answer.
pub(crate) struct Answering {
    ahead: Option<Rc<Ahead>>,
}

impl Answering {
    /// The request's body has been read.
    pub(crate) fn begin(request: &HttpRequest) -> Answering {
        let ahead = request.conn_data::<Rc<Ahead>>().cloned();
        if let Some(ahead) = &ahead {
            ahead.bytes.set(Some(0));
        }
        Answering { ahead }
    }
}

impl Drop for Answering {
    fn drop(&mut self) {
        if let Some(ahead) = &self.ahead {
            ahead.bytes.set(None);
        }
    }
}

impl AsyncRead for Socket {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<Result<()>> {
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
        let bytes = buffer.filled().len() - before;
        self.turn += bytes;
        if let Some(ahead) = self.ahead.bytes.get() {
            self.ahead.bytes.set(Some(ahead + bytes));
            if ahead + bytes > AHEAD_BYTES_MAX {
                return Poll::Ready(Err(Error::from(ErrorKind::ConnectionAborted)));
            }
        }
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for Socket {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<Result<usize>> {
        Pin::new(&mut self.stream).poll_write(cx, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}
