//! The compute pool: the calling thread plus `threads - 1` worker threads, which are started once.
//!
//! [`Pool::run`] splits a job into numbered chunks, which the threads claim from one atomic counter. Between jobs,
//! workers first spin for 60 to 200 microseconds, because the operations of a forward pass follow each other that
//! closely; then they park.
//!
//! The counter holds `generation << 24 | chunks not yet claimed`, and every job has a new generation. A claim is a
//! compare-and-swap on the counter. So a worker that slept through a whole job cannot claim a chunk of a later job with
//! the closure of the earlier job: its compare-and-swap fails.
#![expect(unsafe_code, reason = "workers run a closure borrowed from the caller's stack")]

use super::options::CpuError;
use std::any::Any;
use std::cell::Cell;
use std::marker::PhantomData;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{JoinHandle, Thread};

/// Number of times that an idle compute thread looks for work before it parks (sleeps until it is woken): about 60 us
/// on Zen 3, 200 us on processors where `pause` is slow. A caller that waits for workers looks as often before it
/// starts to yield.
const SPINS: u32 = 4000;
const CHUNK_BITS: u32 = 24;
const CHUNK_MASK: u64 = (1 << CHUNK_BITS) - 1;

type Work<'a> = &'a (dyn Fn(usize) + Sync + 'a);

#[repr(align(128))]
struct Padded<T>(T);

struct Shared {
    /// Atomic counter from which threads claim chunks of a job: `generation << CHUNK_BITS | unclaimed chunks`. Every
    /// job has a new generation.
    claims: Padded<AtomicU64>,
    /// Number of chunks of the compute pool's current job that have run.
    finished: Padded<AtomicUsize>,
    /// Number of chunks that the compute pool's current job is split into.
    chunks: AtomicUsize,
    /// Pointer to the closure of the compute pool's current job, a `Work` on the caller's stack.
    work: AtomicPtr<()>,
    parked: Vec<Padded<AtomicBool>>,
    stop: AtomicBool,
    panic: Mutex<Option<Box<dyn Any + Send>>>,
}

/// Pool of compute threads. Only one caller at a time can start a job, because the pool is not `Sync`. For the same
/// reason a job cannot start another job.
pub(crate) struct Pool {
    shared: Arc<Shared>,
    workers: Vec<(Thread, JoinHandle<()>)>,
    one_caller: PhantomData<Cell<()>>,
}

impl Pool {
    /// Starts a compute pool with `threads - 1` worker threads; the calling thread is the other compute thread.
    pub(crate) fn start(threads: usize) -> Result<Pool, CpuError> {
        let shared = Arc::new(Shared {
            claims: Padded(AtomicU64::new(0)),
            finished: Padded(AtomicUsize::new(0)),
            chunks: AtomicUsize::new(0),
            work: AtomicPtr::new(ptr::null_mut()),
            parked: (1..threads).map(|_| Padded(AtomicBool::new(false))).collect(),
            stop: AtomicBool::new(false),
            panic: Mutex::new(None),
        });
        let mut pool = Pool { shared, workers: Vec::new(), one_caller: PhantomData };
        for index in 1..threads {
            let shared = pool.shared.clone();
            let handle = std::thread::Builder::new()
                .name(format!("tiercel-pool-{index}"))
                .spawn(move || worker(&shared, index - 1))
                .map_err(|source| CpuError::Thread { index, threads, source })?;
            pool.workers.push((handle.thread().clone(), handle));
        }
        Ok(pool)
    }

    /// Returns the number of compute threads, the calling thread included.
    pub(crate) fn threads(&self) -> usize {
        self.workers.len() + 1
    }

    /// Runs a job on the compute pool: calls `work(chunk)` once for each of `0..chunks`, on any thread and in any
    /// order, and returns when all chunks have run. A panic in a chunk is raised again on the caller: with worker
    /// threads after the other chunks have run, without them at once.
    pub(crate) fn run(&self, chunks: usize, work: Work<'_>) {
        if self.workers.is_empty() || chunks <= 1 {
            (0..chunks).for_each(work);
            return;
        }
        assert!(chunks as u64 <= CHUNK_MASK, "a job of {chunks} chunks");
        let shared = &*self.shared;
        shared.chunks.store(chunks, Ordering::Relaxed);
        shared.finished.0.store(0, Ordering::Relaxed);
        shared.work.store(ptr::from_ref(&work).cast_mut().cast(), Ordering::Relaxed);
        let generation = (shared.claims.0.load(Ordering::Relaxed) >> CHUNK_BITS).wrapping_add(1);
        shared.claims.0.store(generation << CHUNK_BITS | chunks as u64, Ordering::SeqCst);
        for ((thread, _), parked) in self.workers.iter().zip(&shared.parked).take(chunks - 1) {
            if parked.0.swap(false, Ordering::SeqCst) {
                thread.unpark();
            }
        }
        shared.claim_all();
        let mut waits = 0;
        while shared.finished.0.load(Ordering::Acquire) < chunks {
            waits += 1;
            if waits < SPINS {
                std::hint::spin_loop();
            } else {
                std::thread::yield_now();
            }
        }
        let panic = shared.panic.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(panic) = panic {
            resume_unwind(panic);
        }
    }

    /// Calls `each(row, values)` for every row of `data` on the compute threads, in chunks of at least `grain` rows
    /// (the last one may have fewer).
    pub(crate) fn rows<T: Send>(
        &self,
        data: &mut [T],
        cols: usize,
        grain: usize,
        each: impl Fn(usize, &mut [T]) + Sync,
    ) {
        let rows = data.len() / cols;
        let grain = grain.max(rows.div_ceil(self.threads() * 8)).max(1);
        let base = SharedMut::new(data);
        self.run(rows.div_ceil(grain), &|chunk| {
            for row in chunk * grain..rows.min((chunk + 1) * grain) {
                // SAFETY: every row belongs to exactly one chunk of the job and every chunk runs once, so no two slices
                // overlap.
                each(row, unsafe { base.slice(row * cols, cols) });
            }
        });
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::SeqCst);
        for (thread, handle) in self.workers.drain(..) {
            thread.unpark();
            // Ignores the result of joining a worker thread: the worker catches the panics of chunks, so there is none
            // to report.
            let _ = handle.join();
        }
    }
}

