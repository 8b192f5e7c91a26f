//! SchedulerActor: the actor that owns every live sequence. It turns messages into events of the scheduling policy, and
//! the policy's decisions into messages.

mod capture;
mod commands;
mod drain;
mod peers;
mod snapshot;
mod status;

pub use peers::{Peers, ToAdmission, ToBlockManager, ToMonitor};
pub use snapshot::Snapshots;

use crate::checks::Checks;
use crate::lifeline::Lifeline;
use crate::messages::{
    AbortPreempt, CommitPreempt, CopiesEnded, Enqueue, ExecuteStep, GetUsage, InUse, LeftQueue,
    Observe, PlanDue, PrefillCapacity, ReserveStep, Retarget, Shutdown, StepEnded, StepReserved,
    StepsCompleted, Tick,
};
use crate::observed::{ending, left};
use crate::request::{RequestFault, StreamEvent};
use crate::step_log::StepLog;
use crate::streams::{Delivered, Streams};
use crate::telemetry::{self, UsageMetrics};
use crate::timeline::{EndedTimeline, Timelines};
use crate::trace::SequenceTrace;
use actix::{Actor, ActorContext, Context, Handler};
use drain::Draining;
use snapshot::SnapshotTaker;
use tiercel_config::StreamSettings;
use tiercel_device::{Clock, SeqId, StepBatch, StepError, Tier, Timestamp};
use tiercel_policy::StoreEvent;
use tiercel_policy::admission::Left;
use tiercel_policy::pressure::{Resource, percent};
use tiercel_policy::scheduler::{Action, Effect, EndReport, Hold, PreemptDecision, Scheduler};
use tiercel_policy::slo::Observation;

/// Actor that drives the cycle of planning a step, asking for its blocks and running it, and that delivers tokens to
/// the clients.
pub struct SchedulerActor {
    core: Scheduler,
    streams: Streams,
    settings: StreamSettings,
    clock: Clock,
    peers: Peers,
    /// Time at which the latest plan of a step was begun.
    planning_since: Timestamp,
    drain: Option<Draining>,
    checks: Checks,
    trace: SequenceTrace,
    timelines: Timelines,
    /// Log of the last steps' work and durations. Only a server keeps one.
    steps: Option<StepLog>,
    snapshots: SnapshotTaker,
    usage: UsageMetrics,
    lifeline: Lifeline,
}

impl SchedulerActor {
    /// Makes the Scheduler actor around the scheduling policy `core`. Only in a server it has a log of steps.
    pub fn new(
        core: Scheduler,
        settings: StreamSettings,
        clock: Clock,
        peers: Peers,
        checks: Checks,
        (trace, steps, snapshots): (SequenceTrace, Option<StepLog>, Snapshots),
        lifeline: Lifeline,
    ) -> SchedulerActor {
        SchedulerActor {
            core,
            streams: Streams::default(),
            settings,
            clock,
            peers,
            planning_since: Timestamp(0),
            drain: None,
            checks,
            trace,
            timelines: Timelines::default(),
            steps,
            snapshots: SnapshotTaker::new(snapshots),
            usage: UsageMetrics::default(),
            lifeline,
        }
    }

    /// After each message: carries out the actions that the scheduling policy asks for, until it waits for the next
    /// event.
    fn drive(&mut self) {
        // The invariants of the scheduler's state are checked after every event, in a release build only with
        // `Checks::Always`. The state is small, so a check is cheap.
        if self.checks.are_due(0, 0)
            && let Err(violation) = self.core.check()
        {
            self.broken(&violation.to_string());
        }
        loop {
            let now = self.clock.now();
            let Some(action) = self.core.next_action(now) else { break };
            self.carry_out(action, now);
        }
        self.finish_drain();
    }

    fn broken(&self, violation: &str) -> ! {
        self.lifeline.fatal(&format!("scheduler invariant broken: {violation}"));
        panic!("scheduler invariant broken: {violation}");
    }

    fn carry_out(&mut self, action: Action, now: Timestamp) {
        match action {
            Action::Submit(batch) => self.submit(batch, now),
            Action::Deliver(effects) => self.apply(effects, now),
            Action::Reserve { request, capacity } => {
                self.planning_since = now;
                self.peers.block_manager.reserve.do_send(ReserveStep(request));
                self.peers.admission.capacity.do_send(PrefillCapacity(capacity));
            }
            Action::WakeAt(at) => self.wake_at(at),
            Action::Completed(step) => {
                self.peers.block_manager.completed.do_send(StepsCompleted(step));
            }
            Action::Retarget(retargeted) => {
                telemetry::retargeted(&retargeted);
                self.peers.admission.targets.do_send(Retarget(retargeted.targets));
            }
        }
    }

