use super::error::BatchError;
use super::plan::{Output, Plan, PlanLimits};
use super::sequences::Sequences;
use crate::forward::DecoderLimits;
use std::sync::Arc;
use tiercel_device::{
    BlockId, MaskWait, SamplingParams, SeqId, SeqSlice, SeqStart, SliceInput, StepBatch, StepId,
    TokenId,
};
use tiercel_gpu::RowInput;

const VOCAB: usize = 8;

fn limits() -> PlanLimits {
    PlanLimits {
        decoder: DecoderLimits { max_batched_tokens: 12, max_sampled_rows: 2, max_positions: 20 },
        vocab: VOCAB,
        block_size: 4,
        device_blocks: 10,
    }
}

fn slice(seq: u64, first_pos: u32, tokens: &[TokenId], table: &[u32]) -> SeqSlice {
    SeqSlice {
        seq: SeqId(seq),
        first_pos,
        input: SliceInput::Known(tokens.into()),
        table: table.iter().map(|&block| BlockId(block)).collect(),
        sample: None,
    }
}

fn sampling(slice: SeqSlice, index: u32) -> SeqSlice {
    SeqSlice { sample: Some(index), ..slice }
}

fn batch(slices: Vec<SeqSlice>) -> StepBatch {
    StepBatch { id: StepId(9), starts: vec![], ends: vec![], slices }
}

fn start(seq: u64) -> SeqStart {
    let sampling = Arc::new(SamplingParams::greedy());
    SeqStart { seq: SeqId(seq), sampling, prompt: Arc::from([1]) }
}

fn started(seqs: &[u64]) -> Sequences {
    let mut sequences = Sequences::new(16, VOCAB);
    seqs.iter().for_each(|&seq| sequences.start(&start(seq)));
    sequences
}

fn refusal(slices: Vec<SeqSlice>) -> BatchError {
    let sequences = started(&[1, 2, 3]);
    let mut plan = Plan::new(limits());
    let error = plan.build(&batch(slices), &sequences).expect_err("an impossible batch");
    // After a batch was refused, a good batch must be accepted: a refusal leaves no state behind.
    let good = batch(vec![slice(1, 0, &[1; 8], &[0, 1]), slice(2, 4, &[1], &[2, 3])]);
    plan.build(&good, &sequences).expect("a good batch");
    error
}

#[test]
fn a_mixed_batch_becomes_rows() {
    let mut plan = Plan::new(limits());
    let slices = vec![
        sampling(slice(1, 4, &[5], &[7, 2]), 3),
        slice(2, 0, &[1, 2, 3], &[4]),
        sampling(slice(3, 1, &[6, 7], &[9, 9]), 0),
    ];
    plan.build(&batch(slices), &started(&[1, 2, 3])).expect("valid");
    let forward = plan.forward();
    assert_eq!(forward.inputs, [5, 1, 2, 3, 6, 7].map(RowInput::Token));
    assert_eq!(forward.sampled, [0, 5]);
    let rows: Vec<_> = forward.seqs.iter().map(|seq| (seq.rows.clone(), seq.first_pos)).collect();
    assert_eq!(rows, [(0..1, 4), (1..4, 0), (4..6, 1)]);
    let outputs =
        [Output { seq: SeqId(1), index: Some(3) }, Output { seq: SeqId(3), index: Some(0) }];
    assert_eq!(plan.outputs(), outputs);
}

#[test]
fn impossible_batches_are_refused_by_name() {
    use BatchError::*;
    let seq = SeqId(1);
    let one = |tokens: &[TokenId], first_pos, table: &[u32]| {
        refusal(vec![slice(1, first_pos, tokens, table)])
    };
    assert_eq!(one(&[], 0, &[0]), EmptySlice(seq));
    assert_eq!(one(&[1; 13], 0, &[0, 1, 2, 3]), TooManyTokens { tokens: 13, limit: 12 });
    assert_eq!(one(&[8], 0, &[0]), Token { seq, token: 8, vocab: VOCAB });
    assert_eq!(one(&[1, 1], 19, &[0; 9]), TooLong { seq, end: 21, limit: 20 });
    assert!(matches!(one(&[1], u32::MAX, &[0; 9]), TooLong { end: 4_294_967_296, .. }));
    assert_eq!(one(&[1], 4, &[0]), ShortTable { seq, blocks: 1, end: 5, needed: 2 });
    assert_eq!(one(&[1], 4, &[10, 0]), Block { seq, block: BlockId(10), blocks: 10 });
    let twice = vec![slice(1, 0, &[1], &[0]), slice(1, 1, &[1], &[0])];
    assert_eq!(refusal(twice), TwoSlices(seq));
    let samples = (1..=3).map(|seq| sampling(slice(seq, 0, &[1], &[seq as u32]), 0)).collect();
    assert_eq!(refusal(samples), TooManySamples { rows: 3, limit: 2 });
}

