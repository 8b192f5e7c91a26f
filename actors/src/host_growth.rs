//! Growth of the host pool while the engine runs: a thread makes blocks usable and tells the BlockManager of them.

use crate::messages::HostGrown;
use actix::Recipient;
use std::time::Duration;
use tiercel_device::{Clock, HostGrowth};

/// Length of the pause after each growth, as a multiple of the growth's duration. Steps wait while NVIDIA's driver pins
/// memory. Without pauses, a server on an H100 seems to have computed nearly nothing for the 9 s in which the server
/// pinned 16 GB (docs/performance.md, "A real server against its simulation"). With this pause, growths take a tenth of
/// the time.
const PAUSE: u32 = 9;

/// Starts the thread that grows the host pool to `planned` blocks, if the pool is not complete. The thread ends when
/// the pool is complete, when the pool cannot grow further (logged as an error), or when the BlockManager has stopped.
pub(crate) fn start(
    growth: Option<Box<dyn HostGrowth>>,
    planned: u32,
    blocks: Recipient<HostGrown>,
) {
    let Some(growth) = growth else { return };
    let thread = std::thread::Builder::new().name("tiercel-host-pool".into());
    let clock = Clock::wall();
    let timed = move |growth: &mut dyn HostGrowth| {
        let from = clock.now();
        let more = growth.grow();
        (more, Duration::from_micros(clock.now().since_us(from)))
    };
    let run = move || grow(growth, planned, &blocks, timed, std::thread::park_timeout);
    if let Err(error) = thread.spawn(run) {
        tracing::error!(%error, "the host pool does not grow: its thread could not be started");
    }
}

/// Grows the pool, with a pause after each growth. `timed` grows the pool once and returns the result and the duration
/// of the growth.
fn grow(
    mut growth: Box<dyn HostGrowth>,
    planned: u32,
    blocks: &Recipient<HostGrown>,
    mut timed: impl FnMut(&mut dyn HostGrowth) -> (Result<u32, String>, Duration),
    mut pause: impl FnMut(Duration),
) {
    while blocks.connected() {
        let (more, took) = timed(&mut *growth);
        match more {
            Ok(0) => {
                tracing::info!(blocks = growth.usable_blocks(), "the host pool is complete");
                return;
            }
            Ok(more) => {
                blocks.do_send(HostGrown(more));
                pause(took * PAUSE);
            }
            Err(why) => {
                let blocks = growth.usable_blocks();
                tracing::error!(
                    blocks,
                    planned,
                    "the host pool keeps the blocks that it has and gets no more: {why}"
                );
                return;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kit::{recorder, settle};

    /// A host pool that gets the blocks of a list, and then fails.
    struct Failing {
        usable: u32,
        left: Vec<u32>,
    }

    impl HostGrowth for Failing {
        fn usable_blocks(&self) -> u32 {
            self.usable
        }

        fn grow(&mut self) -> Result<u32, String> {
            let more = self.left.pop().ok_or("no memory")?;
            self.usable += more;
            Ok(more)
        }
    }

    /// Grows the pool, where each growth takes 20 ms, and returns the pauses, ms.
    fn pauses(growth: Failing, planned: u32, blocks: &Recipient<HostGrown>) -> Vec<u128> {
        let mut pauses = Vec::new();
        let timed = |growth: &mut dyn HostGrowth| (growth.grow(), Duration::from_millis(20));
        grow(Box::new(growth), planned, blocks, timed, |pause| pauses.push(pause.as_millis()));
        pauses
    }

    #[test]
    fn blocks_that_became_usable_before_a_failure_are_told() {
        actix::System::new().block_on(async {
            let (blocks, grown) = recorder::<HostGrown>();
            pauses(Failing { usable: 4, left: vec![2, 3] }, 100, &blocks);
            settle().await;
            assert_eq!(grown.take(), [HostGrown(3), HostGrown(2)]);
            pauses(Failing { usable: 4, left: vec![0, 5] }, 9, &blocks);
            settle().await;
            assert_eq!(grown.take(), [HostGrown(5)], "and no more when the pool is complete");
        });
    }

    #[test]
    fn growth_takes_a_tenth_of_the_time() {
        actix::System::new().block_on(async {
            let (blocks, _grown) = recorder::<HostGrown>();
            let growth = Failing { usable: 4, left: vec![0, 5, 5] };
            assert_eq!(pauses(growth, 14, &blocks), [180, 180], "one after each growth");
        });
    }
}
