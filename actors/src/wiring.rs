//! Wiring: creates the six actors of an engine and connects them. Only this file, and the handle by way of [`Actors`],
//! names the types of all actors; the actors know each other as recipients of messages.

use crate::admission::Admission;
use crate::block_manager::{BlockManager, BlockPeers};
use crate::checks::Checks;
use crate::executor::Executor;
use crate::host_growth;
use crate::lifeline::{Lifeline, Obituary};
use crate::messages::Tick;
use crate::scheduler::{Peers, SchedulerActor, Snapshots, ToAdmission, ToBlockManager, ToMonitor};
use crate::slo_monitor::SloMonitor;
use crate::step_log::StepLog;
use crate::swap_manager::SwapManager;
use crate::telemetry;
use crate::trace::{Record, SequenceTrace, Tracer};
use actix::{Addr, AsyncContext, Context, Recipient};
use std::rc::Rc;
use tiercel_config::EngineSettings;
use tiercel_device::{Clock, Device, DeviceInfo, DeviceProfile};
use tiercel_policy::admission::Gate;
use tiercel_policy::blocks::{BlockStore, StoreConfig};
use tiercel_policy::scheduler::{Reservations, Scheduler};
use tiercel_policy::slo::Targets;

/// Interval between two clock ticks of the scheduler, us. A busy scheduler may get a tick later. Clients that stall or
/// vanish are noticed at a tick.
const BEAT_US: u64 = 50_000;
/// Interval between two clock ticks of the SloMonitor, at which it evaluates its latency windows, us.
const SLO_BEAT_US: u64 = 1_000_000;
/// Approximate maximum time that one batch of block copies takes on the link between device and host, us.
const COPY_BATCH_US: f64 = 5_000.0;

/// Facts about an engine that do not change after its start: device, settings, first targets, clock.
pub(crate) struct Facts {
    pub(crate) info: DeviceInfo,
    /// Speeds that the device reports: measured when it was opened, or stated by the profile of a mock device.
    pub(crate) profile: DeviceProfile,
    /// Latency targets that are in effect when the engine starts.
    pub(crate) targets: Targets,
    pub(crate) settings: EngineSettings,
    pub(crate) clock: Clock,
}

/// Addresses of a running engine's actors, and the channel of the Scheduler's snapshots.
#[derive(Clone)]
pub(crate) struct Actors {
    pub(crate) admission: Addr<Admission>,
    pub(crate) scheduler: Addr<SchedulerActor>,
    pub(crate) block_manager: Addr<BlockManager>,
    pub(crate) swap: Addr<SwapManager>,
    pub(crate) executor: Addr<Executor>,
    pub(crate) monitor: Addr<SloMonitor>,
    pub(crate) snapshots: Snapshots,
}

/// How the actors of an engine are supervised, checked and recorded.
pub(crate) struct Supervision<'a> {
    /// Channel on which the death of an actor is announced.
    pub(crate) obituary: &'a Obituary,
    pub(crate) checks: Checks,
    pub(crate) recorder: Option<Rc<dyn Record>>,
    /// Log of the last steps' work and durations; only a server has one.
    pub(crate) steps: Option<StepLog>,
}

/// Mailboxes of the actors. The actors refer to each other in a cycle, so every mailbox is created before the first
/// actor.
struct Mailboxes {
    admission: Context<Admission>,
    scheduler: Context<SchedulerActor>,
    block_manager: Context<BlockManager>,
    swap: Context<SwapManager>,
    executor: Context<Executor>,
    monitor: Context<SloMonitor>,
}

impl Mailboxes {
    fn new() -> Mailboxes {
        Mailboxes {
            admission: Context::new(),
            scheduler: Context::new(),
            block_manager: Context::new(),
            swap: Context::new(),
            executor: Context::new(),
            monitor: Context::new(),
        }
    }

    fn scheduler_peers(&self) -> Peers {
        let admission = self.admission.address();
        let blocks = self.block_manager.address();
        let monitor = self.monitor.address();
        Peers {
            admission: ToAdmission {
                left: admission.clone().recipient(),
                capacity: admission.clone().recipient(),
                targets: admission.clone().recipient(),
                tier: admission.clone().recipient(),
                limits: admission.recipient(),
            },
            block_manager: ToBlockManager {
                reserve: blocks.clone().recipient(),
                commit: blocks.clone().recipient(),
                abort: blocks.clone().recipient(),
                completed: blocks.clone().recipient(),
                usage: blocks.recipient(),
            },
            executor: self.executor.address().recipient(),
            monitor: ToMonitor {
                observe: monitor.clone().recipient(),
                in_use: monitor.recipient(),
            },
            myself: self.scheduler.address().recipient(),
        }
    }

