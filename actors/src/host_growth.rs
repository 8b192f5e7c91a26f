//! Growth of the host pool while the engine runs: a thread makes blocks usable and tells the BlockManager of them.

use crate::messages::HostGrown;
use actix::Recipient;
use tiercel_device::HostGrowth;

/// Starts the thread that grows the host pool to `planned` blocks, if the pool is not complete. The thread ends when the
/// pool is complete, when the pool cannot grow further (logged as an error), or when the BlockManager has stopped.
pub(crate) fn start(
    growth: Option<Box<dyn HostGrowth>>,
    planned: u32,
    blocks: Recipient<HostGrown>,
) {
    let Some(growth) = growth else { return };
    let thread = std::thread::Builder::new().name("tiercel-host-pool".into());
    if let Err(error) = thread.spawn(move || grow(growth, planned, &blocks)) {
        tracing::error!(%error, "the host pool does not grow: its thread could not be started");
    }
}

fn grow(mut growth: Box<dyn HostGrowth>, planned: u32, blocks: &Recipient<HostGrown>) {
    while blocks.connected() {
        match growth.grow() {
            Ok(0) => {
                tracing::info!(blocks = growth.usable_blocks(), "the host pool is complete");
                return;
            }
            Ok(more) => blocks.do_send(HostGrown(more)),
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

    #[test]
    fn blocks_that_became_usable_before_a_failure_are_told() {
        actix::System::new().block_on(async {
            let (blocks, grown) = recorder::<HostGrown>();
            grow(Box::new(Failing { usable: 4, left: vec![2, 3] }), 100, &blocks);
            settle().await;
            assert_eq!(grown.take(), [HostGrown(3), HostGrown(2)]);
            grow(Box::new(Failing { usable: 4, left: vec![0, 5] }), 9, &blocks);
            settle().await;
            assert_eq!(grown.take(), [HostGrown(5)], "and no more when the pool is complete");
        });
    }
}
