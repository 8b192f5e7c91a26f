//! Starts an engine: creates its actors on a thread and returns a handle.

use crate::checks::Checks;
use crate::handle::EngineHandle;
use crate::lifeline::Obituary;
use crate::step_log::StepLog;
use crate::telemetry;
use crate::trace::Record;
use crate::wiring::{self, Actors, Facts, Supervision};
use actix::Arbiter;
use std::rc::Rc;
use tiercel_config::{EngineSettings, SchedulerSettings};
use tiercel_device::{Clock, Device};
use tiercel_policy::slo::{ServerTimes, Targets, Unreachable};
use tokio::sync::{oneshot, watch};

/// Engine that is about to be started: settings, device and clock.
pub struct Engine {
    /// Settings of the engine, already validated.
    pub settings: EngineSettings,
    /// Device (GPU, CPU or mock) that computes the engine's steps.
    pub device: Device,
    /// Clock that gives the engine its time.
    pub clock: Clock,
}

impl Engine {
    /// Starts all actors of the engine on the current thread's event loop, as the simulator and the tests do.
    pub fn start_here(self) -> EngineHandle {
        self.start_with(Checks::InDebugBuilds, None)
    }

    /// Starts all actors like [`Engine::start_here`], and passes every event of the engine to `recorder`, if there is
    /// one.
    pub fn start_recorded_here(self, recorder: Option<Rc<dyn Record>>) -> EngineHandle {
        self.start_with(Checks::InDebugBuilds, recorder)
    }

    /// Starts all actors like [`Engine::start_here`], but they check all their invariants after every event, also in a
    /// release build.
    pub fn start_here_checked(self) -> EngineHandle {
        self.start_with(Checks::Always, None)
    }

    fn start_with(self, checks: Checks, recorder: Option<Rc<dyn Record>>) -> EngineHandle {
        let obituary = watch::Sender::new(None);
        let facts = self.facts();
        let actors = self.spawn(&obituary, checks, recorder, None);
        EngineHandle::new(actors, facts, obituary)
    }

    /// Starts all actors of the engine on `arbiter` (a thread with an event loop), the control thread of a server.
    ///
    /// # Errors
    /// [`EngineStartError`] if the arbiter has stopped.
    pub async fn start_on(self, arbiter: &Arbiter) -> Result<EngineHandle, EngineStartError> {
        let obituary = watch::Sender::new(None);
        let facts = self.facts();
        let (made, actors) = oneshot::channel();
        let deaths = obituary.clone();
        arbiter.spawn_fn(move || {
            // Ignore that the caller may no longer wait for the actors: they then run unused until the arbiter stops,
            // because they hold each other's addresses.
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

    fn spawn(
        self,
        obituary: &Obituary,
        checks: Checks,
        recorder: Option<Rc<dyn Record>>,
        steps: Option<StepLog>,
    ) -> Actors {
        let (_, unreachable) = self.targets();
        unreachable.iter().for_each(telemetry::unreachable);
        let supervision = Supervision { obituary, checks, recorder, steps };
        wiring::start(self.settings, self.device, self.clock, supervision)
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
}

/// Error of starting an engine: the control thread has stopped.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the control thread stopped before the engine could start")]
pub struct EngineStartError;