    fn block_peers(&self) -> BlockPeers {
        let scheduler = self.scheduler.address();
        BlockPeers {
            reserved: scheduler.clone().recipient(),
            copied: scheduler.recipient(),
            copies: self.swap.address().recipient(),
            in_use: self.monitor.address().recipient(),
        }
    }
}

/// Creates, connects and starts all actors of an engine on the current thread's event loop.
pub(crate) fn start(
    settings: EngineSettings,
    device: Device,
    clock: Clock,
    supervision: Supervision<'_>,
) -> Actors {
    let Device { info, profile, runner, copier, host_growth } = device;
    let Supervision { obituary, checks, recorder, steps } = supervision;
    telemetry::device(&info);
    let life = |name| Lifeline::new(name, obituary);
    let tracer = Tracer::new(recorder, clock.clone());
    let boxes = Mailboxes::new();
    let (peers, block_peers) = (boxes.scheduler_peers(), boxes.block_peers());
    let core = Scheduler::new(&settings, &info, profile);
    let targets = core.targets();
    telemetry::targets(&targets);
    let planned = info.host_blocks;
    let usable = host_growth.as_ref().map_or(planned, |growth| growth.usable_blocks());
    let store = BlockStore::new(store_config(&settings, &info, profile.link_bytes_per_s, usable));
    let reservations = Reservations::new(&settings.reservation, info.device_blocks);
    let block_manager =
        BlockManager::new(store, block_peers, checks, tracer.clone(), life("BlockManager"));
    let copied = boxes.block_manager.address().recipient();
    let swap = SwapManager::new(copier, copied, info.block_bytes, life("SwapManager"));
    let stepped = boxes.scheduler.address().recipient();
    let executor = Executor::new(runner, stepped, life("Executor"));
    let headroom = boxes.admission.address().recipient();
    let life_of_monitor = life("SloMonitor");
    let monitor =
        SloMonitor::new(&settings.slo, settings.pressure, clock.clone(), headroom, life_of_monitor);
    let limits = (settings.admission, settings.patience);
    let gate = Gate::new(limits, targets, (info, reservations));
    let enqueue = boxes.scheduler.address().recipient();
    let admission = Admission::new(gate, clock.clone(), enqueue, life("Admission"));
    let snapshots = Snapshots::default();
    let trace = (SequenceTrace::new(tracer), steps, snapshots.clone());
    let life_of_scheduler = life("Scheduler");
    let scheduler = SchedulerActor::new(
        core,
        settings.stream,
        clock.clone(),
        peers,
        checks,
        trace,
        life_of_scheduler,
    );
    let actors = Actors {
        admission: boxes.admission.run(admission),
        scheduler: boxes.scheduler.run(scheduler),
        block_manager: boxes.block_manager.run(block_manager),
        swap: boxes.swap.run(swap),
        executor: boxes.executor.run(executor),
        monitor: boxes.monitor.run(monitor),
        snapshots,
    };
    host_growth::start(host_growth, planned, actors.block_manager.clone().recipient());
    beat(&clock, BEAT_US, actors.scheduler.clone().recipient());
    beat(&clock, SLO_BEAT_US, actors.monitor.clone().recipient());
    actors
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

/// Returns the sizes of the block store, with a host pool of `host_blocks` blocks at first.
fn store_config(
    settings: &EngineSettings,
    info: &DeviceInfo,
    link_bytes_per_s: f64,
    host_blocks: u32,
) -> StoreConfig {
    let in_transit_bytes = settings.preemption.max_in_transit_mib << 20;
    let batch_bytes = link_bytes_per_s * COPY_BATCH_US / 1e6;
    let block_bytes = info.block_bytes.max(1);
    StoreConfig {
        block_size: info.block_size,
        device_blocks: info.device_blocks,
        host_blocks,
        max_copy_blocks_in_transit: (in_transit_bytes / block_bytes).clamp(1, 1 << 20) as u32,
        max_copy_blocks_per_batch: (batch_bytes / block_bytes as f64).clamp(1.0, 4096.0) as u32,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kit::small_device;

    #[test]
    fn copies_in_transit_and_in_a_batch_are_limited_by_bytes_and_by_link_time() {
        let mut settings = EngineSettings::default();
        settings.preemption.max_in_transit_mib = 3;
        let info = DeviceInfo { block_bytes: 1_000, ..small_device().0 };
        // 3 MiB are 3145728 bytes, so 3145 blocks. In 5 ms a link of 120 MB/s copies 600000 bytes, so 600 blocks.
        let config = store_config(&settings, &info, 120e6, 8);
        assert_eq!(config.max_copy_blocks_in_transit, 3_145);
        assert_eq!(config.max_copy_blocks_per_batch, 600);
        let slow = store_config(&settings, &DeviceInfo { block_bytes: 1 << 30, ..info }, 0.0, 8);
        assert_eq!((slow.max_copy_blocks_in_transit, slow.max_copy_blocks_per_batch), (1, 1));
    }
}
