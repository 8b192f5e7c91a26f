//! Handle of the engine, through which HTTP workers submit requests and give operator commands.

use crate::lifeline::Obituary;
use crate::messages::{
    BeginCapture, BlocksMapped, Command, Consider, Displace, Drain, GetBlockMap, GetPressure,
    GetQueued, GetSlo, GetStatus, GetSteps, GetWork, Inspect, Inspected, Outlet, PressureLevels,
    QueuedPlaces, RetryAdvised, Shutdown, SloReports, Steps, StopAdmitting, Submit, TakeSnapshot,
};
use crate::recording::{Origin, Recorder, Unanswered};
use crate::request::{Changed, Control, Drained, EngineStatus, Refusal, Request, Snapshot, Work};
use crate::streams::RESERVED_EVENTS;
use crate::telemetry;
use crate::timeline::EndedTimeline;
use crate::token_stream::TokenStream;
use crate::trace::{ActiveCapture, CaptureBusy};
use crate::wiring::{Actors, Facts};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use tiercel_config::EngineSettings;
use tiercel_device::{Clock, DeviceInfo, DeviceProfile, SeqId, StepRecord, Tier};
use tiercel_policy::blocks::{BlockMap, Salt};
use tiercel_policy::slo::{GroupReport, Targets};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc, oneshot};

/// Longest time that a drain waits for a step in flight after its grace period is over, ms.
const LAST_STEP_MS: u64 = 30_000;
/// Most sequences that the scheduler inspects for one message, which takes it some 10 us.
const INSPECTED_AT_ONCE: usize = 64;

/// Handle of a running engine; cheap to clone and to send to HTTP workers.
#[derive(Clone)]
pub struct EngineHandle {
    shared: Arc<Shared>,
}

/// The engine has no free permit (place for a request) that a tier may take.
struct Full;

struct Shared {
    actors: Actors,
    facts: Facts,
    /// Semaphore with `max_requests` permits. Each request in the engine, waiting or running, holds one.
    permits: Arc<Semaphore>,
    max_requests: u32,
    buffer: usize,
    obituary: Obituary,
    /// Number of captures that were asked for.
    captures: AtomicU64,
    recorder: Arc<Recorder>,
}

impl EngineHandle {
    pub(crate) fn new(actors: Actors, facts: Facts, obituary: Obituary) -> EngineHandle {
        let max_requests = facts.settings.admission.max_requests;
        EngineHandle {
            shared: Arc::new(Shared {
                actors,
                permits: Arc::new(Semaphore::new(max_requests as usize)),
                max_requests,
                buffer: facts.settings.stream.buffer_tokens as usize + RESERVED_EVENTS,
                recorder: Arc::new(Recorder::new(facts.clock.clone())),
                facts,
                obituary,
                captures: AtomicU64::new(0),
            }),
        }
    }

    /// Returns the name and sizes of the device, for checks before a request is submitted.
    pub fn info(&self) -> &DeviceInfo {
        &self.shared.facts.info
    }

    /// Returns the device's speeds as known when it was opened: measured, or for a mock device those of its profile.
    pub fn profile(&self) -> &DeviceProfile {
        &self.shared.facts.profile
    }

    /// Returns the latency targets that were in effect when the engine started. Later, derived targets change with the
    /// speed of the device, and an operator may change all targets; [`EngineHandle::status`] has the present ones.
    pub fn targets(&self) -> &Targets {
        &self.shared.facts.targets
    }

    /// Returns the settings that the engine was started with.
    pub fn settings(&self) -> &EngineSettings {
        &self.shared.facts.settings
    }

    /// Returns the engine's clock.
    pub fn clock(&self) -> &Clock {
        &self.shared.facts.clock
    }

    /// Returns the recorder of the engine's traffic.
    pub fn recorder(&self) -> &Recorder {
        &self.shared.recorder
    }

    /// Takes a permit and submits the request to admission. Returns the response stream of the accepted request.
    ///
    /// # Errors
    /// Returns a [`Refusal`], for example if the request can never run, a queue is full or the engine is stopping.
    pub async fn submit(&self, request: Request) -> Result<TokenStream, Refusal> {
        self.submit_as(request, 1, None, None).await
    }

