//! Admission: the actor that accepts or refuses requests, and tells refused clients when to come back.

use crate::lifeline::Lifeline;
use crate::messages::{
    Consider, Enqueue, GetQueued, Headroom, LeftQueue, PrefillCapacity, QueuedPlaces, Retarget,
    RetryAdvised, SetLimits, Shutdown, StopAdmitting, Submit, TierChanged,
};
use crate::request::{Refusal, Request};
use crate::telemetry;
use actix::{Actor, ActorContext, Context, Handler, Recipient};
use tiercel_device::{Clock, SeqId};
use tiercel_policy::admission::{Applicant, Gate};
use tiercel_policy::scheduler::NewSequence;

/// Actor that translates messages into calls of the admission policy (`Gate`), and passes accepted requests to the
/// scheduler as sequences.
pub struct Admission {
    gate: Gate,
    clock: Clock,
    scheduler: Recipient<Enqueue>,
    lifeline: Lifeline,
}

impl Admission {
    /// Makes the admission actor. It passes accepted sequences to `scheduler`.
    pub fn new(
        gate: Gate,
        clock: Clock,
        scheduler: Recipient<Enqueue>,
        lifeline: Lifeline,
    ) -> Admission {
        Admission { gate, clock, scheduler, lifeline }
    }
}

fn applicant(request: &Request) -> Applicant {
    Applicant {
        tier: request.tier,
        tenant: request.salt,
        weight: request.weight,
        prompt: request.prompt.len() as u32,
        max_tokens: request.max_tokens,
        targets: request.targets,
        may_tighten: request.may_tighten,
        max_wait_ms: request.max_wait_ms,
        waited_ms: request.waited_ms,
        sibling: request.sibling,
        returning: request.returning,
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
        let applicant = applicant(&request);
        let has_retry_credit = self.gate.has_retry_credit(&applicant, now);
        let admitted = self.gate.submit(&applicant, now);
        let seq = admitted.inspect_err(|why| telemetry::refused(request.tier, why))?;
        let new = NewSequence {
            seq,
            tier: request.tier,
            priority: request.priority,
            salt: request.salt,
            weight: request.weight,
            prompt: request.prompt,
            max_tokens: request.max_tokens,
            stop_tokens: request.stop_tokens,
            sampling: request.sampling,
            targets: request.targets,
            may_tighten: request.may_tighten,
            patience: self.gate.patience_of(&applicant),
            has_retry_credit,
            cache_salt: request.cache_salt,
            arrival: now,
        };
        self.scheduler.do_send(Enqueue { new, outlet });
        Ok(seq)
    }
}

impl Handler<Consider> for Admission {
    type Result = Result<u64, Refusal>;

    fn handle(&mut self, Consider(request): Consider, _: &mut Self::Context) -> Self::Result {
        self.gate.would_accept(&applicant(&request), self.clock.now())?;
        Ok(self.gate.retry_time_when_full(request.tier))
    }
}

impl Handler<RetryAdvised> for Admission {
    type Result = ();

    fn handle(&mut self, advised: RetryAdvised, _: &mut Self::Context) {
        let now = self.clock.now();
        let RetryAdvised { tier, tenant, retry_after_ms, requests, returning } = advised;
        for _ in 0..requests {
            if returning {
                self.gate.came_back(tier, tenant, now);
            }
            self.gate.advised(tier, tenant, retry_after_ms, now);
        }
    }
}

impl Handler<LeftQueue> for Admission {
    type Result = ();

    fn handle(&mut self, LeftQueue { seq, how }: LeftQueue, _: &mut Self::Context) {
        self.gate.left(seq, how, self.clock.now());
    }
}

impl Handler<TierChanged> for Admission {
    type Result = ();

    fn handle(&mut self, TierChanged { seq, tier }: TierChanged, _: &mut Self::Context) {
        self.gate.tier_changed(seq, tier);
    }
}

impl Handler<SetLimits> for Admission {
    type Result = ();

    fn handle(&mut self, limits: SetLimits, _: &mut Self::Context) {
        self.gate.set_limits(limits.admission, limits.patience, &limits.reservation);
    }
}

impl Handler<PrefillCapacity> for Admission {
    type Result = ();

    fn handle(&mut self, PrefillCapacity(capacity): PrefillCapacity, _: &mut Self::Context) {
        self.gate.update(capacity);
    }
}

impl Handler<Retarget> for Admission {
    type Result = ();

    fn handle(&mut self, Retarget(targets): Retarget, _: &mut Self::Context) {
        self.gate.retarget(targets);
    }
}

impl Handler<Headroom> for Admission {
    type Result = ();

    fn handle(&mut self, Headroom { tier, headroom }: Headroom, _: &mut Self::Context) {
        self.gate.set_headroom(tier, headroom);
    }
}

impl Handler<GetQueued> for Admission {
    type Result = QueuedPlaces;

    fn handle(&mut self, _: GetQueued, _: &mut Self::Context) -> QueuedPlaces {
        QueuedPlaces(self.gate.queued())
    }
}

impl Handler<StopAdmitting> for Admission {
    type Result = ();

    fn handle(&mut self, _: StopAdmitting, _: &mut Self::Context) {
        self.gate.close();
    }
}

impl Handler<Shutdown> for Admission {
    type Result = ();

    fn handle(&mut self, _: Shutdown, ctx: &mut Self::Context) {
        self.lifeline.release();
        ctx.stop();
    }
}
