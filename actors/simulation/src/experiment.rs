//! One workload on one device under one policy.

use crate::laboratory::{Laboratory, simulate};
use crate::outcome::Outcome;
use crate::traffic::{END_TOKEN, Traffic};
use tiercel_config::{EngineSettings, SettingsError};
use tiercel_device::{Clock, MockOptions, MockProfile, Timestamp};
use tiercel_workload::{Workload, seconds};

/// How often progress is reported, simulated us.
const PROGRESS_US: u64 = 5_000_000;

/// What to run.
#[derive(Debug, Clone)]
pub struct Experiment {
    /// The traffic; its seed is that of everything random in the run.
    pub workload: Workload,
    /// The device.
    pub profile: MockProfile,
    /// The engine, policy included.
    pub settings: EngineSettings,
    /// Spread of step times: sigma of a log-normal factor of mean 1; 0 for none.
    pub noise_sigma: f64,
}

/// Why an experiment could not be run, or is worth nothing.
#[derive(Debug, thiserror::Error)]
pub enum ExperimentError {
    /// The engine would not start with such settings.
    #[error(transparent)]
    Settings(#[from] SettingsError),
    /// Outputs are longer than the number of tokens there are, and a prompt's last token says how long.
    #[error(
        "outputs of {longest} tokens need a vocabulary larger than that; the profile has {vocab_size}"
    )]
    Vocabulary {
        /// The longest output.
        longest: u32,
        /// Tokens of the device.
        vocab_size: u32,
    },
    /// The engine died.
    #[error("the engine died at {at_s:.3} s: {cause}")]
    Died {
        /// Simulated time.
        at_s: f64,
        /// What it died of.
        cause: String,
    },
    /// The device found KV memory that did not hold what a step read, or a malformed step.
    #[error("the engine did something wrong {count} times; first: {first}")]
    Wrong {
        /// How often.
        count: u64,
        /// The first time.
        first: String,
    },
}

impl Experiment {
    /// Runs to the workload's end. `progress` is told the simulated seconds that have passed.
    ///
    /// # Errors
    /// [`ExperimentError`]: a run with any wrong step is not a result.
    pub fn run(&self, progress: impl Fn(f64) + 'static) -> Result<Outcome, ExperimentError> {
        self.check()?;
        simulate(async |clock| self.run_in(clock, progress).await)
    }

    fn check(&self) -> Result<(), ExperimentError> {
        self.engine_settings().check()?;
        let lengths = self.workload.classes.iter().filter_map(|class| class.output_tokens);
        let longest = lengths.map(|length| length.longest()).max().unwrap_or(0);
        let vocab_size = self.profile.vocab_size;
        if longest >= vocab_size {
            return Err(ExperimentError::Vocabulary { longest, vocab_size });
        }
        Ok(())
    }

    fn engine_settings(&self) -> EngineSettings {
        let mut settings = self.settings.clone();
        if let Some(most) = self.workload.simulation.max_num_seqs {
            settings.scheduler.max_num_seqs = most;
        }
        settings
    }

    fn device(&self, clock: Clock) -> MockOptions {
        let options = MockOptions::new(self.profile.clone(), clock);
        MockOptions {
            device_blocks: self.workload.simulation.device_blocks.unwrap_or(options.device_blocks),
            seed: self.workload.seed,
            noise_sigma: self.noise_sigma,
            end_token: Some(END_TOKEN),
            ..options
        }
    }

    async fn run_in(
        &self,
        clock: Clock,
        progress: impl Fn(f64) + 'static,
    ) -> Result<Outcome, ExperimentError> {
        let device = self.device(clock.clone());
        let log = device.log.clone();
        let engine = Laboratory { settings: self.engine_settings(), device }.start();
        let end = Timestamp(seconds(self.workload.duration_s + self.workload.drain_s));
        actix_rt::spawn(tell(clock.clone(), progress));
        let traffic = Traffic::new(engine.clone(), self.workload.clone());
        traffic.start();
        tokio::select! {
            biased;
            cause = engine.died() => {
                return Err(ExperimentError::Died { at_s: clock.now().0 as f64 / 1e6, cause });
            }
            () = clock.sleep_until(end) => {}
        }
        if let Some(first) = log.first().first() {
            let first = first.to_string();
            return Err(ExperimentError::Wrong { count: log.total(), first });
        }
        let status = engine.status().await.unwrap_or_default();
        Ok(Outcome::of(&self.workload, traffic.take(), &status.counters, end))
    }
}

async fn tell(clock: Clock, progress: impl Fn(f64)) {
    loop {
        clock.sleep_us(PROGRESS_US).await;
        progress(clock.now().0 as f64 / 1e6);
    }
}
