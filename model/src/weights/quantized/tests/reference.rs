//! Matrices as the quantizing projects decode them (`tests/reference/make_quantized.py` of the workspace).

use super::super::super::hf_dir::{HfDir, read_json};
use super::super::find;
use super::{LAYER, floats};
use crate::arch::Quantization;
use safetensors::SafeTensors;
use std::path::{Path, PathBuf};
use tiercel_gpu::WeightFormat;

fn reference(case: &str) -> PathBuf {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    root.join("../tests/reference/quantized").join(case)
}

/// Checks that the matrix of a reference checkpoint decodes to the numbers that the quantizing project makes of it.
fn agrees(case: &str) {
    let folder = reference(case);
    let config = read_json(&folder.join("config.json")).unwrap();
    let quantization = Quantization::from_hf(&config).unwrap().expect("a quantized checkpoint");
    let dir = HfDir::open(&folder).unwrap();
    let found = find(&dir, &quantization, LAYER).unwrap().expect("a quantized matrix");
    let bytes = std::fs::read(folder.join("expected.safetensors")).unwrap();
    let file = SafeTensors::deserialize(&bytes).unwrap();
    let expected = file.tensor("weight").unwrap();
    assert_eq!(found.shape, expected.shape(), "{case}");
    let found = floats(&found.bytes(WeightFormat::F32).unwrap());
    let expected = floats(expected.data());
    for (at, (found, expected)) in found.iter().zip(&expected).enumerate() {
        assert_eq!(found, expected, "{case}: weight {at}");
    }
    assert!(expected.iter().any(|weight| *weight != 0.0), "{case}");
}

#[test]
fn fp8_as_transformers_and_deepseek_decode_it() {
    agrees("fp8_block");
    agrees("fp8_edge");
}

#[test]
fn matrices_of_compressed_tensors_as_it_decodes_them() {
    agrees("float_tensor");
    agrees("float_channel");
    agrees("float_block");
    agrees("pack4");
    agrees("pack4_zeros");
    agrees("pack8");
}

#[test]
fn awq_as_autoawq_decodes_it() {
    agrees("awq");
}

#[test]
fn gptq_as_gptqmodel_decodes_it() {
    agrees("gptq4_act");
    agrees("gptq4_v2");
    agrees("gptq4_zero");
    agrees("gptq8");
}
