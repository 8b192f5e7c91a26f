//! Measures the speed of steps with constrained sequences: 32 sequences on the CPU, of which none, half or all follow a
//! JSON schema.
//!
//! `cargo run --release -p tiercel-model --example constrained_speed [THREADS]`
//!
//! The three kinds of turns alternate, so that a change of the machine's speed affects all kinds. Each step begins as
//! soon as the previous step has ended, so that the host has no idle time in which masks could be computed.
#![allow(clippy::unwrap_used, reason = "an example fails by panicking")]

use serde_json::json;
use std::sync::Arc;
use tiercel_device::{
    BlockId, Clock, Constraint, QueuedRunner, SamplingParams, SeqId, SeqSlice, SeqStart,
    SliceInput, StepBatch, StepId, TokenId,
};
use tiercel_gpu::cpu::CpuOps;
use tiercel_grammar::{Grammars, STACK_BYTES, Source, TokenText, Vocabulary};
use tiercel_model::load::{KvCapacity, LoadOptions, open};
use tiercel_model::runner::ModelRunner;
use tiercel_model::source::{ModelFiles, Resolver};
use tiercel_model::tokenizer::Tokenizer;
use tiercel_model::weights::Checkpoint;

const SEQUENCES: u64 = 32;
/// Number of output tokens of each sequence in a turn.
const OUTPUT: u32 = 96;
/// Number of turns of each kind.
const TURNS: usize = 5;
/// Number of blocks of a sequence, of 16 tokens each.
const BLOCKS: u32 = 8;

fn constraint(files: &ModelFiles) -> Arc<dyn Constraint> {
    let tokenizer = Tokenizer::from_files(files).unwrap();
    let text = |id| TokenText::of(tokenizer.token_bytes(id), tokenizer.is_special(id));
    let ends = &tokenizer.special().ends;
    let vocabulary = Vocabulary::new(tokenizer.vocab_size(), ends, text);
    let person = json!({"type": "object", "properties": {
        "name": {"type": "string"}, "age": {"type": "integer"}, "kind": {"enum": ["cat", "dog"]},
        "tags": {"type": "array", "items": {"type": "string"}}}, "required": ["name", "age", "kind", "tags"]});
    let schema = json!({"type": "array", "items": person, "minItems": 500});
    let compile = move || {
        let grammars = Grammars::new(&vocabulary).unwrap();
        grammars.compile(&Source::JsonSchema(schema)).unwrap().constraint
    };
    let thread = std::thread::Builder::new().stack_size(STACK_BYTES).spawn(compile).unwrap();
    thread.join().unwrap()
}

/// Runs one turn in which the first `constrained` sequences follow the constraint. Returns the mean time of a step, us.
fn turn(
    runner: &mut ModelRunner<CpuOps>,
    step: &mut u64,
    (constrained, constraint): (u64, &Arc<dyn Constraint>),
) -> f64 {
    let clock = Clock::wall();
    let prompt: Arc<[TokenId]> = Arc::from([1, 504, 282, 253, 1789]);
    let start = |seq: u64| {
        let constraint = (seq < constrained).then(|| constraint.clone());
        let sampling =
            SamplingParams { temperature: 0.8, seed: seq, constraint, ..SamplingParams::default() };
        SeqStart { seq: SeqId(seq), sampling: Arc::new(sampling), prompt: prompt.clone() }
    };
    let mut last: Vec<TokenId> = Vec::new();
    let mut spent_us = 0;
    for index in 0..OUTPUT {
        *step += 1;
        let first = index == 0;
        let slices = (0..SEQUENCES).map(|seq| SeqSlice {
            seq: SeqId(seq),
            first_pos: if first { 0 } else { prompt.len() as u32 + index - 1 },
            input: SliceInput::Known(match first {
                true => prompt.iter().copied().collect(),
                false => [last[seq as usize]].into_iter().collect(),
            }),
            table: (0..BLOCKS).map(|n| BlockId(seq as u32 * BLOCKS + n)).collect(),
            sample: Some(index),
        });
        let batch = StepBatch {
            id: StepId(*step),
            starts: if first { (0..SEQUENCES).map(start).collect() } else { Vec::new() },
            ends: if first { (0..SEQUENCES).map(SeqId).collect() } else { Vec::new() },
            slices: slices.collect(),
        };
        let began = clock.now();
        let output = runner.run(&batch).unwrap();
        spent_us += if first { 0 } else { clock.now().since_us(began) };
        last = output.sampled.into_iter().map(|(_, sampled)| sampled.unwrap().token).collect();
    }
    spent_us as f64 / f64::from(OUTPUT - 1)
}

fn main() {
    let threads = std::env::args().nth(1).map_or(0, |text| text.parse().unwrap());
    let files = Resolver::from_env().unwrap().resolve(None).unwrap().files;
    let constraint = constraint(&files);
    let checkpoint = Checkpoint::open(&files).unwrap();
    let blocks = KvCapacity::Blocks(SEQUENCES as u32 * BLOCKS);
    let options = LoadOptions { threads, kv_capacity: blocks, ..LoadOptions::default() };
    let parts = open(&checkpoint, &options, &mut |_| {}).unwrap();
    let (mut runner, _) = parts.into_runner(SEQUENCES as usize);
    let (mut step, mut times) = (0, [0.0; 3]);
    for _ in 0..TURNS {
        for (time, constrained) in times.iter_mut().zip([0, SEQUENCES / 2, SEQUENCES]) {
            *time += turn(&mut runner, &mut step, (constrained, &constraint)) / TURNS as f64;
        }
    }
    let [free, half, all] = times;
    println!("step of {SEQUENCES} free sequences: {free:.0} us");
    println!("half of them constrained: {half:.0} us, {:.1} % of the speed", 100.0 * free / half);
    println!("all of them constrained: {all:.0} us, {:.1} % of the speed", 100.0 * free / all);
}
