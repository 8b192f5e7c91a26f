//! Every family against Hugging Face: tiny random checkpoints, all logits of a whole prompt.
//!
//! `tests/reference/make_tiny.py` of the workspace makes the checkpoints and the expected logits.

use crate::harness::{Rig, Sequence, tiny};
use safetensors::SafeTensors;
use tiercel_gpu::{KvType, WeightFormat};
use tiercel_model::load::{KvCapacity, LoadOptions};
use tiercel_model::weights::ModelFiles;

/// Largest accepted difference of a logit; they are of order 10.
const TOLERANCE: f32 = 1e-3;

fn options() -> LoadOptions {
    LoadOptions {
        weights: WeightFormat::F32,
        kv_type: KvType::F32,
        threads: 2,
        kv_capacity: KvCapacity::Blocks(64),
        max_num_seqs: 128,
        ..LoadOptions::default()
    }
}

/// Tokens, and the logits after each.
fn expected(family: &str) -> (Vec<u32>, Vec<Vec<f32>>) {
    let bytes = std::fs::read(tiny(family).join("expected.safetensors")).expect("the reference");
    let file = SafeTensors::deserialize(&bytes).expect("well-formed");
    let tokens = file.tensor("tokens").expect("tokens");
    let tokens: Vec<u32> = tokens
        .data()
        .chunks_exact(8)
        .map(|b| i64::from_le_bytes(b.try_into().expect("8 bytes")) as u32)
        .collect();
    let logits = file.tensor("logits").expect("logits");
    let values: Vec<f32> = logits
        .data()
        .chunks_exact(4)
        .map(|b| f32::from_le_bytes(b.try_into().expect("4 bytes")))
        .collect();
    (tokens, values.chunks_exact(logits.shape()[1]).map(<[f32]>::to_vec).collect())
}

fn worst(family: &str, chunk: usize) -> f32 {
    let (tokens, logits) = expected(family);
    let mut rig = Rig::open(&ModelFiles::HfDir(tiny(family)), &options());
    let mut sequence = Sequence::new(tokens);
    let mut worst = 0.0f32;
    let mut compared = 0;
    while sequence.left() > 0 {
        let count = sequence.left().min(chunk);
        for row in rig.step(&mut [(&mut sequence, count)], &|_, _| true) {
            for (ours, theirs) in row.logits.iter().zip(&logits[row.position]) {
                worst = worst.max((ours - theirs).abs());
                compared += 1;
            }
        }
    }
    assert_eq!(compared, logits.len() * logits[0].len());
    worst
}

fn agrees(family: &str) {
    for chunk in [128, 7] {
        let worst = worst(family, chunk);
        println!("{family} in chunks of {chunk}: largest difference {worst:.2e}");
        assert!(worst < TOLERANCE, "{family} in chunks of {chunk}: {worst}");
    }
}

#[test]
fn llama2_agrees() {
    agrees("llama2");
}

#[test]
fn llama3_with_scaled_rope_and_shards_agrees() {
    agrees("llama3");
}

#[test]
fn mistral_with_sliding_window_agrees() {
    agrees("mistral");
}

#[test]
fn qwen2_with_biases_agrees() {
    agrees("qwen2");
}

#[test]
fn qwen3_with_head_norms_agrees() {
    agrees("qwen3");
}
