//! The only clock of the engine. No other code of the engine may read the time or wait for it (see `clippy.toml`), so
//! that the simulator can use simulated time instead.
#![expect(
    clippy::disallowed_types,
    clippy::disallowed_methods,
    reason = "this module is where the engine's time comes from"
)]

use serde::{Deserialize, Serialize};
use std::ops::{Add, Sub};
use std::time::{Duration, SystemTime};

/// A moment, in us since the engine's clock was made. Moments are totally ordered, cheap to copy and plain data: policy
/// functions take the current moment as an argument.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize,
)]
pub struct Timestamp(pub u64);

impl Timestamp {
    /// Returns the microseconds from the moment `earlier` to this moment; 0 if `earlier` is later.
    pub fn since_us(self, earlier: Timestamp) -> u64 {
        self.0.saturating_sub(earlier.0)
    }

    /// Returns the milliseconds from the moment `earlier` to this moment, with fraction; 0 if `earlier` is later.
    pub fn since_ms(self, earlier: Timestamp) -> f64 {
        self.since_us(earlier) as f64 / 1000.0
    }
}

impl Add<u64> for Timestamp {
    type Output = Timestamp;
    /// Returns the moment `us` microseconds after this moment.
    fn add(self, us: u64) -> Timestamp {
        Timestamp(self.0.saturating_add(us))
    }
}

impl Sub<u64> for Timestamp {
    type Output = Timestamp;
    /// Returns the moment `us` microseconds before this moment; the start of the clock (0) if it would lie before the
    /// start.
    fn sub(self, us: u64) -> Timestamp {
        Timestamp(self.0.saturating_sub(us))
    }
}

/// Clock that reads engine time and waits for moments of it.
///
/// In a simulation one microsecond of engine time is one millisecond of tokio's time, because tokio's timers round up
/// to 1 ms. With the clock of the tokio runtime paused, simulated time is exact to the microsecond.
#[derive(Debug, Clone)]
pub struct Clock {
    kind: Kind,
}

#[derive(Debug, Clone, Copy)]
enum Kind {
    Wall { start: std::time::Instant },
    Simulated { start: tokio::time::Instant },
}

impl Clock {
    /// Returns a clock of real time.
    pub fn wall() -> Clock {
        Clock { kind: Kind::Wall { start: std::time::Instant::now() } }
    }

    /// Returns a clock of simulated time. Must be called inside a tokio runtime whose clock is paused.
    pub fn simulated() -> Clock {
        Clock { kind: Kind::Simulated { start: tokio::time::Instant::now() } }
    }

    /// Returns the current moment of engine time.
    pub fn now(&self) -> Timestamp {
        match self.kind {
            Kind::Wall { start } => Timestamp(start.elapsed().as_micros() as u64),
            Kind::Simulated { start } => Timestamp(start.elapsed().as_millis() as u64),
        }
    }

    /// Waits at least `us` microseconds of engine time. Timers of real time round up to 1 ms.
    pub async fn sleep_us(&self, us: u64) {
        let wait = match self.kind {
            Kind::Wall { .. } => Duration::from_micros(us),
            Kind::Simulated { .. } => Duration::from_millis(us),
        };
        tokio::time::sleep(wait).await;
    }

    /// Returns the most by which timers of this clock may wake late, us: 1000 in real time, 0 in simulated time.
    pub fn lateness_us(&self) -> u64 {
        match self.kind {
            Kind::Wall { .. } => 1000,
            Kind::Simulated { .. } => 0,
        }
    }

    /// Waits until the moment `at`; returns at once if `at` has passed.
    pub async fn sleep_until(&self, at: Timestamp) {
        let us = at.since_us(self.now());
        if us > 0 {
            self.sleep_us(us).await;
        }
    }

    /// Runs `work` with a timeout of `us` microseconds of engine time. Returns `None` if the timeout comes first.
    pub async fn timeout_us<F: Future>(&self, us: u64, work: F) -> Option<F::Output> {
        let mut work = std::pin::pin!(work);
        let mut late = std::pin::pin!(self.sleep_us(us));
        std::future::poll_fn(|cx| {
            use std::task::Poll;
            if let Poll::Ready(done) = work.as_mut().poll(cx) {
                return Poll::Ready(Some(done));
            }
            late.as_mut().poll(cx).map(|()| None)
        })
        .await
    }

    /// Returns a converter of engine times to wall-clock times. The converter takes its offset from the wall clock at
    /// this call. Exported spans have wall-clock times; scheduling uses engine times alone.
    pub fn wall_times(&self) -> WallTimes {
        WallTimes { zero: SystemTime::now() - Duration::from_micros(self.now().0) }
    }

    /// Returns the wall-clock time as seconds since the Unix epoch, for `created` fields of API answers and cache
    /// entries; scheduling never uses it.
    pub fn unix_s() -> u64 {
        SystemTime::now().duration_since(std::time::UNIX_EPOCH).map_or(0, |since| since.as_secs())
    }
}

/// Wall-clock times of moments of engine time. They differ by as much as the moments do, whatever happens to the wall
/// clock.
#[derive(Debug, Clone, Copy)]
pub struct WallTimes {
    zero: SystemTime,
}

impl WallTimes {
    /// Returns the wall-clock time that corresponds to a time of this clock.
    pub fn of(&self, at: Timestamp) -> SystemTime {
        self.zero + Duration::from_micros(at.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn simulated_time_is_exact_to_the_microsecond() {
        let clock = Clock::simulated();
        let before = clock.now();
        clock.sleep_us(1).await;
        clock.sleep_us(12_345).await;
        assert_eq!(clock.now().since_us(before), 12_346);
    }

    #[tokio::test(start_paused = true)]
    async fn timeout_returns_the_value_or_none() {
        let clock = Clock::simulated();
        assert_eq!(clock.timeout_us(10, async { 7 }).await, Some(7));
        assert_eq!(clock.timeout_us(10, clock.sleep_us(11)).await, None);
    }

    #[test]
    fn differences_saturate() {
        assert_eq!(Timestamp(5).since_us(Timestamp(9)), 0);
        assert_eq!(Timestamp(5) - 9, Timestamp(0));
    }
}
