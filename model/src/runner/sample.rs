//! Sampling the rows of a step in parallel: every row's state is handed to whichever thread runs it.

use super::plan::Output;
use super::sequences::{Sequence, Sequences};
use crossbeam_utils::atomic::AtomicCell;
use tiercel_device::{Sampled, SeqFault, SeqId, StepId};
use tiercel_gpu::{Draw, Ops};

/// An output of the step on its way to being sampled.
pub(super) struct Job {
    seq: SeqId,
    index: u32,
    state: Box<Sequence>,
    result: Option<Result<Sampled, SeqFault>>,
}

/// Takes the state of every output that has one; the jobs are in the order of the sampled rows.
pub(super) fn take_jobs(outputs: &[Output], sequences: &mut Sequences) -> Vec<Job> {
    let known = outputs.iter().filter_map(|output| Some((output.seq, output.index?)));
    known
        .filter_map(|(seq, index)| {
            let state = sequences.take(seq)?;
            Some(Job { seq, index, state, result: None })
        })
        .collect()
}

/// Samples row `i` of `logits` for `jobs[i]`.
pub(super) fn sample_rows<O: Ops>(
    ops: &mut O,
    logits: &mut O::Tensor,
    step: StepId,
    jobs: &mut [Job],
) {
    let on_host = draw(ops, logits, step, jobs);
    if on_host.is_empty() {
        return;
    }
    // Each row takes its job out of its cell, so that no two threads ever hold the same one.
    let cells: Vec<AtomicCell<Option<&mut Job>>> =
        jobs.iter_mut().map(|job| AtomicCell::new(Some(job))).collect();
    ops.for_each_row(logits, &on_host, &|row, values| {
        if let Some(job) = cells.get(row).and_then(AtomicCell::take) {
            job.result = Some(job.state.sample(step, values, job.index));
        }
    });
}

/// Lets the device draw for all jobs that need no more than that, if it does; the rows that are left.
fn draw<O: Ops>(ops: &mut O, logits: &O::Tensor, step: StepId, jobs: &mut [Job]) -> Vec<usize> {
    let draws = jobs.iter().enumerate();
    let draws: Vec<Draw> =
        draws.filter_map(|(row, job)| job.state.sampler().draw_on_device(row, job.index)).collect();
    let vocab = jobs.first().map_or(0, |job| job.state.sampler().vocab());
    if let Some(tokens) = ops.draw_rows(logits, vocab, &draws) {
        for (draw, token) in draws.iter().zip(tokens) {
            let job = &mut jobs[draw.row];
            job.result = Some(job.state.drawn(step, token));
        }
    }
    let left = jobs.iter().enumerate().filter(|(_, job)| job.result.is_none());
    left.map(|(row, _)| row).collect()
}

/// Puts the states back and answers every output, in order.
pub(super) fn finish(
    outputs: &[Output],
    jobs: Vec<Job>,
    sequences: &mut Sequences,
) -> Vec<(SeqId, Result<Sampled, SeqFault>)> {
    let mut jobs = jobs.into_iter();
    let mut answers = Vec::with_capacity(outputs.len());
    for output in outputs {
        let job = output.index.and_then(|_| jobs.next());
        let result = match job {
            None => None,
            Some(job) => {
                sequences.put_back(job.seq, job.state);
                job.result
            }
        };
        answers.push((output.seq, result.unwrap_or(Err(SeqFault::UnknownSequence(output.seq)))));
    }
    answers
}
