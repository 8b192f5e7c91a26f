//! Runs the engine's steps: checks a batch, runs the forward pass, samples.
//!
//! | file | what it does |
//! |---|---|
//! | `plan.rs` | from a batch to rows, with every check |
//! | `sequences.rs` | sampler state by sequence |
//! | `sample.rs` | sampling rows in parallel |
//! | `error.rs` | batches that cannot be run |

mod error;
mod plan;
mod sample;
mod sequences;

#[cfg(test)]
mod tests;

use crate::forward::Decoder;
use plan::{Plan, PlanLimits};
use sequences::Sequences;
use tiercel_device::{BlockingRunner, Clock, StepBatch, StepError, StepOutput, StepTiming};
use tiercel_gpu::Ops;

/// What a runner needs to know beside its decoder.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RunnerLimits {
    /// Tokens per KV block.
    pub block_size: usize,
    /// Blocks of the device tier.
    pub device_blocks: u32,
    /// Most sequences with sampler state, running or preempted.
    pub max_sequences: usize,
}

/// A decoder with the sampler state of its sequences, run step by step.
pub struct ModelRunner<O: Ops> {
    ops: O,
    decoder: Decoder<O>,
    plan: Plan,
    sequences: Sequences,
    clock: Clock,
}

impl<O: Ops> ModelRunner<O> {
    /// A runner without sequences.
    pub fn new(ops: O, decoder: Decoder<O>, limits: RunnerLimits) -> ModelRunner<O> {
        let vocab = decoder.config().vocab_size;
        let plan = Plan::new(PlanLimits {
            decoder: *decoder.limits(),
            vocab,
            block_size: limits.block_size,
            device_blocks: limits.device_blocks,
        });
        let sequences = Sequences::new(limits.max_sequences, vocab);
        ModelRunner { ops, decoder, plan, sequences, clock: Clock::wall() }
    }

    /// Sequences with sampler state.
    pub fn live_sequences(&self) -> usize {
        self.sequences.len()
    }
}

impl<O: Ops + 'static> BlockingRunner for ModelRunner<O> {
    fn run(&mut self, batch: &StepBatch) -> Result<StepOutput, StepError> {
        batch.ends.iter().for_each(|&seq| self.sequences.end(seq));
        batch.starts.iter().for_each(|start| self.sequences.start(start));
        self.plan.build(batch, &self.sequences)?;
        let forward = self.plan.forward();
        let outputs = self.plan.outputs();
        let mut jobs = sample::take_jobs(outputs, &mut self.sequences);
        let mut timing = StepTiming::default();
        let mut mark = self.clock.now();
        let mut lap = |clock: &Clock| {
            let now = clock.now();
            now.since_us(std::mem::replace(&mut mark, now))
        };
        if !forward.tokens.is_empty() {
            self.decoder.forward(&mut self.ops, forward);
            for rows in self.decoder.logit_chunks() {
                let logits = self.decoder.logits(&mut self.ops, rows.clone());
                timing.forward_us += lap(&self.clock);
                sample::sample_rows(&mut self.ops, logits, batch.id, &mut jobs[rows]);
                timing.sampling_us += lap(&self.clock);
            }
            timing.forward_us += lap(&self.clock);
        }
        let sampled = sample::finish(outputs, jobs, &mut self.sequences);
        // On a device that works by itself this is where a step without outputs takes its time.
        let ended = self.ops.finish();
        timing.forward_us += lap(&self.clock);
        ended?;
        Ok(StepOutput { sampled, timing })
    }
}
