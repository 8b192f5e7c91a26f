//! SwapManager: the actor that owns the device's copy engine (for blocks between device and host).

use crate::lifeline::Lifeline;
use crate::messages::{CopyBlocks, CopyEnded, Shutdown};
use crate::telemetry;
use actix::{Actor, ActorContext, Context, Handler, Recipient};
use tiercel_device::{CopyBatch, CopyDone, CopyEngine, CopyError, SubmitError};

/// Actor that hands batches of block copies to the copy engine. The copy engine puts the batches in order. The block
/// store limits the blocks in transit, and with them the number of batches at the copy engine.
pub struct SwapManager {
    copier: Box<dyn CopyEngine>,
    ended: Recipient<CopyEnded>,
    block_bytes: u64,
    lifeline: Lifeline,
}

impl SwapManager {
    /// Makes the SwapManager of a copy engine that copies blocks of `block_bytes`. The end of each batch of copies is
    /// sent to `ended`.
    pub fn new(
        copier: Box<dyn CopyEngine>,
        ended: Recipient<CopyEnded>,
        block_bytes: u64,
        lifeline: Lifeline,
    ) -> SwapManager {
        SwapManager { copier, ended, block_bytes, lifeline }
    }

    fn submit(&mut self, batch: CopyBatch) {
        let (id, bytes) = (batch.id, batch.pairs.len() as u64 * self.block_bytes);
        let (ended, direction) = (self.ended.clone(), batch.direction);
        let done = Box::new(move |done: CopyDone| {
            if done.result.is_ok() {
                telemetry::copied(direction, bytes);
            }
            ended.do_send(CopyEnded(done));
        });
        if let Err(why) = self.copier.submit(batch, done) {
            let result = Err(refused(why));
            self.ended.do_send(CopyEnded(CopyDone { id, duration_us: 0, result }));
        }
    }
}

fn refused(why: SubmitError) -> CopyError {
    match why {
        SubmitError::Full => CopyError::Failed(why.to_string()),
        SubmitError::Stopped => CopyError::DeviceLost(why.to_string()),
    }
}

impl Actor for SwapManager {
    type Context = Context<Self>;
}

impl Handler<CopyBlocks> for SwapManager {
    type Result = ();

    fn handle(&mut self, CopyBlocks(batch): CopyBlocks, _: &mut Self::Context) {
        self.submit(batch);
    }
}

impl Handler<Shutdown> for SwapManager {
    type Result = ();

    fn handle(&mut self, _: Shutdown, ctx: &mut Self::Context) {
        self.lifeline.release();
        ctx.stop();
    }
}
