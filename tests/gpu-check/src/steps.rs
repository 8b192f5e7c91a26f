//! Checks decode steps with two in flight, and decode steps that are replayed as CUDA graphs: the tokens must be those
//! of steps that are launched kernel by kernel, one step at a time.

use crate::CheckError;
use crate::models::{BLOCK_SIZE, BLOCKS, llama, random};
use crate::report::Report;
use std::sync::Arc;
use tiercel_device::{
    BlockId, Constraint, ConstraintState, NoToken, NotSampled, QueuedRunner, SamplingParams, SeqId,
    SeqSlice, SeqStart, SliceInput, StepBatch, StepError, StepId, StepOutput, TokenId, TokenMask,
};
use tiercel_gpu::cuda::{CudaOps, Driver};
use tiercel_model::runner::{ModelRunner, RunnerLimits};

/// Number of decoding sequences: not a power of two, so that the CUDA graphs of steps need padding rows.
const SEQUENCES: u64 = 3;
/// Number of KV blocks that sequences may use: all but the last, which is for the padding rows of CUDA graphs.
const USED: u32 = BLOCKS - 1;
const STEPS: u64 = 20;
/// Number of tokens of the model's vocabulary.
const VOCAB: u32 = 320;
/// Length of each prompt, tokens: so short that on the emulator, where a span of attention has 32 positions, sequences
/// grow into a second span during the test.
const PROMPT: u32 = 25;

type Runner<D> = ModelRunner<CudaOps<D>>;

/// Constraint whose output token number `n` has an id with the remainder `n % 3` modulo 3.
#[derive(Debug)]
struct Rounds;

/// Number of the next output token.
struct Position(u32);

impl Constraint for Rounds {
    fn start(&self) -> Box<dyn ConstraintState> {
        Box::new(Position(0))
    }
}

impl ConstraintState for Position {
    fn mask(&mut self) -> Result<TokenMask, NoToken> {
        let mut mask = TokenMask::none(VOCAB as usize);
        (self.0 % 3..VOCAB).step_by(3).for_each(|token| mask.allow(token));
        Ok(mask)
    }

    fn advance(&mut self, token: TokenId) -> Result<(), NoToken> {
        if token % 3 != self.0 % 3 {
            return Err(NoToken::Stuck(format!("token {token} at position {}", self.0)));
        }
        self.0 += 1;
        Ok(())
    }
}

/// Checks decoding in which each step is submitted before the one before it has ended, and decoding by CUDA graphs, for
/// tokens that the device samples, with and without masks, and for tokens that the host samples.
///
/// # Errors
/// [`CheckError`] if something could not be run at all.
pub fn check_steps<D: Driver>(
    open: &dyn Fn() -> Result<D, CheckError>,
    report: &mut Report,
) -> Result<(), CheckError> {
    let drawn = SamplingParams { temperature: 1.2, seed: 5, ..SamplingParams::default() };
    let constrained = SamplingParams { constraint: Some(Arc::new(Rounds)), ..drawn.clone() };
    let penalised = SamplingParams { frequency_penalty: 1.5, ..drawn.clone() };
    for (name, params) in [
        ("greedy", SamplingParams::greedy()),
        ("drawn", drawn),
        ("with masks", constrained),
        ("by the host", penalised),
    ] {
        let plain = decode(&mut runner(open, false)?, &params, false)?;
        let whole = plain.len() as u64 == SEQUENCES * STEPS;
        for (what, graphs, queued) in [
            ("two steps under way", false, true),
            ("graphs", true, false),
            ("graphs, two under way", true, true),
        ] {
            let found = decode(&mut runner(open, graphs)?, &params, queued)?;
            report.holds(&format!("{what}, {name}: the same tokens"), whole && found == plain);
        }
    }
    let mut ends = runner(open, true)?;
    let faults = ended_meanwhile(&mut ends)?;
    report.holds("a sequence that ends while its next step is under way", faults == 0);
    Ok(())
}

fn runner<D: Driver>(
    open: &dyn Fn() -> Result<D, CheckError>,
    graphs: bool,
) -> Result<Runner<D>, CheckError> {
    let machine = random(open()?, &llama()?, (true, graphs))?;
    let limits = RunnerLimits { block_size: BLOCK_SIZE, device_blocks: USED, max_sequences: 16 };
    Ok(ModelRunner::new(machine.ops, machine.decoder, limits))
}

/// Returns the batch of step number `step`, counted from 1: step 1 computes the prompts of all sequences, each later
/// step one token per sequence.
fn batch(step: u64, params: &SamplingParams) -> StepBatch {
    let prompt = |seq: u64| -> Arc<[TokenId]> {
        (0..PROMPT).map(|i| (i * 37 + seq as u32 * 101) % VOCAB).collect()
    };
    let start = |seq| {
        // The first sequence has no constraint, so that rows with and without masks are in one step.
        let constraint = params.constraint.clone().filter(|_| seq > 0);
        let sampling = SamplingParams { seed: params.seed + seq, constraint, ..params.clone() };
        SeqStart { seq: SeqId(seq), sampling: Arc::new(sampling), prompt: prompt(seq) }
    };
    let slice = |seq: u64| {
        let per_sequence = USED / SEQUENCES as u32;
        let (first_pos, input) = match step {
            1 => (0, SliceInput::Known(prompt(seq).iter().copied().collect())),
            _ => (PROMPT + step as u32 - 2, SliceInput::SampledBy(StepId(step - 1))),
        };
        let first = seq as u32 * per_sequence;
        let table = (first..first + per_sequence).map(BlockId).collect();
        SeqSlice { seq: SeqId(seq), first_pos, input, table, sample: Some(step as u32 - 1) }
    };
    let starts = if step == 1 { (0..SEQUENCES).map(start).collect() } else { Vec::new() };
    let slices = (0..SEQUENCES).map(slice).collect();
    StepBatch { id: StepId(step), starts, ends: Vec::new(), slices }
}

/// Runs all steps and returns the sampled tokens in order. With `queued`, each step is submitted before the step before
/// it has ended.
fn decode<D: Driver>(
    runner: &mut Runner<D>,
    params: &SamplingParams,
    queued: bool,
) -> Result<Vec<TokenId>, StepError> {
    let mut tokens = Vec::new();
    let mut keep = |output: StepOutput| {
        tokens.extend(
            output.sampled.into_iter().filter_map(|(_, sampled)| Some(sampled.ok()?.token)),
        );
    };
    for step in 1..=STEPS {
        runner.begin(&batch(step, params))?;
        if !queued || step > 1 {
            keep(runner.end()?);
        }
    }
    if queued {
        keep(runner.end()?);
    }
    Ok(tokens)
}

/// Ends a sequence while a step that computes it is in flight; returns the number of samples that failed, which must be
/// 0.
fn ended_meanwhile<D: Driver>(runner: &mut Runner<D>) -> Result<usize, StepError> {
    let params = SamplingParams::greedy();
    runner.begin(&batch(1, &params))?;
    runner.begin(&batch(2, &params))?;
    let mut outputs = vec![runner.end()?];
    let mut third = batch(3, &params);
    third.ends.push(SeqId(0));
    third.slices.remove(0);
    runner.begin(&third)?;
    outputs.extend([runner.end()?, runner.end()?]);
    let faults = |output: StepOutput| -> Vec<NotSampled> {
        output.sampled.into_iter().filter_map(|(_, sampled)| sampled.err()).collect()
    };
    Ok(outputs.into_iter().flat_map(faults).count())
}
