//! The admission gate: accepts or refuses each request at once.

use crate::Weight;
use crate::admission::forecast::{Capacity, Forecast, Margin};
use crate::admission::{
    Applicant, Patience, Queue, Refusal, RetryCredits, ShareShedder, Tenants, fits, retry_after_ms,
};
use crate::blocks::Salt;
use crate::scheduler::Reservations;
use crate::slo::Targets;
use std::collections::BTreeMap;
use tiercel_config::{
    AdmissionSettings, Late, PatienceSettings, ReservationSettings, SheddingForm, SheddingSettings,
    SloTargets,
};
use tiercel_device::{DeviceInfo, SeqId, Tier, Timestamp};

/// Limit below which no request is refused for lateness: predicted TTFT / TTFT without another prompt before the
/// request.
const ALONE_TIMES: f64 = 2.0;
/// Factor on the latest acceptable TTFT for a client that comes back at its retry time. Newcomers must meet the limit
/// without the factor, which leaves room for returning clients.
const RETURN_TIMES: f64 = 1.5;

/// How a sequence left the queue of requests without a first token.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Left {
    /// The sequence got its first token.
    Started,
    /// The server ended the queued sequence (for example at the end of its patience), and told its client to come back
    /// after `retry_after_ms`.
    TurnedAway {
        /// Retry time (`Retry-After`) that the client was told, ms.
        retry_after_ms: u64,
    },
    /// The sequence ended in another way before its first token: its client left, it failed, or it had no output.
    Ended,
}

/// An accepted request that still waits for its first token.
#[derive(Debug, Clone, Copy)]
struct Queued {
    tier: Tier,
    /// Tier of the request when it came. An operator may have changed the tier since.
    first_tier: Tier,
    tenant: Salt,
    weight: Weight,
    /// Length of the prompt, tokens.
    prompt: u32,
    /// Number of prompt tokens that the request added to its admission queue ([`Applicant::counted_tokens`]).
    counted: u32,
    /// Deadline of the first token (arrival + TTFT target); `None` if [`latest_us`] gives no limit for the request, if
    /// the scheduler reports no settings of shedding, if even an idle server could not meet the target, or after the
    /// tier was changed.
    due: Option<Timestamp>,
}

/// The admission gate decides on each request at once: accepts it with a sequence id, or refuses it with a reason and,
/// if coming back may help, a retry time (`Retry-After`).
#[derive(Debug)]
pub struct Gate {
    settings: AdmissionSettings,
    patience: PatienceSettings,
    /// Latency targets in effect, of all tiers.
    targets: Targets,
    info: DeviceInfo,
    reservations: Reservations,
    /// Id that the next accepted sequence gets.
    next: u64,
    /// Whether the gate still accepts requests; `false` once the engine drains for shutdown.
    open: bool,
    /// Admission queue of each tier: accepted requests that wait for their first token.
    queues: [Queue; 4],
    tenants: Tenants,
    credits: RetryCredits,
    forecast: Forecast,
    shedder: ShareShedder,
    /// Number of admission decisions so far, without checks ([`Gate::would_accept`]) that found no reason to refuse. It
    /// seeds random draws and spreads retry times.
    decided: u64,
    /// Number of requests so far that found the server full. The number spreads the retry times of these requests.
    full: u64,
    /// Safety margin of forecasts for standard requests: a request counts as in time if its forecast TTFT is at most
    /// `margin * target`. Learned from how exact earlier forecasts were.
    margin: Margin,
    /// Accepted sequences that still wait for their first token.
    queued: BTreeMap<SeqId, Queued>,
    /// Headroom of each tier: the least, over its TTFT, TPOT and E2E targets, of 1 - the 99th percentile of
    /// `latency / target`. Negative if this percentile is above 1 for one of the three.
    headroom: [f64; 4],
}

impl Gate {
    /// Creates the admission gate of an engine with these settings, latency targets, device sizes and reservations of
    /// blocks.
    pub fn new(
        (settings, patience): (AdmissionSettings, PatienceSettings),
        targets: Targets,
        (info, reservations): (DeviceInfo, Reservations),
    ) -> Gate {
        Gate {
            settings,
            patience,
            targets,
            info,
            reservations,
            next: 1,
            open: true,
            queues: Default::default(),
            tenants: Tenants::default(),
            credits: RetryCredits::default(),
            forecast: Forecast::default(),
            shedder: ShareShedder::default(),
            decided: 0,
            full: 0,
            margin: Margin::default(),
            queued: BTreeMap::new(),
            headroom: [1.0; 4],
        }
    }

