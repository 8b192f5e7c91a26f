//! Tests of the whole mock device through its traits, in simulated time unless said otherwise.

mod faults;
mod relying;

use super::*;
use crate::{
    BlockId, CopyBatch, CopyDirection, CopyDone, CopyError, CopyId, CopyPair, HostBlockId,
    NotSampled, SamplingParams, SeqId, SeqSlice, SeqStart, SliceInput, StepBatch, StepDone,
    StepError, StepId, SubmitError,
};
use std::sync::Arc;
use tokio::sync::oneshot;
use tokio::task::LocalSet;

const PROMPT: [TokenId; 6] = [5, 6, 7, 8, 9, 10];

fn options(clock: &Clock) -> MockOptions {
    let profile = MockProfile::named("tiny").expect("built in");
    MockOptions {
        block_size: 4,
        device_blocks: 8,
        host_blocks: 4,
        seed: 42,
        fingerprints: Fingerprints::PerSlot,
        ..MockOptions::new(profile, clock.clone())
    }
}

struct Bench {
    device: Device,
    clock: Clock,
    log: MockFaultLog,
    oracle: MockOracle,
    next: u64,
    /// Sampling of the sequences that start.
    sampling: Arc<SamplingParams>,
}

impl Bench {
    fn open(change: impl FnOnce(&mut MockOptions)) -> Bench {
        let clock = Clock::simulated();
        let mut options = options(&clock);
        change(&mut options);
        let (log, oracle) = (options.log.clone(), options.oracle());
        let sampling = Arc::new(SamplingParams::greedy());
        Bench { device: MockDevice::open(options), clock, log, oracle, next: 1, sampling }
    }

    /// Submits a step to the mock device under test. The sequences in `starts` begin with the prompt [`PROMPT`].
    fn submit(
        &mut self,
        starts: &[u64],
        slices: Vec<SeqSlice>,
    ) -> Result<oneshot::Receiver<StepDone>, SubmitError> {
        let start = |seq: &u64| SeqStart {
            seq: SeqId(*seq),
            sampling: self.sampling.clone(),
            prompt: Arc::new(PROMPT),
        };
        let batch = StepBatch {
            id: StepId(self.next),
            starts: starts.iter().map(start).collect(),
            ends: Vec::new(),
            slices,
        };
        let (tx, rx) = oneshot::channel();
        let done = Box::new(move |done| tx.send(done).expect("the test waits"));
        self.device.runner.submit(batch, done)?;
        self.next += 1;
        Ok(rx)
    }

    async fn step(&mut self, starts: &[u64], slices: Vec<SeqSlice>) -> StepDone {
        self.submit(starts, slices).expect("room").await.expect("an answer")
    }

    /// Runs a step on the mock device that must succeed, and returns the tokens that it sampled.
    async fn sampled(&mut self, starts: &[u64], slices: Vec<SeqSlice>) -> Vec<TokenId> {
        tokens(self.step(starts, slices).await)
    }

    async fn failed(&mut self, starts: &[u64], slices: Vec<SeqSlice>) -> String {
        match self.step(starts, slices).await.result {
            Err(StepError::Failed(why)) => why,
            other => panic!("the step should fail: {other:?}"),
        }
    }

    fn copy(
        &mut self,
        direction: CopyDirection,
        pairs: &[(u32, u32)],
    ) -> oneshot::Receiver<CopyDone> {
        let pair = |(device, host): &(u32, u32)| CopyPair {
            device: BlockId(*device),
            host: HostBlockId(*host),
        };
        let pairs = pairs.iter().map(pair).collect();
        self.submit_copy(CopyBatch::needed(CopyId(1), direction, pairs))
    }

    fn submit_copy(&mut self, batch: CopyBatch) -> oneshot::Receiver<CopyDone> {
        let (tx, rx) = oneshot::channel();
        let done = Box::new(move |done| tx.send(done).expect("the test waits"));
        self.device.copier.submit(batch, done).expect("room");
        rx
    }
}

