//! Tokenizes long texts on threads beside the HTTP workers: a few texts at a time, with a bounded queue.

use crate::http::ApiError;
use actix_web::http::StatusCode;
use actix_web::web;
use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use tiercel_device::Tier;
use tokio::sync::Semaphore;

/// Maximum number of long texts that the server tokenizes at once. Each HTTP worker has as many threads for tokenizing.
pub(crate) const THREADS: usize = 3;
/// Part of a tier's places in the tokenizing queue that one tenant may take if there are several tenants.
const TENANT_PLACES_PERCENT: usize = 75;
/// Retry time in the answer to a client that finds the tokenizing queue full, ms.
const RETRY_MS: u64 = 1_000;

/// Queue of long texts to tokenize. A text whose client leaves before its tokenizing has begun is never tokenized.
pub(crate) struct Tokenizing {
    /// Limits for all texts: the tokenizing threads, and the places of the queue.
    all: Line,
    /// Limits for texts of tiers below premium: all tokenizing threads but one, and the places of the queue but the
    /// premium ones.
    below_premium: Line,
    /// Limits for texts of background requests: all tokenizing threads but two, and half of the places for tiers below
    /// premium (rounded up).
    background: Line,
    /// Limits for the texts of each tenant.
    of_tenants: Mutex<OfTenants>,
}

/// Limits for the texts of each tenant, by the tenant's name and the tier of the texts.
type OfTenants = HashMap<(Arc<str>, Tier), Arc<Line>>;

/// Whose text is tokenized.
#[derive(Debug, Clone)]
pub(crate) struct TextOf {
    pub(crate) tier: Tier,
    /// Tenant of the request; `None` if the server has one tenant only.
    pub(crate) tenant: Option<Arc<str>>,
}

struct Line {
    /// Number of texts that may be tokenized at once.
    threads: usize,
    /// Number of places.
    most: usize,
    /// Semaphore that limits the texts being tokenized. A text holds its permit until it is tokenized, even if its
    /// client leaves meanwhile.
    turns: Arc<Semaphore>,
    /// Semaphore that limits the requests in the tokenizing queue. A request holds its permit until its text is
    /// tokenized or its client leaves.
    places: Semaphore,
}

/// Reason why a text has not been tokenized.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum NotTokenized {
    /// The tokenizing queue is full.
    Full,
    /// The tokenizer panicked on the text.
    Panicked,
}

impl Tokenizing {
    /// Makes a tokenizing queue. It has `most` places for requests of tiers below premium, and background requests may
    /// take at most half of these places (rounded up). `most / 8` further places (rounded up) are for premium requests
    /// only, which may take any other free place too.
    pub(crate) fn new(most: usize) -> Tokenizing {
        Tokenizing {
            all: Line::new(THREADS, most + most.div_ceil(8)),
            below_premium: Line::new(THREADS - 1, most),
            background: Line::new(THREADS - 2, most.div_ceil(2)),
            of_tenants: Mutex::default(),
        }
    }

    /// Returns the limits for the texts of a tenant in a tier that need room in `line`: a part of the places, and as
    /// many turns as the line has. So at most `line.threads` texts of the tenant wait for a turn of the line itself,
    /// and a text of another tenant waits behind no more of them.
    fn of_tenant(&self, tenant: Arc<str>, tier: Tier, line: &Line) -> Arc<Line> {
        // Ignore that the mutex is poisoned: the map that it guards stays valid after a panic.
        let mut lines = self.of_tenants.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(own) = lines.get(&(tenant.clone(), tier)) {
            return own.clone();
        }
        // Forget tenants without texts, so that the map holds no more tenants than have sent texts lately.
        lines.retain(|_, own| Arc::strong_count(own) > 1 || !own.unused());
        let places = (line.most * TENANT_PLACES_PERCENT / 100).max(1);
        let own = Arc::new(Line::new(line.threads, places));
        lines.insert((tenant, tier), own.clone());
        own
    }

