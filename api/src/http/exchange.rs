//! State of an HTTP connection: whether the server or the client must act next. The connection's socket and the
//! requests that arrive on it share this state.

use actix_web::HttpRequest;
use std::cell::Cell;
use std::rc::Rc;

/// State of an HTTP connection, which tells which side must act next: the server, while it answers a request, or
/// otherwise the client.
#[derive(Default)]
pub(crate) struct Exchange {
    /// Number of guards held by the parts of the server that answer the current request. Above 0 the server must act
    /// next, at 0 the client.
    answering: Cell<u32>,
    /// Number of answers that are complete on this connection.
    answered: Cell<u64>,
    /// Bytes received after the end of the request that is being answered; `None` unless that request's body has been
    /// read.
    ahead: Cell<Option<usize>>,
    /// Whether bytes of the next request had arrived when the last answer was complete.
    begun: Cell<bool>,
}

impl Exchange {
    /// Returns whether the server is answering a request of this connection.
    pub(crate) fn is_answering(&self) -> bool {
        self.answering.get() > 0
    }

    /// Returns the number of answers that are complete on this connection.
    pub(crate) fn answered(&self) -> u64 {
        self.answered.get()
    }

    /// Returns whether bytes of the next request had arrived when the last answer was complete.
    pub(crate) fn has_begun(&self) -> bool {
        self.begun.get()
    }

    /// Counts `bytes` received bytes. Returns the total of bytes received after the end of the request that is being
    /// answered.
    pub(crate) fn arrived(&self, bytes: usize) -> usize {
        let ahead = self.ahead.get().map(|ahead| ahead + bytes);
        self.ahead.set(ahead);
        ahead.unwrap_or(0)
    }

    /// Records that the body of the request that is being answered has been read: bytes that arrive from now on belong
    /// to a later request.
    pub(crate) fn body_read(request: &HttpRequest) {
        if let Some(exchange) = request.conn_data::<Rc<Exchange>>() {
            exchange.ahead.set(Some(0));
        }
    }
}

/// Guard for the time in which a connection's request is being answered. Several parts of the server hold one each; the
/// answer is complete when the last guard is dropped.
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
            exchange.begun.set(exchange.ahead.take().is_some_and(|bytes| bytes > 0));
        }
    }
}
