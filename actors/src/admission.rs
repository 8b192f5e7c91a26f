//! Admission: the actor that accepts or refuses requests, and tells refused clients when to come back.

use crate::lifeline::Lifeline;
use crate::messages::{
    StopAdmitting, Consider, Enqueue, GetQueued, Headroom, Left, LeftQueue, QueuedPlaces, Retarget,
    Shutdown, Submit, PrefillCapacity, RetryAdvised,
};
use crate::request::{Refusal, Request};
use crate::telemetry;
use actix::{Actor, ActorContext, Context, Handler, Recipient};
use std::collections::BTreeMap;
use tiercel_config::{
    AdmissionSettings, Late, PatienceSettings, SheddingForm, SheddingSettings, SloTargets,
};
use tiercel_device::{Clock, DeviceInfo, SeqId, Tier, Timestamp};
use tiercel_policy::admission::{
    Forecast, Lots, Margin, Patience, Promises, Queue, Tenants, fits, retry_after_ms,
};
use tiercel_policy::blocks::Salt;
use tiercel_policy::scheduler::{NewSequence, Reservations};
use tiercel_policy::slo::Targets;

/// A request is never refused for lateness if its predicted TTFT is at most this many times its TTFT without another
/// prompt before it.
const ALONE_TIMES: f64 = 2.0;
/// Factor by which a request may be later if its client comes back when it was told to. Newcomers must meet the limit
/// without the factor, which leaves room for returning clients.
const RETURN_TIMES: f64 = 1.5;

/// An accepted request without a first token.
#[derive(Debug, Clone, Copy)]
struct Queued {
    tier: Tier,
    tenant: Salt,
    prompt: u32,
    /// Deadline of the first token; `None` if even an idle server could not meet the target.
    due: Option<Timestamp>,
}

/// Decides on each request at once: accepts it with a sequence id, or refuses it with a reason and a retry time.
pub(crate) struct Admission {
    settings: AdmissionSettings,
    patience: PatienceSettings,
    /// Latency targets in effect.
    slo: Targets,
    info: DeviceInfo,
    kept: Reservations,
    clock: Clock,
    scheduler: Recipient<Enqueue>,
    next: u64,
    open: bool,
    queues: [Queue; 4],
    tenants: Tenants,
    promises: Promises,
    forecast: Forecast,
    lots: Lots,
    /// Number of requests that were decided on so far.
    decided: u64,
    /// Share of its target up to which a standard request counts as in time when it arrives, learned from how exact
    /// forecasts were.
    margin: Margin,
    /// Accepted sequences without a first token.
    queued: BTreeMap<SeqId, Queued>,
    headroom: [f64; 4],
    lifeline: Lifeline,
}

impl Admission {
    pub(crate) fn new(
        (settings, patience): (AdmissionSettings, PatienceSettings),
        slo: Targets,
        (info, kept): (DeviceInfo, Reservations),
        clock: Clock,
        scheduler: Recipient<Enqueue>,
        lifeline: Lifeline,
    ) -> Admission {
        Admission {
            settings,
            patience,
            slo,
            info,
            kept,
            clock,
            scheduler,
            next: 1,
            open: true,
            queues: Default::default(),
            tenants: Tenants::default(),
            promises: Promises::default(),
            forecast: Forecast::default(),
            lots: Lots::default(),
            decided: 0,
            margin: Margin::default(),
            queued: BTreeMap::new(),
            headroom: [1.0; 4],
            lifeline,
        }
    }

    fn targets(&self, request: &Request) -> SloTargets {
        let of_tier = self.slo.of(request.tier);
        of_tier
            .of_prompt(request.prompt.len() as u32)
            .asked(&request.targets, self.slo.requests_may_tighten)
    }

    /// Returns the tier whose prompts the request's prompt is queued with. A best-effort request is queued with
    /// background if tiers share the device by `shares.*`.
    fn served_as(&self, request: &Request) -> Tier {
        let targets = self.targets(request);
        let nothing = targets.ttft_ms.is_none() && targets.tpot_ms.is_none();
        match request.tier {
            Tier::System => Tier::System,
            _ if nothing && self.forecast.fair_tiers() => Tier::Background,
            tier => tier,
        }
    }

