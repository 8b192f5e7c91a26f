//! Tests of constrained sequences on an emulated GPU, which draws their tokens with masks while the next step already
//! has its forward pass. The text must equal the text of the host's sampler, also after preemptions and failed steps.

use crate::harness::{some_tokens, tiny};
use crossbeam_channel::{Receiver, Sender, bounded};
use std::collections::{BTreeSet, VecDeque};
use std::ops::Range;
use std::sync::Arc;
use tiercel_device::{
    BlockId, Constraint, ConstraintState, NoToken, NotSampled, QueuedRunner, SamplingParams, SeqId,
    SeqSlice, SeqStart, SliceInput, StepBatch, StepId, TokenId, TokenMask,
};
use tiercel_emulated::{EmulatedDriver, Fault};
use tiercel_gpu::cuda::CudaOps;
use tiercel_model::load::{GpuUse, KvCapacity, LoadOptions, open_cuda};
use tiercel_model::runner::ModelRunner;
use tiercel_model::weights::{Checkpoint, ModelFiles};

const VOCAB: u32 = 300;
const PROMPT: usize = 10;
/// Longest output, tokens.
const OUTPUT: usize = 12;
/// Blocks of a sequence, of 16 tokens each.
const BLOCKS: u32 = 2;

type Runner = ModelRunner<CudaOps<EmulatedDriver>>;
/// Output of a sequence, and the fault that ended the sequence, if any.
type Outcome = (Vec<TokenId>, Option<NotSampled>);

/// Constraint whose output token number `n` has an id with the remainder `n % 3` modulo 3. After `length` tokens it
/// leaves no token, for the reason `end`. With `gate`, the computation of every fourth mask waits for a message.
#[derive(Debug, Clone)]
struct Rounds {
    length: u32,
    end: NoToken,
    gate: Option<Receiver<()>>,
}

struct Position(u32, Rounds);

impl Constraint for Rounds {
    fn start(&self) -> Box<dyn ConstraintState> {
        Box::new(Position(0, self.clone()))
    }
}

impl ConstraintState for Position {
    fn mask(&mut self) -> Result<TokenMask, NoToken> {
        let Position(position, rounds) = self;
        if *position == rounds.length {
            return Err(rounds.end.clone());
        }
        if let (Some(gate), 2) = (&rounds.gate, *position % 4) {
            // The other end is gone when the test has ended.
            let _ = gate.recv();
        }
        let mut mask = TokenMask::none(VOCAB as usize);
        (*position % 3..VOCAB).step_by(3).for_each(|token| mask.allow(token));
        Ok(mask)
    }

    fn advance(&mut self, token: TokenId) -> Result<(), NoToken> {
        assert_eq!(token % 3, self.0 % 3, "the mask was not applied at position {}", self.0);
        self.0 += 1;
        Ok(())
    }
}

fn constrained(sampling: SamplingParams, length: u32, end: NoToken) -> SamplingParams {
    SamplingParams { constraint: Some(Arc::new(Rounds { length, end, gate: None })), ..sampling }
}

/// Returns the sampling parameters of four sequences: three follow a constraint, of which the last two leave no token
/// before the output is complete if `ends` is set.
fn requests(ends: bool) -> Vec<SamplingParams> {
    let hot = SamplingParams { temperature: 1.1, seed: 7, ..SamplingParams::default() };
    let cut = SamplingParams { top_k: 40, top_p: 0.9, min_p: 0.01, seed: 8, ..hot.clone() };
    let (first, second) = if ends { (6, 7) } else { (99, 99) };
    vec![
        hot.clone(),
        constrained(SamplingParams::greedy(), 99, NoToken::Complete),
        constrained(cut, first, NoToken::Complete),
        constrained(SamplingParams { seed: 9, ..hot }, second, NoToken::Stuck("made up".into())),
    ]
}

