//! The compute side of the mock device: runs steps in order, each for its modelled time.

use super::faults::{Draws, MockFault, Purpose};
use super::host::NoiseSource;
use super::sequences::{SequenceState, Sequences};
use super::slices::{self, Work};
use super::{MockOptions, MockOracle, MockTimedFaultKind, Shared};
use crate::{
    MaskThreads, MaskWait, NotSampled, Sampled, SeqId, SeqSlice, StepBatch, StepDone, StepError,
    StepId, StepOutput, StepRunner, StepTiming, SubmitError, Timestamp, TokenLogprobs,
};
use std::cell::RefCell;
use std::collections::BTreeSet;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use tokio::sync::mpsc;

type Job = (StepBatch, Box<dyn FnOnce(StepDone) + Send>);

/// Compute side of the mock device; passes steps to the task that runs them.
pub(super) struct MockRunner {
    jobs: mpsc::Sender<Job>,
    in_flight: Arc<AtomicU32>,
    depth: u32,
}

impl MockRunner {
    /// Starts the mock device's task that runs steps, on the current thread.
    pub(super) fn start(options: MockOptions, shared: Rc<RefCell<Shared>>) -> MockRunner {
        let depth = options.profile.max_steps_in_flight.max(1);
        let (jobs, work) = mpsc::channel(depth as usize);
        let in_flight = Arc::new(AtomicU32::new(0));
        let engine = Engine {
            oracle: options.oracle(),
            noise: Draws::new(options.seed, Purpose::StepNoise),
            own_noise: NoiseSource::new(
                options.profile.noise,
                Draws::new(options.seed, Purpose::ProfileNoiseAndCopiesOut),
            ),
            faults: Draws::new(options.seed, Purpose::StepFaults),
            late_masks: Draws::new(options.seed, Purpose::LateMasks),
            sequences: Sequences::default(),
            masks: MaskThreads::default(),
            failed: None,
            options,
            shared,
        };
        tokio::task::spawn_local(run(engine, work, Arc::clone(&in_flight)));
        MockRunner { jobs, in_flight, depth }
    }
}

impl StepRunner for MockRunner {
    fn submit(
        &mut self,
        batch: StepBatch,
        done: Box<dyn FnOnce(StepDone) + Send>,
    ) -> Result<(), SubmitError> {
        if self.in_flight.load(Ordering::Acquire) >= self.depth {
            return Err(SubmitError::Full);
        }
        self.in_flight.fetch_add(1, Ordering::AcqRel);
        self.jobs.try_send((batch, done)).map_err(|refused| {
            self.in_flight.fetch_sub(1, Ordering::AcqRel);
            match refused {
                mpsc::error::TrySendError::Full(_) => SubmitError::Full,
                mpsc::error::TrySendError::Closed(_) => SubmitError::Stopped,
            }
        })
    }
}

async fn run(mut engine: Engine, mut work: mpsc::Receiver<Job>, in_flight: Arc<AtomicU32>) {
    loop {
        let waits = work.is_empty();
        let Some((batch, done)) = work.recv().await else { return };
        engine.shared.borrow_mut().running = Some(batch.id);
        let result = engine.step(&batch, waits).await;
        {
            let mut shared = engine.shared.borrow_mut();
            shared.running = None;
            shared.step_ended.notify_waiters();
        }
        engine.remember(&batch, result.is_err(), work.len());
        in_flight.fetch_sub(1, Ordering::AcqRel);
        done(StepDone { id: batch.id, result });
    }
}

struct Engine {
    options: MockOptions,
    shared: Rc<RefCell<Shared>>,
    oracle: MockOracle,
    noise: Draws,
    /// Source of the random spread of step times that the device's profile states.
    own_noise: NoiseSource,
    faults: Draws,
    late_masks: Draws,
    sequences: Sequences,
    /// Threads that compute the masks of constrained sequences while a step runs.
    masks: MaskThreads,
    /// The last step that failed, as long as steps are in flight that had been submitted when it failed.
    failed: Option<Failed>,
}

/// A step that failed while later steps were in flight. In those later steps, slices that continue a sequence of the
/// failed step compute from garbage, which is no mistake of the engine.
struct Failed {
    members: BTreeSet<SeqId>,
    /// Number of steps that were in flight behind the failed step and have not ended.
    followers: usize,
}

