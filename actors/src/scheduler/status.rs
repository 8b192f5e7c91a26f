//! Handlers of the Scheduler that report on the engine: status, recorded steps, snapshots.

use super::SchedulerActor;
use crate::messages::{
    ContinueSnapshot, GetStatus, GetSteps, GetUsage, GetWork, Inspect, Inspected, Steps,
    TakeSnapshot,
};
use crate::request::{EngineStatus, Work};
use crate::step_log::StepLog;
use actix::{AsyncContext, Context, Handler, ResponseFuture};

impl Handler<GetStatus> for SchedulerActor {
    type Result = ResponseFuture<EngineStatus>;

    fn handle(&mut self, _: GetStatus, _: &mut Self::Context) -> Self::Result {
        let census = self.core.census();
        let (counters, targets) = (self.core.counters(), self.core.targets());
        let (prediction_error, cost_error) = (self.core.prediction_error(), self.core.cost_error());
        let now = self.clock.now();
        let of_parties = self.core.usage(now);
        let usage = self.peers.block_manager.usage.send(GetUsage);
        Box::pin(async move {
            let usage = usage.await.unwrap_or_default();
            EngineStatus {
                waiting: census.waiting,
                running: census.running,
                preempted: census.preempted,
                // Leave the number of permits in use and of queued requests zero: `EngineHandle::status` fills them in.
                places: 0,
                queued: [0; 4],
                device_blocks: usage.device_total,
                device_blocks_free: usage.device_free,
                host_blocks: usage.host_total,
                host_blocks_free: usage.host_free,
                // Leave the pressure levels empty: `EngineHandle::status` fills them in from the SloMonitor.
                pressure: Default::default(),
                targets,
                counters,
                usage: of_parties,
                prediction_error,
                cost_error,
            }
        })
    }
}

impl Handler<GetSteps> for SchedulerActor {
    type Result = Steps;

    fn handle(&mut self, GetSteps { after }: GetSteps, _: &mut Self::Context) -> Steps {
        Steps(self.steps.as_ref().map(|steps| steps.after(after)).unwrap_or_default())
    }
}

impl Handler<GetWork> for SchedulerActor {
    type Result = Work;

    fn handle(&mut self, _: GetWork, _: &mut Self::Context) -> Work {
        self.steps.as_ref().map(StepLog::work).unwrap_or_default()
    }
}

impl Handler<Inspect> for SchedulerActor {
    type Result = Inspected;

    fn handle(&mut self, Inspect(of): Inspect, _: &mut Self::Context) -> Inspected {
        let now = self.clock.now();
        let found = of.into_iter().filter_map(|seq| {
            Some((self.core.inspect(seq, now)?, self.timelines.of(seq)?.clone()))
        });
        Inspected { step: self.core.last_step(), live: found.collect() }
    }
}

/// Sends `ContinueSnapshot` to the Scheduler after the other actors of the thread have handled the messages that they
/// have. `Context::notify` would not do that: actix handles such a message in the same turn of the Scheduler, so all
/// slices of a snapshot would come one after the other, and a step would wait for them.
fn continue_snapshot(ctx: &Context<SchedulerActor>) {
    let myself = ctx.address();
    actix::spawn(async move {
        tokio::task::yield_now().await;
        myself.do_send(ContinueSnapshot);
    });
}

impl Handler<TakeSnapshot> for SchedulerActor {
    type Result = ();

    fn handle(&mut self, _: TakeSnapshot, ctx: &mut Self::Context) {
        if self.snapshots.begin(&self.core, self.clock.now()) {
            continue_snapshot(ctx);
        }
    }
}

impl Handler<ContinueSnapshot> for SchedulerActor {
    type Result = ();

    fn handle(&mut self, _: ContinueSnapshot, ctx: &mut Self::Context) {
        if self.snapshots.next_slice(&self.core, self.clock.now()) {
            continue_snapshot(ctx);
        }
    }
}