    /// Submits a request like [`EngineHandle::submit`], as one of the `choices` choices of a client's request that are
    /// still to be submitted. On a full server no requests of lower tiers are turned away unless as many as `choices`
    /// can be. A recording that runs holds the request under `origin`, also if the request is refused. If the request
    /// is accepted, its timeline is sent on the channel `ended` when it ends.
    ///
    /// # Errors
    /// The same as of [`EngineHandle::submit`].
    pub async fn submit_as(
        &self,
        request: Request,
        choices: u32,
        origin: Option<&Origin>,
        ended: Option<oneshot::Sender<EndedTimeline>>,
    ) -> Result<TokenStream, Refusal> {
        let recorder = &self.shared.recorder;
        let unanswered = Unanswered::new(recorder, recorder.arrived(&request, origin));
        let answer = self.offer(request, choices, ended).await;
        unanswered.answered(answer.as_ref().ok().map(TokenStream::seq));
        answer
    }

    async fn offer(
        &self,
        request: Request,
        choices: u32,
        ended: Option<oneshot::Sender<EndedTimeline>>,
    ) -> Result<TokenStream, Refusal> {
        let (tier, tenant, returning) = (request.tier, request.salt, request.returning);
        let permit = match self.permit(tier) {
            Ok(permit) => Ok(permit),
            Err(Full) => self.permit_of_another(&request, choices).await,
        };
        let permit = permit.inspect_err(|why| {
            telemetry::refused(tier, why);
            self.told((tier, tenant), why, (1, returning));
        })?;
        let (sender, events) = mpsc::channel(self.shared.buffer);
        let outlet = Outlet { events: sender, permit, ended };
        let answer = self.shared.actors.admission.send(Submit { request, outlet }).await;
        let seq = answer.map_err(|_| Refusal::EngineStopped)??;
        let scheduler = &self.shared.actors.scheduler;
        let (stop, cancel) = (scheduler.clone().recipient(), scheduler.clone().recipient());
        let recorder = Arc::clone(&self.shared.recorder);
        Ok(TokenStream { seq, tier, events, recorder, stop, cancel })
    }

    /// Tells admission about requests that were refused without its decision (for lack of a permit, or with another
    /// choice of the same request), so that it recognizes their clients when they come back after the retry time.
    /// `returning` says that these clients come back already: each uses up an earlier credit.
    pub fn told(
        &self,
        (tier, tenant): (Tier, Salt),
        why: &Refusal,
        (requests, returning): (usize, bool),
    ) {
        if let Some(retry_after_ms) = why.retry_after_ms() {
            let told = RetryAdvised { tier, tenant, retry_after_ms, requests, returning };
            self.shared.actors.admission.do_send(told);
        }
    }

    /// Counts, in the engine's metrics, a request that the HTTP side refused for lack of room before it reached the
    /// engine.
    pub fn count_refused(&self, tier: Tier) {
        telemetry::turned_away(tier, "refused");
    }

    /// Returns the number of permits (requests in the engine) that are reserved for tiers above `tier`.
    fn reserved(&self, tier: Tier) -> u32 {
        match tier {
            Tier::System | Tier::Premium => 0,
            Tier::Standard => self.shared.max_requests / 8,
            Tier::Background => self.shared.max_requests / 4,
        }
    }

    /// Takes a permit for a request, if the tier may take one. Some permits are reserved for higher tiers, because
    /// otherwise the lowest tier could take them all.
    fn permit(&self, tier: Tier) -> Result<OwnedSemaphorePermit, Full> {
        let permits = Arc::clone(&self.shared.permits);
        if permits.available_permits() <= self.reserved(tier) as usize {
            return Err(Full);
        }
        permits.try_acquire_owned().map_err(|_| Full)
    }

    /// Has the scheduler turn away a request of a lower tier that has not started, and takes its permit for `request`.
    /// Returns the refusal of the full server if there are fewer such requests than `choices`, or the refusal of
    /// admission if it would not accept `request` anyway.
    async fn permit_of_another(
        &self,
        request: &Request,
        choices: u32,
    ) -> Result<OwnedSemaphorePermit, Refusal> {
        let Actors { admission, scheduler, .. } = &self.shared.actors;
        // Turn no request away for a new one that admission would refuse anyway, or that could not take the permit.
        let considered = admission.send(Consider(request.clone())).await;
        let retry_after_ms = considered.map_err(|_| Refusal::EngineStopped)??;
        let (tier, reserved) = (request.tier, self.reserved(request.tier));
        let full =
            Refusal::ServerFull { limit: self.shared.max_requests, tier, reserved, retry_after_ms };
        // No tier is below background.
        let none_below = tier == Tier::Background;
        if none_below || self.shared.permits.available_permits() < reserved as usize {
            return Err(full);
        }
        match scheduler.send(Displace { tier, choices }).await {
            // The permit that came free may be taken by another request first. Then this request is refused because the
            // server is full.
            Ok(true) => self.permit(tier).map_err(|Full| full),
            Ok(false) => Err(full),
            Err(_) => Err(Refusal::EngineStopped),
        }
    }

