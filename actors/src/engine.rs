//! Creates the six actors of an engine and connects them.

use crate::admission::Admission;
use crate::block_manager::BlockManager;
use crate::checks::Checks;
use crate::executor::Executor;
use crate::handle::EngineHandle;
use crate::lifeline::{Lifeline, Obituary};
use crate::messages::Tick;
use crate::scheduler::{Peers, SchedulerActor};
use crate::slo_monitor::SloMonitor;
use crate::step_log::StepLog;
use crate::swap_manager::SwapManager;
use crate::telemetry;
use crate::trace::{Record, SequenceTrace, Tracer};
use actix::{Addr, Arbiter, AsyncContext, Context, Recipient};
use std::rc::Rc;
use tiercel_config::{EngineSettings, SchedulerSettings};
use tiercel_device::{Clock, Device, DeviceInfo, DeviceProfile};
use tiercel_policy::blocks::{BlockStore, StoreConfig};
use tiercel_policy::scheduler::{Reservations, Scheduler};
use tiercel_policy::slo::{ServerTimes, Targets, Unreachable};
use tokio::sync::{oneshot, watch};

/// Interval between two clock ticks of the scheduler, us. A stalled or vanished client is noticed at most this late.
const BEAT_US: u64 = 50_000;
/// Interval between two evaluations of the latency windows, us.
const SLO_BEAT_US: u64 = 1_000_000;
/// Longest time that one batch of copies takes on the link, approximately, us.
const COPY_BATCH_US: f64 = 5_000.0;

/// An engine that is about to be started.
pub struct Engine {
    /// Settings of the engine, already validated.
    pub settings: EngineSettings,
    /// Device that the engine drives.
    pub device: Device,
    /// Clock that gives the engine its time.
    pub clock: Clock,
}

/// Facts about an engine that do not change after its start.
pub(crate) struct Facts {
    pub(crate) info: DeviceInfo,
    /// Speeds that the device measured of itself.
    pub(crate) profile: DeviceProfile,
    /// Latency targets that are in effect at the start of the engine.
    pub(crate) targets: Targets,
    pub(crate) settings: EngineSettings,
    pub(crate) clock: Clock,
}

/// Addresses of a running engine's actors.
#[derive(Clone)]
pub(crate) struct Actors {
    pub(crate) admission: Addr<Admission>,
    pub(crate) scheduler: Addr<SchedulerActor>,
    pub(crate) block_manager: Addr<BlockManager>,
    pub(crate) swap: Addr<SwapManager>,
    pub(crate) executor: Addr<Executor>,
    pub(crate) monitor: Addr<SloMonitor>,
}

impl Engine {
    /// Starts all actors on the current arbiter, as the simulator and the tests do.
    pub fn start_here(self) -> EngineHandle {
        self.start_with(Checks::InDebugBuilds, None)
    }

    /// Starts all actors like [`Engine::start_here`], and passes every event to `recorder`.
    pub fn start_recorded_here(self, recorder: Option<Rc<dyn Record>>) -> EngineHandle {
        self.start_with(Checks::InDebugBuilds, recorder)
    }

    /// Starts all actors like [`Engine::start_here`], but lets them check all their invariants after every event, also
    /// in a release build.
    pub fn start_here_checked(self) -> EngineHandle {
        self.start_with(Checks::Always, None)
    }

    fn start_with(self, checks: Checks, recorder: Option<Rc<dyn Record>>) -> EngineHandle {
        let obituary = watch::Sender::new(None);
        let facts = self.facts();
        let actors = self.spawn(&obituary, checks, recorder, None);
        EngineHandle::new(actors, facts, obituary)
    }

    /// Starts all actors on `arbiter`, which is the control thread of a server.
    ///
    /// # Errors
    /// If the arbiter has stopped.
    pub async fn start_on(self, arbiter: &Arbiter) -> Result<EngineHandle, EngineStartError> {
        let obituary = watch::Sender::new(None);
        let facts = self.facts();
        let (made, actors) = oneshot::channel();
        let deaths = obituary.clone();
        arbiter.spawn_fn(move || {
            // If the caller no longer waits for the actors, the channel returns them, and dropping them stops them.
            let steps = Some(StepLog::default());
            let _ = made.send(self.spawn(&deaths, Checks::InDebugBuilds, None, steps));
        });
        let actors = actors.await.map_err(|_| EngineStartError)?;
        Ok(EngineHandle::new(actors, facts, obituary))
    }

