//! Keeps track of whether a connection waits for the server or for the client. Shared by the connection's socket and
//! the requests that arrive on it.

use actix_web::HttpRequest;
use std::cell::Cell;
use std::rc::Rc;

/// Counters of a connection's requests and answers.
#[derive(Default)]
pub(crate) struct Exchange {
    /// Number of guards held by parts of the server that answer a request. Above 0 the server is to act, at 0 the
    /// client.
    answering: Cell<u32>,
    /// Number of answers that have ended on this connection.
    answered: Cell<u64>,
    /// Bytes that arrived after the request that is being answered; `None` unless that request's body has been read.
    ahead: Cell<Option<usize>>,
}

impl Exchange {
    /// Whether a request of this connection is being answered.
    pub(crate) fn is_answering(&self) -> bool {
        self.answering.get() > 0
    }

    /// Returns how many answers have ended on this connection.
    pub(crate) fn answered(&self) -> u64 {
        self.answered.get()
    }

    /// Adds received bytes to this connection's count. Returns the number of bytes received after the end of the
    /// request in progress.
    pub(crate) fn arrived(&self, bytes: usize) -> usize {
        let ahead = self.ahead.get().map(|ahead| ahead + bytes);
        self.ahead.set(ahead);
        ahead.unwrap_or(0)
    }

    /// Records that the body of the request being answered has been read: bytes that arrive from now on belong to
    /// another request.
    pub(crate) fn body_read(request: &HttpRequest) {
        if let Some(exchange) = request.conn_data::<Rc<Exchange>>() {
            exchange.ahead.set(Some(0));
        }
    }
}

/// Guard that marks a connection's request as being answered, from the request's head to the end of its answer. Several
/// parts of the server hold one each; the answer ends when the last guard is dropped.
pub(crate) struct Answering {
    exchange: Option<Rc<Exchange>>,
}

impl Answering {
    pub(crate) fn begin(request: &HttpRequest) -> Answering {
        let exchange = request.conn_data::<Rc<Exchange>>().cloned();
        if let Some(exchange) = &exchange {
            exchange.answering.set(exchange.answering.get() + 1);
        }
        Answering { exchange }
    }
}

impl Drop for Answering {
    fn drop(&mut self) {
        let Some(exchange) = &self.exchange else { return };
        exchange.answering.set(exchange.answering.get() - 1);
        if !exchange.is_answering() {
            exchange.answered.set(exchange.answered.get() + 1);
            exchange.ahead.set(None);
        }
    }
}