/// Returns the same requests with log-probabilities, so that the host samples the constrained sequences.
fn sampled_by_host(requests: &[SamplingParams]) -> Vec<SamplingParams> {
    let host = |params: &SamplingParams| {
        let logprobs = params.constraint.as_ref().map(|_| 0);
        SamplingParams { logprobs, ..params.clone() }
    };
    requests.iter().map(host).collect()
}

fn runner(fault: Option<Fault>) -> Runner {
    let checkpoint = Checkpoint::open(&ModelFiles::HfDir(tiny("llama3"))).unwrap();
    let options = LoadOptions {
        kv_capacity: KvCapacity::Blocks(16),
        host_bytes: Some(1 << 20),
        max_num_seqs: 8,
        max_num_batched_tokens: 128,
        ..LoadOptions::default()
    };
    let mut driver = EmulatedDriver::new(1 << 30);
    if let Some(fault) = fault {
        driver = driver.with_fault(fault);
    }
    let usage = GpuUse { exact: true, ..GpuUse::default() };
    open_cuda(driver, usage, &checkpoint, &options, &mut |_| {}).unwrap().into_runner(8).0
}

/// A sequence of the test's scheduler.
struct Stream {
    number: u64,
    tokens: Vec<TokenId>,
    fault: Option<NotSampled>,
    /// Whether its blocks hold the KV of its tokens.
    computed: bool,
    /// Steps in flight that sample for it.
    in_flight: VecDeque<StepId>,
    /// Steps in flight whose results for it are void, because its mask was late in the step before.
    void: BTreeSet<StepId>,
    /// Numbers of the steps between which the sequence is preempted.
    away: Range<u64>,
}

impl Stream {
    fn new(number: u64, away: Range<u64>) -> Stream {
        let tokens = some_tokens(PROMPT, number + 3, VOCAB);
        let (fault, in_flight, void) = (None, VecDeque::new(), BTreeSet::new());
        Stream { number, tokens, fault, computed: false, in_flight, void, away }
    }

    fn is_done(&self) -> bool {
        self.fault.is_some() || self.tokens.len() == PROMPT + OUTPUT
    }

    /// Returns the sequence's slice of a step; `None` if the sequence is not in the step.
    fn slice(&mut self, step: StepId) -> Option<SeqSlice> {
        let (ahead, length) = (self.in_flight.len(), self.tokens.len());
        let away = self.away.contains(&step.0);
        self.computed &= !away;
        let waits = !self.computed && ahead > 0;
        if self.is_done() || away || waits || length + ahead == PROMPT + OUTPUT {
            return None;
        }
        let (first, input) = match self.in_flight.back() {
            Some(step) => (length + ahead - 1, SliceInput::SampledBy(*step)),
            None => {
                let first = if self.computed { length - 1 } else { 0 };
                (first, SliceInput::Known(self.tokens[first..].into()))
            }
        };
        self.computed = true;
        self.in_flight.push_back(step);
        let blocks = self.number as u32 * BLOCKS..(self.number as u32 + 1) * BLOCKS;
        Some(SeqSlice {
            seq: SeqId(self.number),
            first_pos: first as u32,
            input,
            table: blocks.map(BlockId).collect(),
            sample: Some((length + ahead - PROMPT) as u32),
        })
    }
}

/// Scheduler of the test, with up to `depth` steps in flight.
struct Schedule {
    streams: Vec<Stream>,
    starts: Vec<SeqStart>,
    in_flight: VecDeque<StepId>,
    depth: usize,
    /// Errors of the failed steps.
    failed: Vec<String>,
    /// Gate of the constraints, which gets a message for each late mask.
    gate: Option<Sender<()>>,
    /// Number of late masks.
    late: usize,
}

impl Schedule {
    fn new(requests: &[SamplingParams], depth: usize, away: &Range<u64>) -> Schedule {
        let away = |number| if number == 1 { away.clone() } else { 0..0 };
        let streams: Vec<Stream> =
            (0..requests.len() as u64).map(|number| Stream::new(number, away(number))).collect();
        let start = |(stream, params): (&Stream, &SamplingParams)| SeqStart {
            seq: SeqId(stream.number),
            sampling: Arc::new(params.clone()),
            prompt: stream.tokens.as_slice().into(),
        };
        let starts = streams.iter().zip(requests).map(start).collect();
        let (in_flight, failed) = (VecDeque::new(), Vec::new());
        Schedule { streams, starts, in_flight, depth, failed, gate: None, late: 0 }
    }