    fn submit(&mut self, batch: StepBatch, now: Timestamp) {
        let planning_us = now.since_us(self.planning_since);
        telemetry::planned(&batch, planning_us);
        self.core.observe_planning(planning_us + self.clock.lateness_us());
        self.trace.submitted(&batch, now);
        self.timelines.submitted(&batch, now);
        if let Some(steps) = &mut self.steps {
            steps.submitted(&batch, planning_us, now);
        }
        self.peers.executor.do_send(ExecuteStep(batch));
    }

    /// Starts a timer that wakes the Scheduler at a given time to plan the next step.
    fn wake_at(&self, at: Timestamp) {
        let (clock, myself) = (self.clock.clone(), self.peers.myself.clone());
        actix::spawn(async move {
            clock.sleep_until(at).await;
            myself.do_send(PlanDue);
        });
    }

    fn apply(&mut self, effects: Vec<Effect>, now: Timestamp) {
        let mut tokens = [0; Tier::ALL.len()];
        for effect in effects {
            match effect {
                Effect::Token { seq, tier, token, logprobs, ttft_us } => {
                    if let Some(us) = ttft_us {
                        self.trace.first_token(seq);
                        let step =
                            self.core.inspect(seq, now).and_then(|seen| seen.first_token_step);
                        self.timelines
                            .first_token(seq, (now, step.unwrap_or(self.core.last_step())));
                        let what = Observation::FirstToken { ttft_ms: us as f64 / 1000.0 };
                        self.peers.monitor.observe.do_send(Observe { seq, at: now, what });
                        let how = Left::Started;
                        self.peers.admission.left.do_send(LeftQueue { seq, how });
                    }
                    tokens[tier.index()] += 1;
                    self.deliver(seq, StreamEvent::Token { token, logprobs }, now);
                }
                Effect::Ended(report) => self.ended(report, now),
            }
        }
        telemetry::tokens(tokens);
    }

    fn deliver(&mut self, seq: SeqId, event: StreamEvent, now: Timestamp) {
        match self.streams.token(seq, event, now) {
            Delivered::Room => {}
            Delivered::NearlyFull => {
                self.core.set_hold(seq, Hold::Stream, true);
            }
            Delivered::Gone => self.core.cancel(seq),
        }
    }

    fn ended(&mut self, report: EndReport, now: Timestamp) {
        telemetry::ended(&report);
        self.trace.ended(&report);
        let timeline = self.timelines.ended(report.seq);
        if let Some(drain) = &mut self.drain {
            drain.ended(&report);
        }
        self.snapshots.leaves(report.seq);
        if report.first_token_at.is_none() {
            let how = left(&report);
            self.peers.admission.left.do_send(LeftQueue { seq: report.seq, how });
        }
        let what = ending(&report, now);
        self.peers.monitor.observe.do_send(Observe { seq: report.seq, at: now, what });
        let last = report.outcome.map(|outcome| match outcome {
            Ok(reason) => StreamEvent::Finished { reason, usage: report.usage },
            Err(fault) => StreamEvent::Failed(fault),
        });
        let ended = timeline.map(|timeline| EndedTimeline { seq: report.seq, timeline, at: now });
        self.streams.close(report.seq, last, ended);
    }

    fn store_event(&mut self, event: StoreEvent) {
        let (StoreEvent::PreemptCopied { ticket, .. } | StoreEvent::Resumed { ticket, .. }) = event;
        let before = self.core.phase(ticket.seq);
        let decision = self.core.store_event(event);
        self.trace.store_event(event, before, decision);
        let at = (self.clock.now(), self.core.last_step());
        self.timelines.store_event(event, before, decision, at);
        if let StoreEvent::PreemptCopied { ticket, .. } = event {
            match decision {
                PreemptDecision::Commit => {
                    self.peers.block_manager.commit.do_send(CommitPreempt(ticket))
                }
                PreemptDecision::Abort => {
                    self.peers.block_manager.abort.do_send(AbortPreempt(ticket))
                }
                PreemptDecision::Stale => {}
            }
        }
    }

    /// Tells the SloMonitor which latency targets a sequence is promised from now on, after it arrived or changed its
    /// tier.
    fn promise(&self, seq: SeqId) {
        if let Some(promise) = self.core.promise(seq) {
            let what = Observation::Promised(promise);
            self.peers.monitor.observe.do_send(Observe { seq, at: self.clock.now(), what });
        }
    }

    fn fail_all(&mut self, fault: &RequestFault) {
        let live: Vec<SeqId> = self.core.live().collect();
        live.into_iter().for_each(|seq| self.core.fail(seq, fault.clone()));
    }