    /// Changes the limits of the queues, and the patience and the reservations by which requests are judged that come
    /// from now on.
    pub fn set_limits(
        &mut self,
        settings: AdmissionSettings,
        patience: PatienceSettings,
        reservation: &ReservationSettings,
    ) {
        (self.settings, self.patience) = (settings, patience);
        self.reservations = Reservations::new(reservation, self.info.device_blocks);
    }

    /// Accepts a request into its tier's queue, and returns the id of its sequence.
    ///
    /// # Errors
    /// Returns the reason of the refusal. If the refusal tells a retry time, the tenant gets a retry credit: a client
    /// of it that comes back then is preferred to newcomers.
    pub fn submit(&mut self, request: &Applicant, now: Timestamp) -> Result<SeqId, Refusal> {
        let admitted = self.admit(request, now);
        self.decided += 1;
        if request.returning {
            self.came_back(request.tier, request.tenant, now);
        }
        admitted.inspect_err(|why| {
            if let Some(ms) = why.retry_after_ms() {
                self.advised(request.tier, request.tenant, ms, now);
            }
        })
    }

    /// Checks whether a request would be accepted, without accepting it.
    ///
    /// # Errors
    /// Returns the reason for which the request would be refused.
    pub fn would_accept(&mut self, request: &Applicant, now: Timestamp) -> Result<(), Refusal> {
        let considered = self.consider(request, now).map(drop);
        // `decided` also seeds the random draw of shedding. A request that passes this check must get the same draw
        // when it is submitted, so only a refusal advances the counter.
        self.decided += u64::from(considered.is_err());
        considered
    }

    /// Returns the retry time for a request that gets no permit because the server is full, ms: about the time in which
    /// the queue of its tier drains.
    pub fn retry_time_when_full(&mut self, tier: Tier) -> u64 {
        self.full += 1;
        retry_after_ms(self.forecast.queue_us(tier), self.full)
    }

    /// Returns how long a request waits for its first token before it is given up: the time that it states, or that of
    /// its tier.
    pub fn patience_of(&self, request: &Applicant) -> Patience {
        let stated = (request.max_wait_ms, request.waited_ms.saturating_mul(1000));
        Patience::of(&self.patience, request.tier, stated)
    }

    /// Records a retry credit: a client of the tenant was told to come back after `retry_after_ms`, and is then
    /// preferred to newcomers.
    pub fn advised(&mut self, tier: Tier, tenant: Salt, retry_after_ms: u64, now: Timestamp) {
        self.credits.make(tier, tenant, now + retry_after_ms * 1000, now);
    }

    /// Uses up one of the tenant's retry credits whose retry time has come, if the tenant has one, because a client
    /// says that it comes back.
    pub fn came_back(&mut self, tier: Tier, tenant: Salt, now: Timestamp) {
        self.credits.redeem(tier, tenant, now);
    }

    /// Removes a sequence from its admission queue, because it got its first token or ended before it.
    pub fn left(&mut self, seq: SeqId, how: Left, now: Timestamp) {
        let Some(queued) = self.queued.remove(&seq) else { return };
        let Queued { tier, first_tier, tenant, prompt, counted, due, .. } = queued;
        let judged = tier == Tier::Standard && how == Left::Started;
        if let Some(due) = due.filter(|_| judged) {
            self.margin.observe(now > due);
        }
        if let Left::TurnedAway { retry_after_ms } = how {
            // The client asks for its tier again, because it does not know that an operator changed the tier.
            self.advised(first_tier, tenant, retry_after_ms, now);
        }
        self.queues[tier.index()].leave(counted);
        self.tenants.leave(tier, tenant, (prompt, counted));
    }

    /// Moves a sequence without a first token to the queue of another tier, because an operator changed its tier. The
    /// new queue takes the sequence even if the queue is full. The TTFT of the sequence will not adjust the safety
    /// margin of forecasts.
    pub fn tier_changed(&mut self, seq: SeqId, tier: Tier) {
        let Some(queued) = self.queued.get_mut(&seq).filter(|queued| queued.tier != tier) else {
            return;
        };
        let Queued { tier: before, tenant, weight, prompt, counted, .. } = *queued;
        (queued.tier, queued.due) = (tier, None);
        self.queues[before.index()].leave(counted);
        self.tenants.leave(before, tenant, (prompt, counted));
        self.queues[tier.index()].add(counted);
        self.tenants.enter(tier, (tenant, weight), (prompt, counted));
    }

