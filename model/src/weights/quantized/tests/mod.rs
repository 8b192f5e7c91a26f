//! Tests of quantized matrices: values by hand, values of the quantizing projects, and damaged files.

mod by_hand;
mod damaged;
mod reference;

use super::super::hf_dir::HfDir;
use super::super::stored::Stored;
use super::{find, weight_of_part};
use crate::arch::{GptqFormat, PackedFormat, Quantization};
use crate::weights::WeightError;
use safetensors::tensor::{Dtype, TensorView, serialize_to_file};
use tiercel_gpu::{SourceType, WeightFormat};

const LAYER: &str = "layer.weight";
const AWQ: Quantization = Quantization::Awq { group: Some(2) };

/// Returns a GPTQ format with groups of four inputs in order.
fn gptq(bits: usize) -> GptqFormat {
    GptqFormat { bits, group: Some(4), act_order: false, zeros_less_one: true, symmetric: false }
}

/// Tensors of a checkpoint: part of the module `layer`, type, shape and bytes.
#[derive(Clone, Default)]
struct Tensors(Vec<(&'static str, Dtype, Vec<usize>, Vec<u8>)>);

impl Tensors {
    /// Adds a tensor, or replaces the one of the same name.
    fn with(mut self, part: &'static str, dtype: Dtype, shape: &[usize], bytes: Vec<u8>) -> Self {
        self = self.without(part);
        self.0.push((part, dtype, shape.to_vec(), bytes));
        self
    }

    fn without(mut self, part: &str) -> Self {
        self.0.retain(|(name, ..)| *name != part);
        self
    }

    fn words(self, part: &'static str, shape: &[usize], words: &[u32]) -> Self {
        let bytes = words.iter().flat_map(|word| word.to_le_bytes()).collect();
        self.with(part, Dtype::I32, shape, bytes)
    }

    fn f32(self, part: &'static str, shape: &[usize], values: &[f32]) -> Self {
        let bytes = values.iter().flat_map(|value| value.to_le_bytes()).collect();
        self.with(part, Dtype::F32, shape, bytes)
    }

    /// Opens the tensors as a checkpoint and calls `then` with the quantized matrix that is found.
    fn found<T>(
        &self,
        quantization: Quantization,
        then: impl FnOnce(Result<Option<Stored<'_>>, WeightError>) -> T,
    ) -> T {
        let folder = tempfile::tempdir().unwrap();
        let tensors = self.0.iter().map(|(part, dtype, shape, bytes)| {
            let view = TensorView::new(*dtype, shape.clone(), bytes).unwrap();
            (format!("layer.{part}"), view)
        });
        serialize_to_file(tensors, None, &folder.path().join("model.safetensors")).unwrap();
        let dir = HfDir::open(folder.path()).unwrap();
        then(find(&dir, &quantization, LAYER))
    }

    /// Returns the rows of the decoded matrix.
    fn rows(&self, quantization: Quantization) -> Vec<Vec<f32>> {
        self.found(quantization, |found| rows(&found.unwrap().unwrap()))
    }

    /// Returns the error of finding or decoding the matrix.
    fn refusal(&self, quantization: Quantization) -> String {
        self.found(quantization, |found| match found {
            Err(error) => error.to_string(),
            Ok(found) => found.expect("a matrix").bytes(WeightFormat::F32).unwrap_err().to_string(),
        })
    }
}

fn floats(bytes: &[u8]) -> Vec<f32> {
    bytes.chunks_exact(4).map(|b| f32::from_le_bytes(b.try_into().unwrap())).collect()
}

fn rows(stored: &Stored<'_>) -> Vec<Vec<f32>> {
    let values = floats(&stored.bytes(WeightFormat::F32).unwrap());
    values.chunks_exact(stored.shape[1]).map(<[f32]>::to_vec).collect()
}

/// A matrix of eight outputs of two inputs in one group.
fn awq_tensors() -> Tensors {
    let mut scales = [1.0; 8];
    scales[3] = 0.5;
    Tensors::default()
        .words("qweight", &[2, 1], &[0x7654_3210, 0x0000_000f])
        .words("qzeros", &[1, 1], &[0x0000_0010])
        .f32("scales", &[1, 8], &scales)
}

/// A matrix of eight outputs of eight inputs in two groups; all scales are 1.
fn gptq_tensors() -> Tensors {
    Tensors::default()
        .words("qweight", &[1, 8], &[0x7654_3210, 0, 0, 0, 0, 0, 0, 0])
        .words("qzeros", &[2, 1], &[0x1111_1110, 0x7777_7777])
        .f32("scales", &[2, 8], &[1.0; 16])
}

/// A format with groups of four inputs in order.
fn packed(bits: usize, symmetric: bool) -> PackedFormat {
    PackedFormat { bits, group: Some(4), symmetric }
}

/// A matrix of two outputs of seven inputs in two groups: the last eighth of each word is not used.
fn packed_tensors() -> Tensors {
    let shape = [2_u64, 7].iter().flat_map(|number| number.to_le_bytes()).collect();
    Tensors::default()
        .words("weight_packed", &[2, 1], &[0x0edc_ba98, 0x0888_8888])
        .f32("weight_scale", &[2, 2], &[1.0, 0.5, 1.0, 2.0])
        .words("weight_zero_point", &[1, 2], &[0x98, 0xa7])
        .with("weight_shape", Dtype::I64, &[2], shape)
}

/// A matrix of three outputs of two inputs, all 1 before scaling.
fn fp8_tensors() -> Tensors {
    Tensors::default().with("weight", Dtype::F8_E4M3, &[3, 2], vec![0x38; 6])
}

#[test]
fn a_matrix_that_is_not_quantized_is_left_alone() {
    let plain = Tensors::default().f32("weight", &[1, 2], &[1.0, 2.0]);
    for quantization in [
        Quantization::Fp8 { block: None },
        AWQ,
        Quantization::Gptq(gptq(4)),
        Quantization::Packed(packed(4, true)),
    ] {
        assert!(plain.found(quantization, |found| found.unwrap().is_none()));
        assert!(Tensors::default().found(quantization, |found| found.unwrap().is_none()));
    }
}

#[test]
fn the_form_in_memory_decides_the_decoded_type() {
    awq_tensors().found(AWQ, |found| {
        let stored = found.unwrap().unwrap();
        assert_eq!(stored.shape, [8, 2]);
        for (format, source) in [
            (WeightFormat::Auto, SourceType::Bf16),
            (WeightFormat::Bf16, SourceType::Bf16),
            (WeightFormat::F32, SourceType::F32),
            (WeightFormat::Q8_0, SourceType::F32),
            (WeightFormat::Native, SourceType::F32),
        ] {
            assert_eq!(stored.source(format), source, "{format:?}");
            let size = source.matrix_bytes(8, 2).unwrap();
            assert_eq!(stored.bytes(format).unwrap().len(), size, "{format:?}");
        }
        // 2.5 in bf16.
        assert_eq!(stored.bytes(WeightFormat::Bf16).unwrap()[12..14], [0x20, 0x40]);
    });
}

#[test]
fn parts_are_told_from_other_tensors() {
    assert_eq!(weight_of_part("a.b.qweight").as_deref(), Some("a.b.weight"));
    assert_eq!(weight_of_part("a.b.weight_scale_inv").as_deref(), Some("a.b.weight"));
    assert_eq!(weight_of_part("a.b.bias"), None);
    assert_eq!(weight_of_part("qweight"), None);
}