    /// Sends an operator command to the scheduler. Returns whether the sequence that it names is live; true for
    /// commands that name none.
    ///
    /// # Errors
    /// [`Refusal::EngineStopped`] if the engine has stopped.
    pub async fn control(&self, control: Control) -> Result<bool, Refusal> {
        self.command(control).await.map(|changed| changed.known)
    }

    /// Sends an operator command to the scheduler. Returns what it changed.
    ///
    /// # Errors
    /// [`Refusal::EngineStopped`] if the engine has stopped.
    pub async fn command(&self, control: Control) -> Result<Changed, Refusal> {
        let answer = self.shared.actors.scheduler.send(Command(control)).await;
        answer.map_err(|_| Refusal::EngineStopped)
    }

    /// Returns a snapshot of all live sequences that was begun at most `max_age_ms` ago. Callers share a snapshot that
    /// is young enough, so many listings cost the scheduler no more than one.
    ///
    /// # Errors
    /// [`Refusal::EngineStopped`] if the engine has stopped.
    pub async fn snapshot(&self, max_age_ms: u64) -> Result<Arc<Snapshot>, Refusal> {
        let Actors { scheduler, snapshots, .. } = &self.shared.actors;
        let mut published = snapshots.subscribe();
        let oldest = self.clock().now().0.saturating_sub(max_age_ms * 1_000);
        let is_young = |snapshot: &Arc<Snapshot>| snapshot.at.0 > oldest;
        let found = published.borrow_and_update().clone();
        if is_young(&found) {
            return Ok(found);
        }
        scheduler.send(TakeSnapshot).await.map_err(|_| Refusal::EngineStopped)?;
        tokio::select! {
            // A snapshot that is being taken was begun at most some milliseconds ago.
            published = published.changed() => published.map_err(|_| Refusal::EngineStopped)?,
            _ = self.died() => return Err(Refusal::EngineStopped),
        }
        let taken = published.borrow().clone();
        Ok(taken)
    }

    /// Returns the status of the engine at this moment: sequences, blocks, counters, queues and pressure levels.
    ///
    /// # Errors
    /// [`Refusal::EngineStopped`] if the engine has stopped.
    pub async fn status(&self) -> Result<EngineStatus, Refusal> {
        let Actors { admission, scheduler, monitor, .. } = &self.shared.actors;
        let status = scheduler.send(GetStatus).await.map_err(|_| Refusal::EngineStopped)?;
        let QueuedPlaces(queued) =
            admission.send(GetQueued).await.map_err(|_| Refusal::EngineStopped)?;
        let PressureLevels(pressure) =
            monitor.send(GetPressure).await.map_err(|_| Refusal::EngineStopped)?;
        Ok(EngineStatus { places: self.places(), queued, pressure, ..status })
    }

    /// Returns the recorded steps after step number `after`, oldest first, with the work and the duration of each. Only
    /// the engine of a server records steps: the last few thousand.
    ///
    /// # Errors
    /// [`Refusal::EngineStopped`] if the engine has stopped.
    pub async fn steps(&self, after: u64) -> Result<Vec<StepRecord>, Refusal> {
        let answer = self.shared.actors.scheduler.send(GetSteps { after }).await;
        answer.map(|Steps(steps)| steps).map_err(|_| Refusal::EngineStopped)
    }

    /// Begins to capture the engine's events, in memory and up to a limit. An engine has at most one capture at a time.
    /// An engine that was started with a recorder has none.
    ///
    /// # Errors
    /// [`Refusal::EngineStopped`] if the engine has stopped; the inner error if another capture is under way.
    pub async fn capture(&self) -> Result<Result<ActiveCapture, CaptureBusy>, Refusal> {
        let scheduler = &self.shared.actors.scheduler;
        let number = self.shared.captures.fetch_add(1, Ordering::Relaxed);
        // Create the guard before the engine begins the capture: a caller that leaves before the answer then ends the
        // capture.
        let (captured, capture) = oneshot::channel();
        let active = ActiveCapture::new(number, scheduler.clone().recipient(), capture);
        let begun = scheduler.send(BeginCapture { number, captured }).await;
        Ok(begun.map_err(|_| Refusal::EngineStopped)?.map(|()| active))
    }