    /// Begins a step, if a sequence can be in it. With two steps in flight, no step may wait for the one before it.
    fn begin(&mut self, runner: &mut Runner, id: StepId) {
        let slices: Vec<SeqSlice> =
            self.streams.iter_mut().filter_map(|stream| stream.slice(id)).collect();
        if slices.is_empty() {
            return;
        }
        let starts = std::mem::take(&mut self.starts);
        let batch = StepBatch { id, starts, ends: Vec::new(), slices };
        assert!(self.depth == 1 || !runner.waits(&batch), "step {id} waits");
        runner.begin(&batch).unwrap();
        self.in_flight.push_back(id);
    }

    /// Ends the oldest step in flight. If it failed, its results and those of the step behind it do not count.
    fn end(&mut self, runner: &mut Runner) {
        let Some(ended) = self.in_flight.pop_front() else { return };
        match runner.end() {
            Ok(output) => {
                for (seq, result) in output.sampled {
                    let stream = &mut self.streams[seq.0 as usize];
                    if stream.void.remove(&ended) {
                        continue;
                    }
                    assert_eq!(stream.in_flight.pop_front(), Some(ended));
                    match result.map(|sampled| sampled.token) {
                        _ if stream.fault.is_some() => {}
                        Ok(token) => stream.tokens.push(token),
                        Err(NotSampled::MaskLate) => {
                            stream.void.extend(stream.in_flight.drain(..));
                            let gate =
                                self.gate.as_ref().expect("only these tests have late masks");
                            // An error means that the gate holds a message already, so its next mask does not wait.
                            let _ = gate.try_send(());
                            self.late += 1;
                        }
                        Err(fault) => stream.fault = Some(fault),
                    }
                }
            }
            Err(error) => {
                self.failed.push(error.to_string());
                self.in_flight.drain(..).for_each(|_| drop(runner.end()));
                for stream in &mut self.streams {
                    stream.in_flight.clear();
                    stream.computed = false;
                }
            }
        }
        // The runner must draw without this call too, though later.
        if ended.0 % 3 > 0 {
            runner.proceed();
        }
    }
}

/// Decodes all requests with up to `depth` steps in flight. The second sequence is preempted during the steps `away`.
/// Returns the outcome of each request, and the errors of the failed steps.
fn decode(
    runner: &mut Runner,
    requests: &[SamplingParams],
    depth: usize,
    away: Range<u64>,
) -> (Vec<Outcome>, Vec<String>) {
    run(runner, Schedule::new(requests, depth, &away))
}

fn run(runner: &mut Runner, schedule: Schedule) -> (Vec<Outcome>, Vec<String>) {
    run_counted(runner, schedule).0
}

/// Runs all requests of a schedule. Returns the outcome of each request and the errors of the failed steps, and the
/// number of late masks.
fn run_counted(
    runner: &mut Runner,
    mut schedule: Schedule,
) -> ((Vec<Outcome>, Vec<String>), usize) {
    let depth = schedule.depth;
    for step in 1.. {
        schedule.begin(runner, StepId(step));
        let ahead = schedule.in_flight.back() == Some(&StepId(step));
        if ahead && schedule.in_flight.len() < depth {
            continue;
        }
        schedule.end(runner);
        if schedule.in_flight.is_empty() && schedule.streams.iter().all(Stream::is_done) {
            break;
        }
    }
    let outcome = |stream: Stream| (stream.tokens[PROMPT..].to_vec(), stream.fault);
    let late = schedule.late;
    ((schedule.streams.into_iter().map(outcome).collect(), schedule.failed), late)
}