    /// Checks that the request would get its first token within the patience that it states, if its queue drains as
    /// fast as lately. A tier's patience refuses no request on arrival: a queue that stands still for minutes while
    /// higher tiers are busy drains faster afterwards, and refusing on that estimate refused work that would have been
    /// served in time.
    fn within_patience(&self, request: &Request) -> Result<(), Refusal> {
        let tier = request.tier;
        let patience = Patience::of(&self.patience, tier, request.max_wait_ms);
        if !patience.stated {
            return Ok(());
        }
        let ahead = self.ahead(request);
        let Some(wait_us) = self.forecast.queue_us(tier).map(|us| us * ahead) else {
            return Ok(());
        };
        let Some(patience_us) = patience.exceeded_by(wait_us) else { return Ok(()) };
        Err(Refusal::OutOfPatience {
            tier,
            expected_ms: (wait_us / 1000.0) as u64,
            patience_ms: patience_us / 1000,
            stated: patience.stated,
            retry_after_ms: self.retry_after_ms(Some(wait_us - patience_us as f64)),
        })
    }

    /// Returns the share of the work waiting in the request's tier that is served before the request.
    fn ahead(&self, request: &Request) -> f64 {
        match self.forecast.fair_tenants() {
            true => self.tenants.ahead(request.tier, request.salt, request.prompt.len() as u32),
            false => 1.0,
        }
    }

    /// Returns the retry time of a request whose expected wait is `wait_us`, ms.
    fn retry_after_ms(&self, wait_us: Option<f64>) -> u64 {
        retry_after_ms(wait_us, self.decided)
    }

    /// Checks that shedding does not refuse the request, either because its first token would be too late, or at random
    /// with `shedding.form = share`.
    fn in_time(&self, request: &Request, now: Timestamp) -> Result<(), Refusal> {
        let Some(shedding) = self.forecast.shedding() else { return Ok(()) };
        if shedding.form == SheddingForm::Share {
            return self.by_lot(request, now);
        }
        let (tier, prompt) = (request.tier, request.prompt.len() as u32);
        let targets = self.targets(request);
        let ahead = self.ahead(request);
        let behind = latest_us(tier, &targets, &shedding).and_then(|limit_us| {
            let expected_us = self.forecast.first_token_us(tier, prompt, ahead, now);
            let trusted = if tier == Tier::Standard { self.margin.share() } else { 1.0 };
            // A request that takes that long with no other prompt before it would be no faster if it came back later.
            let alone_us = ALONE_TIMES * self.forecast.alone_us(prompt);
            let limit_us = (limit_us * trusted).max(alone_us);
            let limit_us =
                if self.returns(request, now) { limit_us * RETURN_TIMES } else { limit_us };
            (expected_us > limit_us).then_some((expected_us, limit_us))
        });
        let Some((expected_us, limit_us)) = behind else { return Ok(()) };
        Err(Refusal::Late {
            tier,
            expected_ms: (expected_us / 1000.0) as u64,
            limit_ms: (limit_us / 1000.0) as u64,
            retry_after_ms: self.retry_after_ms(Some(expected_us - limit_us)),
        })
    }

    /// Checks that shedding by shares does not refuse the request. It refuses at random requests of a tier that has
    /// more than its share of the device's time.
    fn by_lot(&self, request: &Request, now: Timestamp) -> Result<(), Refusal> {
        let tier = request.tier;
        let refused = self.lots.refuses(tier, self.decided);
        let Some((had, due)) = refused.filter(|_| !self.returns(request, now)) else {
            return Ok(());
        };
        let percent = |share: f64| (share * 100.0).round() as u32;
        Err(Refusal::OverShare {
            tier,
            had_percent: percent(had),
            due_percent: percent(due),
            retry_after_ms: self.retry_after_ms(self.forecast.queue_us(tier)),
        })
    }

    /// Whether the request comes from a client that was told to come back, and its retry time has come.
    fn returns(&self, request: &Request, now: Timestamp) -> bool {
        request.returning && self.promises.is_due(request.tier, request.salt, now)
    }

    /// Returns the limits of its tier's queue as they apply to the request.
    fn limits(&self, request: &Request) -> AdmissionSettings {
        if self.forecast.fair_tenants() {
            self.tenants.limits(request.tier, request.salt, &self.settings)
        } else {
            self.settings.clone()
        }
    }

    /// Checks whether the request may be accepted. Returns its tier's queue with the request in it, or the refusal.
    fn consider(&self, request: &Request, now: Timestamp) -> Result<Queue, Refusal> {
        if !self.open {
            return Err(Refusal::ShuttingDown);
        }
        let prompt = request.prompt.len() as u32;
        let kept = self.kept.never_of(request.tier);
        fits(prompt, request.max_tokens, &self.info, kept).map_err(Refusal::NeverFits)?;
        let tier = request.tier;
        self.within_patience(request)?;
        self.in_time(request, now)?;
        let mut queue = self.queues[tier.index()];
        if let Err(limit) = queue.enter(prompt, &self.limits(request)) {
            let retry_after_ms = self.retry_after_ms(self.forecast.queue_us(tier));
            // A tier that misses its targets shall not be retried in less than 5 s.
            let late = self.headroom[tier.index()] < 0.0;
            let retry_after_ms = if late { retry_after_ms.max(5_000) } else { retry_after_ms };
            return Err(Refusal::QueueFull { tier, limit, retry_after_ms });
        }
        Ok(queue)
    }

