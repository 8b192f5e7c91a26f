//! Tokenizes long texts on threads beside the HTTP workers: a few texts at a time, with a bounded queue.

use crate::http::ApiError;
use actix_web::http::StatusCode;
use actix_web::web;
use std::sync::Arc;
use tiercel_device::Tier;
use tokio::sync::Semaphore;

/// Maximum number of long texts that the server tokenizes at once. Each HTTP worker has as many threads for tokenizing.
pub(crate) const THREADS: usize = 2;
/// Retry time in the answer to a client that finds the tokenizing queue full, ms.
const RETRY_MS: u64 = 1_000;

/// Queue of long texts to tokenize. A text whose client leaves before its tokenizing has begun is never tokenized.
pub(crate) struct Tokenizing {
    all: Line,
    /// Limits for texts of background requests: all tokenizing threads but one, and half of the queue (rounded up), so
    /// that texts of higher tiers find room.
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
    /// Makes a tokenizing queue for at most `most` requests, of which at most half, rounded up, may be background
    /// requests.
    pub(crate) fn new(most: usize) -> Tokenizing {
        let line = |turns, places| Line {
            turns: Arc::new(Semaphore::new(turns)),
            places: Semaphore::new(places),
        };
        Tokenizing { all: line(THREADS, most), background: line(THREADS - 1, most.div_ceil(2)) }
    }

    /// Runs `work`, which tokenizes a text, on another thread as soon as one is free. Fails at once if the tokenizing
    /// queue is full.
    pub(crate) async fn run<T: Send + 'static>(
        &self,
        tier: Tier,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, NotTokenized> {
        let lines = [(tier == Tier::Background).then_some(&self.background), Some(&self.all)];
        let lines = || lines.iter().flatten();
        let places: Result<Vec<_>, _> = lines().map(|line| line.places.try_acquire()).collect();
        let _places = places.map_err(|_| NotTokenized::Full)?;
        let mut turns = Vec::with_capacity(2);
        for line in lines() {
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

    #[test]
    fn the_line_is_bounded_and_may_be_left() {
        actix_rt::System::new().block_on(async {
            let line = Tokenizing::new(THREADS + 1);
            let (go, gate) = mpsc::channel::<()>();
            let gate = Arc::new(Mutex::new(gate));
            let blocked = || {
                let gate = gate.clone();
                // Simulate the tokenizing of a text by work that blocks until `go` is dropped.
                line.run(Tier::Standard, move || _ = gate.lock().unwrap().recv())
            };
            let mut running = join_all((0..THREADS).map(|_| blocked()));
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
    fn background_texts_leave_a_turn_and_half_the_places_to_others() {
        actix_rt::System::new().block_on(async {
            let line = Tokenizing::new(4);
            let (go, gate) = mpsc::channel::<()>();
            let gate = Arc::new(Mutex::new(gate));
            let blocked = || {
                let gate = gate.clone();
                line.run(Tier::Background, move || _ = gate.lock().unwrap().recv())
            };
            let mut background = join_all([blocked(), blocked()]);
            assert!(poll_immediate(&mut background).await.is_none());
            assert_eq!(poll_immediate(blocked()).await, Some(Err(NotTokenized::Full)));
            // Check that a premium text is tokenized while background texts are stuck: they must leave one tokenizing
            // thread free.
            let premium = line.run(Tier::Premium, || 7);
            let premium = Clock::wall().timeout_us(30_000_000, premium).await;
            assert_eq!(premium, Some(Ok(7)), "while they are stuck");
            drop(go);
            assert!(background.await.iter().all(Result::is_ok));
        });
    }
}
