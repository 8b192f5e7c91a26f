//! Runs the engine's steps: checks a batch, runs the forward pass and samples.
//!
//! | file | what it does |
//! |---|---|
//! | `plan.rs` | from a batch to rows, with every check |
//! | `sequences.rs` | sampler state by sequence |
//! | `sample.rs` | sampling rows, on the device or in parallel on the host |
//! | `error.rs` | errors for batches that cannot be run |

mod error;
mod plan;
mod sample;
mod sequences;

#[cfg(test)]
mod tests;

use crate::forward::Decoder;
use crate::sampling::Sampler;
use plan::{Plan, PlanLimits};
use sample::{Awaited, Job};
use sequences::Sequences;
use std::collections::VecDeque;
use tiercel_device::{
    Clock, MaskWait, QueuedRunner, SeqId, StepBatch, StepError, StepId, StepOutput, StepTiming,
    Timestamp,
};
use tiercel_gpu::Ops;

/// Most time, us, that a step on a device that draws tokens waits for masks because the last step was long: the step
/// waits for the bound, or for half of the last step's time but at most this value, whichever is longer. The last step
/// may have been much longer than the step that waits.
const WAIT_MEANWHILE_US: u64 = 10_000;

/// Limits of a runner of steps, beside the largest batch and longest sequence of its decoder.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RunnerLimits {
    /// Tokens per KV block.
    pub block_size: usize,
    /// Number of KV blocks in the device pool.
    pub device_blocks: u32,
    /// Maximum number of sequences, running or preempted, that have sampler state at once.
    pub max_sequences: usize,
}

/// Runner of the engine's steps: a decoder and the sampler state of its sequences.
pub struct ModelRunner<O: Ops> {
    ops: O,
    decoder: Decoder<O>,
    plan: Plan,
    sequences: Sequences,
    /// Steps in flight (begun on the device, results not taken yet), oldest first.
    under_way: VecDeque<Begun>,
    /// The open step, which is newer than the steps in `under_way`: the device has its forward pass, but not its draws,
    /// because their masks depend on tokens of the step before.
    open: Option<Begun>,
    /// Time at which the runner got the results of the latest completed step, on the host's clock.
    last_end: Timestamp,
    clock: Clock,
    /// Longest time that a step waits for masks, us; `None`: as long as it takes.
    mask_wait_us: Option<u64>,
    /// Time that the last step took, us.
    last_step_us: u64,
}

/// A step in flight: begun on the device, results not taken yet.
struct Begun {
    step: StepId,
    begins: Timestamp,
    /// Output tokens that this step samples, in the order of its slices: each a result or a fault that the host already
    /// has, or a row from which the device still draws.
    awaited: Vec<(SeqId, Awaited)>,
    host_us: u64,
    /// Time that the host spent in the calls for sampling of the step, us. If the host samples for a GPU, this time
    /// includes waiting for the logits.
    sampling_us: u64,
}

impl<O: Ops> ModelRunner<O> {
    /// Creates a runner of steps that has no sequences yet.
    pub fn new(ops: O, decoder: Decoder<O>, limits: RunnerLimits) -> ModelRunner<O> {
        let vocab = decoder.config().vocab_size;
        let plan = Plan::new(PlanLimits {
            decoder: *decoder.limits(),
            vocab,
            block_size: limits.block_size,
            device_blocks: limits.device_blocks,
        });
        let sequences = Sequences::new(limits.max_sequences, vocab);
        ModelRunner {
            ops,
            decoder,
            plan,
            sequences,
            under_way: VecDeque::with_capacity(O::STEPS),
            open: None,
            last_end: Timestamp(0),
            clock: Clock::wall(),
            mask_wait_us: None,
            last_step_us: 0,
        }
    }

    /// Bounds the time that a step waits for masks by `us` microseconds. Without a bound, a step waits until all its
    /// masks are ready. If the device draws tokens, the bound is half of the last step's time (at most 10 ms) where
    /// that is longer, because the forward pass runs meanwhile. A late mask gives
    /// [`tiercel_device::NotSampled::MaskLate`].
    pub fn bound_mask_wait(&mut self, us: u64) {
        self.mask_wait_us = Some(us);
    }

    /// Returns the number of sequences that have sampler state.
    pub fn live_sequences(&self) -> usize {
        self.sequences.len()
    }
}