    /// Returns the limits that a text of a tier needs room in, the narrowest first.
    fn lines(&self, tier: Tier) -> Vec<&Line> {
        match tier {
            Tier::System | Tier::Premium => vec![&self.all],
            Tier::Standard => vec![&self.below_premium, &self.all],
            Tier::Background => vec![&self.background, &self.below_premium, &self.all],
        }
    }

    /// Runs `work`, which tokenizes a text, on another thread as soon as one is free. Fails at once if the tokenizing
    /// queue is full, or if the tenant has its part of the places.
    pub(crate) async fn run<T: Send + 'static>(
        &self,
        TextOf { tier, tenant }: TextOf,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, NotTokenized> {
        let mut lines = self.lines(tier);
        let own = tenant.map(|tenant| self.of_tenant(tenant, tier, lines[0]));
        lines.splice(..0, own.as_deref());
        let places: Result<Vec<_>, _> =
            lines.iter().map(|line| line.places.try_acquire()).collect();
        let _places = places.map_err(|_| NotTokenized::Full)?;
        let mut turns = Vec::with_capacity(lines.len());
        for line in lines {
            turns.push(Arc::clone(&line.turns).acquire_owned().await);
        }
        web::block(move || {
            let done = work();
            drop(turns);
            done
        })
        .await
        .map_err(|_| NotTokenized::Panicked)
    }
}

impl Line {
    fn new(threads: usize, most: usize) -> Line {
        let turns = Arc::new(Semaphore::new(threads));
        Line { threads, most, turns, places: Semaphore::new(most) }
    }

    /// Whether no text has a place or a turn.
    fn unused(&self) -> bool {
        self.places.available_permits() == self.most
            && self.turns.available_permits() == self.threads
    }
}

