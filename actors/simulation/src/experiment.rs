//! Simulation of one workload on one simulated device under one policy.

use crate::laboratory::{Laboratory, simulate};
use crate::outcome::{Outcome, Totals};
use crate::replay::END_TOKEN;
use crate::sizes::Sizes;
use crate::trace::{Gate, Section};
use crate::traffic::{Seen, Traffic};
use std::rc::Rc;
use tiercel_actors::trace::Record;
use tiercel_config::{EngineSettings, SettingsError, SloSettings, TierSlo};
use tiercel_device::{Clock, MockDrift, MockFaults, MockOptions, MockProfile, Tier, Timestamp};
use tiercel_workload::{MAX_REQUESTS, Workload, seconds};

/// Interval at which a simulation run reports its progress, us of simulated time.
const PROGRESS_US: u64 = 5_000_000;

/// Description of a simulation run: traffic, device, engine settings and faults.
#[derive(Debug, Clone)]
pub struct Experiment {
    /// Traffic of the run. The workload's seed determines everything that is random in the run.
    pub workload: Workload,
    /// Profile (speeds and sizes) of the simulated device.
    pub profile: MockProfile,
    /// Engine settings, policy included. Latency targets that the workload states replace those of the settings.
    pub settings: EngineSettings,
    /// Random noise of step times: sigma of the log-normal factor with mean 1 that multiplies each step time; 0 for no
    /// noise.
    pub noise_sigma: f64,
    /// Times at which the device is slower than its profile says; `None` for never.
    pub drift: Option<MockDrift>,
    /// Faults that the simulated device injects (failed or slow steps and copies).
    pub faults: MockFaults,
    /// Share, 0 to 1, of the refused and turned-away requests that their clients send once again after the retry time.
    pub returning: f64,
}

/// Reason why a simulation could not be run or has no valid result.
#[derive(Debug, thiserror::Error)]
pub enum ExperimentError {
    /// The engine refused to start with the settings.
    #[error(transparent)]
    Settings(#[from] SettingsError),
    /// The simulated device's vocabulary is too small for the longest output. The last token of a prompt tells the
    /// device the output's length, so that length must be a valid token.
    #[error(
        "the mock device's vocabulary of {vocab_size} tokens is too small for outputs of {longest} tokens; raise vocab_size in its profile"
    )]
    Vocabulary {
        /// Longest output of the workload, tokens.
        longest: u32,
        /// Size of the device's vocabulary, tokens.
        vocab_size: u32,
    },
    /// The workload has more requests than one simulation run may send.
    #[error(
        "more than {MAX_REQUESTS} requests were due; shorten the run (duration_s) or lower the request rate"
    )]
    TooMany,
    /// The engine died during the run.
    #[error("the engine died at {at_s:.3} s: {cause}")]
    Died {
        /// Simulated time of the engine's death, s.
        at_s: f64,
        /// Cause of the engine's death.
        cause: String,
    },
    /// The simulated device detected errors of the engine: a step read KV memory with wrong content, or a step was
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
}

impl Experiment {
    /// Runs the simulation to the workload's end. `progress` is called every 5 s of simulated time with the simulated
    /// seconds that have passed.
    ///
    /// # Errors
    /// [`ExperimentError`]; a run in which the device detected any wrong step gives no result.
    pub fn run(&self, progress: impl Fn(f64) + 'static) -> Result<Outcome, ExperimentError> {
        self.run_recorded(progress, &[])
    }

    /// Runs the simulation like [`Experiment::run`] and passes every event of the engine, up to the workload's end, to
    /// the recorders.
    ///
    /// # Errors
    /// The same errors as [`Experiment::run`].
    pub fn run_recorded(
        &self,
        progress: impl Fn(f64) + 'static,
        recorders: &[Rc<dyn Record>],
    ) -> Result<Outcome, ExperimentError> {
        let (seen, totals) = self.observe(progress, recorders)?;
        Ok(Outcome::of(&self.workload, &seen, &totals, self.end()))
    }