fn tokens(done: StepDone) -> Vec<TokenId> {
    let output = done.result.expect("the step succeeds");
    output.sampled.into_iter().map(|(_, sampled)| sampled.expect("a token").token).collect()
}

fn known(
    seq: u64,
    first_pos: u32,
    input: &[TokenId],
    table: &[u32],
    sample: Option<u32>,
) -> SeqSlice {
    SeqSlice {
        seq: SeqId(seq),
        first_pos,
        input: SliceInput::Known(input.into()),
        table: table.iter().map(|id| BlockId(*id)).collect(),
        sample,
    }
}

fn local<F: Future>(test: impl FnOnce() -> F) -> F::Output {
    local_at(true, test)
}

fn local_at<F: Future>(paused: bool, test: impl FnOnce() -> F) -> F::Output {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .start_paused(paused)
        .build()
        .expect("a runtime");
    LocalSet::new().block_on(&runtime, async { test().await })
}

#[test]
fn chunked_prefill_and_decode_sample_what_the_oracle_says() {
    for kind in [Fingerprints::PerBlock, Fingerprints::PerSlot] {
        local(|| async move {
            let mut bench = Bench::open(|options| options.fingerprints = kind);
            let expected = bench.oracle.output(&PROMPT, 4);
            assert!(
                bench.sampled(&[1], vec![known(1, 0, &PROMPT[..3], &[2], None)]).await.is_empty()
            );
            let rest = vec![known(1, 3, &PROMPT[3..], &[2, 5], Some(0))];
            let mut output = bench.sampled(&[], rest).await;
            for i in 1..4 {
                let input = [output[i - 1]];
                let slice = known(1, 5 + i as u32, &input, &[2, 5, 3], Some(i as u32));
                output.extend(bench.sampled(&[], vec![slice]).await);
            }
            assert_eq!(output, expected);
            assert_eq!(bench.log.total(), 0);
        });
    }
}

#[test]
fn it_runs_alike_in_real_time() {
    local_at(false, || async {
        let mut bench = Bench::open(|options| options.clock = Clock::wall());
        let expected = bench.oracle.output(&PROMPT, 1);
        let slice = known(1, 0, &PROMPT, &[0, 1], Some(0));
        assert_eq!(bench.sampled(&[1], vec![slice]).await, expected);
        let copy = bench.copy(CopyDirection::Out, &[(0, 0)]).await.expect("an answer");
        assert!(copy.result.is_ok());
    });
}

#[test]
fn a_step_takes_its_modelled_time() {
    local(|| async {
        let mut bench = Bench::open(|options| options.profile.prefill_step_us = 7.0);
        let before = bench.clock.now();
        bench.sampled(&[1], vec![known(1, 0, &PROMPT, &[0, 1], Some(0))]).await;
        // Expected duration of the prefill step, us: 200 for the step + 6 * 1 for 6 prefill tokens + (0 + 1 + ... + 5)
        // * 0.0001 for their context + 7 for any prefill.
        assert_eq!(bench.clock.now().since_us(before), 213);
        let token = bench.oracle.output(&PROMPT, 1);
        let before = bench.clock.now();
        bench.sampled(&[], vec![known(1, 6, &token, &[0, 1], Some(1))]).await;
        // Expected duration of the decode step, us: 200 for the step + 2 for one decode token + 7 * 0.001 for reading
        // the KV of 7 tokens.
        assert_eq!(bench.clock.now().since_us(before), 202);
    });
}

