//! Plays a scenario to its end.

use super::checks;
use super::client::{Seen, visit};
use super::panics;
use super::scenario::{Act, DrainPlan, Order, Scenario};
use crate::laboratory::{Laboratory, simulate};
use std::cell::{Cell, RefCell};
use std::rc::Rc;
use tiercel_actors::{Control, Counters, EngineHandle, EngineStatus};
use tiercel_device::{Clock, MockFaultLog, SeqId};
use tokio::task::JoinHandle;

/// A client whose engine does nothing for anybody for this long waits for ever, us. Fair waits are far shorter:
/// the slowest prompt takes about two seconds.
const PATIENCE_US: u64 = 20_000_000;
/// Longest that copies and releases may go on when nobody is left, us.
const SETTLING_US: u64 = 20_000_000;
/// Time between two looks at an engine that settles, us.
const LOOK_US: u64 = 5_000;
/// Time to finish for a drain with nothing left to do, ms.
const LAST_DRAIN_MS: u64 = 1_000;

/// What did not hold.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum Failure {
    /// Something panicked: an invariant, most likely.
    #[error("panicked: {0}")]
    Panicked(String),
    /// The engine died.
    #[error("the engine died: {0}")]
    Died(String),
    /// The device found KV memory that did not hold what a step read, or a malformed step.
    #[error("the device found {count} wrong steps; first: {first}")]
    Wrong {
        /// How many.
        count: u64,
        /// The first.
        first: String,
    },
    /// Nothing happens any more although somebody waits.
    #[error("{who} waits for ever: {status}")]
    Stuck {
        /// Who waits.
        who: String,
        /// What the engine says of itself.
        status: String,
    },
    /// Everybody is gone and something is still held.
    #[error("not everything came back: {0}")]
    Left(String),
    /// A request got something that it should not have.
    #[error("request {request}: {what}")]
    Request {
        /// Its place among the clients.
        request: usize,
        /// What.
        what: String,
    },
    /// The engine's totals contradict what clients saw.
    #[error("the counters are off: {0}")]
    Counters(String),
}

/// What a scenario came to. Equal for equal seeds.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Summary {
    /// Requests sent.
    pub requests: u64,
    /// Requests turned away.
    pub refused: u64,
    /// Requests whose output is complete.
    pub finished: u64,
    /// Requests that ended with an error.
    pub failed: u64,
    /// Requests whose client went away or had enough.
    pub left: u64,
    /// Tokens read.
    pub tokens: u64,
    /// Simulated time, us.
    pub simulated_us: u64,
    /// The engine's totals; none where a drain came first.
    pub counters: Counters,
}

/// What the tasks of a run share.
pub(super) struct Stage {
    pub(super) engine: EngineHandle,
    /// Sequences of the clients that were accepted.
    seqs: RefCell<Vec<Option<SeqId>>>,
    /// Counts whatever clients see happen.
    progress: Cell<u64>,
}

impl Stage {
    pub(super) fn admitted(&self, client: usize, seq: SeqId) {
        self.seqs.borrow_mut()[client] = Some(seq);
        self.progress();
    }

    pub(super) fn progress(&self) {
        self.progress.set(self.progress.get() + 1);
    }

    async fn stuck(&self, who: String) -> Failure {
        let status = match self.engine.status().await {
            Ok(status) => format!("{status:?}"),
            Err(stopped) => stopped.to_string(),
        };
        Failure::Stuck { who, status }
    }
}

impl Scenario {
    /// Plays it.
    ///
    /// # Errors
    /// The first thing that did not hold.
    pub fn run(&self) -> Result<Summary, Failure> {
        panics::listen(|| simulate(async |clock| self.play(clock).await))
            .map_err(Failure::Panicked)?
    }

    async fn play(&self, clock: Clock) -> Result<Summary, Failure> {
        let device = self.device(clock.clone());
        let log = device.log.clone();
        let engine = Laboratory { settings: self.settings.clone(), device }.start_checked();
        let stage = Rc::new(Stage {
            engine: engine.clone(),
            seqs: RefCell::new(vec![None; self.clients.len()]),
            progress: Cell::default(),
        });
        let played = tokio::select! {
            biased;
            cause = engine.died(), if !self.loses_device() => Err(Failure::Died(cause)),
            played = self.play_to_the_end(&stage) => played,
        };
        // A wrong step is the cause of whatever came of it.
        found_wrong(&log)?;
        let (seen, counters) = played?;
        match engine.cause_of_death() {
            Some(cause) if !(self.loses_device() && cause.contains("device lost")) => {
                return Err(Failure::Died(cause));
            }
            _ => {}
        }
        checks::check(self, &seen, counters.as_ref())?;
        Ok(checks::summary(&seen, counters, clock.now()))
    }