    /// Takes over the scheduler's next report on the device time that is available to prompts.
    pub fn update(&mut self, capacity: Capacity) {
        if let Some(shedding) = capacity.shedding {
            self.shedder.update(capacity.shares, shedding.load_percent / 100.0);
        }
        self.forecast.update(capacity);
    }

    /// Replaces the latency targets in effect, against which arriving requests are judged.
    pub fn retarget(&mut self, targets: Targets) {
        self.targets = targets;
    }

    /// Takes over a tier's latency headroom (1 - p99 latency / target, the least over its targets).
    pub fn set_headroom(&mut self, tier: Tier, headroom: f64) {
        self.headroom[tier.index()] = headroom;
    }

    /// Returns the number of accepted requests that wait for their first token, by tier.
    pub fn queued(&self) -> [u32; 4] {
        self.queues.map(|queue| queue.requests)
    }

    /// Refuses every request from now on, because the engine drains for shutdown.
    pub fn close(&mut self) {
        self.open = false;
    }

    fn admit(&mut self, request: &Applicant, now: Timestamp) -> Result<SeqId, Refusal> {
        let Applicant { tier, tenant, weight, prompt, .. } = *request;
        self.queues[tier.index()] = self.consider(request, now)?;
        let counted = request.counted_tokens();
        self.tenants.enter(tier, (tenant, weight), (prompt, counted));
        self.forecast.arrived(self.effective_tier(request), prompt, now);
        let seq = SeqId(self.next);
        self.next += 1;
        let targets = self.targets_of(request);
        let target_us = self.forecast.shedding().and_then(|rule| latest_us(tier, &targets, &rule));
        let idle_us = self.forecast.idle_us(prompt);
        let due = target_us.filter(|us| idle_us <= *us).map(|us| now + us as u64);
        let queued = Queued { tier, first_tier: tier, tenant, weight, prompt, counted, due };
        self.queued.insert(seq, queued);
        Ok(seq)
    }

    /// Returns the latency targets of a request: those of its tier for a prompt of that length, replaced by those that
    /// it states. A request can only loosen targets that its tier has, unless it may tighten them.
    fn targets_of(&self, request: &Applicant) -> SloTargets {
        let of_tier = self.targets.of(request.tier);
        let may_tighten = request.may_tighten.unwrap_or(self.targets.requests_may_tighten);
        of_tier.of_prompt(request.prompt).with_stated(&request.targets, may_tighten)
    }

    /// Returns the tier as which the request's prompt waits: background for a best-effort request (without TTFT and
    /// TPOT targets) if tiers share the device by `shares.*`, and otherwise its own. System requests always wait as
    /// such.
    fn effective_tier(&self, request: &Applicant) -> Tier {
        let targets = self.targets_of(request);
        let nothing = targets.ttft_ms.is_none() && targets.tpot_ms.is_none();
        match request.tier {
            Tier::System => Tier::System,
            _ if nothing && self.forecast.fair_tiers() => Tier::Background,
            tier => tier,
        }
    }

    /// Refuses a request whose wait until now, with its expected wait at the recent drain rate of its queue, exceeds
    /// the patience that the request itself states. The patience set for a tier refuses no request on arrival: a queue
    /// that stands still for minutes while higher tiers are busy drains faster afterwards, and refusing on that
    /// estimate refused work that would have been served in time.
    fn within_patience(&self, request: &Applicant) -> Result<(), Refusal> {
        let (tier, stated_ms) = (request.tier, request.max_wait_ms);
        let ahead = self.ahead(request);
        let queue_us = self.forecast.queue_us(tier).unwrap_or(0.0);
        let wait_ms = request.waited_ms as f64 + queue_us * ahead / 1000.0;
        match stated_ms {
            Some(patience_ms) if wait_ms > patience_ms as f64 => {
                Err(Refusal::OutOfPatience { tier, expected_ms: wait_ms as u64, patience_ms })
            }
            _ => Ok(()),
        }
    }

    /// Returns the share of the prompt work waiting in the request's tier that is served before the request, 0 to 1.
    fn ahead(&self, request: &Applicant) -> f64 {
        match self.forecast.fair_tenants() {
            true => {
                let Applicant { tier, tenant, weight, prompt, .. } = *request;
                self.tenants.ahead(tier, (tenant, weight), prompt)
            }
            false => 1.0,
        }
    }

