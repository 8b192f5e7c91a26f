//! Connections of a listener: lets new ones in, evicts idle ones, and counts both in the metrics.

use crate::http::Surface;
use crate::http::seats::{Arrival, Id, Limits, Seats};
use futures_util::task::AtomicWaker;
use metrics::{Counter, Gauge, counter, gauge};
use std::collections::HashMap;
use std::future::poll_fn;
use std::net::IpAddr;
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};
use tiercel_device::{Clock, Timestamp};

/// Shortest time between two log lines about connections that were closed, us.
const TELL_US: u64 = 10_000_000;

const WAITING: u8 = 0;
const SEATED: u8 = 1;
const EVICTED: u8 = 2;

/// Connections of a listener.
pub(crate) struct Connections {
    name: &'static str,
    clock: Clock,
    state: Mutex<State>,
    open: Gauge,
    evicted: Counter,
    over_cap: Counter,
    handshakes: Counter,
}

struct State {
    seats: Seats,
    posts: HashMap<Id, Arc<Post>>,
    /// Closed connections that no log line has told of yet: evicted ones, and those over the cap of their address.
    untold: [u64; 2],
    told: Option<Timestamp>,
}

/// State of a connection, which its listener sets.
struct Post {
    /// `WAITING`, `SEATED` or `EVICTED`.
    state: AtomicU8,
    waker: AtomicWaker,
}

/// Seat of a connection, or its place among those that wait for a seat. Dropping it frees the seat.
pub(super) struct Seat {
    connections: Arc<Connections>,
    id: Id,
    post: Arc<Post>,
    idle: bool,
}

/// Describes the metrics of connections.
pub(crate) fn describe_metrics() {
    metrics::describe_gauge!(
        "tiercel_connections",
        "Open connections that hold a seat, by listener"
    );
    metrics::describe_counter!(
        "tiercel_connections_closed_total",
        "Connections that the server closed, by listener and cause (evicted, address_cap, handshake)"
    );
}

impl Connections {
    /// Makes the state of a listener that holds `total` connections, of one address at most `per_address` (0 for no
    /// limit).
    pub(crate) fn new(
        surface: Surface,
        (total, per_address): (usize, usize),
        clock: Clock,
    ) -> Connections {
        let name = surface.name();
        let closed = |cause| {
            let closed =
                counter!("tiercel_connections_closed_total", "listener" => name, "cause" => cause);
            // The metric has a value before the first such connection.
            closed.increment(0);
            closed
        };
        let limits = Limits { total, per_address };
        let state =
            State { seats: Seats::new(limits), posts: HashMap::new(), untold: [0; 2], told: None };
        Connections {
            name,
            clock,
            state: Mutex::new(state),
            open: gauge!("tiercel_connections", "listener" => name),
            evicted: closed("evicted"),
            over_cap: closed("address_cap"),
            handshakes: closed("handshake"),
        }
    }

    /// Lets in a new connection, which waits while all others are busy. Returns `None` if its address has too many
    /// connections.
    pub(super) async fn arrive(self: &Arc<Connections>, address: IpAddr) -> Option<Seat> {
        let seat = self.let_in(address)?;
        poll_fn(|cx| seat.poll(cx, |state| state != WAITING)).await;
        Some(seat)
    }

    fn let_in(self: &Arc<Connections>, address: IpAddr) -> Option<Seat> {
        let mut state = self.state();
        let Ok(Arrival { id, seated, evicted }) = state.seats.arrive(address) else {
            self.over_cap.increment(1);
            self.tell(&mut state, [0, 1]);
            return None;
        };
        if let Some(evicted) = evicted {
            self.evict(&mut state, evicted);
        }
        let post = AtomicU8::new(if seated { SEATED } else { WAITING });
        let post = Arc::new(Post { state: post, waker: AtomicWaker::new() });
        state.posts.insert(id, post.clone());
        self.open.set(state.seats.taken() as f64);
        drop(state);
        Some(Seat { connections: self.clone(), id, post, idle: false })
    }

    /// Counts a connection that was closed because its TLS handshake failed.
    pub(super) fn count_handshake(&self) {
        self.handshakes.increment(1);
    }

    fn evict(&self, state: &mut State, id: Id) {
        state.tell(id, EVICTED);
        self.evicted.increment(1);
        self.tell(state, [1, 0]);
    }

    /// Logs how many connections were closed for lack of room, at most once in `TELL_US`.
    fn tell(&self, state: &mut State, more: [u64; 2]) {
        let now = self.clock.now();
        state.untold[0] += more[0];
        state.untold[1] += more[1];
        if state.told.is_some_and(|told| now < told + TELL_US) {
            return;
        }
        state.told = Some(now);
        let [evicted, over_cap] = std::mem::take(&mut state.untold);
        tracing::warn!(
            listener = self.name,
            evicted,
            over_cap,
            "closed connections: idle ones that gave way to newcomers, and newcomers from addresses with too many \
             connections (http.max_connections_per_address)"
        );
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // Ignore that the mutex is poisoned: no code that holds it panics halfway through a change.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn tell(&self, id: Id, now: u8) {
        if let Some(post) = self.posts.get(&id) {
            post.state.store(now, Ordering::Release);
            post.waker.wake();
        }
    }
}

impl Seat {
    /// Notes that the connection is idle: the server owes no answer, and nothing of a next request has come.
    pub(super) fn set_idle(&mut self) {
        if self.idle {
            return;
        }
        self.idle = true;
        let connections = self.connections.clone();
        let mut state = connections.state();
        if let Some(seated) = state.seats.idle(self.id) {
            connections.evict(&mut state, self.id);
            state.tell(seated, SEATED);
        }
    }

    /// Notes that the connection is not idle any more. Returns false if it has been evicted.
    pub(super) fn set_busy(&mut self) -> bool {
        if !self.idle {
            return true;
        }
        self.idle = false;
        self.connections.state().seats.busy(self.id)
    }

    /// Resolves when the connection is idle and has been evicted; the task of `cx` is woken then.
    pub(super) fn poll_evicted(&self, cx: &mut Context<'_>) -> Poll<()> {
        if !self.idle {
            return Poll::Pending;
        }
        self.poll(cx, |state| state == EVICTED)
    }

    fn poll(&self, cx: &mut Context<'_>, done: impl Fn(u8) -> bool) -> Poll<()> {
        self.post.waker.register(cx.waker());
        if done(self.post.state.load(Ordering::Acquire)) { Poll::Ready(()) } else { Poll::Pending }
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        let mut state = self.connections.state();
        if let Some(seated) = state.seats.leave(self.id) {
            state.tell(seated, SEATED);
        }
        state.posts.remove(&self.id);
        self.connections.open.set(state.seats.taken() as f64);
    }
}