    /// Returns views and timelines of those of the given sequences that are live, and the step that was planned last
    /// when the first of them were inspected. Many sequences are inspected in slices, so that no step waits for all of
    /// them.
    ///
    /// # Errors
    /// [`Refusal::EngineStopped`] if the engine has stopped.
    pub async fn inspect(&self, of: &[SeqId]) -> Result<Inspected, Refusal> {
        let scheduler = &self.shared.actors.scheduler;
        let ask = async |slice: &[SeqId]| {
            scheduler.send(Inspect(slice.to_vec())).await.map_err(|_| Refusal::EngineStopped)
        };
        let (first, rest) = of.split_at(of.len().min(INSPECTED_AT_ONCE));
        let mut inspected = ask(first).await?;
        for slice in rest.chunks(INSPECTED_AT_ONCE) {
            inspected.live.extend(ask(slice).await?.live);
        }
        Ok(inspected)
    }

    /// Returns what steps have computed since the engine started, and how long the latest ones took. Only the engine of
    /// a server counts this.
    ///
    /// # Errors
    /// [`Refusal::EngineStopped`] if the engine has stopped.
    pub async fn work(&self) -> Result<Work, Refusal> {
        self.shared.actors.scheduler.send(GetWork).await.map_err(|_| Refusal::EngineStopped)
    }

    /// Returns the numbers of blocks by their states and by the tiers of their owners. The tiers are those of the
    /// snapshot `of`, so blocks of sequences that arrived after it count as blocks of others.
    ///
    /// # Errors
    /// [`Refusal::EngineStopped`] if the engine has stopped.
    pub async fn block_map(&self, of: Arc<Snapshot>) -> Result<BlockMap, Refusal> {
        let answer = self.shared.actors.block_manager.send(GetBlockMap(of)).await;
        answer.map(|BlocksMapped(map)| map).map_err(|_| Refusal::EngineStopped)
    }

    /// Returns the statistics of the latencies of each tier, at most about a second old; none in the first second.
    ///
    /// # Errors
    /// [`Refusal::EngineStopped`] if the engine has stopped.
    pub async fn slo(&self) -> Result<Vec<GroupReport>, Refusal> {
        let answer = self.shared.actors.monitor.send(GetSlo).await;
        answer.map(|SloReports(reports)| reports).map_err(|_| Refusal::EngineStopped)
    }

    /// Returns the number of requests in the engine, waiting or running: those that hold a permit. The number is
    /// correct also after the engine has stopped.
    pub fn places(&self) -> u32 {
        let free = u32::try_from(self.shared.permits.available_permits()).unwrap_or(u32::MAX);
        self.shared.max_requests.saturating_sub(free)
    }

    /// Waits until the engine dies (an actor panicked, or the device is lost) and returns the cause. An engine that is
    /// drained never dies.
    pub async fn died(&self) -> String {
        let mut deaths = self.shared.obituary.subscribe();
        let cause = deaths.wait_for(Option::is_some).await;
        cause.ok().and_then(|cause| cause.clone()).unwrap_or_else(|| "unknown".into())
    }

    /// Returns the cause of the engine's death (a panic of an actor, or a lost device), if it is dead.
    pub fn cause_of_death(&self) -> Option<String> {
        self.shared.obituary.borrow().clone()
    }

    /// Drains the engine: refuses new requests, lets live ones finish for at most `grace_ms`, ends the rest with an
    /// error, and stops the actors when nothing is left, at the latest 30 s after the grace period. Returns how the
    /// requests ended; `None` if that is unknown, because the engine is dead or a step in flight did not end in time.
    pub async fn drain(&self, grace_ms: u64) -> Option<Drained> {
        let Actors { admission, scheduler, block_manager, swap, executor, monitor, .. } =
            &self.shared.actors;
        let deadline = self.clock().now() + grace_ms * 1000;
        let (done, drained) = oneshot::channel();
        let (mut ends, mut hangs) = (None, false);
        // Errors of the sends below are ignored: a send to a dead actor fails at once.
        let _ = admission.send(StopAdmitting).await;
        if scheduler.send(Drain { deadline, done }).await.is_ok() {
            let last = (grace_ms + LAST_STEP_MS) * 1000;
            tokio::select! {
                drained = drained => ends = drained.ok(),
                () = self.clock().sleep_us(last) => {
                    tracing::error!("a step in flight did not end in time; stopping without its result");
                    hangs = true;
                }
            }
        }
        let _ = admission.send(Shutdown).await;
        let _ = scheduler.send(Shutdown).await;
        let _ = block_manager.send(Shutdown).await;
        let _ = monitor.send(Shutdown).await;
        if hangs {
            // An actor that owns a thread of the device waits for the thread when it is dropped, on the thread of all
            // actors, so later answers may not come.
            swap.do_send(Shutdown);
            executor.do_send(Shutdown);
            return None;
        }
        let _ = swap.send(Shutdown).await;
        let _ = executor.send(Shutdown).await;
        ends
    }
}
