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
use sample::Awaited;
use sequences::Sequences;
use std::collections::VecDeque;
use tiercel_device::{
    Clock, QueuedRunner, SeqId, StepBatch, StepError, StepId, StepOutput, StepTiming, Timestamp,
};
use tiercel_gpu::Ops;

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
    /// Time at which the runner got the results of the latest completed step.
    last_end: Timestamp,
    clock: Clock,
}

/// A step in flight: begun on the device, results not taken yet.
struct Begun {
    step: StepId,
    begins: Timestamp,
    /// Output tokens that this step samples, in the order of its slices: each a result or a fault that the host already
    /// has, or a row from which the device still draws.
    awaited: Vec<(SeqId, Awaited)>,
    host_us: u64,
    /// Time that the host spent in the calls for sampling of the step, us. If the host samples for a GPU, it includes
    /// waiting for the logits.
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
            last_end: Timestamp(0),
            clock: Clock::wall(),
        }
    }

    /// Returns the number of sequences that have sampler state.
    pub fn live_sequences(&self) -> usize {
        self.sequences.len()
    }
}

impl<O: Ops + 'static> QueuedRunner for ModelRunner<O> {
    fn waits(&self, batch: &StepBatch) -> bool {
        batch.slices.iter().filter(|slice| slice.sample.is_some()).any(|slice| {
            let start = batch.starts.iter().find(|start| start.seq == slice.seq);
            match start {
                Some(start) => !Sampler::is_drawn(&start.sampling),
                None => self.sequences.is_sampled_by_host(slice.seq),
            }
        })
    }

    fn begin(&mut self, batch: &StepBatch) -> Result<(), StepError> {
        let begins = self.clock.now();
        batch.ends.iter().for_each(|&seq| self.sequences.end(seq));
        batch.starts.iter().for_each(|start| self.sequences.start(start));
        self.plan.build(batch, &self.sequences)?;
        let mut jobs = sample::take_jobs(self.plan.outputs(), &mut self.sequences);
        if let Some(rows) = self.plan.single_tokens().filter(|_| sample::all_are_drawn(&jobs)) {
            let limits = self.decoder.limits();
            let most = limits.max_batched_tokens.min(limits.max_sampled_rows);
            if let Some((rows, block)) = self.ops.pad_decode(rows, most) {
                self.plan.fill(rows, block);
            }
        }
        let (forward, outputs) = (self.plan.forward(), self.plan.outputs());
        let (host_us, mut sampling_us) = (self.clock.now().since_us(begins), 0);
        let vocab = self.decoder.config().vocab_size;
        if !forward.inputs.is_empty() {
            self.decoder.forward(&mut self.ops, forward);
            for rows in self.decoder.logit_chunks() {
                let logits = self.decoder.logits(&mut self.ops, rows.clone());
                let since = self.clock.now();
                sample::sample_rows(&mut self.ops, logits, batch.id, (rows, vocab), &mut jobs);
                sampling_us += self.clock.now().since_us(since);
            }
        }
        self.ops.submit();
        let awaited = sample::put_back(outputs, jobs, &mut self.sequences);
        let begun = Begun { step: batch.id, begins, awaited, host_us, sampling_us };
        self.under_way.push_back(begun);
        Ok(())
    }

    fn has_ended(&mut self) -> bool {
        self.ops.has_ended()
    }

    fn end(&mut self) -> Result<StepOutput, StepError> {
        let drawn = self.ops.finish();
        let ended = self.clock.now();
        let Some(step) = self.under_way.pop_front() else { return Ok(StepOutput::default()) };
        let since = std::mem::replace(&mut self.last_end, ended).max(step.begins);
        let Begun { step, awaited, host_us, sampling_us, .. } = step;
        let sampled = sample::answer(step, awaited, &drawn?, &mut self.sequences);
        let forward_us = ended.since_us(since).saturating_sub(sampling_us);
        Ok(StepOutput { sampled, timing: StepTiming { forward_us, sampling_us, host_us } })
    }
}