impl Engine {
    /// Runs a step on the mock device. `waited`: the device was idle when the step was submitted, so the host's time
    /// before the step counts too.
    async fn step(&mut self, batch: &StepBatch, waited: bool) -> Result<StepOutput, StepError> {
        let now = self.options.clock.now();
        self.shared.borrow_mut().timed_faults.begin_step(batch.id);
        self.lose_device_at(batch.id, now);
        if let Some(why) = &self.shared.borrow().lost {
            return Err(StepError::DeviceLost(why.clone()));
        }
        for seq in &batch.ends {
            if let Some(state) = self.sequences.remove(seq) {
                self.shared.borrow_mut().memory.forget(&state.table[..state.relies_on]);
            }
        }
        for start in &batch.starts {
            let MockOptions { block_size, end_token, script, .. } = &self.options;
            let outputs = (*end_token, script.as_deref());
            let state = SequenceState::start(start, outputs, *block_size as usize, &self.masks);
            self.sequences.insert(start.seq, state);
        }
        let sound = self.sound_part(batch);
        let begun = self.begin(&sound);
        if begun.is_ok() {
            slices::spoil(batch, &self.sequences, &mut self.shared.borrow_mut().memory);
        }
        let (host_us, forward_us) = self.durations_us(batch);
        let injected = self.faults.chance(self.options.faults.step_fails)
            | self.shared.borrow_mut().timed_faults.hits(MockTimedFaultKind::FailedStep, now);
        let wait_us = if waited { host_us } else { 0 };
        self.options.clock.sleep_us(wait_us + forward_us).await;
        let copies_before = begun.map_err(|fault| self.found(fault))?;
        self.check_again(&sound, copies_before).map_err(|fault| self.found(fault))?;
        if injected {
            return Err(StepError::Failed("injected".to_owned()));
        }
        slices::write(&sound, &self.sequences, &mut self.shared.borrow_mut().memory);
        let host_us = self.options.host_us + host_us;
        let timing = StepTiming { forward_us, sampling_us: 0, host_us };
        Ok(StepOutput { sampled: self.sample(batch), timing })
    }

    fn lose_device_at(&mut self, step: StepId, now: Timestamp) {
        let mut shared = self.shared.borrow_mut();
        if self.options.faults.lost_at_step.is_some_and(|at| step >= at)
            || shared.timed_faults.hits(MockTimedFaultKind::LostDevice, now)
        {
            shared.lost.get_or_insert_with(|| format!("injected at {step}"));
        }
    }

    /// Returns a step without the slices that continue a failed step, and without slices whose input token was not
    /// drawn because its mask was late. The KV that these slices should write is garbage, and the token that they
    /// sample is invalid (a real device leaves out slices of the second kind). The engine is not to blame: it sent this
    /// step before the step in front had ended.
    fn sound_part(&self, batch: &StepBatch) -> StepBatch {
        let is_sound = |slice: &&SeqSlice| !self.is_in_vain(slice);
        let slices = batch.slices.iter().filter(is_sound).cloned().collect();
        StepBatch { id: batch.id, starts: Vec::new(), ends: Vec::new(), slices }
    }

    fn is_in_vain(&self, slice: &SeqSlice) -> bool {
        let failed = self.failed.as_ref();
        let undrawn = |state: &SequenceState| state.lacks(&slice.input);
        failed.is_some_and(|failed| failed.members.contains(&slice.seq))
            || self.sequences.get(&slice.seq).is_some_and(undrawn)
    }

    /// Checks the slices of a step and the KV that they read. Returns the number of writes to the device pool by copies
    /// so far, so that the end of the step can see whether there were more.
    fn begin(&mut self, batch: &StepBatch) -> Result<u64, MockFault> {
        for stranger in slices::unknown(batch, &self.sequences) {
            self.options.log.push(stranger);
        }
        let memory = &mut self.shared.borrow_mut().memory;
        slices::check_shape(batch, &mut self.sequences, memory, self.options.max_model_len)?;
        slices::check_reads(batch, &mut self.sequences, memory)?;
        Ok(memory.copies_in)
    }

