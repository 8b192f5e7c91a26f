//! Compares greedy continuations of SmolLM2 in f32 with Hugging Face transformers on the same file.
//!
//! `tests/reference/make_smollm2.py` of the workspace makes the expected tokens. All prompts run together, prefill
//! chunks beside decode tokens, through the production loader and runner.
#![allow(clippy::unwrap_used, reason = "tests state what must hold")]

use serde::Deserialize;
use std::path::Path;
use std::sync::Arc;
use tiercel_device::{
    BlockId, QueuedRunner, SamplingParams, SeqId, SeqSlice, SeqStart, SliceInput, StepBatch,
    StepId, TokenId,
};
use tiercel_gpu::cpu::CpuOps;
use tiercel_gpu::{KvType, WeightFormat};
use tiercel_model::load::{KvCapacity, LoadOptions, open};
use tiercel_model::runner::ModelRunner;
use tiercel_model::source::{ModelFiles, Resolver};
use tiercel_model::template::{ChatTemplate, Conversation, Ending};
use tiercel_model::tokenizer::Tokenizer;
use tiercel_model::weights::Checkpoint;

/// Near-tie: largest difference of two logits whose order may change when f32 sums are taken in another order.
const NEAR_TIE: f32 = 0.005;
/// Maximum number of tokens in a step.
const BUDGET: usize = 256;
const BLOCK_SIZE: usize = 16;

#[derive(Deserialize)]
struct Reference {
    prompts: Vec<Prompt>,
}

/// A prompt and its greedy continuation by transformers: the best and the second-best token of each step, and the gap
/// between their logits.
#[derive(Deserialize)]
struct Prompt {
    name: String,
    /// Conversation from which the prompt's `text` was rendered; `None` if the prompt is no conversation.
    messages: Option<Vec<Message>>,
    text: String,
    prompt: Vec<TokenId>,
    tokens: Vec<TokenId>,
    second: Vec<TokenId>,
    gap: Vec<f32>,
}

#[derive(Deserialize)]
struct Message {
    role: String,
    content: String,
}

/// Run of one reference prompt: its KV blocks, and the output that this program has generated so far.
struct Run<'a> {
    expected: &'a Prompt,
    table: Arc<[BlockId]>,
    /// Number of tokens of the sequence whose KV is computed.
    done: usize,
    output: Vec<TokenId>,
}

impl Run<'_> {
    /// Returns whether the comparison of the generated tokens with the reference is over: all tokens of the reference
    /// were generated, or a token differs from it.
    fn is_over(&self) -> bool {
        !self.expected.tokens.starts_with(&self.output)
            || self.output.len() == self.expected.tokens.len()
    }

    /// Returns the next tokens of the sequence to compute, at most `budget`, as a slice of a step.
    fn slice(&self, seq: SeqId, budget: usize) -> SeqSlice {
        let prompt = &self.expected.prompt;
        let all = [&prompt[..], &self.output].concat();
        let end = all.len().min(self.done + budget);
        SeqSlice {
            seq,
            first_pos: self.done as u32,
            input: SliceInput::Known(all[self.done..end].into()),
            table: Arc::clone(&self.table),
            sample: (end == all.len()).then_some(self.output.len() as u32),
        }
    }
}

fn reference() -> Vec<Prompt> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/reference/smollm2/greedy.json");
    let text = std::fs::read_to_string(path).expect("the reference");
    serde_json::from_str::<Reference>(&text).expect("well-formed").prompts
}

fn default_model() -> ModelFiles {
    let resolver = Resolver::from_env().expect("a cache directory");
    resolver.resolve(None).expect("the default model can be fetched").files
}

fn runner(sequences: usize, blocks: u32) -> ModelRunner<CpuOps> {
    let options = LoadOptions {
        weights: WeightFormat::F32,
        kv_type: KvType::F32,
        kv_capacity: KvCapacity::Blocks(blocks),
        block_size: BLOCK_SIZE,
        max_num_seqs: sequences,
        max_num_batched_tokens: BUDGET,
        ..LoadOptions::default()
    };
    let checkpoint = Checkpoint::open(&default_model()).expect("a good checkpoint");
    open(&checkpoint, &options, &mut |_| {}).expect("a device").into_runner(sequences).0
}

