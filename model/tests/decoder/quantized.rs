//! Quantized Hugging Face checkpoints give the logits of a checkpoint whose weights are the decoded floats: bit for bit
//! on the CPU, and on an emulated GPU that decodes them; within the precision of f32 sums on an emulated GPU that holds
//! them quantized.
//!
//! The checkpoints are copies of tiny reference checkpoints in which random integers or 8-bit floats replace the
//! weights of the layers. Their scales have few bits, so that all decoded weights are bf16 numbers. One matrix stays as
//! it is.

mod checkpoints;

use crate::harness::{EmulatedRig, Rig, Row, Sequence, some_tokens, tiny};
use checkpoints::{Quantize, awq, fp8, gptq, packed, twins};
use safetensors::tensor::Dtype;
use serde_json::{Value, json};
use std::path::Path;
use tiercel_emulated::EmulatedDriver;
use tiercel_gpu::cuda::Driver;
use tiercel_gpu::{KvType, WeightFormat};
use tiercel_model::load::{GpuUse, KvCapacity, LoadOptions, open_cuda};
use tiercel_model::weights::{Checkpoint, ModelFiles};

/// Matrix that the quantized checkpoints hold as floats.
const NOT_CONVERTED: &str = "model.layers.1.mlp.down_proj";
/// Inputs of a row that share a scale and a zero point.
const GROUP: usize = 32;
/// Tokens of the prompt whose logits are compared.
const TOKENS: usize = 24;

fn options(weights: WeightFormat) -> LoadOptions {
    LoadOptions {
        weights,
        kv_type: KvType::F32,
        kv_capacity: KvCapacity::Blocks(4),
        threads: 2,
        // A GPU runs the largest step when it loads a model. Logits of all tokens are compared.
        max_num_seqs: TOKENS,
        max_num_batched_tokens: TOKENS,
        ..LoadOptions::default()
    }
}

/// Returns the logits of all tokens of a prompt that is cut into chunks.
fn logits(
    chunks: &[usize],
    mut step: impl FnMut(&mut Sequence, usize) -> Vec<Row>,
) -> Vec<Vec<f32>> {
    let mut sequence = Sequence::new(some_tokens(chunks.iter().sum(), 3, 300));
    let rows = chunks.iter().flat_map(|&chunk| step(&mut sequence, chunk));
    rows.map(|row| row.logits).collect()
}

fn on_cpu(folder: &Path, weights: WeightFormat) -> Vec<Vec<f32>> {
    let mut rig = Rig::open(&ModelFiles::HfDir(folder.to_owned()), &options(weights));
    logits(&[TOKENS], |sequence, count| rig.step(&mut [(sequence, count)], &|_, _| true))
}

/// Returns the logits on an emulated GPU whose results do not depend on the chunks.
fn on_gpu(folder: &Path, weights: WeightFormat, chunks: &[usize]) -> Vec<Vec<f32>> {
    let files = ModelFiles::HfDir(folder.to_owned());
    let mut rig = EmulatedRig::emulated(&files, &options(weights), true);
    logits(chunks, |sequence, count| rig.step(&mut [(sequence, count)], &|_, _| true))
}

/// Returns the logits of a prompt of `count` tokens on an emulated GPU that may add up products in another order for
/// other numbers of rows.
fn inexact_on_gpu(folder: &Path, weights: WeightFormat, count: usize) -> Vec<Vec<f32>> {
    let files = ModelFiles::HfDir(folder.to_owned());
    let options = LoadOptions {
        kv_capacity: KvCapacity::Blocks(12),
        max_num_seqs: count,
        max_num_batched_tokens: count,
        ..options(weights)
    };
    let mut rig = EmulatedRig::emulated(&files, &options, false);
    logits(&[count], |sequence, count| rig.step(&mut [(sequence, count)], &|_, _| true))
}

/// Returns the norm of the differences as a share of the norm of the expected logits.
fn difference(found: &[Vec<f32>], expected: &[Vec<f32>]) -> f32 {
    let square = |sum: f32, value: f32| sum + value * value;
    let (found, expected) = (found.concat(), expected.concat());
    let differences = found.iter().zip(&expected).map(|(a, b)| a - b).fold(0.0, square);
    (differences / expected.into_iter().fold(0.0, square)).sqrt()
}

