//! Tests of the engine's steps through the runner: sampling, sampler state, and batches that fail.

use crate::harness::{some_tokens, tiny};
use std::sync::Arc;
use tiercel_device::{
    BlockId, NotSampled, QueuedRunner, Sampled, SamplingParams, SeqId, SeqSlice, SeqStart,
    SliceInput, StepBatch, StepError, StepId, TokenId,
};
use tiercel_gpu::cpu::CpuOps;
use tiercel_gpu::{KvType, WeightFormat};
use tiercel_model::load::{KvCapacity, LoadOptions, load, open};
use tiercel_model::runner::ModelRunner;
use tiercel_model::weights::{Checkpoint, ModelFiles};

fn options() -> LoadOptions {
    LoadOptions {
        weights: WeightFormat::F32,
        kv_type: KvType::F32,
        threads: 2,
        kv_capacity: KvCapacity::Blocks(64),
        host_bytes: Some(1 << 20),
        max_num_seqs: 8,
        max_num_batched_tokens: 64,
        max_sequences: 8,
        ..LoadOptions::default()
    }
}

fn runner() -> ModelRunner<CpuOps> {
    let checkpoint = Checkpoint::open(&ModelFiles::HfDir(tiny("llama3"))).expect("a checkpoint");
    let parts = open(&checkpoint, &options(), &mut |_| {}).expect("a device");
    parts.into_runner(8).0
}

fn start(seq: u64, sampling: SamplingParams, prompt: &[TokenId]) -> SeqStart {
    SeqStart { seq: SeqId(seq), sampling: Arc::new(sampling), prompt: prompt.into() }
}

fn slice(seq: u64, first_pos: u32, input: SliceInput, sample: Option<u32>) -> SeqSlice {
    let blocks = seq as u32 * 4..seq as u32 * 4 + 4;
    SeqSlice { seq: SeqId(seq), first_pos, input, table: blocks.map(BlockId).collect(), sample }
}

fn batch(id: u64, starts: Vec<SeqStart>, slices: Vec<SeqSlice>) -> StepBatch {
    StepBatch { id: StepId(id), starts, ends: vec![], slices }
}

/// Prefills a prompt and runs `count - 1` decode steps, each with the token that the step before it sampled. Returns
/// the sampled tokens.
fn generate(
    runner: &mut ModelRunner<CpuOps>,
    seq: u64,
    params: SamplingParams,
    count: u32,
) -> Vec<TokenId> {
    let prompt = some_tokens(10, 3, 300);
    let starts = vec![start(seq, params, &prompt)];
    let first = slice(seq, 0, SliceInput::Known(prompt.into()), Some(0));
    let mut tokens = vec![sampled(runner, &batch(1, starts, vec![first])).token];
    for index in 1..count {
        let input = SliceInput::SampledBy(StepId(u64::from(index)));
        let next = slice(seq, 9 + index, input, Some(index));
        tokens.push(sampled(runner, &batch(u64::from(index) + 1, vec![], vec![next])).token);
    }
    tokens
}

fn sampled(runner: &mut ModelRunner<CpuOps>, batch: &StepBatch) -> Sampled {
    let output = runner.run(batch).expect("a good step");
    let [(_, result)] = &output.sampled[..] else { panic!("one sequence samples") };
    result.clone().expect("finite logits")
}

#[test]
fn decoding_follows_the_sampled_tokens() {
    let mut runner = runner();
    let greedy = generate(&mut runner, 1, SamplingParams::greedy(), 12);
    // The prompt and all sampled tokens but the last are prefilled as the prompt of a new sequence, which must then
    // sample that last token again.
    let mut prompt = some_tokens(10, 3, 300);
    prompt.extend(&greedy[..11]);
    let starts = vec![start(2, SamplingParams::greedy(), &prompt)];
    let whole = slice(2, 0, SliceInput::Known(prompt.into()), Some(0));
    assert_eq!(sampled(&mut runner, &batch(20, starts, vec![whole])).token, greedy[11]);
}

#[test]
fn a_seed_decides_the_text_whatever_else_runs() {
    let params = SamplingParams { temperature: 1.5, seed: 7, ..SamplingParams::default() };
    let one = generate(&mut runner(), 1, params.clone(), 12);
    let mut busy = runner();
    generate(&mut busy, 3, SamplingParams { seed: 8, ..params.clone() }, 5);
    assert_eq!(one, generate(&mut busy, 2, params.clone(), 12));
    assert_ne!(one, generate(&mut busy, 4, SamplingParams { seed: 9, ..params }, 12));
}