    /// Returns the header that describes this simulation run in a trace file (a file of the run's events).
    pub fn section(&self, policy: &str) -> Section {
        let sizes = self.sizes();
        Section {
            policy: policy.to_owned(),
            seed: self.workload.seed,
            workload: self.workload.name.clone(),
            profile: self.profile.name.clone(),
            block_size: sizes.block_size,
            device_blocks: sizes.device_blocks,
            host_blocks: sizes.host_blocks,
            end_us: self.end().0,
        }
    }

    /// Returns the sizes that the simulated engine runs with: of steps, queues and block pools.
    pub fn sizes(&self) -> Sizes {
        Sizes::of(&self.settings, &self.workload.simulation, &self.profile)
    }

    /// Returns the simulated time at which the run ends.
    pub(crate) fn end(&self) -> Timestamp {
        Timestamp(seconds(self.workload.duration_s + self.workload.drain_s))
    }

    pub(crate) fn observe(
        &self,
        progress: impl Fn(f64) + 'static,
        recorders: &[Rc<dyn Record>],
    ) -> Result<(Seen, Totals), ExperimentError> {
        self.check()?;
        simulate(async |clock| self.run_in(clock, progress, recorders).await)
    }

    fn check(&self) -> Result<(), ExperimentError> {
        self.engine_settings().check()?;
        let longest = self.workload.longest_output();
        let vocab_size = self.profile.vocab_size;
        if longest >= vocab_size {
            return Err(ExperimentError::Vocabulary { longest, vocab_size });
        }
        Ok(())
    }

    pub(crate) fn engine_settings(&self) -> EngineSettings {
        let mut settings = self.settings.clone();
        let SloSettings { premium, standard, background, .. } = &mut settings.slo;
        for class in &self.workload.classes {
            let Some(targets) = class.targets else {
                continue;
            };
            let promised = match class.tier {
                Tier::System => continue,
                Tier::Premium => &mut *premium,
                Tier::Standard => &mut *standard,
                Tier::Background => &mut *background,
            };
            *promised = TierSlo {
                ttft_ms: targets.ttft_ms.into(),
                tpot_ms: targets.tpot_ms.into(),
                e2e_ms: targets.e2e_ms.into(),
                ttft_ms_per_token: targets.ttft_ms_per_token,
                ttft_prompt_tokens: targets.ttft_prompt_tokens,
                ttft_ms_per_token_fewer: targets.ttft_ms_per_token_fewer,
                ..*promised
            };
        }
        settings
    }

    pub(crate) fn device(&self, clock: Clock) -> MockOptions {
        let options = MockOptions::new(self.profile.clone(), clock);
        let sizes = self.sizes();
        MockOptions {
            device_blocks: sizes.device_blocks,
            host_blocks: sizes.host_blocks,
            seed: self.workload.seed,
            noise_sigma: self.noise_sigma,
            drift: self.drift.clone(),
            faults: self.faults.clone(),
            end_token: Some(END_TOKEN),
            ..options
        }
    }

    async fn run_in(
        &self,
        clock: Clock,
        progress: impl Fn(f64) + 'static,
        recorders: &[Rc<dyn Record>],
    ) -> Result<(Seen, Totals), ExperimentError> {
        let device = self.device(clock.clone());
        let log = device.log.clone();
        let gate = Gate::open(recorders);
        let recorder = gate.clone().map(|gate| gate as Rc<dyn Record>);
        let engine =
            Laboratory { settings: self.engine_settings(), device }.start_recorded(recorder);
        actix_rt::spawn(tell(clock.clone(), progress));
        let host = self.profile.host;
        let traffic = Traffic::new(engine.clone(), self.workload.clone(), self.returning, host);
        traffic.start();
        tokio::select! {
            biased;
            cause = engine.died() => {
                return Err(ExperimentError::Died { at_s: clock.now().0 as f64 / 1e6, cause });
            }
            () = clock.sleep_until(self.end()) => {}
        }
        if let Some(first) = log.first().first() {
            let first = first.to_string();
            return Err(ExperimentError::Wrong { count: log.total(), first });
        }
        if traffic.too_many() {
            return Err(ExperimentError::TooMany);
        }
        let status = engine.status().await.unwrap_or_default();
        let totals = Totals {
            counters: status.counters,
            prediction_error: status.prediction_error,
            cost_error: status.cost_error,
            block_size: engine.info().block_size,
            max_num_seqs: self.settings.scheduler.max_num_seqs,
        };
        let seen = traffic.take();
        if let Some(gate) = gate {
            gate.close();
        }
        engine.drain(0).await;
        Ok((seen, totals))
    }
}

