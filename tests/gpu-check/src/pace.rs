//! Measures how much of a decode step's time the CPU takes, and how much of that is hidden by two steps in flight.

use crate::CheckError;
use crate::report::Report;
use std::sync::Arc;
use tiercel_device::{
    BlockId, Clock, QueuedRunner, SamplingParams, SeqId, SeqSlice, SeqStart, SliceInput, StepBatch,
    StepId,
};
use tiercel_gpu::Ops;
use tiercel_model::runner::ModelRunner;

/// Maximum overhead of a decode step if the next one is already in flight: how much longer the step may take than the
/// GPU's work in it, percent.
const MOST_GAPS: f64 = 3.0;

/// Most runs of steps on one runner: two of [`measure_pace`] and two of [`run_queued`].
const RUNS: usize = 4;

/// Size of the decode steps to measure: `steps` steps of `seqs` sequences that have `context` tokens, sampled on the
/// device.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Pace {
    pub(crate) seqs: usize,
    pub(crate) context: usize,
    pub(crate) block_size: usize,
    pub(crate) steps: usize,
}

/// Mean times of the measured decode steps.
#[derive(Debug, Clone, Copy)]
struct Taken {
    /// Time from the end of a decode step to the end of the next, us.
    step_us: f64,
    /// CPU time to submit all work of a step to the GPU, us.
    begin_us: f64,
}

/// Measures decode steps one at a time, and with two in flight (each step is submitted while the one before runs).
/// `device_us` is the GPU's time for one step, measured over many steps that were submitted at once.
pub(crate) fn measure_pace<O: Ops + 'static>(
    runner: &mut ModelRunner<O>,
    pace: Pace,
    device_us: f64,
    judged: bool,
    report: &mut Report,
) -> Result<(), CheckError> {
    start(runner, pace)?;
    let what = format!("decode of {}, sampled", pace.seqs);
    let waited = steps(runner, pace, 2, false)?;
    let queued = steps(runner, pace, 3 + pace.steps as u64, true)?;
    let ms = |us: f64| format!("{:.2} ms", us / 1e3);
    report.measured(&format!("{what}, many at once"), ms(device_us));
    report.measured(&format!("{what}, each waited for"), ms(waited.step_us));
    report.measured(&format!("{what}, two under way"), ms(queued.step_us));
    report.measured(&format!("{what}: what the host takes of it"), ms(queued.begin_us));
    let gaps = 100.0 * (queued.step_us / device_us - 1.0);
    let what = format!("{what}, two under way: longer than the device's work by");
    match judged {
        true => report.at_most(&what, gaps, MOST_GAPS, "%"),
        false => report.measured(&what, format!("{gaps:.1} %")),
    }
    Ok(())
}

/// Runs step 1, which starts the measured sequences with a known token at position `context`. The KV of the earlier
/// positions is undefined memory, because only the speed matters.
fn start<O: Ops + 'static>(runner: &mut ModelRunner<O>, pace: Pace) -> Result<(), CheckError> {
    let mut batch = step(1, 0, pace);
    batch.starts = (0..pace.seqs as u64)
        .map(|seq| SeqStart {
            seq: SeqId(seq),
            sampling: Arc::new(SamplingParams::greedy()),
            prompt: Arc::from([1]),
        })
        .collect();
    for slice in &mut batch.slices {
        slice.input = SliceInput::Known([1].into_iter().collect());
    }
    runner.run(&batch)?;
    Ok(())
}

/// Returns decode step `id`, which computes position `context + ahead` of each sequence. Its input tokens are those
/// that step `id - 1` samples.
fn step(id: u64, ahead: usize, pace: Pace) -> StepBatch {
    let blocks = positions(pace).div_ceil(pace.block_size) as u32;
    let slice = |seq: usize| SeqSlice {
        seq: SeqId(seq as u64),
        first_pos: (pace.context + ahead) as u32,
        input: SliceInput::SampledBy(StepId(id - 1)),
        table: (seq as u32 * blocks..(seq as u32 + 1) * blocks).map(BlockId).collect(),
        sample: Some(ahead as u32),
    };
    let slices = (0..pace.seqs).map(slice).collect();
    StepBatch { id: StepId(id), starts: Vec::new(), ends: Vec::new(), slices }
}

/// Returns the number of KV blocks that the decode steps of the measurement `pace` need.
pub(crate) fn blocks(pace: Pace) -> usize {
    pace.seqs * positions(pace).div_ceil(pace.block_size)
}

/// Returns the number of positions that a sequence has after all runs of the measurement `pace`.
pub(crate) fn positions(pace: Pace) -> usize {
    pace.context + RUNS * (pace.steps + 1) + 1
}

/// Runs decode steps with two in flight once more, after [`measure_pace`]; `number` counts these runs from 0. Returns
/// the mean time from the end of a step to the end of the next, us.
pub(crate) fn run_queued<O: Ops + 'static>(
    runner: &mut ModelRunner<O>,
    pace: Pace,
    number: u64,
) -> Result<f64, CheckError> {
    let first = 2 + (2 + number) * (pace.steps as u64 + 1);
    Ok(steps(runner, pace, first, true)?.step_us)
}

fn steps<O: Ops + 'static>(
    runner: &mut ModelRunner<O>,
    pace: Pace,
    first: u64,
    queued: bool,
) -> Result<Taken, CheckError> {
    let batches: Vec<StepBatch> = (0..=pace.steps as u64)
        .map(|number| step(first + number, (first + number) as usize - 1, pace))
        .collect();
    let clock = Clock::wall();
    // The first measured step is a warm-up and does not count.
    let (mut begin_us, mut start) = (0, clock.now());
    for (number, batch) in batches.iter().enumerate() {
        let begins = clock.now();
        runner.begin(batch)?;
        begin_us += clock.now().since_us(begins);
        if !queued || number > 0 {
            runner.end()?;
        }
        if number == 0 {
            (begin_us, start) = (0, clock.now());
        }
    }
    if queued {
        runner.end()?;
    }
    let steps = pace.steps.max(1) as f64;
    let step_us = clock.now().since_us(start).max(1) as f64 / steps;
    Ok(Taken { step_us, begin_us: begin_us as f64 / steps })
}
