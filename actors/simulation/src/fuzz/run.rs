//! Plays a fuzzing scenario to its end: runs engine, clients and operator, and checks the results.

use super::checks;
use super::client::{Seen, visit};
use super::panics;
use super::scenario::{Act, DrainPlan, Order, Scenario};
use crate::laboratory::{Laboratory, simulate};
use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::rc::Rc;
use tiercel_actors::{Control, Counters, EngineHandle, EngineStatus, Request};
use tiercel_device::{Clock, MockFaultLog, SeqId};
use tiercel_policy::Weight;
use tiercel_policy::blocks::Salt;
use tokio::task::JoinHandle;

/// Simulated time after which a waiting client counts as stuck, us, if no client has received anything meanwhile.
/// Regular waits are far shorter: the slowest prompt takes about two seconds.
const PATIENCE_US: u64 = 20_000_000;
/// Maximum time after the last client is gone until the engine must have ended its copies and released all blocks, us.
const SETTLING_US: u64 = 20_000_000;
/// Interval at which the engine's status is queried until all blocks are released, us.
const LOOK_US: u64 = 5_000;
/// Grace period of the drain (shutdown) of the idle engine at the end of a fuzzing run, ms.
const LAST_DRAIN_MS: u64 = 1_000;

/// Reason why a fuzzing scenario failed: the first check that did not hold.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum Failure {
    /// Engine or test code panicked, most likely in an invariant check.
    #[error("the engine or the test panicked: {0}")]
    Panicked(String),
    /// The engine died during the scenario.
    #[error("the engine died: {0}")]
    Died(String),
    /// The mock device detected errors of the engine: a step read KV memory with wrong content, or a step was
    /// malformed.
    #[error(
        "the mock device found {count} mistakes (wrong KV content or malformed steps); the first: {first}"
    )]
    Wrong {
        /// Number of the engine's mistakes that the mock device found (wrong KV content or malformed input); one step
        /// can have several.
        count: u64,
        /// Description of the first error that the device detected.
        first: String,
    },
    /// The engine is stuck: a client or the operator waits, and no client receives anything any more.
    #[error("{who} waits for ever: {status}")]
    Stuck {
        /// Name of the client or task that waits for ever.
        who: String,
        /// Status of the stuck engine, as text.
        status: String,
    },
    /// The engine still holds blocks, sequences or permits after all clients are gone.
    #[error("the engine still held resources after all clients had gone: {0}")]
    Left(String),
    /// A request got a wrong result.
    #[error("request {request} of the fuzzing scenario got a wrong result: {what}")]
    Request {
        /// Index of the request in the scenario's list of clients.
        request: usize,
        /// Description of what is wrong with the request's result.
        what: String,
    },
    /// The engine's counters contradict the results of the clients.
    #[error("the engine's counters contradict the clients' results: {0}")]
    Counters(String),
}

/// Totals of a played fuzzing scenario. Equal seeds give equal totals.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Summary {
    /// Number of requests sent.
    pub requests: u64,
    /// Number of requests that were refused.
    pub refused: u64,
    /// Number of requests that were turned away because the patience of their tier ended. A request that was turned
    /// away because of the patience that it stated itself does not count.
    pub impatient: u64,
    /// Number of requests whose output is complete.
    pub finished: u64,
    /// Number of requests that ended with an error.
    pub failed: u64,
    /// Number of requests whose client closed its response stream early or stopped the output.
    pub left: u64,
    /// Number of output tokens that all clients read.
    pub tokens: u64,
    /// Simulated time of the scenario, us.
    pub simulated_us: u64,
    /// Counters of the engine; all zero if the engine was drained in the middle of the scenario.
    pub counters: Counters,
}

/// State that the tasks of a fuzzing run (clients, operator, drain) share.
pub(super) struct Stage {
    pub(super) engine: EngineHandle,
    /// Id of the sequence of each client's request; `None` until the request is accepted.
    seqs: RefCell<Vec<Option<SeqId>>>,
    /// Weight, and right to tighten targets, of each tenant whose keys were read again.
    keys: RefCell<HashMap<Salt, (Weight, bool)>>,
    /// Number of times that any client got on so far: its request was accepted, it received an event, or it was done.
    /// If the number stands still, the engine may be stuck.
    progress: Cell<u64>,
}

impl Stage {
    pub(super) fn admitted(&self, client: usize, seq: SeqId) {
        self.seqs.borrow_mut()[client] = Some(seq);
        self.progress();
    }

    /// Returns a request as the server sends it on: with the weight and the right of its key at this moment.
    pub(super) fn keyed(&self, request: &Request) -> Request {
        let mut request = request.clone();
        if let Some((weight, may_tighten)) = self.keys.borrow().get(&request.salt) {
            (request.weight, request.may_tighten) = (*weight, Some(*may_tighten));
        }
        request
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
    /// Plays the fuzzing scenario and checks the results.
    ///
    /// # Errors
    /// The first check that failed.
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
            keys: RefCell::default(),
            progress: Cell::default(),
        });
        let played = tokio::select! {
            biased;
            cause = engine.died(), if !self.loses_device() => Err(Failure::Died(cause)),
            played = self.play_to_the_end(&stage) => played,
        };
        // Of several failures, return the wrong steps that the device detected first, because wrong steps cause other
        // failures.
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
        outcome(stage, draining, || "the drain of the engine".to_owned()).await?;
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
            places => Err(Failure::Left(format!("{places} permits are still held"))),
        }
    }
}

fn found_wrong(log: &MockFaultLog) -> Result<(), Failure> {
    match log.first().first() {
        None => Ok(()),
        Some(first) => Err(Failure::Wrong { count: log.total(), first: first.to_string() }),
    }
}

/// Waits for the result of a task of a client, of the operator or of the drain. Fails if no client receives anything
/// any more while the task waits.
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
    // Ignore the result of an operator's command: an engine that is being drained refuses commands, which is no error.
    let command = async |control| drop(stage.engine.control(control).await);
    match order.act {
        Act::SetPolicy(policy) => command(Control::SetPolicy(policy)).await,
        Act::Adjust { .. } => {
            if let Some(settings) = order.act.adjusted(stage.engine.settings()) {
                command(Control::Adjust(Box::new(settings))).await;
            }
        }
        Act::ReloadKeys { tenant, weight, may_tighten } => {
            stage.keys.borrow_mut().insert(Salt([tenant; 16]), (Weight::new(weight), may_tighten));
        }
        Act::Look { client } => {
            // An engine that has stopped shows nothing.
            let _ = stage.engine.snapshot(0).await;
            let _ = stage.engine.inspect(&seq_of(client).into_iter().collect::<Vec<_>>()).await;
        }
        Act::Cancel { client } => {
            if let Some(seq) = seq_of(client) {
                command(Control::Cancel(seq)).await;
            }
        }
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

/// Waits until the engine holds no sequence, permit or block any more, and returns the engine's status.
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
