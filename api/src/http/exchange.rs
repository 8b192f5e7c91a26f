//! Whose turn it is on a connection: shared by its socket and the requests that arrive there.

use actix_web::HttpRequest;
use std::cell::Cell;
use std::rc::Rc;

/// A connection's requests and answers, counted.
#[derive(Default)]
pub(crate) struct Exchange {
    /// Guards held: above 0 it is the server's turn.
    answering: Cell<u32>,
    /// Answers that have ended.
    answered: Cell<u64>,
    /// Bytes that arrived behind the request that is being answered; `None` unless its body is read.
    ahead: Cell<Option<usize>>,
}

impl Exchange {
    /// Whether a request is being answered.
    pub(crate) fn is_answering(&self) -> bool {
        self.answering.get() > 0
    }

    /// Answers that have ended so far.
    pub(crate) fn answered(&self) -> u64 {
        self.answered.get()
    }

    /// Counts bytes that arrived; returns how many have come behind the request that is being answered.
    pub(crate) fn arrived(&self, bytes: usize) -> usize {
        let ahead = self.ahead.get().map(|ahead| ahead + bytes);
        self.ahead.set(ahead);
        ahead.unwrap_or(0)
    }

    /// The body of the request that is being answered has been read: what comes now is another one's.
    pub(crate) fn body_read(request: &HttpRequest) {
        if let Some(exchange) = request.conn_data::<Rc<Exchange>>() {
            exchange.ahead.set(Some(0));
        }
    }
}

/// Held from a request's head to the end of its answer, by several who do not know who is last.
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