/// Returns the outcomes of the requests if the host samples the constrained sequences and one step is in flight.
fn expected(requests: &[SamplingParams]) -> Vec<Outcome> {
    let (outcomes, failed) = decode(&mut runner(None), &sampled_by_host(requests), 1, 0..0);
    assert!(failed.is_empty(), "{failed:?}");
    outcomes
}

#[test]
fn masked_draws_with_two_steps_in_flight_give_the_text_of_the_host() {
    let requests = requests(false);
    let expected = expected(&requests);
    assert!(expected.iter().all(|(tokens, _)| tokens.len() == OUTPUT), "{expected:?}");
    for depth in [1, 2] {
        assert_eq!(decode(&mut runner(None), &requests, depth, 0..0), (expected.clone(), vec![]));
    }
}

#[test]
fn a_preemption_in_the_middle_changes_no_constrained_text() {
    let requests = requests(false);
    let expected = expected(&requests);
    for away in [4..6, 5..9] {
        assert_eq!(decode(&mut runner(None), &requests, 2, away), (expected.clone(), vec![]));
    }
}

#[test]
fn late_masks_postpone_draws_and_change_no_text() {
    let plain = requests(false);
    let expected = expected(&plain);
    let gated = |params: &SamplingParams, gate: &Receiver<()>| SamplingParams {
        constraint: params.constraint.as_ref().map(|_| -> Arc<dyn Constraint> {
            let end = NoToken::Complete;
            Arc::new(Rounds { length: 99, end, gate: Some(gate.clone()) })
        }),
        ..params.clone()
    };
    for (depth, on_host) in [(1, false), (2, false), (1, true)] {
        let (open, gate) = bounded(1);
        let gated: Vec<SamplingParams> = plain.iter().map(|params| gated(params, &gate)).collect();
        let requests = if on_host { sampled_by_host(&gated) } else { gated };
        let mut runner = runner(None);
        runner.bound_mask_wait(0);
        let mut schedule = Schedule::new(&requests, depth, &(4..8));
        schedule.gate = Some(open);
        let (outcomes, late) = run_counted(&mut runner, schedule);
        assert_eq!(outcomes, (expected.clone(), vec![]), "depth {depth}");
        assert!(late > 0, "no mask was late");
    }
}

#[test]
fn a_constraint_that_leaves_no_token_ends_its_own_sequence_as_on_the_host() {
    let requests = requests(true);
    let expected = expected(&requests);
    assert_eq!(expected[2].1, Some(NotSampled::NoToken(NoToken::Complete)));
    let stuck = NoToken::Stuck("made up".to_owned());
    assert_eq!(expected[3].1, Some(NotSampled::NoToken(stuck)));
    assert_eq!([expected[2].0.len(), expected[3].0.len()], [6, 7]);
    assert_eq!(decode(&mut runner(None), &requests, 2, 0..0), (expected, vec![]));
}

#[test]
fn a_launch_that_is_refused_changes_no_constrained_text() {
    let requests = requests(true);
    let expected = expected(&requests);
    let mut refused = BTreeSet::new();
    // Every second launch of one decode step and more, among them launches of a forward pass and of draws with masks.
    for launch in (100..136).step_by(2) {
        let mut runner = runner(Some(Fault::Launch(launch)));
        let (found, failed) = decode(&mut runner, &requests, 2, 4..8);
        assert_eq!(found, expected, "launch {launch} is refused");
        assert_eq!(failed.len(), 1, "{failed:?}");
        refused.extend(failed);
    }
    for kernel in ["embed", "attention_rows", "sample"] {
        assert!(refused.iter().any(|error| error.contains(kernel)), "{kernel}: {refused:?}");
    }
}

#[test]
fn steps_with_and_without_masks_replay_graphs_of_their_own() {
    let requests = requests(false);
    let mut runner = runner(None);
    for request in [1, 0, 1, 0] {
        let alone = &requests[request..=request];
        assert_eq!(decode(&mut runner, alone, 2, 0..0), (expected(alone), vec![]));
    }
}