#[test]
fn a_step_run_again_samples_the_same_token() {
    let mut runner = runner();
    let prompt = some_tokens(10, 3, 300);
    let params = SamplingParams {
        temperature: 1.0,
        frequency_penalty: 1.5,
        seed: 3,
        ..SamplingParams::default()
    };
    let starts = vec![start(1, params, &prompt)];
    sampled(
        &mut runner,
        &batch(1, starts, vec![slice(1, 0, SliceInput::Known(prompt.into()), Some(0))]),
    );
    let next =
        |id| batch(id, vec![], vec![slice(1, 10, SliceInput::Known(vec![5].into()), Some(1))]);
    let first = sampled(&mut runner, &next(2));
    assert_eq!(first, sampled(&mut runner, &next(3)));
}

#[test]
fn log_probabilities_are_a_distribution() {
    let mut runner = runner();
    let prompt = some_tokens(10, 3, 300);
    let params = SamplingParams { logprobs: Some(20), ..SamplingParams::greedy() };
    let starts = vec![start(1, params, &prompt)];
    let step = batch(1, starts, vec![slice(1, 0, SliceInput::Known(prompt.into()), Some(0))]);
    let output = sampled(&mut runner, &step);
    let logprobs = output.logprobs.expect("asked for");
    assert_eq!(logprobs.top[0], (output.token, logprobs.chosen));
    let mass: f32 = logprobs.top.iter().map(|(_, logprob)| logprob.exp()).sum();
    assert!(logprobs.top.len() == 20 && mass <= 1.0 + 1e-5 && mass > 0.1, "{mass}");
}

#[test]
fn a_bad_batch_fails_its_step_and_nothing_else() {
    let mut runner = runner();
    let before = generate(&mut runner, 1, SamplingParams::greedy(), 3);
    let endless = slice(2, 0, SliceInput::Known(vec![0; 65].into()), Some(0));
    let error = runner.run(&batch(9, vec![], vec![endless])).expect_err("too many tokens");
    assert!(matches!(&error, StepError::Failed(why) if why.contains("65 tokens")), "{error}");
    let unknown = slice(2, 0, SliceInput::Known(vec![1].into()), Some(0));
    let output = runner.run(&batch(10, vec![], vec![unknown])).expect("the step itself is fine");
    assert_eq!(output.sampled, [(SeqId(2), Err(NotSampled::UnknownSequence(SeqId(2))))]);
    assert_eq!(runner.run(&batch(11, vec![], vec![])).expect("nothing to do").sampled, []);
    assert_eq!(generate(&mut runner, 1, SamplingParams::greedy(), 3), before);
}

#[test]
fn a_loaded_device_answers_on_its_own_threads() {
    let mut seen = Vec::new();
    let files = ModelFiles::HfDir(tiny("llama3"));
    let mut loaded = load(&files, &options(), &mut |progress| seen.push(progress)).expect("loads");
    assert_eq!(seen.last().map(|last| last.done), Some(seen.len()));
    assert_eq!(seen.last().map(|last| last.total), Some(seen.len()));
    let (info, profile) = (&loaded.device.info, &loaded.device.profile);
    assert_eq!((info.device_blocks, info.block_size, info.vocab_size), (64, 16, 300));
    assert!(info.host_blocks > 0 && profile.link_bytes_per_s > 0.0);
    assert!(profile.step_base_us + profile.decode_token_us > 0.0);
    let prompt = some_tokens(10, 3, 300);
    let starts = vec![start(1, SamplingParams::greedy(), &prompt)];
    let step = batch(1, starts, vec![slice(1, 0, SliceInput::Known(prompt.into()), Some(0))]);
    let (answer, answers) = std::sync::mpsc::channel();
    let done = Box::new(move |done| answer.send(done).expect("the test listens"));
    loaded.device.runner.submit(step, done).expect("room for one step");
    let done = answers.recv().expect("an answer");
    assert_eq!(done.result.expect("a good step").sampled.len(), 1);
}

#[test]
fn options_out_of_range_are_named() {
    let checkpoint = Checkpoint::open(&ModelFiles::HfDir(tiny("llama3"))).expect("a checkpoint");
    for (bad, named) in [
        (LoadOptions { block_size: 0, ..options() }, "block_size"),
        (LoadOptions { max_num_seqs: 0, ..options() }, "max_num_seqs"),
        (LoadOptions { max_num_batched_tokens: usize::MAX, ..options() }, "max_num_batched_tokens"),
        (LoadOptions { max_model_len: 257, ..options() }, "max_model_len"),
        (LoadOptions { threads: 1 << 40, ..options() }, "threads"),
        (LoadOptions { kv_capacity: KvCapacity::Bytes(5), ..options() }, "KV cache"),
        (LoadOptions { kv_capacity: KvCapacity::Bytes(u64::MAX), ..options() }, "memory"),
    ] {
        let error = open(&checkpoint, &bad, &mut |_| {}).err().expect(named).to_string();
        assert!(error.contains(named), "{error}");
    }
}