    async fn play_to_the_end(
        &self,
        stage: &Rc<Stage>,
    ) -> Result<(Vec<Seen>, Option<Counters>), Failure> {
        let orders: Vec<_> = self
            .orders
            .iter()
            .map(|order| actix_rt::spawn(give(Rc::clone(stage), *order)))
            .collect();
        let draining = actix_rt::spawn(drain_amid(stage.engine.clone(), self.drain));
        let visit = |(number, client)| {
            actix_rt::spawn(visit(Rc::clone(stage), number, Clone::clone(client)))
        };
        let clients: Vec<_> = self.clients.iter().enumerate().map(visit).collect();
        let mut seen = Vec::with_capacity(clients.len());
        for (number, client) in clients.into_iter().enumerate() {
            seen.push(outcome(stage, client, || format!("request {number}")).await?);
        }
        for order in orders {
            outcome(stage, order, || "the operator".to_owned()).await?;
        }
        outcome(stage, draining, || "whoever drains".to_owned()).await?;
        let counters = match self.drain {
            DrainPlan::AtTheEnd => {
                let status = settled(stage).await?;
                stage.engine.drain(LAST_DRAIN_MS).await;
                Some(status.counters)
            }
            DrainPlan::Amid { .. } => None,
        };
        match stage.engine.places() {
            0 => Ok((seen, counters)),
            places => Err(Failure::Left(format!("{places} places in the engine"))),
        }
    }
}

fn found_wrong(log: &MockFaultLog) -> Result<(), Failure> {
    match log.first().first() {
        None => Ok(()),
        Some(first) => Err(Failure::Wrong { count: log.total(), first: first.to_string() }),
    }
}

/// What a task came to, unless nothing happens any more.
async fn outcome<T>(
    stage: &Stage,
    mut task: JoinHandle<T>,
    who: impl Fn() -> String,
) -> Result<T, Failure> {
    loop {
        let before = stage.progress.get();
        match stage.engine.clock().timeout_us(PATIENCE_US, &mut task).await {
            Some(Ok(outcome)) => return Ok(outcome),
            Some(Err(error)) => return Err(Failure::Panicked(error.to_string())),
            None if stage.progress.get() == before => return Err(stage.stuck(who()).await),
            None => {}
        }
    }
}

async fn give(stage: Rc<Stage>, order: Order) {
    let clock = stage.engine.clock();
    clock.sleep_until(order.at).await;
    let seq_of = |client: usize| stage.seqs.borrow().get(client).copied().flatten();
    // An engine that was drained meanwhile takes no orders; that is no fault.
    let command = async |control| drop(stage.engine.control(control).await);
    match order.act {
        Act::SetPolicy(policy) => command(Control::SetPolicy(policy)).await,
        Act::Reprioritize { client, tier, priority } => {
            if let Some(seq) = seq_of(client) {
                command(Control::Reprioritize { seq, tier, priority }).await;
            }
        }
        Act::Pause { client, for_us } => {
            if let Some(seq) = seq_of(client) {
                command(Control::Pause(seq)).await;
                clock.sleep_us(for_us).await;
                command(Control::Resume(seq)).await;
            }
        }
    }
}

async fn drain_amid(engine: EngineHandle, plan: DrainPlan) {
    if let DrainPlan::Amid { at, grace_ms } = plan {
        engine.clock().sleep_until(at).await;
        engine.drain(grace_ms).await;
    }
}

/// Waits until nothing is held any more.
async fn settled(stage: &Stage) -> Result<EngineStatus, Failure> {
    let mut last = String::new();
    for _ in 0..SETTLING_US / LOOK_US {
        let status = match stage.engine.status().await {
            Ok(status) => status,
            Err(error) => return Err(Failure::Died(error.to_string())),
        };
        let held = [
            status.waiting.iter().sum(),
            status.running,
            status.preempted,
            status.queued.iter().sum(),
            status.places,
            status.device_blocks - status.device_blocks_free,
            status.host_blocks - status.host_blocks_free,
        ];
        if held.iter().all(|count| *count == 0) {
            return Ok(status);
        }
        last = format!("{status:?}");
        stage.engine.clock().sleep_us(LOOK_US).await;
    }
    Err(Failure::Left(last))
}