async fn tell(clock: Clock, progress: impl Fn(f64)) {
    loop {
        clock.sleep_us(PROGRESS_US).await;
        progress(clock.now().0 as f64 / 1e6);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::Ending;
    use std::path::Path;
    use tiercel_config::Policy;
    use tiercel_workload::{Arrival, Planned, arrivals};

    fn experiment(file: &str, duration_s: f64) -> Experiment {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../benches/workloads");
        let shipped = Workload::load(&folder.join(file)).expect("a shipped workload");
        let workload = Workload { duration_s, warmup_s: 0.0, cooldown_s: 0.0, ..shipped };
        let mut settings = EngineSettings::default();
        settings.scheduler.max_num_batched_tokens = 512;
        Experiment {
            workload,
            profile: MockProfile::named("llama70b-tp8-a100").expect("built in"),
            settings,
            noise_sigma: 0.1,
            drift: None,
            faults: MockFaults::default(),
            returning: 0.0,
        }
    }

    #[test]
    fn every_planned_request_is_sent_when_due_and_ends_where_it_should() {
        let mut experiment = experiment("prefix.toml", 30.0);
        experiment.settings.shedding = Policy::Fcfs.preset().shedding;
        let (seen, totals) = experiment.observe(|_| {}, &[]).expect("a result");
        let counters = totals.counters;
        let mut planned: Vec<Planned> = (0..experiment.workload.classes.len())
            .flat_map(|class| arrivals(&experiment.workload, class))
            .collect();
        planned.sort_by_key(|planned| planned.at_us);
        assert!(planned.len() > 100);
        assert!(seen.records.iter().map(|record| &record.planned).eq(&planned));
        let mut completed = 0;
        for record in &seen.records {
            assert_eq!(record.due, Timestamp(record.planned.at_us));
            match record.ending {
                Ending::Completed => assert_eq!(record.tokens, record.planned.output_tokens),
                Ending::Unfinished => assert!(record.tokens < record.planned.output_tokens),
                ending => panic!("{ending:?}: {record:?}"),
            }
            completed += u32::from(record.ending == Ending::Completed);
        }
        assert!(completed > 50, "{completed}");
        assert!(counters.prefix_hit_tokens > 10_000, "{counters:?}");
    }

    #[test]
    fn blocks_of_one_name_are_found_in_the_prefix_cache_whatever_the_tier() {
        let folder = tempfile::tempdir().expect("a folder");
        // First file of recorded traffic: eight turns of one conversation, 5 s apart, whose prompts share two blocks.
        // Second file: prompts of the same lengths that share no blocks.
        let turn = |at_ms: u32, ids: [u32; 3]| {
            format!(
                "{{\"timestamp\":{at_ms},\"input_length\":1536,\"output_length\":20,\"hash_ids\":{ids:?}}}\n"
            )
        };
        let named = |ids: &dyn Fn(u32) -> [u32; 3]| -> String {
            (0..8).map(|n| turn(n * 5000, ids(n))).collect()
        };
        let traces = [named(&|n| [1, 2, 10 + n]), named(&|n| [3 * n, 3 * n + 1, 3 * n + 2])];
        let classes = ["premium", "background"].map(|tier| {
            format!("[[class]]\ntier = '{tier}'\narrival = {{ share = 0.5 }}\nignore_eos = true\n")
        });
        let top = "name = 't'\nseed = 2\nduration_s = 50\ntrace = { file = 't.jsonl' }\n";
        let path = folder.path().join("w.toml");
        std::fs::write(&path, top.to_owned() + &classes.concat()).expect("a file");
        let hits = traces.map(|trace| {
            std::fs::write(folder.path().join("t.jsonl"), trace).expect("a file");
            let mut experiment = experiment("prefix.toml", 50.0);
            experiment.workload = Workload::load(&path).expect("a workload");
            let (seen, totals) = experiment.observe(|_| {}, &[]).expect("a result");
            let sent = |class| seen.records.iter().filter(|r| r.planned.class == class).count();
            assert!(sent(0) > 0 && sent(1) > 0 && sent(0) + sent(1) == 8, "both tiers have some");
            assert!(seen.records.iter().all(|record| record.ending == Ending::Completed));
            totals.counters.prefix_hit_tokens
        });
        // With the shared prompts, seven of the eight turns find two blocks of 512 tokens in the prefix cache; without
        // them, none does.
        assert_eq!(hits, [7 * 1024, 0]);
    }

    #[test]
    fn closed_users_send_their_next_request_when_the_last_one_ended() {
        let mut experiment = experiment("w4-chunking.toml", 40.0);
        let Arrival::Closed(closed) = &mut experiment.workload.classes[0].arrival else {
            panic!("w4 is a closed loop");
        };
        closed.streams = 3;
        let (seen, _) = experiment.observe(|_| {}, &[]).expect("a result");
        for stream in 0..3 {
            let own: Vec<_> =
                seen.records.iter().filter(|record| record.planned.stream == stream).collect();
            assert!(own.len() > 1);
            assert!(own.windows(2).all(|pair| pair[0].last == pair[1].due));
        }
    }

    #[test]
    fn a_seed_gives_the_same_result_and_another_seed_another() {
        let mut experiment = experiment("w2-memory-tight.toml", 20.0);
        experiment.settings.use_policy(Policy::PriorityPreempt);
        experiment.workload.simulation.device_blocks = Some(700);
        let first = experiment.run(|_| {}).expect("a result");
        assert!(first.preemptions_per_min > 0.0, "memory was not short");
        assert_eq!(experiment.run(|_| {}).expect("a result"), first);
        experiment.workload.seed += 1;
        assert_ne!(experiment.run(|_| {}).expect("a result"), first);
    }

    #[test]
    fn a_device_that_drifts_is_slower_every_other_minute_and_one_with_faults_fails_steps() {
        // The workload of 30 s lies within the first slow minute of the drifting device, so every step is slower.
        let mut experiment = experiment("premium-unloaded.toml", 30.0);
        experiment.noise_sigma = 0.0;
        let tpot_ms = |experiment: &Experiment| {
            let outcome = experiment.run(|_| {}).expect("a result");
            outcome.total.tpot_ms.expect("samples").p50
        };
        let steady = tpot_ms(&experiment);
        experiment.drift = Some(MockDrift::default());
        let drifting = tpot_ms(&experiment);
        let base_ms = experiment.profile.step_base_us / 1000.0;
        assert!((drifting - steady - 0.2 * base_ms).abs() < 0.1 * base_ms, "{steady} {drifting}");
        experiment.drift = None;
        experiment.faults.step_fails = 0.05;
        let (_, totals) =
            experiment.observe(|_| {}, &[]).expect("failed steps are no fault of the engine");
        assert!(totals.counters.failed_steps > 0, "{totals:?}");
    }

    #[test]
    fn a_device_that_is_lost_is_the_end_of_an_experiment() {
        let mut experiment = experiment("premium-unloaded.toml", 30.0);
        experiment.faults.lost_at_step = Some(tiercel_device::StepId(10));
        let error = experiment.run(|_| {}).expect_err("the device is lost").to_string();
        assert!(error.contains("device lost"), "{error}");
    }

    #[test]
    fn what_cannot_be_simulated_is_refused() {
        let mut experiment = experiment("w1-mixed.toml", 1.0);
        experiment.profile.vocab_size = 1000;
        let error = experiment.run(|_| {}).expect_err("outputs of up to 1536 tokens").to_string();
        assert!(error.contains("1536") && error.contains("1000"), "{error}");
        let mut recorded = self::experiment("static-four.toml", 1.0);
        recorded.profile.vocab_size = 400;
        let error = recorded.run(|_| {}).expect_err("an output of 500 tokens").to_string();
        assert!(error.contains("500") && error.contains("400"), "{error}");
    }
}