/// Gives each test prompt consecutive KV blocks with room for the prompt and all of its output. Returns the prompts
/// with their block tables, and the total number of blocks.
fn start(prompts: &[Prompt]) -> (Vec<Run<'_>>, u32) {
    let mut next = 0u32;
    let runs = prompts.iter().map(|expected| {
        let tokens = expected.prompt.len() + expected.tokens.len();
        let first = next;
        next += tokens.div_ceil(BLOCK_SIZE) as u32;
        let table = (first..next).map(BlockId).collect();
        Run { expected, table, done: 0, output: Vec::new() }
    });
    (runs.collect(), next)
}

/// Runs steps until all comparisons are over. In every step, decoding sequences go first, and prefill takes the rest of
/// the token budget.
fn continue_all(runner: &mut ModelRunner<CpuOps>, runs: &mut [Run<'_>]) {
    let sampling = Arc::new(SamplingParams::greedy());
    let mut starts: Vec<SeqStart> = (0..)
        .zip(&*runs)
        .map(|(seq, run)| SeqStart {
            seq: SeqId(seq),
            sampling: Arc::clone(&sampling),
            prompt: run.expected.prompt.clone().into(),
        })
        .collect();
    for step in 1.. {
        let mut live: Vec<usize> = (0..runs.len()).filter(|&run| !runs[run].is_over()).collect();
        live.sort_by_key(|&run| runs[run].output.is_empty());
        let (mut slices, mut left) = (Vec::new(), BUDGET);
        for seq in live {
            if left > 0 {
                let slice = runs[seq].slice(SeqId(seq as u64), left);
                left -= slice.input.len();
                runs[seq].done += slice.input.len();
                slices.push(slice);
            }
        }
        if slices.is_empty() {
            return;
        }
        let starts = std::mem::take(&mut starts);
        let batch = StepBatch { id: StepId(step), starts, ends: vec![], slices };
        for (seq, sampled) in runner.run(&batch).expect("a good step").sampled {
            runs[seq.0 as usize].output.push(sampled.expect("finite logits").token);
        }
    }
}

/// Checks that the generated continuation equals the reference, or that its first differing token is the reference's
/// second-best one and nearly tied with the best.
fn check(run: &Run<'_>) -> Result<(), String> {
    let Run { expected, output, .. } = run;
    let Some(step) = output.iter().zip(&expected.tokens).position(|(ours, theirs)| ours != theirs)
    else {
        println!("{}: {} tokens, all equal", expected.name, output.len());
        return Ok(());
    };
    let (ours, best) = (output[step], expected.tokens[step]);
    let (second, gap) = (expected.second[step], expected.gap[step]);
    let what = format!(
        "{}: differs at step {step}: {ours}, transformers has {best} and next {second}, {gap} apart",
        expected.name
    );
    println!("{what}");
    if gap <= NEAR_TIE && ours == second { Ok(()) } else { Err(what) }
}

#[test]
fn greedy_tokens_equal_those_of_transformers() {
    let prompts = reference();
    assert!(prompts.len() >= 20);
    let (mut runs, blocks) = start(&prompts);
    let mut runner = runner(runs.len(), blocks);
    continue_all(&mut runner, &mut runs);
    let faults: Vec<String> = runs.iter().filter_map(|run| check(run).err()).collect();
    assert!(faults.is_empty(), "beyond near-ties:\n{}", faults.join("\n"));
    let compared: usize = runs.iter().map(|run| run.output.len()).sum();
    let expected: usize = prompts.iter().map(|prompt| prompt.tokens.len()).sum();
    println!("{compared} of {expected} tokens compared");
    // At least 80 % of the reference tokens must be compared: a near-tie that goes the other way ends the comparison of
    // its prompt.
    assert!(compared * 10 >= expected * 8, "{compared} of {expected} tokens compared");
}

#[test]
fn prompts_become_the_token_ids_of_transformers() {
    let files = default_model();
    let tokenizer = Tokenizer::from_files(&files).unwrap();
    let template = ChatTemplate::from_files(&files, &tokenizer).unwrap();
    for Prompt { name, messages, text, prompt, .. } in reference() {
        if let Some(messages) = messages {
            let texts: Vec<(&str, &str)> = messages
                .iter()
                .map(|Message { role, content }| (role.as_str(), content.as_str()))
                .collect();
            let conversation = Conversation::of_texts(&texts, Ending::Open);
            assert_eq!(template.render(&conversation).unwrap(), text, "{name}: its text");
        }
        assert_eq!(tokenizer.encode(&text, false, true).unwrap(), prompt, "{name}: its tokens");
    }
}