    /// Tells the SloMonitor what percentages of a step's slots and of the clients' output buffers are in use.
    fn report(&self, running: u32) {
        let slots = percent(u64::from(running), u64::from(self.core.max_num_seqs()));
        let outputs = self.streams.buffered_percent();
        for (resource, used_percent) in [(Resource::Slots, slots), (Resource::Outputs, outputs)] {
            self.peers.monitor.in_use.do_send(InUse { resource, used_percent });
        }
    }

    /// Reports the end of a drain, once nothing is left to do.
    fn finish_drain(&mut self) {
        if self.core.is_drained()
            && let Some(drain) = self.drain.take()
        {
            drain.finish();
        }
    }
}

impl Actor for SchedulerActor {
    type Context = Context<Self>;
}

impl Handler<Enqueue> for SchedulerActor {
    type Result = ();

    fn handle(&mut self, Enqueue { new, outlet }: Enqueue, _: &mut Self::Context) {
        self.trace.arrived(&new);
        self.timelines.arrived(&new, self.core.last_step());
        let seq = new.seq;
        self.streams.open(seq, outlet);
        self.snapshots.enters(seq);
        self.core.enqueue(new);
        self.promise(seq);
        self.drive();
    }
}

impl Handler<StepReserved> for SchedulerActor {
    type Result = ();

    fn handle(&mut self, StepReserved(grant): StepReserved, _: &mut Self::Context) {
        self.trace.granted(&grant, &self.core);
        self.timelines.granted(&grant, &self.core, self.clock.now());
        self.core.granted(grant);
        self.drive();
        if let Some(steps) = &mut self.steps {
            steps.idle();
        }
    }
}

impl Handler<StepEnded> for SchedulerActor {
    type Result = ();

    fn handle(&mut self, StepEnded(done): StepEnded, _: &mut Self::Context) {
        match &done.result {
            Ok(output) => telemetry::stepped(&output.timing),
            Err(StepError::Failed(why)) => {
                tracing::warn!(step = %done.id, %why, "a step failed on the device")
            }
            Err(StepError::DeviceLost(why)) => self.lifeline.fatal(&format!("device lost: {why}")),
        }
        let now = self.clock.now();
        self.trace.stepped(&done, now);
        if let Some(steps) = &mut self.steps {
            steps.ended(&done, now);
        }
        self.core.step_done(done, now);
        self.drive();
        if let Some(steps) = self.steps.as_mut().filter(|_| !self.core.has_work()) {
            steps.idle();
        }
    }
}

impl Handler<PlanDue> for SchedulerActor {
    type Result = ();

    fn handle(&mut self, _: PlanDue, _: &mut Self::Context) {
        self.core.wake();
        self.drive();
    }
}

impl Handler<CopiesEnded> for SchedulerActor {
    type Result = ();

    fn handle(&mut self, ended: CopiesEnded, _: &mut Self::Context) {
        self.core.copied(ended.blocks, ended.duration_us);
        for event in ended.events {
            self.store_event(event);
        }
        self.drive();
    }
}

impl Handler<Tick> for SchedulerActor {
    type Result = bool;

    fn handle(&mut self, _: Tick, _: &mut Self::Context) -> bool {
        // Each handler that changes `core` ends with `drive`. Without this check, a tick would hide a handler that does
        // not: the actions of its message would only be carried out late.
        if self.checks.are_due(0, 0) && !self.core.is_settled() {
            self.broken("a message left actions over");
        }
        let now = self.clock.now();
        let check = self.streams.check(now, self.settings.stall_timeout_ms);
        for seq in check.gone {
            self.core.cancel(seq);
        }
        for seq in check.caught_up {
            self.core.set_hold(seq, Hold::Stream, false);
        }
        for seq in check.stalled {
            self.core.fail(seq, RequestFault::Stalled);
        }
        self.core.tick(now);
        if self.drain.as_ref().is_some_and(|drain| drain.is_over(now)) {
            self.fail_all(&RequestFault::ShuttingDown);
        }
        if self.checks.plan_on_beat() {
            self.core.wake();
        }
        self.drive();
        let census = self.core.census();
        telemetry::gauges(&census, &self.core.counters());
        self.report(census.running);
        telemetry::cost_error(self.core.cost_error());
        if self.usage.are_due(now) {
            self.usage.set(&self.core.usage(now));
        }
        self.peers.block_manager.usage.do_send(GetUsage);
        true
    }
}

impl Handler<Shutdown> for SchedulerActor {
    type Result = ();

    fn handle(&mut self, _: Shutdown, ctx: &mut Self::Context) {
        self.trace.end_capture(None, self.clock.now());
        // Complete a snapshot that is being taken, because callers wait for it and no slice follows.
        while self.snapshots.next_slice(&self.core, self.clock.now()) {}
        self.lifeline.release();
        ctx.stop();
    }
}
