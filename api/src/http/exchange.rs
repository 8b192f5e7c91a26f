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
    /// Bytes received since the connection was last idle (see [`Exchange::looked_through`]).
    burst: Cell<usize>,
    /// Number of complete answers when the received bytes were last looked through.
    answered_before: Cell<u64>,
    /// Upper bound of the bytes received after the end of the request that is being answered; `None` unless that
    /// request's body has been read.
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

    /// Records that the server has begun every whole request that the client has sent, as far as it begins requests
    /// before earlier ones are answered. If no request is being answered now, nor was answered since the last such
    /// record, all received bytes belong to answered requests or to the beginning of the next request head.
    pub(crate) fn looked_through(&self) {
        let answered = self.answered_before.replace(self.answered());
        if !self.is_answering() && answered == self.answered() {
            self.burst.set(0);
        }
    }

    /// Counts `bytes` received bytes.
    pub(crate) fn arrived(&self, bytes: usize) {
        self.burst.set(self.burst.get() + bytes);
        self.ahead.set(self.ahead.get().map(|ahead| ahead + bytes));
    }

    /// Returns an upper bound of the bytes received after the end of the request that is being answered; 0 until that
    /// request's body has been read.
    pub(crate) fn ahead(&self) -> usize {
        self.ahead.get().unwrap_or(0)
    }

    /// Records that the body of the request that is being answered, of `body_bytes`, has been read: bytes that arrive
    /// from now on belong to a later request. So do those of the burst that are not of this request: the requests
    /// before it in the burst may have been answered, but their bytes are not told apart.
    pub(crate) fn body_read(request: &HttpRequest, body_bytes: usize) {
        if let Some(exchange) = request.conn_data::<Rc<Exchange>>() {
            let others = exchange.burst.get().saturating_sub(head_bytes(request) + body_bytes);
            exchange.ahead.set(Some(others));
        }
    }
}

/// Returns the length of a request's head, bytes, if it holds no needless space.
fn head_bytes(request: &HttpRequest) -> usize {
    let line = request.method().as_str().len() + request.uri().to_string().len();
    let headers = request.headers().iter();
    let headers: usize =
        headers.map(|(name, value)| name.as_str().len() + value.len() + ": \r\n".len()).sum();
    line + "  HTTP/1.1\r\n\r\n".len() + headers
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
