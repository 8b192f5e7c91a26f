//! Sampling the rows of a step: by the device where it can, else in parallel on the host, where every row's state is
//! handed to whichever thread runs it.

use super::plan::Output;
use super::sequences::{Sequence, Sequences};
use crossbeam_utils::atomic::AtomicCell;
use std::ops::Range;
use tiercel_device::{Sampled, SeqFault, SeqId, StepId};
use tiercel_gpu::{Draw, Drawn, Ops};

/// An output of the step on its way to being sampled.
pub(super) struct Job {
    seq: SeqId,
    index: u32,
    state: Box<Sequence>,
    /// `None` until it is sampled, and as long as the device draws it.
    result: Option<Result<Sampled, SeqFault>>,
}

/// An output of a step that was begun.
#[derive(Debug)]
pub(super) enum Awaited {
    /// What the host sampled.
    Known(Result<Sampled, SeqFault>),
    /// The device draws it from the step's sampled row of this number.
    Row(usize),
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

/// Whether the device can draw for all jobs.
pub(super) fn all_are_drawn(jobs: &[Job]) -> bool {
    jobs.iter().all(|job| job.state.sampler().draw_on_device(0, job.index).is_some())
}

/// Samples rows of `logits` for all jobs that are among them: these are the step's sampled rows `rows`, and a job's row is
/// its number. Rows beyond the jobs only fill up the step.
pub(super) fn sample_rows<O: Ops>(
    ops: &mut O,
    logits: &mut O::Tensor,
    step: StepId,
    (rows, vocab): (Range<usize>, usize),
    jobs: &mut [Job],
) {
    let all = jobs.len();
    let jobs = &mut jobs[rows.start.min(all)..rows.end.min(all)];
    let on_host = draw(ops, logits, step, (rows, vocab), jobs);
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
fn draw<O: Ops>(
    ops: &mut O,
    logits: &O::Tensor,
    step: StepId,
    (rows, vocab): (Range<usize>, usize),
    jobs: &mut [Job],
) -> Vec<usize> {
    let first = rows.start;
    let mut left: Vec<usize> = (0..jobs.len()).collect();
    let draws = jobs.iter().enumerate();
    let draws = draws.filter_map(|(row, job)| job.state.sampler().draw_on_device(row, job.index));
    let filler = |row| Draw { row, temperature: 0.0, top_k: 0, top_p: 1.0, min_p: 0.0, at: 0.0 };
    let fillers = (jobs.len()..rows.len()).map(filler);
    let draws: Vec<Draw> = draws.chain(fillers).collect();
    if !draws.is_empty() && ops.draw_rows(logits, vocab, first, &draws) {
        for draw in &draws {
            if let Some(job) = jobs.get_mut(draw.row) {
                job.state.draws(step, first + draw.row);
            }
        }
        left.retain(|row| draws.binary_search_by_key(row, |draw| draw.row).is_err());
    }
    left
}

/// Puts the states back; what is awaited of every output, in order.
pub(super) fn put_back(
    outputs: &[Output],
    jobs: Vec<Job>,
    sequences: &mut Sequences,
) -> Vec<(SeqId, Awaited)> {
    let mut jobs = jobs.into_iter().enumerate();
    let mut awaited = Vec::with_capacity(outputs.len());
    for output in outputs {
        let unknown = || Awaited::Known(Err(SeqFault::UnknownSequence(output.seq)));
        let job = output.index.and_then(|_| jobs.next());
        let what = job.map_or_else(unknown, |(row, job)| {
            sequences.put_back(job.seq, job.state);
            job.result.map_or(Awaited::Row(row), Awaited::Known)
        });
        awaited.push((output.seq, what));
    }
    awaited
}

/// Answers every output of a step that has ended.
pub(super) fn answer(
    step: StepId,
    awaited: Vec<(SeqId, Awaited)>,
    drawn: &[Drawn],
    sequences: &mut Sequences,
) -> Vec<(SeqId, Result<Sampled, SeqFault>)> {
    let mut answers = Vec::with_capacity(awaited.len());
    for (seq, what) in awaited {
        let result = match what {
            Awaited::Known(result) => result,
            Awaited::Row(row) => {
                let found = drawn.binary_search_by_key(&row, |(row, _)| *row);
                let token = found.ok().and_then(|at| drawn[at].1).ok_or(SeqFault::BadLogits);
                token.map(|token| {
                    sequences.drew(seq, step, token);
                    Sampled { token, logprobs: None }
                })
            }
        };
        answers.push((seq, result));
    }
    answers
}
