//! Compares all logits of a whole prompt with Hugging Face transformers, on a tiny random checkpoint of every model
//! family.
//!
//! `tests/reference/make_tiny.py` of the workspace makes the checkpoints and the expected logits.

use crate::harness::{EmulatedRig, Rig, Sequence, tiny};
use safetensors::SafeTensors;
use tiercel_device::QueuedCopier;
use tiercel_gpu::{KvType, Ops, WeightFormat};
use tiercel_model::load::{KvCapacity, LoadOptions};
use tiercel_model::weights::ModelFiles;

/// Tolerance: largest accepted difference of a logit in f32; logits are of order 10.
const TOLERANCE: f32 = 1e-3;
/// Tolerances of the logits on a GPU, for the median position and for the worst. The error of a position is the norm of
/// the differences of its logits, divided by the norm of the logits. Weights, activations and KV are bf16, and random
/// weights amplify rounding. On the CPU, with weights and KV in bf16 and activations in f32, the errors reach 0.013 and
/// 0.048.
const GPU_TOLERANCES: (f32, f32) = (0.025, 0.08);
/// Largest difference of two reference logits at which a GPU may rank them the other way round.
const NEAR: f32 = 0.3;

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

/// Reads the reference data of a model family: tokens, and the expected logits after each token.
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

/// Runs the reference prompt and calls `compare` with this program's logits and the expected logits of each position.
fn compare<O: Ops, C: QueuedCopier>(
    rig: &mut Rig<O, C>,
    family: &str,
    chunk: usize,
    mut compare: impl FnMut(&[f32], &[f32]),
) {
    let (tokens, logits) = expected(family);
    let mut sequence = Sequence::new(tokens);
    let mut compared = 0;
    while sequence.left() > 0 {
        let count = sequence.left().min(chunk);
        for row in rig.step(&mut [(&mut sequence, count)], &|_, _| true) {
            assert_eq!(row.logits.len(), logits[row.position].len());
            compare(&row.logits, &logits[row.position]);
            compared += 1;
        }
    }
    assert_eq!(compared, logits.len());
}

fn agrees(family: &str) {
    for chunk in [128, 7] {
        let mut rig = Rig::open(&ModelFiles::HfDir(tiny(family)), &options());
        let mut worst = 0.0f32;
        compare(&mut rig, family, chunk, |ours, theirs| {
            let differences = ours.iter().zip(theirs).map(|(a, b)| (a - b).abs());
            worst = differences.fold(worst, f32::max);
        });
        println!("{family} in chunks of {chunk}: largest difference {worst:.2e}");
        assert!(worst < TOLERANCE, "{family} in chunks of {chunk}: {worst}");
    }
}

/// Compares a model family on an emulated GPU with the reference, with and without `exact`, as closely as bf16 allows.
fn agrees_on_a_gpu(family: &str) {
    // The emulator is slow, and the dry run takes the largest steps: chunks as large as a tile of a kernel.
    let (weights, most) = (WeightFormat::Auto, 64);
    let options =
        LoadOptions { weights, max_num_seqs: most, max_num_batched_tokens: most, ..options() };
    for exact in [false, true] {
        for chunk in [most, 7] {
            let files = ModelFiles::HfDir(tiny(family));
            let mut rig = EmulatedRig::emulated(&files, &options, exact);
            let mut errors = Vec::new();
            compare(&mut rig, family, chunk, |ours, theirs| {
                let error: f32 = ours.iter().zip(theirs).map(|(a, b)| (a - b).powi(2)).sum();
                let size: f32 = theirs.iter().map(|logit| logit.powi(2)).sum();
                errors.push((error / size).sqrt());
                // This program's most likely token must be that of the reference, or nearly as likely there.
                let best = (0..ours.len()).max_by(|a, b| ours[*a].total_cmp(&ours[*b])).unwrap();
                let most = theirs.iter().copied().fold(f32::MIN, f32::max);
                assert!(theirs[best] >= most - NEAR, "{family}: {} of {most}", theirs[best]);
            });
            errors.sort_by(f32::total_cmp);
            let (median, worst) = (errors[errors.len() / 2], errors[errors.len() - 1]);
            let what = format!("{family}, exact: {exact}, chunks of {chunk}: {median} {worst}");
            println!("{what}");
            assert!(median < GPU_TOLERANCES.0 && worst < GPU_TOLERANCES.1, "{what}");
        }
    }
}

#[test]
fn llama_agrees_on_the_kernels_of_a_gpu() {
    agrees_on_a_gpu("llama2");
    agrees_on_a_gpu("llama3");
}

#[test]
fn mistral_agrees_on_the_kernels_of_a_gpu() {
    agrees_on_a_gpu("mistral");
}

#[test]
fn qwen_agrees_on_the_kernels_of_a_gpu() {
    agrees_on_a_gpu("qwen2");
    agrees_on_a_gpu("qwen3");
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