    /// Checks at the end of a step that the KV that it read has not changed since its beginning. With a fingerprint per
    /// token slot, this also finds slices that read what another slice of the step writes. With a fingerprint per
    /// block, blocks are checked only if a copy has written to the device pool meanwhile.
    fn check_again(&mut self, batch: &StepBatch, copies_before: u64) -> Result<(), MockFault> {
        let memory = &mut self.shared.borrow_mut().memory;
        let per_slot = self.options.fingerprints == super::Fingerprints::PerSlot;
        if per_slot || memory.copies_in != copies_before {
            slices::check_reads(batch, &mut self.sequences, memory)?;
        }
        Ok(())
    }

    fn found(&self, fault: MockFault) -> StepError {
        let error = StepError::Failed(fault.to_string());
        self.options.log.push(fault);
        error
    }

    /// Returns two durations of a step, us: the time that the host takes before the device can begin, and the time of
    /// the device itself. The device waits for the host only if it was idle.
    fn durations_us(&mut self, batch: &StepBatch) -> (u64, u64) {
        let faults = &self.options.faults;
        let slow = if self.faults.chance(faults.step_slow) { faults.slow_factor } else { 1.0 };
        let noise = self.noise.noise(self.options.noise_sigma);
        let work = Work::of(batch, &self.sequences);
        let now = self.options.clock.now();
        let base_factor = self.options.drift.as_ref().map_or(1.0, |drift| drift.factor(now));
        let profile = &self.options.profile;
        let factor = noise * slow * profile.pace_at(now) * self.own_noise.factor(now);
        let host_us = profile.host.before_step_us(work.decode_tokens);
        let device_us = step_us(profile, base_factor, work) * factor;
        let slow_us = self.shared.borrow_mut().timed_faults.slow_us(now);
        (host_us.round() as u64, device_us.round() as u64 + slow_us)
    }

    fn sample(&mut self, batch: &StepBatch) -> Vec<(SeqId, Result<Sampled, NotSampled>)> {
        let wait = MaskWait::from_now(&self.options.clock, self.options.mask_wait_us);
        let wanted = batch.slices.iter().filter(|slice| slice.sample.is_some());
        wanted.map(|slice| (slice.seq, self.sample_one(batch.id, slice, &wait))).collect()
    }

    fn sample_one(
        &mut self,
        step: StepId,
        slice: &SeqSlice,
        wait: &MaskWait,
    ) -> Result<Sampled, NotSampled> {
        if self.is_in_vain(slice) {
            return Ok(Sampled { token: self.options.vocab_size, logprobs: None });
        }
        let late = self.late_masks.chance(self.options.faults.mask_late);
        let unknown = NotSampled::UnknownSequence(slice.seq);
        let state = self.sequences.get_mut(&slice.seq).ok_or(unknown)?;
        if late {
            return Err(state.postpone_draw(step));
        }
        let end = slice.first_pos as usize + slice.input.len();
        let token = state.sample(end, step, &self.oracle, wait)?;
        // The mock device samples each token with probability 1, so the log-probability is 0.
        let logprobs = state.logprobs.map(|most| {
            let top = if most > 0 { vec![(token, 0.0)] } else { Vec::new() };
            Box::new(TokenLogprobs { chosen: 0.0, top })
        });
        Ok(Sampled { token, logprobs })
    }

    /// Takes note that a step has ended while `queued` other steps are in flight. If the step failed, it is remembered
    /// until those other steps have ended, because their results from the same sequences are garbage.
    fn remember(&mut self, batch: &StepBatch, failed: bool, queued: usize) {
        if let Some(before) = &mut self.failed {
            before.followers -= 1;
        }
        self.failed.take_if(|before| before.followers == 0);
        if failed && queued > 0 {
            let members = batch.slices.iter().map(|slice| slice.seq).collect();
            self.failed = Some(Failed { members, followers: queued });
        }
    }
}

/// Returns the modelled duration of a step on the device, with drift (`base_factor`) but without noise, us.
fn step_us(profile: &super::MockProfile, base_factor: f64, work: Work) -> f64 {
    let prefill_step_us = if work.prefill_tokens > 0 { profile.prefill_step_us } else { 0.0 };
    profile.step_base_us * base_factor
        + profile.decode_token_us * work.decode_tokens as f64
        + profile.prefill_token_us * work.prefill_tokens as f64
        + profile.kv_token_us * work.kv_tokens as f64
        + profile.prefill_context_us * work.prefill_context as f64
        + prefill_step_us
}