impl From<NotTokenized> for ApiError {
    fn from(why: NotTokenized) -> ApiError {
        match why {
            NotTokenized::Full => {
                let message =
                    format!("too many texts are waiting to be tokenized; retry in {RETRY_MS} ms");
                ApiError::new(StatusCode::TOO_MANY_REQUESTS, message)
                    .code("queue_full")
                    .retry_after_ms(RETRY_MS)
            }
            NotTokenized::Panicked => {
                let message = "the tokenizer failed on this text";
                ApiError::new(StatusCode::INTERNAL_SERVER_ERROR, message).code("tokenizer_error")
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures_util::future::{join_all, poll_immediate};
    use std::sync::atomic::{AtomicU32, Ordering};
    use std::sync::{Mutex, mpsc};
    use tiercel_device::Clock;

    /// Tokenizing threads that texts of standard requests may use.
    const STANDARD_THREADS: usize = THREADS - 1;

    /// Returns whose text is tokenized on a server with one tenant.
    fn of(tier: Tier) -> TextOf {
        TextOf { tier, tenant: None }
    }

    #[test]
    fn the_line_is_bounded_and_may_be_left() {
        actix_rt::System::new().block_on(async {
            let line = Tokenizing::new(STANDARD_THREADS + 1);
            let (go, gate) = mpsc::channel::<()>();
            let gate = Arc::new(Mutex::new(gate));
            let blocked = || {
                let gate = gate.clone();
                // Simulate the tokenizing of a text by work that blocks until `go` is dropped.
                line.run(of(Tier::Standard), move || _ = gate.lock().unwrap().recv())
            };
            let mut running = join_all((0..STANDARD_THREADS).map(|_| blocked()));
            assert!(poll_immediate(&mut running).await.is_none());
            let begun = Arc::new(AtomicU32::new(0));
            let counted = || {
                let begun = begun.clone();
                line.run(of(Tier::Standard), move || begun.fetch_add(1, Ordering::Relaxed))
            };
            let mut waiting = Box::pin(counted());
            assert!(poll_immediate(&mut waiting).await.is_none());
            assert_eq!(counted().await, Err(NotTokenized::Full));
            drop(waiting);
            let mut next = Box::pin(counted());
            assert!(poll_immediate(&mut next).await.is_none(), "the place is free again");
            drop(go);
            assert!(running.await.iter().all(Result::is_ok));
            assert_eq!(next.await, Ok(0), "the one that left was never begun");
        });
    }

    #[test]
    fn a_panic_is_an_error_and_gives_its_turn_back() {
        actix_rt::System::new().block_on(async {
            let line = Tokenizing::new(1);
            for _ in 0..=THREADS {
                let failed = line.run(of(Tier::Standard), || panic!("a broken tokenizer")).await;
                assert_eq!(failed, Err::<(), _>(NotTokenized::Panicked));
            }
            assert_eq!(line.run(of(Tier::Standard), || 7).await, Ok(7));
        });
    }

    #[test]
    fn texts_of_each_tier_leave_a_turn_and_places_to_higher_tiers() {
        actix_rt::System::new().block_on(async {
            let line = Tokenizing::new(4);
            let (go, gate) = mpsc::channel::<()>();
            let gate = Arc::new(Mutex::new(gate));
            let blocked = |tier| {
                let gate = gate.clone();
                line.run(of(tier), move || _ = gate.lock().unwrap().recv())
            };
            let full = |tier| poll_immediate(blocked(tier));
            let mut background = join_all([0, 1].map(|_| blocked(Tier::Background)));
            assert!(poll_immediate(&mut background).await.is_none());
            assert_eq!(full(Tier::Background).await, Some(Err(NotTokenized::Full)));
            // Check that the text of a higher tier is tokenized while texts of lower tiers are stuck: these must leave
            // one tokenizing thread free.
            let clock = Clock::wall();
            let soon = |tier| clock.timeout_us(30_000_000, line.run(of(tier), || 7));
            assert_eq!(soon(Tier::Standard).await, Some(Ok(7)), "while background is stuck");
            let mut standard = join_all([0, 1].map(|_| blocked(Tier::Standard)));
            assert!(poll_immediate(&mut standard).await.is_none());
            assert_eq!(full(Tier::Standard).await, Some(Err(NotTokenized::Full)));
            assert_eq!(soon(Tier::Premium).await, Some(Ok(7)), "while all others are stuck");
            drop(go);
            let done = background.await.into_iter().chain(standard.await);
            assert!(done.into_iter().all(|done| done.is_ok()));
        });
    }

    #[test]
    fn a_tenant_with_many_texts_leaves_places_and_the_next_turn_to_another() {
        actix_rt::System::new().block_on(async {
            let line = Tokenizing::new(8);
            let of = |tenant: &str| TextOf { tier: Tier::Standard, tenant: Some(tenant.into()) };
            let (go, gate) = mpsc::channel::<()>();
            let gate = Arc::new(Mutex::new(gate));
            let blocked = || {
                let gate = gate.clone();
                line.run(of("many"), move || gate.lock().unwrap().recv().is_ok())
            };
            let mut running = join_all((0..6).map(|_| blocked()));
            assert!(poll_immediate(&mut running).await.is_none());
            let full = poll_immediate(blocked()).await;
            assert_eq!(full, Some(Err(NotTokenized::Full)), "6 of 8 places");
            let mut other = Box::pin(line.run(of("other"), || 7));
            assert!(poll_immediate(&mut other).await.is_none(), "both threads are busy");
            // Let the two texts go on that are being tokenized.
            go.send(()).unwrap();
            go.send(()).unwrap();
            assert_eq!(Clock::wall().timeout_us(30_000_000, other).await, Some(Ok(7)));
            drop(go);
            let done = running.await;
            assert_eq!(done.iter().filter(|done| **done == Ok(true)).count(), 2);
        });
    }

    #[test]
    fn tenants_without_texts_are_forgotten() {
        actix_rt::System::new().block_on(async {
            let line = Tokenizing::new(8);
            for tenant in 0..20 {
                let tenant: Arc<str> = tenant.to_string().into();
                let of = TextOf { tier: Tier::Standard, tenant: Some(tenant) };
                assert_eq!(line.run(of, || 7).await, Ok(7));
            }
            assert_eq!(line.of_tenants.lock().unwrap().len(), 1);
        });
    }
}