impl Shared {
    /// Claims and runs chunks of the compute pool's current job until none is left.
    fn claim_all(&self) {
        let mut claims = self.claims.0.load(Ordering::Acquire);
        loop {
            let left = claims & CHUNK_MASK;
            if left == 0 {
                return;
            }
            let work = self.work.load(Ordering::Relaxed).cast::<Work<'_>>();
            let chunks = self.chunks.load(Ordering::Relaxed);
            match self.claims.0.compare_exchange(
                claims,
                claims - 1,
                Ordering::AcqRel,
                Ordering::Acquire,
            ) {
                Ok(_) => {
                    // SAFETY: the compare-and-swap succeeded, so at that moment the counter still showed an unclaimed
                    // chunk of the generation that was read before `work` was loaded. So `work` points to the closure
                    // of that generation's job. `run` cannot return, which would end the borrow, before this chunk is
                    // counted in `finished`.
                    self.run_chunk(unsafe { *work }, chunks - left as usize);
                    claims = self.claims.0.load(Ordering::Acquire);
                }
                Err(now) => claims = now,
            }
        }
    }

    fn run_chunk(&self, work: Work<'_>, chunk: usize) {
        if let Err(panic) = catch_unwind(AssertUnwindSafe(|| work(chunk))) {
            *self.panic.lock().unwrap_or_else(PoisonError::into_inner) = Some(panic);
        }
        self.finished.0.fetch_add(1, Ordering::Release);
    }

    fn idle(&self) -> bool {
        self.claims.0.load(Ordering::SeqCst) & CHUNK_MASK == 0 && !self.stop.load(Ordering::SeqCst)
    }
}

