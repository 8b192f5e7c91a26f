//! Admission: queue limits by tier, and who is told to come back later.

use crate::lifeline::Lifeline;
use crate::messages::{
    CloseDoor, Enqueue, GetQueued, Headroom, LeftQueue, QueuedPlaces, Shutdown, Submit,
};
use crate::request::{Refusal, Request};
use crate::scheduler::SchedulerActor;
use crate::telemetry;
use actix::{Actor, ActorContext, Addr, Context, Handler};
use std::collections::BTreeMap;
use tiercel_config::AdmissionSettings;
use tiercel_device::{Clock, DeviceInfo, SeqId, Tier, Timestamp};
use tiercel_policy::admission::{DrainRate, Queue, fits};
use tiercel_policy::scheduler::NewSequence;

/// Decides at once: accepted with an id, or refused with a reason and a time to come back.
pub(crate) struct Admission {
    settings: AdmissionSettings,
    info: DeviceInfo,
    clock: Clock,
    scheduler: Addr<SchedulerActor>,
    next: u64,
    open: bool,
    queues: [Queue; 4],
    drain: [DrainRate; 4],
    /// Accepted sequences without a first token: their tier and prompt tokens.
    queued: BTreeMap<SeqId, (Tier, u32)>,
    headroom: [f64; 4],
    lifeline: Lifeline,
}

impl Admission {
    pub(crate) fn new(
        settings: AdmissionSettings,
        info: DeviceInfo,
        clock: Clock,
        scheduler: Addr<SchedulerActor>,
        lifeline: Lifeline,
    ) -> Admission {
        Admission {
            settings,
            info,
            clock,
            scheduler,
            next: 1,
            open: true,
            queues: Default::default(),
            drain: Default::default(),
            queued: BTreeMap::new(),
            headroom: [1.0; 4],
            lifeline,
        }
    }

    fn admit(&mut self, request: &Request, now: Timestamp) -> Result<SeqId, Refusal> {
        if !self.open {
            return Err(Refusal::ShuttingDown);
        }
        let prompt = request.prompt.len() as u32;
        fits(prompt, request.max_tokens, &self.info).map_err(Refusal::NeverFits)?;
        let tier = request.tier;
        let queue = &mut self.queues[tier.index()];
        if let Err(limit) = queue.enter(prompt, &self.settings) {
            let retry_after_s = self.drain[tier.index()].retry_after_s(queue.requests, now);
            // A tier that misses its targets is not worth a quick retry.
            let late = self.headroom[tier.index()] < 0.0;
            let retry_after_s = if late { retry_after_s.max(5) } else { retry_after_s };
            return Err(Refusal::QueueFull { tier, limit, retry_after_s });
        }
        let seq = SeqId(self.next);
        self.next += 1;
        self.queued.insert(seq, (tier, prompt));
        Ok(seq)
    }
}

impl Actor for Admission {
    type Context = Context<Self>;
}

impl Handler<Submit> for Admission {
    type Result = Result<SeqId, Refusal>;

    fn handle(
        &mut self,
        Submit { request, outlet }: Submit,
        _: &mut Self::Context,
    ) -> Self::Result {
        let now = self.clock.now();
        let seq =
            self.admit(&request, now).inspect_err(|why| telemetry::refused(request.tier, why))?;
        let new = NewSequence {
            seq,
            tier: request.tier,
            priority: request.priority,
            salt: request.salt,
            prompt: request.prompt,
            max_tokens: request.max_tokens,
            stop_tokens: request.stop_tokens,
            sampling: request.sampling,
            arrival: now,
        };
        self.scheduler.do_send(Enqueue { new, outlet });
        Ok(seq)
    }
}

impl Handler<LeftQueue> for Admission {
    type Result = ();

    fn handle(&mut self, LeftQueue { seq }: LeftQueue, _: &mut Self::Context) {
        if let Some((tier, prompt)) = self.queued.remove(&seq) {
            self.queues[tier.index()].leave(prompt);
            self.drain[tier.index()].left(self.clock.now());
        }
    }
}

impl Handler<Headroom> for Admission {
    type Result = ();

    fn handle(&mut self, Headroom { tier, headroom }: Headroom, _: &mut Self::Context) {
        self.headroom[tier.index()] = headroom;
    }
}

impl Handler<GetQueued> for Admission {
    type Result = QueuedPlaces;

    fn handle(&mut self, _: GetQueued, _: &mut Self::Context) -> QueuedPlaces {
        QueuedPlaces(self.queues.map(|queue| queue.requests))
    }
}

impl Handler<CloseDoor> for Admission {
    type Result = ();

    fn handle(&mut self, _: CloseDoor, _: &mut Self::Context) {
        self.open = false;
    }
}

impl Handler<Shutdown> for Admission {
    type Result = ();

    fn handle(&mut self, _: Shutdown, ctx: &mut Self::Context) {
        self.lifeline.release();
        ctx.stop();
    }
}
