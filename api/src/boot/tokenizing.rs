//! Tokenizes long texts on threads beside the HTTP workers: a few texts at a time, with a bounded queue.

use crate::http::ApiError;
use actix_web::http::StatusCode;
use actix_web::web;
use std::sync::Arc;
use tiercel_device::Tier;
use tokio::sync::Semaphore;

/// Maximum number of long texts that the server tokenizes at once. Each HTTP worker has as many threads for tokenizing.
pub(crate) const THREADS: usize = 3;
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
}

struct Line {
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
        let line = |turns, places| Line {
            turns: Arc::new(Semaphore::new(turns)),
            places: Semaphore::new(places),
        };
        Tokenizing {
            all: line(THREADS, most + most.div_ceil(8)),
            below_premium: line(THREADS - 1, most),
            background: line(THREADS - 2, most.div_ceil(2)),
        }
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
    /// queue is full.
    pub(crate) async fn run<T: Send + 'static>(
        &self,
        tier: Tier,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, NotTokenized> {
        let lines = self.lines(tier);
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

    #[test]
    fn the_line_is_bounded_and_may_be_left() {
        actix_rt::System::new().block_on(async {
            let line = Tokenizing::new(STANDARD_THREADS + 1);
            let (go, gate) = mpsc::channel::<()>();
            let gate = Arc::new(Mutex::new(gate));
            let blocked = || {
                let gate = gate.clone();
                // Simulate the tokenizing of a text by work that blocks until `go` is dropped.
                line.run(Tier::Standard, move || _ = gate.lock().unwrap().recv())
            };
            let mut running = join_all((0..STANDARD_THREADS).map(|_| blocked()));
            assert!(poll_immediate(&mut running).await.is_none());
            let begun = Arc::new(AtomicU32::new(0));
            let counted = || {
                let begun = begun.clone();
                line.run(Tier::Standard, move || begun.fetch_add(1, Ordering::Relaxed))
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
                let failed = line.run(Tier::Standard, || panic!("a broken tokenizer")).await;
                assert_eq!(failed, Err::<(), _>(NotTokenized::Panicked));
            }
            assert_eq!(line.run(Tier::Standard, || 7).await, Ok(7));
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
                line.run(tier, move || _ = gate.lock().unwrap().recv())
            };
            let full = |tier| poll_immediate(blocked(tier));
            let mut background = join_all([0, 1].map(|_| blocked(Tier::Background)));
            assert!(poll_immediate(&mut background).await.is_none());
            assert_eq!(full(Tier::Background).await, Some(Err(NotTokenized::Full)));
            // Check that the text of a higher tier is tokenized while texts of lower tiers are stuck: these must leave
            // one tokenizing thread free.
            let clock = Clock::wall();
            let soon = |tier| clock.timeout_us(30_000_000, line.run(tier, || 7));
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
}
