//! Samples the output tokens of a step: on the device where possible, otherwise in parallel on the host. On the host,
//! each row's sampler state is passed to the thread that samples the row.

use super::plan::Output;
use super::sequences::{Sequence, Sequences};
use crossbeam_utils::atomic::AtomicCell;
use std::ops::Range;
use tiercel_device::{MaskWait, NotSampled, Sampled, SeqId, StepId};
use tiercel_gpu::{Draw, Drawn, Ops};

/// Sampling job: an output token of a step to be sampled, with the sampler state of its sequence.
pub(super) struct Job {
    seq: SeqId,
    index: u32,
    state: Box<Sequence>,
    /// Token that the host sampled, or the reason for which there is none; stays `None` if the device draws the token.
    result: Option<Result<Sampled, NotSampled>>,
}

/// Output token of a step in flight: a result that the host already has, or a token that the device still draws.
#[derive(Debug)]
pub(super) enum Awaited {
    /// The host already has the result: the token that it sampled, or the reason for which there is none.
    Known(Result<Sampled, NotSampled>),
    /// The device draws the output token: index of the token's row among the sampled rows of the step.
    Row(usize),
}

/// Takes the sampler states of the sequences that can be sampled out of `sequences` and returns them as jobs, in the
/// order of the sampled rows.
pub(super) fn take_jobs(outputs: &[Output], sequences: &mut Sequences) -> Vec<Job> {
    let known = outputs.iter().filter_map(|output| Some((output.seq, output.index?)));
    known
        .filter_map(|(seq, index)| {
            let state = sequences.take(seq)?;
            Some(Job { seq, index, state, result: None })
        })
        .collect()
}

/// Returns whether the sampling parameters of all sampling jobs of the step let a device draw the tokens, so that none
/// needs the host.
pub(super) fn all_are_drawn(jobs: &[Job]) -> bool {
    jobs.iter().all(|job| job.state.sampler().draw_on_device(0, job.index).is_some())
}

/// Returns whether the device draws some tokens of the step with masks.
pub(super) fn some_are_masked<O: Ops>(jobs: &[Job]) -> bool {
    O::DRAWS && jobs.iter().any(|job| job.state.is_masked(job.index))
}

/// Samples on the host, or lets the device draw, the tokens of the jobs whose logits are in `logits`, which holds the
/// sampled rows `rows` of the step. Job `i` belongs to sampled row `i`; rows beyond the last job are padding.
pub(super) fn sample_rows<O: Ops>(
    ops: &mut O,
    logits: &mut O::Tensor,
    step: StepId,
    (rows, vocab): (Range<usize>, usize),
    jobs: &mut [Job],
    wait: &MaskWait,
) {
    let all = jobs.len();
    let jobs = &mut jobs[rows.start.min(all)..rows.end.min(all)];
    let on_host = draw(ops, logits, step, (rows, vocab), jobs, wait);
    if on_host.is_empty() {
        return;
    }
    // Put each sampling job into an atomic cell that the row's thread empties, so that no two threads ever hold the
    // same job.
    let cells: Vec<AtomicCell<Option<&mut Job>>> =
        jobs.iter_mut().map(|job| AtomicCell::new(Some(job))).collect();
    ops.for_each_row(logits, &on_host, &|row, values| {
        if let Some(job) = cells.get(row).and_then(AtomicCell::take) {
            job.result = Some(job.state.sample(step, values, job.index, wait));
        }
    });
}

/// Lets the device draw the tokens of padding rows and of the sampling jobs that do not need the host
/// ([`Sampler::is_drawn`](crate::sampling::Sampler::is_drawn)), if the device supports drawing. A job whose constraint
/// leaves no token, or whose mask is late, gets this as its result instead. Returns the rows of `logits` that the host
/// must sample.
fn draw<O: Ops>(
    ops: &mut O,
    logits: &O::Tensor,
    step: StepId,
    (rows, vocab): (Range<usize>, usize),
    jobs: &mut [Job],
    wait: &MaskWait,
) -> Vec<usize> {
    let count = jobs.len();
    if !O::DRAWS {
        return (0..count).collect();
    }
    let (mut draws, mut left) = (Vec::with_capacity(rows.len()), Vec::new());
    for (row, job) in jobs.iter_mut().enumerate() {
        let Some(draw) = job.state.sampler().draw_on_device(row, job.index) else {
            left.push(row);
            continue;
        };
        match job.state.draws(step, rows.start + row, job.index, wait) {
            Ok(mask) => draws.push(Draw { mask, ..draw }),
            Err(reason) => job.result = Some(Err(reason)),
        }
    }
    draws.extend((count..rows.len()).map(Draw::greedy));
    if !draws.is_empty() {
        ops.draw_rows(logits, vocab, rows.start, &draws);
    }
    left
}

/// Puts the sampler states of all jobs back into `sequences`. Returns for every output, in order, the host's result or
/// the row from which the device draws the token.
pub(super) fn put_back(
    outputs: &[Output],
    jobs: Vec<Job>,
    sequences: &mut Sequences,
) -> Vec<(SeqId, Awaited)> {
    let mut jobs = jobs.into_iter().enumerate();
    let mut awaited = Vec::with_capacity(outputs.len());
    for output in outputs {
        let unknown = || Awaited::Known(Err(NotSampled::UnknownSequence(output.seq)));
        let job = output.index.and_then(|_| jobs.next());
        let what = job.map_or_else(unknown, |(row, job)| {
            sequences.put_back(job.seq, job.state);
            job.result.map_or(Awaited::Row(row), Awaited::Known)
        });
        awaited.push((output.seq, what));
    }
    awaited
}

/// Returns for every output of a step that has ended the sampled token, or the reason for which there is none. Records
/// the tokens that the device drew in the sampler states.
pub(super) fn answer(
    step: StepId,
    awaited: Vec<(SeqId, Awaited)>,
    drawn: &[Drawn],
    sequences: &mut Sequences,
) -> Vec<(SeqId, Result<Sampled, NotSampled>)> {
    let mut answers = Vec::with_capacity(awaited.len());
    for (seq, what) in awaited {
        let result = match what {
            Awaited::Known(result) => result,
            Awaited::Row(row) => {
                let found = drawn.binary_search_by_key(&row, |(row, _)| *row);
                let token = found.ok().and_then(|at| drawn[at].1).ok_or(NotSampled::BadLogits);
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