#[test]
fn two_steps_run_in_flight_and_the_second_takes_its_input_from_the_first() {
    local(|| async {
        let mut bench = Bench::open(|_| {});
        let expected = bench.oracle.output(&PROMPT, 2);
        let first = bench.submit(&[1], vec![known(1, 0, &PROMPT, &[0, 1], Some(0))]).expect("room");
        let mut next = known(1, 6, &[], &[0, 1], Some(1));
        next.input = SliceInput::SampledBy(StepId(1));
        let second = bench.submit(&[], vec![next]).expect("room for two");
        assert_eq!(bench.submit(&[], vec![]).err(), Some(SubmitError::Full));
        assert_eq!(tokens(first.await.expect("an answer")), expected[..1]);
        assert_eq!(tokens(second.await.expect("an answer")), expected[1..]);
        assert!(bench.submit(&[], vec![]).is_ok(), "room again");
    });
}

#[test]
fn reading_what_was_never_computed_fails_the_step_and_is_logged() {
    for kind in [Fingerprints::PerBlock, Fingerprints::PerSlot] {
        local(|| async move {
            let mut bench = Bench::open(|options| options.fingerprints = kind);
            let why = bench.failed(&[3], vec![known(3, 4, &PROMPT[4..], &[6, 7], Some(0))]).await;
            assert!(why.contains("d6, entry 0 of seq3"), "{why}");
            let wrong = MockFaultKind::WrongContent { block: BlockId(6), entry: 0 };
            assert_eq!(bench.log.first()[0].kind, wrong);
            assert_eq!(bench.log.total(), 1);
        });
    }
}

#[test]
fn a_block_overwritten_by_another_sequence_is_noticed() {
    local(|| async {
        let mut bench = Bench::open(|_| {});
        bench.sampled(&[1], vec![known(1, 0, &PROMPT, &[0, 1], Some(0))]).await;
        bench.sampled(&[2], vec![known(2, 0, &PROMPT[..2], &[1], None)]).await;
        let token = bench.oracle.output(&PROMPT, 1);
        let why = bench.failed(&[], vec![known(1, 6, &token, &[0, 1], Some(1))]).await;
        assert!(why.contains("entry 1 of seq1"), "{why}");
    });
}

#[test]
fn equal_prefixes_may_share_blocks_but_nobody_may_share_what_is_written() {
    local(|| async {
        let mut bench = Bench::open(|_| {});
        let first = bench.sampled(&[1], vec![known(1, 0, &PROMPT, &[0, 1], Some(0))]).await;
        let hit = known(2, 4, &PROMPT[4..], &[0, 2], Some(0));
        assert_eq!(bench.sampled(&[2], vec![hit]).await, first);
        let writes =
            vec![known(1, 6, &first, &[0, 1], Some(1)), known(2, 6, &first, &[0, 1], Some(1))];
        let why = bench.failed(&[], writes).await;
        assert!(why.contains("seq2 writes d1"), "{why}");
    });
}

#[test]
fn swapped_blocks_read_right_and_half_copied_ones_do_not() {
    local(|| async {
        let mut bench = Bench::open(|_| {});
        let token = bench.sampled(&[1], vec![known(1, 0, &PROMPT, &[0, 1], Some(0))]).await;
        let done = bench.copy(CopyDirection::Out, &[(0, 3), (1, 2)]).await.expect("an answer");
        // Expected duration of copying two blocks of 4 tokens * 4000 bytes at 1 GB/s: 32 us.
        assert_eq!((done.duration_us, done.result), (32, Ok(())));
        let copy = bench.copy(CopyDirection::In, &[(4, 3), (5, 2)]);
        let early = bench.submit(&[], vec![known(1, 6, &token, &[4, 5], Some(1))]).expect("room");
        assert!(copy.await.expect("an answer").result.is_ok());
        let early = early.await.expect("an answer").result;
        assert!(matches!(early, Err(StepError::Failed(_))), "the step began before the copy ended");
        let again = known(1, 6, &token, &[4, 5], Some(1));
        assert_eq!(bench.sampled(&[], vec![again]).await, bench.oracle.output(&PROMPT, 2)[1..]);
    });
}