/// Returns the number of bytes of device memory that a model takes in a weight format, all else included, and the
/// number of bytes that its weights take by the checkpoint's count. No step has enough rows to need the strip buffer.
fn device_bytes(folder: &Path, weights: WeightFormat) -> (u64, u64) {
    let taken = device_bytes_with(folder, &options(weights));
    let checkpoint = Checkpoint::open(&ModelFiles::HfDir(folder.to_owned())).unwrap();
    (taken, checkpoint.cuda_bytes(weights).unwrap())
}

fn device_bytes_with(folder: &Path, options: &LoadOptions) -> u64 {
    let checkpoint = Checkpoint::open(&ModelFiles::HfDir(folder.to_owned())).unwrap();
    let mut driver = EmulatedDriver::new(1 << 30);
    let before = driver.free_bytes().unwrap();
    let parts = open_cuda(driver, GpuUse::default(), &checkpoint, options, &mut |_| {});
    before - parts.unwrap().ops.free_bytes().unwrap()
}

/// Checks how a checkpoint whose matrices an emulated GPU holds quantized, unless `decoded` is set, computes on the
/// GPU.
fn agrees_on_a_gpu(what: &str, (quantized, twin): (&Path, &Path), decoded: bool) {
    let (auto, bf16) = (WeightFormat::Auto, WeightFormat::Bf16);
    let expected = on_gpu(twin, bf16, &[TOKENS]);
    assert!(on_gpu(quantized, bf16, &[TOKENS]) == expected, "{what}, decoded on a GPU");
    let found = on_gpu(quantized, auto, &[TOKENS]);
    let ((taken, held), (taken_bf16, held_bf16)) =
        (device_bytes(quantized, auto), device_bytes(quantized, bf16));
    assert_eq!(taken_bf16 - taken, held_bf16 - held, "{what}: counted bytes and taken bytes");
    if decoded {
        assert!(found == expected && held == held_bf16, "{what}, decoded because of its order");
        return;
    }
    assert!(held * 10 < held_bf16 * 8, "{what}: {held} bytes instead of {held_bf16}");
    let far = difference(&found, &expected);
    assert!(far < 1e-2, "{what}, quantized on a GPU: {far}");
    let far = difference(&found, &on_cpu(twin, WeightFormat::F32));
    assert!(far < 3e-2, "{what}, quantized on a GPU, against the CPU: {far}");
    assert!(on_gpu(quantized, auto, &[7, 1, 1, TOKENS - 9]) == found, "{what}, in chunks");
}

/// Checks that a quantized checkpoint gives the logits of its twin.
fn agrees(family: &str, quantization: Value, quantize: Quantize<'_>) {
    // The groups of a checkpoint with `desc_act` are not neighbours.
    let decoded = quantization["desc_act"] == json!(true);

    let (quantized, twin) = twins(family, &quantization, quantize);
    let (quantized, twin) = (quantized.path(), twin.path());
    let expected = on_cpu(twin, WeightFormat::Bf16);
    assert_eq!(expected.len(), TOKENS);
    assert!(expected[0] != on_cpu(&tiny(family), WeightFormat::Bf16)[0], "the weights differ");
    for format in [WeightFormat::Bf16, WeightFormat::Auto, WeightFormat::F32, WeightFormat::Q8_0] {
        let (found, expected) = (on_cpu(quantized, format), on_cpu(twin, format));
        assert!(found == expected, "{family}, {quantization}, {format:?}");
    }
    agrees_on_a_gpu(&format!("{family}, {quantization}"), (quantized, twin), decoded);
}

#[test]
fn a_long_prompt_has_the_logits_of_decoded_weights_bit_for_bit() {
    let config = json!({"quant_method": "awq", "bits": 4, "group_size": GROUP, "zero_point": true,
                        "version": "gemm", "modules_to_not_convert": [NOT_CONVERTED]});
    let (quantized, twin) = twins("llama3", &config, &awq);
    // The prompt has more rows than the kernels for stored numbers multiply, so the device decodes all matrices in
    // strips.
    let count = 140;
    let expected = inexact_on_gpu(twin.path(), WeightFormat::Bf16, count);
    assert_eq!(expected.len(), count);
    assert!(inexact_on_gpu(quantized.path(), WeightFormat::Auto, count) == expected);
}

