//! Matrices that were decoded by hand.

use super::{AWQ, Tensors, awq_tensors, fp8_tensors, gptq, gptq_tensors, packed, packed_tensors};
use crate::arch::{GptqFormat, Quantization};
use safetensors::tensor::Dtype;

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
fn zero_points_of_symmetric_gptq_are_in_the_middle_however_they_are_stored() {
    let with = |zeros: u32| gptq_tensors().words("qzeros", &[2, 1], &[zeros, zeros]);
    let middle = with(0x7777_7777).rows(Quantization::Gptq(gptq(4)));
    let symmetric = Quantization::Gptq(GptqFormat { symmetric: true, ..gptq(4) });
    for zeros in [0x7777_7777, 0x8888_8888] {
        assert_eq!(with(zeros).rows(symmetric), middle);
    }
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
