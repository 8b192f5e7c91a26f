//! Matrices whose tensors are absent or contradict each other.

use super::{AWQ, awq_tensors, fp8_tensors, gptq, gptq_tensors, packed, packed_tensors};
use crate::arch::{GptqFormat, Quantization};
use safetensors::tensor::Dtype;

#[test]
fn every_damage_names_the_tensor_and_what_is_expected() {
    let fp8 = Quantization::Fp8 { block: Some([2, 2]) };
    let float = Quantization::Fp8 { block: None };
    let four = Quantization::Gptq(gptq(4));
    let act = Quantization::Gptq(GptqFormat { act_order: true, ..gptq(4) });
    let scaled = |shape: &[usize]| {
        fp8_tensors().f32("weight_scale", shape, &vec![1.0; shape.iter().product()])
    };
    let group = |group| Quantization::Awq { group };
    let pack = |symmetric| Quantization::Packed(packed(4, symmetric));
    let shaped = |n: u64, k: u64| {
        let shape = [n, k].iter().flat_map(|number| number.to_le_bytes()).collect();
        packed_tensors().with("weight_shape", Dtype::I64, &[2], shape)
    };
    for (tensors, quantization, name, expected) in [
        (fp8_tensors(), fp8, "layer.weight_scale_inv is absent", "a scale"),
        (fp8_tensors(), float, "layer.weight_scale is absent", "a scale"),
        (
            scaled(&[2, 2]),
            fp8,
            "layer.weight_scale is F32 [2, 2]",
            "[3, 1] (a row) or [2, 1] (a block)",
        ),
        (scaled(&[2]), float, "layer.weight_scale is F32 [2]", "[3, 1] (a row)"),
        (
            fp8_tensors().with("weight_scale", Dtype::F8_E8M0, &[1], vec![127]),
            float,
            "layer.weight_scale is F8_E8M0 [1]",
            "F16, BF16 or F32",
        ),
        (
            scaled(&[1]).f32("weight_zero_point", &[1], &[1.0]),
            float,
            "layer.weight_zero_point is F32 [1]",
            "all zero",
        ),
        (
            scaled(&[1]).with("weight", Dtype::F8_E4M3, &[6], vec![0; 6]),
            float,
            "layer.weight is F8_E4M3 [6]",
            "two dimensions",
        ),
        (awq_tensors().without("qzeros"), AWQ, "layer.qzeros is absent", "I32 [1, 1]"),
        (awq_tensors().without("scales"), AWQ, "layer.scales is absent", "F32 [1, 8]"),
        (awq_tensors().words("scales", &[1, 8], &[0; 8]), AWQ, "layer.scales is I32", "F32 [1, 8]"),
        (awq_tensors().f32("qweight", &[2, 1], &[0.0; 2]), AWQ, "layer.qweight is F32", "I32"),
        (awq_tensors().words("qweight", &[2], &[0; 2]), AWQ, "layer.qweight is I32 [2]", "two dim"),
        (awq_tensors(), group(Some(128)), "layer.qweight is I32 [2, 1]", "group size 128"),
        (awq_tensors(), group(Some(1)), "layer.qzeros is I32 [1, 1]", "I32 [2, 1]"),
        (gptq_tensors(), Quantization::Gptq(gptq(8)), "layer.qzeros is I32 [2, 1]", "I32 [1, 2]"),
        (gptq_tensors().without("scales"), four, "layer.scales is absent", "F32 [2, 8]"),
        (gptq_tensors().words("qweight", &[1, 7], &[0; 7]), four, "layer.qweight", "multiple of 8"),
        (gptq_tensors(), act, "layer.g_idx is absent", "I32 [8]"),
        (gptq_tensors().words("g_idx", &[7], &[0; 7]), four, "layer.g_idx is I32 [7]", "I32 [8]"),
        (
            gptq_tensors().words("g_idx", &[8], &[0, 0, 0, 2, 0, 0, 0, 0]),
            four,
            "layer.g_idx is 2 for input 3",
            "a group from 0 to 1",
        ),
        (
            gptq_tensors().words("g_idx", &[8], &[u32::MAX; 8]),
            act,
            "layer.g_idx is -1 for input 0",
            "a group from 0 to 1",
        ),
        (
            packed_tensors().without("weight_zero_point"),
            pack(false),
            "zero_point is absent",
            "[1, 2]",
        ),
        (packed_tensors().without("weight_scale"), pack(true), "weight_scale is absent", "[2, 2]"),
        (
            shaped(3, 7),
            pack(true),
            "weight_shape is 3 outputs and 7 inputs",
            "2 outputs and 1 to 8",
        ),
        (
            shaped(2, 9),
            pack(true),
            "weight_shape is 2 outputs and 9 inputs",
            "2 outputs and 1 to 8",
        ),
        (shaped(2, u64::MAX), pack(true), "weight_shape is 2 outputs", "2 outputs and 1 to 8"),
        (
            packed_tensors().words("weight_shape", &[2], &[2, 7]),
            pack(true),
            "layer.weight_shape is I32 [2]",
            "I64 [2]",
        ),
        (
            packed_tensors().words("weight_g_idx", &[7], &[0, 2, 0, 0, 0, 0, 0]),
            pack(true),
            "layer.weight_g_idx is 2 for input 1",
            "a group from 0 to 1",
        ),
    ] {
        let error = tensors.refusal(quantization);
        assert!(error.contains(name) && error.contains(expected), "{name}, {expected}: {error}");
    }
}