#[test]
fn fp8_checkpoints_give_the_logits_of_their_decoded_weights() {
    let blocks = json!({"quant_method": "fp8", "fmt": "e4m3", "activation_scheme": "dynamic",
                        "weight_block_size": [32, 128], "modules_to_not_convert": [NOT_CONVERTED]});
    agrees("llama3", blocks, &|tensors, module, size| {
        fp8(tensors, module, size, ([32, 128], "weight_scale_inv"))
    });
    let weights = json!({"num_bits": 8, "type": "float", "strategy": "channel"});
    let channels = json!({"quant_method": "compressed-tensors", "format": "float-quantized",
                          "ignore": ["re:.*layers.1.mlp.down_proj", "lm_head"],
                          "config_groups": {"group_0": {"targets": ["Linear"], "weights": weights}}});
    agrees("qwen2", channels, &|tensors, module, size| {
        fp8(tensors, module, size, ([1, size.1], "weight_scale"))
    });
}

#[test]
fn awq_checkpoints_give_the_logits_of_their_decoded_weights() {
    let config = json!({"quant_method": "awq", "bits": 4, "group_size": GROUP, "zero_point": true,
                        "version": "gemm", "modules_to_not_convert": [NOT_CONVERTED]});
    agrees("llama3", config.clone(), &awq);
    agrees("qwen2", config, &awq);
}

#[test]
fn gptq_checkpoints_give_the_logits_of_their_decoded_weights() {
    for (family, form) in [
        ("qwen2", (4, true, true)),
        ("llama3", (4, false, false)),
        ("qwen2", (8, true, false)),
        ("llama3", (8, false, true)),
    ] {
        let (bits, less_one, act_order) = form;
        let format = if less_one { "gptq" } else { "gptq_v2" };
        let config = json!({"quant_method": "gptq", "bits": bits, "group_size": GROUP,
                            "desc_act": act_order, "checkpoint_format": format});
        agrees(family, config, &|tensors, module, size| {
            if family == "llama3" {
                // AutoGPTQ writes zero biases for models without biases.
                let zeros = (Dtype::F16, vec![size.0], vec![0; 2 * size.0]);
                tensors.insert(format!("{module}.bias"), zeros);
            }
            gptq(tensors, module, size, form)
        });
    }
}

#[test]
fn packed_checkpoints_give_the_logits_of_their_decoded_weights() {
    for (family, bits, symmetric) in
        [("llama3", 4, true), ("qwen2", 4, false), ("llama3", 8, false)]
    {
        let weights = json!({"num_bits": bits, "type": "int", "symmetric": symmetric,
                             "strategy": "group", "group_size": GROUP});
        let config = json!({"quant_method": "compressed-tensors", "format": "pack-quantized",
                            "config_groups": {"group_0": {"targets": ["Linear"], "weights": weights}}});
        agrees(family, config, &|tensors, module, size| {
            packed(tensors, module, size, (bits, symmetric))
        });
    }
}

#[test]
fn a_checkpoint_without_a_part_of_a_matrix_is_refused_with_its_name() {
    let config = json!({"quant_method": "awq", "bits": 4, "group_size": GROUP});
    let (quantized, _) = twins("qwen2", &config, &|tensors, module, size| {
        let decoded = awq(tensors, module, size);
        if module == "model.layers.1.self_attn.v_proj" {
            tensors.remove(&format!("{module}.qzeros"));
        }
        decoded
    });
    let files = ModelFiles::HfDir(quantized.path().to_owned());
    let error = Checkpoint::open(&files).err().expect("damaged").to_string();
    assert!(error.contains("model.layers.1.self_attn.v_proj.qzeros is absent"), "{error}");
}

#[test]
fn the_dry_run_takes_the_strip_buffer_for_steps_of_many_rows() {
    let config = json!({"quant_method": "awq", "bits": 4, "group_size": GROUP});
    let (quantized, _) = twins("llama3", &config, &awq);
    let more = |weights, rows| {
        let more = LoadOptions { max_num_batched_tokens: rows, ..options(weights) };
        device_bytes_with(quantized.path(), &more)
    };
    let taken = |weights| more(weights, 134) - more(weights, 128);
    let strip = taken(WeightFormat::Auto) - taken(WeightFormat::Bf16);
    // The largest strip of the emulated GPU has 128 output features of 64 inputs, or 64 output features of 96 inputs.
    assert_eq!(strip, 128 * 64 * 2);
}