    fn admit(&mut self, request: &Request, now: Timestamp) -> Result<SeqId, Refusal> {
        let (tier, prompt) = (request.tier, request.prompt.len() as u32);
        self.queues[tier.index()] = self.consider(request, now)?;
        self.tenants.enter(tier, request.salt, prompt);
        self.forecast.arrived(self.served_as(request), prompt, now);
        let seq = SeqId(self.next);
        self.next += 1;
        let targets = self.targets(request);
        let target_us = targets.ttft_ms.map(|ms| ms * 1000.0);
        let idle_us = self.forecast.idle_us(prompt);
        let due = target_us.filter(|us| idle_us <= *us).map(|us| now + us as u64);
        self.queued.insert(seq, Queued { tier, tenant: request.salt, prompt, due });
        Ok(seq)
    }
}

/// Returns the longest predicted TTFT with which a request is accepted while late requests are refused, us; `None` for
/// no limit.
fn latest_us(tier: Tier, targets: &SloTargets, shedding: &SheddingSettings) -> Option<f64> {
    // Premium requests are never refused for lateness: late is better than never, and lower tiers are preempted for
    // them.
    let refuses = tier > Tier::Premium && shedding.late == Late::Refuse;
    targets.ttft_ms.filter(|_| refuses).map(|ms| ms * 1000.0)
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
        let admitted = self.admit(&request, now);
        self.decided += 1;
        if request.returning {
            self.promises.redeem(request.tier, request.salt, now);
        }
        let seq = admitted.inspect_err(|why| {
            telemetry::refused(request.tier, why);
            if let Some(ms) = why.retry_after_ms() {
                self.promises.make(request.tier, request.salt, now + ms * 1000, now);
            }
        })?;
        let new = NewSequence {
            seq,
            tier: request.tier,
            priority: request.priority,
            salt: request.salt,
            prompt: request.prompt,
            max_tokens: request.max_tokens,
            stop_tokens: request.stop_tokens,
            sampling: request.sampling,
            targets: request.targets,
            patience: Patience::of(&self.patience, request.tier, request.max_wait_ms),
            arrival: now,
        };
        self.scheduler.do_send(Enqueue { new, outlet });
        Ok(seq)
    }
}

impl Handler<Consider> for Admission {
    type Result = Result<(), Refusal>;

    fn handle(&mut self, Consider(request): Consider, _: &mut Self::Context) -> Self::Result {
        let considered = self.consider(&request, self.clock.now()).map(drop);
        // A request that would be accepted shall draw the same random number when it is submitted, so only a refusal
        // advances the counter.
        self.decided += u64::from(considered.is_err());
        considered
    }
}

impl Handler<RetryAdvised> for Admission {
    type Result = ();

    fn handle(&mut self, told: RetryAdvised, _: &mut Self::Context) {
        let now = self.clock.now();
        for _ in 0..told.requests {
            self.promises.make(told.tier, told.tenant, now + told.retry_after_ms * 1000, now);
        }
    }
}

impl Handler<LeftQueue> for Admission {
    type Result = ();

    fn handle(&mut self, LeftQueue { seq, how }: LeftQueue, _: &mut Self::Context) {
        if let Some(Queued { tier, tenant, prompt, due }) = self.queued.remove(&seq) {
            let now = self.clock.now();
            let judged = tier == Tier::Standard && how == Left::Started;
            if let Some(due) = due.filter(|_| judged) {
                self.margin.observe(now > due);
            }
            if let Left::TurnedAway { retry_after_ms } = how {
                self.promises.make(tier, tenant, now + retry_after_ms * 1000, now);
            }
            self.queues[tier.index()].leave(prompt);
            self.tenants.leave(tier, tenant, prompt);
        }
    }
}

impl Handler<PrefillCapacity> for Admission {
    type Result = ();

    fn handle(&mut self, PrefillCapacity(capacity): PrefillCapacity, _: &mut Self::Context) {
        if let Some(shedding) = capacity.shedding {
            self.lots.update(capacity.shares, shedding.load_percent / 100.0);
        }
        self.forecast.update(capacity);
    }
}

impl Handler<Retarget> for Admission {
    type Result = ();

    fn handle(&mut self, Retarget(targets): Retarget, _: &mut Self::Context) {
        self.slo = targets;
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

impl Handler<StopAdmitting> for Admission {
    type Result = ();

    fn handle(&mut self, _: StopAdmitting, _: &mut Self::Context) {
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