    /// Returns the latency targets that follow from the settings and the device, and the stated targets that the device
    /// cannot meet.
    fn targets(&self) -> (Targets, Vec<Unreachable>) {
        let SchedulerSettings { max_num_seqs, max_num_batched_tokens, .. } =
            self.settings.scheduler;
        let Device { profile, info, .. } = &self.device;
        ServerTimes::new(profile, info, max_num_seqs, max_num_batched_tokens)
            .targets(&self.settings.slo)
    }

    fn facts(&self) -> Facts {
        Facts {
            info: self.device.info.clone(),
            profile: self.device.profile,
            targets: self.targets().0,
            settings: self.settings.clone(),
            clock: self.clock.clone(),
        }
    }

    fn spawn(
        self,
        obituary: &Obituary,
        checks: Checks,
        recorder: Option<Rc<dyn Record>>,
        step_log: Option<StepLog>,
    ) -> Actors {
        let (_, unreachable) = self.targets();
        let Engine { settings, device: Device { info, profile, runner, copier }, clock } = self;
        telemetry::device(&info);
        let life = |name| Lifeline::new(name, obituary);
        let tracer = Tracer::new(recorder, clock.clone());
        // The actors refer to each other in a cycle, so every mailbox is created before the first actor.
        let admission = Context::<Admission>::new();
        let scheduler = Context::<SchedulerActor>::new();
        let block_manager = Context::<BlockManager>::new();
        let swap = Context::<SwapManager>::new();
        let executor = Context::<Executor>::new();
        let monitor = Context::<SloMonitor>::new();
        let peers = Peers {
            admission: admission.address(),
            block_manager: block_manager.address(),
            executor: executor.address(),
            monitor: monitor.address(),
            scheduler: scheduler.address(),
        };
        let to_scheduler = scheduler.address();
        let store = BlockStore::new(store_config(&settings, &info, profile.link_bytes_per_s));
        let core = Scheduler::new(&settings, &info, profile);
        let targets = core.targets();
        telemetry::targets(&targets);
        unreachable.iter().for_each(telemetry::unreachable);
        let copies = SwapManager::new(
            copier,
            block_manager.address(),
            info.block_bytes,
            life("SwapManager"),
        );
        let blocks = BlockManager::new(
            store,
            to_scheduler.clone(),
            swap.address(),
            monitor.address(),
            checks,
            tracer.clone(),
            life("BlockManager"),
        );
        let steps = Executor::new(runner, to_scheduler.clone(), life("Executor"));
        let kept = Reservations::new(&settings.reservation, info.device_blocks);
        let windows = SloMonitor::new(
            &settings.slo,
            settings.pressure,
            clock.clone(),
            admission.address(),
            life("SloMonitor"),
        );
        let door = Admission::new(
            (settings.admission, settings.patience),
            targets,
            (info, kept),
            clock.clone(),
            to_scheduler,
            life("Admission"),
        );
        let sequences = SchedulerActor::new(
            core,
            settings.stream,
            clock.clone(),
            peers,
            checks,
            (SequenceTrace::new(tracer), step_log),
            life("Scheduler"),
        );
        let actors = Actors {
            admission: admission.run(door),
            scheduler: scheduler.run(sequences),
            block_manager: block_manager.run(blocks),
            swap: swap.run(copies),
            executor: executor.run(steps),
            monitor: monitor.run(windows),
        };
        beat(&clock, BEAT_US, actors.scheduler.clone().recipient());
        beat(&clock, SLO_BEAT_US, actors.monitor.clone().recipient());
        actors
    }
}

/// Sends clock ticks to `actor` every `every_us` until the actor stops. Waits for the answer to each tick, so that a
/// busy actor misses ticks instead of collecting them.
fn beat(clock: &Clock, every_us: u64, actor: Recipient<Tick>) {
    let clock = clock.clone();
    actix::spawn(async move {
        loop {
            clock.sleep_us(every_us).await;
            if actor.send(Tick).await.is_err() {
                return;
            }
        }
    });
}

fn store_config(
    settings: &EngineSettings,
    info: &DeviceInfo,
    link_bytes_per_s: f64,
) -> StoreConfig {
    let in_transit_bytes = settings.preemption.max_in_transit_mib << 20;
    let batch_bytes = link_bytes_per_s * COPY_BATCH_US / 1e6;
    let block_bytes = info.block_bytes.max(1);
    StoreConfig {
        block_size: info.block_size,
        device_blocks: info.device_blocks,
        host_blocks: info.host_blocks,
        max_copy_blocks_in_transit: (in_transit_bytes / block_bytes).clamp(1, 1 << 20) as u32,
        max_copy_blocks_per_batch: (batch_bytes / block_bytes as f64).clamp(1.0, 4096.0) as u32,
    }
}

/// Error of starting an engine: the control thread has stopped.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the control thread stopped before the engine could start")]
pub struct EngineStartError;