#[test]
fn a_copy_into_a_block_that_a_step_reads_is_noticed_when_the_step_ends() {
    local(|| async {
        let mut bench = Bench::open(|options| options.fingerprints = Fingerprints::PerBlock);
        let token = bench.sampled(&[1], vec![known(1, 0, &PROMPT, &[0, 1], Some(0))]).await;
        let step = bench.submit(&[], vec![known(1, 6, &token, &[0, 1], Some(1))]).expect("room");
        // Waits until the step is running, so that the copy overwrites a block that the step has already read.
        bench.clock.sleep_us(50).await;
        assert!(bench.copy(CopyDirection::In, &[(0, 0)]).await.expect("an answer").result.is_ok());
        let result = step.await.expect("an answer").result;
        assert!(matches!(result, Err(StepError::Failed(why)) if why.contains("entry 0 of seq1")));
    });
}

#[test]
fn the_directions_are_full_duplex_and_each_is_in_order() {
    local(|| async {
        let mut bench = Bench::open(|_| {});
        let before = bench.clock.now();
        let copies = [
            bench.copy(CopyDirection::Out, &[(0, 0)]),
            bench.copy(CopyDirection::Out, &[(1, 1)]),
            bench.copy(CopyDirection::In, &[(2, 2)]),
        ];
        let mut ends = Vec::new();
        for copy in copies {
            copy.await.expect("an answer");
            ends.push(bench.clock.now().since_us(before));
        }
        assert_eq!(ends, [16, 32, 32], "the copy in ended at 16, before the second copy out");
    });
}

#[test]
fn copies_that_sequences_wait_for_overtake_copies_ahead_of_need() {
    local(|| async {
        let mut bench = Bench::open(|_| {});
        let before = bench.clock.now();
        let pair = |block| vec![CopyPair { device: BlockId(block), host: HostBlockId(block) }];
        let mut submit = |block: u32, ahead_of_need| {
            let needed = CopyBatch::needed(CopyId(1), CopyDirection::Out, pair(block));
            bench.submit_copy(CopyBatch { ahead_of_need, ..needed })
        };
        let ahead = [submit(0, true), submit(1, true)];
        let needed = [submit(2, false), submit(3, false)];
        let mut ends = Vec::new();
        for copy in needed.into_iter().chain(ahead) {
            copy.await.expect("an answer");
            ends.push(bench.clock.now().since_us(before));
        }
        // The mock device looks at its queue when all four batches are there. So the first batch ahead of need starts,
        // and the two that sequences wait for follow it.
        assert_eq!(ends, [32, 48, 48, 64], "the first batch ahead of need ended at 16");
    });
}

#[test]
fn a_copy_begins_when_the_steps_of_its_fence_have_ended() {
    local(|| async {
        for (after, content) in [(1, true), (0, false)] {
            let mut bench = Bench::open(|_| {});
            let step = bench.submit(&[1], vec![known(1, 0, &PROMPT, &[0, 1], Some(0))]);
            let step = step.expect("room");
            // Waits until the step is running.
            bench.clock.sleep_us(50).await;
            let pairs = [(0, 0), (1, 1)].map(|(device, host)| CopyPair {
                device: BlockId(device),
                host: HostBlockId(host),
            });
            let batch = CopyBatch::needed(CopyId(1), CopyDirection::Out, pairs.to_vec());
            let batch = CopyBatch { after: StepId(after), ..batch };
            let copied = bench.submit_copy(batch).await.expect("an answer");
            assert_eq!((copied.duration_us, copied.result), (32, Ok(())));
            let token = tokens(step.await.expect("an answer"));
            bench.copy(CopyDirection::In, &[(4, 0), (5, 1)]).await.expect("an answer");
            let next = bench.step(&[], vec![known(1, 6, &token, &[4, 5], Some(1))]).await;
            assert_eq!(next.result.is_ok(), content, "without the fence, the copy came too early");
        }
    });
}
