//! Long texts are tokenized beside the HTTP workers: few at a time, a bounded number in line.

use crate::http::ApiError;
use actix_web::http::StatusCode;
use actix_web::web;
use std::sync::Arc;
use tokio::sync::Semaphore;

/// Texts tokenized at once; every HTTP worker has as many threads for it.
pub(crate) const THREADS: usize = 2;
/// What a client that finds the line full is told to wait, ms.
const RETRY_MS: u64 = 1_000;

/// The line. Leaving it costs nothing: what has not begun is never done.
pub(crate) struct Tokenizing {
    /// Held by a text while it is tokenized, also when its client has left meanwhile.
    turns: Arc<Semaphore>,
    /// Held by a request while it waits for its text.
    places: Semaphore,
    /// How many places there are.
    most: usize,
}

impl Tokenizing {
    /// `most` requests may be here at once.
    pub(crate) fn new(most: usize) -> Tokenizing {
        Tokenizing { turns: Arc::new(Semaphore::new(THREADS)), places: Semaphore::new(most), most }
    }

    /// Does the work on another thread when its turn comes.
    ///
    /// # Errors
    /// 429 if too many wait, 500 if the work panicked.
    pub(crate) async fn run<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, ApiError> {
        let _place = self.places.try_acquire().map_err(|_| self.full())?;
        let turn = Arc::clone(&self.turns).acquire_owned().await;
        web::block(move || {
            let done = work();
            drop(turn);
            done
        })
        .await
        .map_err(|_| {
            let message = "the tokenizer failed on this text";
            ApiError::new(StatusCode::INTERNAL_SERVER_ERROR, message).code("tokenizer_error")
        })
    }

    fn full(&self) -> ApiError {
        let message =
            format!("{} texts are waiting to be tokenized; retry in {RETRY_MS} ms", self.most);
        ApiError::new(StatusCode::TOO_MANY_REQUESTS, message)
            .code("queue_full")
            .retry_after_ms(RETRY_MS)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures_util::future::{join_all, poll_immediate};
    use std::sync::atomic::{AtomicU32, Ordering};
    use std::sync::{Mutex, mpsc};

    #[test]
    fn the_line_is_bounded_and_may_be_left() {
        actix_rt::System::new().block_on(async {
            let line = Tokenizing::new(THREADS + 1);
            let (go, gate) = mpsc::channel::<()>();
            let gate = Arc::new(Mutex::new(gate));
            let blocked = || {
                let gate = gate.clone();
                // Ends when `go` is dropped.
                line.run(move || _ = gate.lock().unwrap().recv())
            };
            let mut running = join_all((0..THREADS).map(|_| blocked()));
            assert!(poll_immediate(&mut running).await.is_none());
            let begun = Arc::new(AtomicU32::new(0));
            let counted = || {
                let begun = begun.clone();
                line.run(move || begun.fetch_add(1, Ordering::Relaxed))
            };
            let mut waiting = Box::pin(counted());
            assert!(poll_immediate(&mut waiting).await.is_none());
            let refused = counted().await.unwrap_err().body();
            assert_eq!(refused["error"]["code"], "queue_full");
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
                let failed = line.run(|| panic!("a broken tokenizer")).await;
                assert_eq!(failed.unwrap_err().body()["error"]["code"], "tokenizer_error");
            }
            assert_eq!(line.run(|| 7).await, Ok(7));
        });
    }
}
