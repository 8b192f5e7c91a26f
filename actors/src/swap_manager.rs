//! SwapManager: the actor that owns the device's copy engine (for blocks between device and host), and the queue of
//! batches in front of it.

use crate::lifeline::Lifeline;
use crate::messages::{CopyBlocks, CopyEnded, Shutdown};
use crate::telemetry;
use actix::{Actor, ActorContext, AsyncContext, Context, Handler, Recipient};
use std::collections::VecDeque;
use tiercel_device::{CopyBatch, CopyDone, CopyEngine, CopyError, SubmitError};

/// Maximum number of batches of copies that are at the copy engine at once. One runs while the next is ready, so that
/// the link never waits for the control thread.
const BATCHES_AT_ENGINE: usize = 2;

/// Actor that feeds batches of block copies to the copy engine. The block store limits the blocks in transit, which
/// also bounds the queue of batches.
pub struct SwapManager {
    copier: Box<dyn CopyEngine>,
    ended: Recipient<CopyEnded>,
    block_bytes: u64,
    waiting: VecDeque<CopyBatch>,
    at_engine: usize,
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
        SwapManager { copier, ended, block_bytes, waiting: VecDeque::new(), at_engine: 0, lifeline }
    }

    fn feed(&mut self, ctx: &mut Context<Self>) {
        while self.at_engine < BATCHES_AT_ENGINE {
            let Some(batch) = self.waiting.pop_front() else { return };
            let (id, bytes) = (batch.id, batch.pairs.len() as u64 * self.block_bytes);
            let (me, direction) = (ctx.address(), batch.direction);
            let done = Box::new(move |done: CopyDone| {
                if done.result.is_ok() {
                    telemetry::copied(direction, bytes);
                }
                me.do_send(CopyEnded(done));
            });
            match self.copier.submit(batch, done) {
                Ok(()) => self.at_engine += 1,
                Err(why) => {
                    let result = Err(refused(why));
                    self.ended.do_send(CopyEnded(CopyDone { id, duration_us: 0, result }));
                }
            }
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

    fn handle(&mut self, CopyBlocks(batch): CopyBlocks, ctx: &mut Self::Context) {
        self.waiting.push_back(batch);
        self.feed(ctx);
    }
}

impl Handler<CopyEnded> for SwapManager {
    type Result = ();

    fn handle(&mut self, ended: CopyEnded, ctx: &mut Self::Context) {
        self.at_engine = self.at_engine.saturating_sub(1);
        self.ended.do_send(ended);
        self.feed(ctx);
    }
}

impl Handler<Shutdown> for SwapManager {
    type Result = ();

    fn handle(&mut self, _: Shutdown, ctx: &mut Self::Context) {
        self.lifeline.release();
        ctx.stop();
    }
}