impl<O: Ops + 'static> ModelRunner<O> {
    /// Pads a pure decode step whose tokens the device draws, if it becomes a CUDA graph then. With `masked`, the
    /// padding does not make the step so large that its logits are computed in parts.
    fn pad(&mut self, masked: bool) {
        let Some(rows) = self.plan.single_tokens() else { return };
        let limits = self.decoder.limits();
        let most = limits.max_batched_tokens.min(limits.max_sampled_rows);
        let most = if masked { most.min(self.decoder.logit_rows()) } else { most };
        if let Some((rows, block)) = self.ops.pad_decode(rows, most, masked) {
            self.plan.fill(rows, block);
        }
    }

    /// Computes the logits of the step whose forward pass was called last, and samples its tokens on the host or lets
    /// the device draw them. With `masked`, the device begins with the step before the host waits for masks.
    fn sample(&mut self, step: &mut Begun, jobs: &mut [Job], masked: bool) {
        let vocab = self.decoder.config().vocab_size;
        let (wait_us, mut wait) = (self.mask_wait_us(), None);
        for rows in self.decoder.logit_chunks() {
            let logits = self.decoder.logits(&mut self.ops, rows.clone());
            if masked {
                self.ops.flush();
            }
            let since = self.clock.now();
            let wait = wait.get_or_insert_with(|| MaskWait::from_now(&self.clock, wait_us));
            sample::sample_rows(&mut self.ops, logits, step.step, (rows, vocab), jobs, wait);
            step.sampling_us += self.clock.now().since_us(since);
        }
    }

    /// Returns how long the next draws wait for masks, us; `None`: as long as it takes.
    fn mask_wait_us(&self) -> Option<u64> {
        let meanwhile_us =
            if O::DRAWS { (self.last_step_us / 2).min(WAIT_MEANWHILE_US) } else { 0 };
        self.mask_wait_us.map(|us| us.max(meanwhile_us))
    }

    fn submit(&mut self, mut step: Begun, jobs: Vec<Job>) {
        self.ops.submit();
        step.awaited = sample::put_back(self.plan.outputs(), jobs, &mut self.sequences);
        self.under_way.push_back(step);
    }
}

impl<O: Ops + 'static> QueuedRunner for ModelRunner<O> {
    fn waits(&self, batch: &StepBatch) -> bool {
        let (mut rows, mut masked) = (0, false);
        for slice in &batch.slices {
            let Some(output_index) = slice.sample else { continue };
            let start = batch.starts.iter().find(|start| start.seq == slice.seq);
            let known = || self.sequences.params(slice.seq);
            let Some(params) = start.map(|start| &*start.sampling).or_else(known) else { continue };
            if !Sampler::is_drawn(params, output_index) {
                return true;
            }
            rows += 1;
            masked |= params.constraint.is_some();
        }
        // An open step keeps its logits until its masks are there, so it computes all of them at once.
        masked && rows > self.decoder.logit_rows()
    }

    fn begin(&mut self, batch: &StepBatch) -> Result<(), StepError> {
        self.proceed();
        let begins = self.clock.now();
        batch.ends.iter().for_each(|&seq| self.sequences.end(seq));
        batch.starts.iter().for_each(|start| self.sequences.start(start));
        self.plan.build(batch, &self.sequences)?;
        let mut jobs = sample::take_jobs(self.plan.outputs(), &mut self.sequences);
        let masked = sample::some_are_masked::<O>(&jobs);
        let drawn = sample::all_are_drawn(&jobs);
        if drawn {
            self.pad(masked);
        }
        let host_us = self.clock.now().since_us(begins);
        let mut step =
            Begun { step: batch.id, begins, awaited: Vec::new(), host_us, sampling_us: 0 };
        let forward = self.plan.forward();
        let rows = forward.sampled.len();
        self.ops.begin(batch.id);
        if !forward.inputs.is_empty() {
            self.decoder.forward(&mut self.ops, forward);
            if masked && drawn && !self.under_way.is_empty() && rows <= self.decoder.logit_rows() {
                self.decoder.logits(&mut self.ops, 0..rows);
                self.ops.flush();
                sample::put_back(self.plan.outputs(), jobs, &mut self.sequences);
                self.open = Some(step);
                return Ok(());
            }
            self.sample(&mut step, &mut jobs, masked);
        }
        self.submit(step, jobs);
        Ok(())
    }

    fn proceed(&mut self) {
        let Some(step) = self.open.take() else { return };
        // The plan is that of the open step, and no sequence has ended since, so the jobs are those of its rows.
        let mut jobs = sample::take_jobs(self.plan.outputs(), &mut self.sequences);
        let rows = 0..self.plan.forward().sampled.len();
        let vocab = self.decoder.config().vocab_size;
        let wait = MaskWait::from_now(&self.clock, self.mask_wait_us());
        let logits = self.decoder.last_logits();
        sample::sample_rows(&mut self.ops, logits, step.step, (rows, vocab), &mut jobs, &wait);
        self.submit(step, jobs);
    }

    fn has_ended(&mut self) -> bool {
        self.ops.has_ended()
    }

    fn end(&mut self) -> Result<StepOutput, StepError> {
        if self.under_way.is_empty() {
            self.proceed();
        }
        let drawn = self.ops.finish();
        let ended = self.clock.now();
        let Some(step) = self.under_way.pop_front() else { return Ok(StepOutput::default()) };
        let since = std::mem::replace(&mut self.last_end, ended).max(step.begins);
        let Begun { step, awaited, host_us, sampling_us, .. } = step;
        let sampled = sample::answer(step, awaited, &drawn?, &mut self.sequences);
        let step_us = self.ops.step_us().unwrap_or_else(|| ended.since_us(since));
        self.last_step_us = step_us;
        let forward_us = step_us.saturating_sub(sampling_us);
        Ok(StepOutput { sampled, timing: StepTiming { forward_us, sampling_us, host_us } })
    }
}