fn worker(shared: &Shared, index: usize) {
    while !shared.stop.load(Ordering::Relaxed) {
        shared.claim_all();
        let mut spins = 0;
        while spins < SPINS && shared.claims.0.load(Ordering::Relaxed) & CHUNK_MASK == 0 {
            std::hint::spin_loop();
            spins += 1;
        }
        if spins == SPINS {
            // Avoids a lost wake-up of a worker thread: the worker sets `parked`, looks for work again and only then
            // parks, while the caller publishes a job before it reads `parked`. So either the worker sees the job, or
            // the caller sees `parked` and wakes the worker.
            shared.parked[index].0.store(true, Ordering::SeqCst);
            if shared.idle() {
                std::thread::park();
            }
            shared.parked[index].0.store(false, Ordering::SeqCst);
        }
    }
}

/// Mutable slice that is shared by the compute threads; the chunks of a job write disjoint parts of it.
pub(crate) struct SharedMut<'a, T> {
    base: *mut T,
    len: usize,
    slice: PhantomData<&'a mut [T]>,
}

// SAFETY: `SharedMut` hands out `&mut [T]` on other threads, which `T: Send` allows. The callers of `slice` promise
// that the parts are disjoint.
unsafe impl<T: Send> Sync for SharedMut<'_, T> {}

impl<'a, T> SharedMut<'a, T> {
    pub(crate) fn new(data: &'a mut [T]) -> Self {
        SharedMut { base: data.as_mut_ptr(), len: data.len(), slice: PhantomData }
    }

    /// Returns elements `start..start + len` of the slice that the compute threads share, for writing.
    ///
    /// # Safety
    /// No two parts of the slice that are in use at the same time may overlap.
    #[expect(clippy::mut_from_ref, reason = "disjoint parts, see the contract")]
    pub(crate) unsafe fn slice(&self, start: usize, len: usize) -> &mut [T] {
        assert!(start <= self.len && len <= self.len - start, "part outside the slice");
        // SAFETY: the part is in bounds of the borrowed slice, and the caller promises that it overlaps no other part
        // in use.
        unsafe { std::slice::from_raw_parts_mut(self.base.add(start), len) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicU32;

    #[test]
    fn every_chunk_runs_exactly_once() {
        for threads in [1, 2, 3, 5] {
            let pool = Pool::start(threads).expect("threads");
            for round in 0..2000_usize {
                let chunks = round % 37;
                let counts: Vec<AtomicU32> = (0..chunks).map(|_| AtomicU32::new(0)).collect();
                pool.run(chunks, &|chunk| {
                    counts[chunk].fetch_add(1, Ordering::Relaxed);
                });
                assert!(counts.iter().all(|count| count.load(Ordering::Relaxed) == 1));
            }
        }
    }

    #[test]
    fn a_panic_reaches_the_caller_and_the_pool_survives() {
        let pool = Pool::start(3).expect("threads");
        let ran = AtomicU32::new(0);
        let result = catch_unwind(AssertUnwindSafe(|| {
            pool.run(64, &|chunk| {
                ran.fetch_add(1, Ordering::Relaxed);
                assert!(chunk != 17, "chunk {chunk} is bad");
            });
        }));
        let text = result.expect_err("the panic").downcast::<String>().expect("a message");
        assert_eq!(*text, "chunk 17 is bad");
        assert_eq!(ran.load(Ordering::Relaxed), 64);
        let mut data = vec![0_u32; 40];
        pool.rows(&mut data, 4, 1, |row, values| values.fill(row as u32));
        assert!(data.iter().enumerate().all(|(i, value)| *value == i as u32 / 4));
    }

    #[test]
    fn parked_workers_wake_up() {
        let pool = Pool::start(2).expect("threads");
        for _ in 0..20 {
            // Waits until the worker is parked, then runs two chunks that wait for each other: they end only if the
            // worker wakes up and takes one of them.
            while !pool.shared.parked[0].0.load(Ordering::SeqCst) {
                std::thread::yield_now();
            }
            let arrived = AtomicU32::new(0);
            pool.run(2, &|_| {
                arrived.fetch_add(1, Ordering::SeqCst);
                while arrived.load(Ordering::SeqCst) < 2 {
                    std::thread::yield_now();
                }
            });
        }
    }
}