    /// Returns the retry time (`Retry-After`) for a refused request with an expected wait of `wait_us`, ms.
    fn retry_after_ms(&self, wait_us: Option<f64>) -> u64 {
        retry_after_ms(wait_us, self.decided)
    }

    /// Applies shedding (refusing requests to keep promises to others). A request is refused if its first token would
    /// be too late, or, with `shedding.form = share`, at random.
    fn in_time(&self, request: &Applicant, now: Timestamp) -> Result<(), Refusal> {
        let Some(shedding) = self.forecast.shedding() else { return Ok(()) };
        if shedding.form == SheddingForm::Share {
            return self.within_share(request, now);
        }
        let (tier, prompt) = (request.tier, request.prompt);
        let targets = self.targets_of(request);
        let ahead = self.ahead(request);
        let behind = latest_us(tier, &targets, &shedding).and_then(|limit_us| {
            let expected_us = self.forecast.first_token_us(tier, prompt, ahead, now);
            let trusted = if tier == Tier::Standard { self.margin.share() } else { 1.0 };
            // Never refuse a request whose predicted TTFT is within twice its TTFT without other prompts: coming back
            // later would not make it faster.
            let alone_us = ALONE_TIMES * self.forecast.alone_us(prompt);
            let limit_us = (limit_us * trusted).max(alone_us);
            let limit_us = if self.has_retry_credit(request, now) {
                limit_us * RETURN_TIMES
            } else {
                limit_us
            };
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

    /// Applies shedding by shares: under high load refuses, at random, requests of a tier below premium that uses more
    /// than its due share of the device's time. Clients that come back at their retry time are accepted.
    fn within_share(&self, request: &Applicant, now: Timestamp) -> Result<(), Refusal> {
        let tier = request.tier;
        let refused = self.shedder.refuses(tier, self.decided);
        let Some((had, due)) = refused.filter(|_| !self.has_retry_credit(request, now)) else {
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

    /// Whether the client says that it comes back, and its tenant has a retry credit whose time has come, so that the
    /// client is preferred to newcomers.
    pub fn has_retry_credit(&self, request: &Applicant, now: Timestamp) -> bool {
        request.returning && self.credits.is_due(request.tier, request.tenant, now)
    }

    /// Returns the limits of the tier's admission queue for this request. They are lower for a tenant that holds much
    /// of the queue already, if tenants are served fairly.
    fn limits(&self, request: &Applicant) -> AdmissionSettings {
        if self.forecast.fair_tenants() {
            self.tenants.limits(request.tier, request.tenant, &self.settings)
        } else {
            self.settings.clone()
        }
    }

    /// Decides whether the request may be accepted, without changing the gate. Returns its tier's queue with the
    /// request added, or the refusal.
    fn consider(&self, request: &Applicant, now: Timestamp) -> Result<Queue, Refusal> {
        if !self.open {
            return Err(Refusal::ShuttingDown);
        }
        let prompt = request.prompt;
        let reserved = self.reservations.reserved_for_others(request.tier);
        fits(prompt, request.max_tokens, &self.info, reserved).map_err(Refusal::NeverFits)?;
        let tier = request.tier;
        self.within_patience(request)?;
        self.in_time(request, now)?;
        let mut queue = self.queues[tier.index()];
        if let Err(limit) = queue.enter(request.counted_tokens(), &self.limits(request)) {
            let retry_after_ms = self.retry_after_ms(self.forecast.queue_us(tier));
            // If the full queue is that of a tier that misses its latency targets, clients shall wait at least 5 s
            // before they retry.
            let late = self.headroom[tier.index()] < 0.0;
            let retry_after_ms = if late { retry_after_ms.max(5_000) } else { retry_after_ms };
            return Err(Refusal::QueueFull { tier, limit, retry_after_ms });
        }
        Ok(queue)
    }
}

/// Returns the longest predicted TTFT with which a request is accepted, us. `None` means no limit: late requests are
/// not refused, the request has no TTFT target, or the request's tier is system or premium.
fn latest_us(tier: Tier, targets: &SloTargets, shedding: &SheddingSettings) -> Option<f64> {
    // Premium requests are never refused for lateness: late is better than never, and lower tiers are preempted for
    // them.
    let refuses = tier > Tier::Premium && shedding.late == Late::Refuse;
    targets.ttft_ms.filter(|_| refuses).map(|ms| ms * 1000.0)
}

#[cfg(test)]
mod tests;
