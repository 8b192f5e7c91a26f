//! Tests of quantized matrices: by hand, against what the quantizing projects compute, and damaged ones.

use super::super::hf_dir::{HfDir, read_json};
use super::super::stored::Stored;
use super::{find, weight_of_part};
use crate::arch::{GptqFormat, PackedFormat, Quantization};
use crate::weights::WeightError;
use safetensors::SafeTensors;
use safetensors::tensor::{Dtype, TensorView, serialize_to_file};
use std::path::{Path, PathBuf};
use tiercel_gpu::{SourceType, WeightFormat};

const LAYER: &str = "layer.weight";
const AWQ: Quantization = Quantization::Awq { group: Some(2) };

/// Returns a GPTQ format with groups of four inputs in order.
fn gptq(bits: usize) -> GptqFormat {
    GptqFormat { bits, group: Some(4), act_order: false, zeros_less_one: true }
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
fn awq_by_hand() {
    let expected: [[f32; 2]; 8] = [
        [0.0, 15.0],
        [4.0, 0.0],
        [0.0, -1.0],
        [2.5, 0.0],
        [2.0, 0.0],
        [6.0, 0.0],
        [3.0, 0.0],
        [7.0, 0.0],
    ];
    assert_eq!(awq_tensors().rows(AWQ), expected);
}

#[test]
fn gptq_by_hand_with_both_conventions_of_zero_points() {
    let one = Quantization::Gptq(gptq(4));
    let found = gptq_tensors().rows(one);
    assert_eq!(found[0], [-1.0, 0.0, 1.0, 2.0, -4.0, -3.0, -2.0, -1.0]);
    assert_eq!(found[1], [-2.0, -2.0, -2.0, -2.0, -8.0, -8.0, -8.0, -8.0]);
    let two = Quantization::Gptq(GptqFormat { zeros_less_one: false, ..gptq(4) });
    let found = gptq_tensors().rows(two);
    assert_eq!(found[0], [0.0, 1.0, 2.0, 3.0, -3.0, -2.0, -1.0, 0.0]);
    assert_eq!(found[1], [-1.0, -1.0, -1.0, -1.0, -7.0, -7.0, -7.0, -7.0]);
}

#[test]
fn a_zero_point_of_0_that_is_stored_less_1_borrows_from_its_neighbour() {
    // Zero points 0, 5, 0, ...: 0x...050 - 0x...111.
    let zeros = 0x50_u32.wrapping_sub(0x1111_1111);
    let tensors = gptq_tensors().words("qzeros", &[2, 1], &[zeros, zeros]);
    let found = tensors.rows(Quantization::Gptq(gptq(4)));
    assert_eq!((found[0][3], found[1][3], found[2][3]), (3.0, -5.0, 0.0));
}

#[test]
fn gptq_in_8_bits_by_hand() {
    let tensors = Tensors::default()
        .words("qweight", &[1, 4], &[0xff80_7f00, 0, 0, 0])
        .words("qzeros", &[1, 1], &[0x0000_007f])
        .f32("scales", &[1, 4], &[0.5; 4]);
    let found = tensors.rows(Quantization::Gptq(gptq(8)));
    assert_eq!(found[0], [-64.0, -0.5, 0.0, 63.5]);
    assert_eq!(found[3], [-0.5; 4]);
}

#[test]
fn g_idx_gives_the_groups_of_inputs() {
    let with = |groups: [u32; 8]| gptq_tensors().words("g_idx", &[8], &groups);
    let act_order = Quantization::Gptq(GptqFormat { act_order: true, ..gptq(4) });
    let swapped = with([1, 1, 0, 0, 1, 0, 1, 0]).rows(act_order);
    assert_eq!(swapped[0], [-8.0, -7.0, 1.0, 2.0, -4.0, 4.0, -2.0, 6.0]);
    let in_order = gptq_tensors().rows(Quantization::Gptq(gptq(4)));
    // An empty g_idx says nothing without desc_act, and is meant with it.
    assert_eq!(with([0; 8]).rows(Quantization::Gptq(gptq(4))), in_order);
    assert_eq!(with([0; 8]).rows(act_order)[1], [-2.0; 8]);
    let all = Quantization::Gptq(GptqFormat { group: None, ..gptq(4) });
    let one_group = gptq_tensors().words("qzeros", &[1, 1], &[0x7777_7777]);
    let one_group = one_group.f32("scales", &[1, 8], &[1.0; 8]);
    assert_eq!(one_group.rows(all)[1], [-8.0; 8]);
}

#[test]
fn packed_integers_by_hand() {
    let found = packed_tensors().rows(Quantization::Packed(packed(4, true)));
    assert_eq!(found, [[0.0, 1.0, 2.0, 3.0, 2.0, 2.5, 3.0], [0.0; 7]]);
    // Zero points, plus 8: 8 and 7 of the first output, 9 and 10 of the second.
    let found = packed_tensors().rows(Quantization::Packed(packed(4, false)));
    assert_eq!(found[0], [0.0, 1.0, 2.0, 3.0, 2.5, 3.0, 3.5]);
    assert_eq!(found[1], [-1.0, -1.0, -1.0, -1.0, -4.0, -4.0, -4.0]);
    let swapped = packed_tensors().words("weight_g_idx", &[7], &[1, 1, 1, 0, 0, 0, 0]);
    let found = swapped.rows(Quantization::Packed(packed(4, true)));
    assert_eq!(found[0], [0.0, 0.5, 1.0, 3.0, 4.0, 5.0, 6.0]);
    let unused = packed_tensors().words("weight_g_idx", &[7], &[u32::MAX; 7]);
    let in_order = packed_tensors().rows(Quantization::Packed(packed(4, true)));
    assert_eq!(unused.rows(Quantization::Packed(packed(4, true))), in_order);
    let eight = Tensors::default().words("weight_packed", &[1, 1], &[0xff80_7f00]).f32(
        "weight_scale",
        &[1, 1],
        &[1.0],
    );
    let found = eight.rows(Quantization::Packed(packed(8, true)));
    assert_eq!(found, [[-128.0, -1.0, 0.0, 127.0]]);
}

#[test]
fn fp8_scales_of_all_shapes_by_hand() {
    let block = |block| Quantization::Fp8 { block };
    let plain = fp8_tensors();
    for shape in [&[][..], &[1], &[1, 1]] {
        let one = plain.clone().f32("weight_scale", shape, &[0.5]);
        assert_eq!(one.rows(block(None)), [[0.5, 0.5]; 3], "{shape:?}");
    }
    for shape in [&[3][..], &[3, 1]] {
        let each = plain.clone().f32("weight_scale", shape, &[1.0, 2.0, 3.0]);
        assert_eq!(each.rows(block(None)), [[1.0, 1.0], [2.0, 2.0], [3.0, 3.0]], "{shape:?}");
    }
    let blocks = plain.clone().f32("weight_scale_inv", &[2, 2], &[1.0, 2.0, 3.0, 4.0]);
    assert_eq!(blocks.rows(block(Some([2, 1]))), [[1.0, 2.0], [1.0, 2.0], [3.0, 4.0]]);
    let flat = plain.f32("weight_scale_inv", &[2], &[1.0, 2.0]);
    assert_eq!(flat.rows(block(Some([2, 128]))), [[1.0, 1.0], [1.0, 1.0], [2.0, 2.0]]);
    assert_eq!(flat.rows(block(Some([128, 1]))), [[1.0, 2.0]; 3]);
}

#[test]
fn blocks_of_128_begin_at_multiples_of_128() {
    let (n, k) = (129, 260);
    let scales: Vec<f32> = (1..=6).map(|scale| scale as f32).collect();
    let tensors = Tensors::default()
        .with("weight", Dtype::F8_E4M3, &[n, k], vec![0x38; n * k])
        .f32("weight_scale_inv", &[2, 3], &scales);
    let found = tensors.rows(Quantization::Fp8 { block: Some([128, 128]) });
    for (row, column, scale) in [
        (0, 0, 1.0),
        (127, 127, 1.0),
        (0, 128, 2.0),
        (127, 256, 3.0),
        (128, 0, 4.0),
        (128, 259, 6.0),
    ] {
        assert_eq!(found[row][column], scale, "row {row}, column {column}");
    }
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