#[test]
fn a_block_is_written_by_one_slice_and_read_by_no_other() {
    let clash = |writer, reader| BatchError::SharedWrite {
        writer: SeqId(writer),
        reader: SeqId(reader),
        block: BlockId(5),
    };
    let both_write = vec![slice(1, 0, &[1], &[5]), slice(2, 4, &[1], &[0, 5])];
    assert_eq!(refusal(both_write), clash(1, 2));
    let one_reads = vec![slice(1, 4, &[1], &[5, 0]), slice(2, 3, &[1], &[5])];
    assert_eq!(refusal(one_reads), clash(2, 1));
    let itself = vec![slice(3, 4, &[1], &[5, 5])];
    assert_eq!(refusal(itself), clash(3, 3));
    let shared_prefix = vec![slice(1, 4, &[1], &[5, 0]), slice(2, 4, &[1], &[5, 1])];
    let mut plan = Plan::new(limits());
    plan.build(&batch(shared_prefix), &started(&[1, 2])).expect("reading together is fine");
}

#[test]
fn an_unknown_sequence_costs_only_itself() {
    let mut plan = Plan::new(limits());
    let from_step =
        SeqSlice { input: SliceInput::SampledBy(StepId(8)), ..sampling(slice(4, 3, &[], &[1]), 1) };
    let slices =
        vec![sampling(slice(5, 0, &[1], &[0]), 0), from_step, sampling(slice(1, 0, &[2], &[2]), 0)];
    plan.build(&batch(slices), &started(&[1])).expect("the rest is fine");
    let indices: Vec<_> = plan.outputs().iter().map(|output| output.index).collect();
    assert_eq!(indices, [None, None, Some(0)]);
    assert_eq!(plan.forward().inputs, [1, 2].map(RowInput::Token));
    assert_eq!(plan.forward().sampled, [1]);
}

#[test]
fn a_token_is_taken_from_the_step_that_sampled_it_only() {
    let mut sequences = started(&[1]);
    let mut state = sequences.take(SeqId(1)).expect("started");
    let mut logits = [0.0; VOCAB];
    logits[6] = 1.0;
    state.sample(StepId(8), &mut logits, 0, &MaskWait::endless()).expect("finite logits");
    sequences.put_back(SeqId(1), state);
    let next = |step| SeqSlice {
        input: SliceInput::SampledBy(StepId(step)),
        ..sampling(slice(1, 3, &[], &[1]), 1)
    };
    let mut plan = Plan::new(limits());
    plan.build(&batch(vec![next(8)]), &sequences).expect("sampled by step 8");
    assert_eq!(plan.forward().inputs, [RowInput::Token(6)]);
    // In step 9, the device draws the sequence's next token: until it is known, the next step's input refers to the
    // drawn row.
    let mut state = sequences.take(SeqId(1)).expect("started");
    state.draws(StepId(9), 1, 1, &MaskWait::endless()).expect("no constraint");
    sequences.put_back(SeqId(1), state);
    sequences.drew(SeqId(1), StepId(8), 5);
    plan.build(&batch(vec![next(9)]), &sequences).expect("drawn by step 9");
    assert_eq!(plan.forward().inputs, [RowInput::Drawn(1)]);
    sequences.drew(SeqId(1), StepId(9), 4);
    plan.build(&batch(vec![next(9)]), &sequences).expect("drawn by step 9");
    assert_eq!(plan.forward().inputs, [RowInput::Token(4)]);
    // When sampling fails for a sequence (NaN logits), only its own output is lost; the other sequences of the batch
    // run.
    let mut state = sequences.take(SeqId(1)).expect("started");
    state
        .sample(StepId(10), &mut [f32::NAN; VOCAB], 2, &MaskWait::endless())
        .expect_err("no number");
    sequences.put_back(SeqId(1), state);
    let other = sampling(slice(2, 0, &[1], &[2]), 0);
    sequences.start(&start(2));
    plan.build(&batch(vec![next(10), other]), &sequences).expect("the other goes on");
    assert_eq!((plan.forward().inputs.len(), plan.outputs()[0].index), (1, None));
    let error = plan.build(&batch(vec![next(7)]), &sequences).expect_err("an older step");
    assert_eq!(error, BatchError::NoToken(SeqId(1)));
}

#[test]
fn sampler_state_is_bounded_and_ends() {
    let mut sequences = Sequences::new(2, VOCAB);
    (1..=3).for_each(|seq| sequences.start(&start(seq)));
    assert_eq!(sequences.len(), 2);
    assert!(!sequences.contains(SeqId(3)));
    sequences.start(&start(2));
    sequences.end(SeqId(1));
    sequences.end(SeqId(77));
    sequences.start(&start(3));
    assert!(sequences.contains(SeqId(3)) && sequences.len() == 2);
}
