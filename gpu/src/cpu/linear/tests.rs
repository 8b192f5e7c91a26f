//! Tests of matrix products on the CPU: against a f64 reference, and that a result depends bit for bit on its own
//! inputs alone.

use super::*;
use crate::{MatrixPart, SourceType, WeightFormat};
use proptest::prelude::*;
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};

use crate::cpu::weights::{Arena, pack};

const FORMATS: [(SourceType, WeightFormat); 5] = [
    (SourceType::F32, WeightFormat::F32),
    (SourceType::F32, WeightFormat::Bf16),
    (SourceType::F32, WeightFormat::Q8_0),
    (SourceType::Q4_1, WeightFormat::Auto),
    (SourceType::Q8_0, WeightFormat::Auto),
];

/// Returns random bytes that are a valid `[n, k]` weight matrix of the source type, with scales around 0.01.
fn random_bytes(rng: &mut SmallRng, source: SourceType, n: usize, k: usize) -> Vec<u8> {
    if source == SourceType::F32 {
        return (0..n * k).flat_map(|_| rng.random_range(-0.1_f32..0.1).to_le_bytes()).collect();
    }
    let mut bytes = vec![0; source.matrix_bytes(n, k).unwrap()];
    rng.fill(&mut bytes[..]);
    for block in bytes.chunks_exact_mut(source.block_bytes()) {
        let mut half = |at: usize, value: f32| {
            block[at..at + 2].copy_from_slice(&half::f16::from_f32(value).to_le_bytes());
        };
        half(0, rng.random_range(0.005..0.02));
        if source == SourceType::Q4_1 {
            half(2, rng.random_range(-0.2..0.0));
        }
    }
    bytes
}

fn random_tensor(rng: &mut SmallRng, rows: usize, cols: usize) -> Tensor {
    let mut x = Tensor::new(rows, cols);
    x.set_rows(rows);
    x.values_mut().iter_mut().for_each(|x| *x = rng.random_range(-2.0..2.0));
    x
}

fn product(pool: &Pool, isa: Isa, w: &Matrix, bias: Option<&Vector>, x: &Tensor) -> Tensor {
    let mut out = Tensor::new(x.rows(), w.n);
    out.set_rows(x.rows());
    out.values_mut().fill(f32::NAN);
    linear((pool, isa), &mut ActRows::default(), w, bias, x, &mut out);
    out
}

/// Computes the reference of one output element of a matrix product in f64 from the decoded weights, and from quantized
/// activations if the matrix is quantized. Returns the element and the sum of the absolute values of its terms.
fn reference(w: &Matrix, bias: Option<&Vector>, x: &Tensor, row: usize, col: usize) -> (f64, f64) {
    let mut weights = vec![0.0; w.k];
    w.row(col, &mut weights);
    let mut acts = ActRows::default();
    let pool = Pool::start(1).unwrap();
    acts.quantize(&pool, Isa::Portable, x);
    let blocks = acts.row(row);
    let act = |i: usize| match w.is_quantized() {
        false => f64::from(x.row(row)[i]),
        true => f64::from(blocks[i / 32].scale) * f64::from(blocks[i / 32].values[i % 32]),
    };
    let terms = weights.iter().enumerate().map(|(i, w)| f64::from(*w) * act(i));
    let (sum, size) = terms.fold((0.0, 0.0), |(sum, size), t| (sum + t, size + t.abs()));
    (sum + bias.map_or(0.0, |bias| f64::from(bias.values[col])), size)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(60))]

    #[test]
    fn products_match_a_f64_reference(
        seed in any::<u64>(), n in 1_usize..70, blocks in 1_usize..6, ragged in 0_usize..32,
        rows in 1_usize..20, threads in 1_usize..4, with_bias in any::<bool>(),
    ) {
        let mut rng = SmallRng::seed_from_u64(seed);
        let pool = Pool::start(threads).unwrap();
        for (source, format) in FORMATS {
            let k = if source == SourceType::F32 { blocks * 32 - ragged } else { blocks * 32 };
            let bytes = random_bytes(&mut rng, source, n, k);
            let part = MatrixPart { n, k, source, bytes: &bytes, row_order: None };
            let w = pack(&pool, &mut Arena::default(), &[part], format).unwrap();
            let x = random_tensor(&mut rng, rows, k);
            let bias = with_bias.then(|| Vector { values: vec![0.25; n] });
            for isa in Isa::available() {
                let out = product(&pool, isa, &w, bias.as_ref(), &x);
                for (row, col) in [(0, 0), (rows - 1, n - 1), (rows / 2, n / 2), (rows - 1, 0)] {
                    let (expected, size) = reference(&w, bias.as_ref(), &x, row, col);
                    let actual = f64::from(out.row(row)[col]);
                    prop_assert!(
                        (actual - expected).abs() <= 2e-6 * (size + 1.0),
                        "{source:?} {format:?} {isa:?} [{row}, {col}]: {actual} for {expected}"
                    );
                }
            }
        }
    }
}

#[test]
fn a_value_depends_on_its_inputs_alone_bit_for_bit() {
    let mut rng = SmallRng::seed_from_u64(7);
    let (n, k) = (203, 160);
    let pools = [1, 2, 3].map(|threads| Pool::start(threads).unwrap());
    for (source, format) in FORMATS {
        let bytes = random_bytes(&mut rng, source, n, k);
        let part = MatrixPart { n, k, source, bytes: &bytes, row_order: None };
        let w = pack(&pools[0], &mut Arena::default(), &[part], format).unwrap();
        let x = random_tensor(&mut rng, 40, k);
        for isa in Isa::available() {
            let mut one_row = Tensor::new(1, k);
            let alone: Vec<Vec<u32>> = (0..40)
                .map(|row| {
                    one_row.set_rows(1);
                    one_row.values_mut().copy_from_slice(x.row(row));
                    let out = product(&pools[0], isa, &w, None, &one_row);
                    out.values().iter().map(|value| value.to_bits()).collect()
                })
                .collect();
            for rows in 1..=40 {
                for (pool, first) in pools.iter().zip([0, 40 - rows, (40 - rows) / 2]) {
                    let mut some = Tensor::new(rows, k);
                    some.set_rows(rows);
                    some.values_mut().copy_from_slice(&x.values()[first * k..(first + rows) * k]);
                    let out = product(pool, isa, &w, None, &some);
                    for row in 0..rows {
                        let bits: Vec<u32> = out.row(row).iter().map(|v| v.to_bits()).collect();
                        assert!(
                            bits == alone[first + row],
                            "{source:?} {isa:?} row {row} of {rows}"
                        );
                    }
                }
            }
        }
    }
}

#[test]
fn all_vector_kernels_give_the_same_bits() {
    let mut rng = SmallRng::seed_from_u64(5);
    let pool = Pool::start(2).unwrap();
    // Odd numbers of panels, a last panel that is not full, several passes, and rows of weights so long that fewer than
    // two panels fit `PASSED_BYTES`.
    for (n, ragged_k, rows) in
        [(203_usize, 96_usize, 50), (40, 150, 3), (32, 14_400, 4), (8, 64, 7)]
    {
        for (source, format) in FORMATS {
            // Blocks of a quantized source are whole.
            let k =
                if source == SourceType::F32 { ragged_k } else { ragged_k.next_multiple_of(32) };
            let bytes = random_bytes(&mut rng, source, n, k);
            let part = MatrixPart { n, k, source, bytes: &bytes, row_order: None };
            let w = pack(&pool, &mut Arena::default(), &[part], format).unwrap();
            let x = random_tensor(&mut rng, rows, k);
            let bits = |isa| {
                let out = product(&pool, isa, &w, None, &x);
                out.values().iter().map(|value| value.to_bits()).collect::<Vec<u32>>()
            };
            let vector = Isa::available().into_iter().filter(|isa| *isa != Isa::Portable);
            let outs: Vec<(Isa, Vec<u32>)> = vector.map(|isa| (isa, bits(isa))).collect();
            for two in outs.windows(2) {
                assert!(
                    two[0].1 == two[1].1,
                    "{n} {k} {rows} {source:?} {:?} {:?}",
                    two[0].0,
                    two[1].0
                );
            }
        }
    }
}

#[test]
fn extreme_weights_and_activations_do_not_overflow_the_integer_sums() {
    let pool = Pool::start(1).unwrap();
    let (n, k) = (24, 64);
    let mut q8 = Vec::new();
    let mut q4 = Vec::new();
    for block in 0..n * k / 32 {
        q8.extend(half::f16::ONE.to_le_bytes());
        q8.extend([if block % 2 == 0 { -128_i8 as u8 } else { 127 }; 32]);
        q4.extend(half::f16::ONE.to_le_bytes());
        q4.extend(half::f16::ZERO.to_le_bytes());
        q4.extend([0xff; 16]);
    }
    let mut x = Tensor::new(2, k);
    x.set_rows(2);
    x.values_mut()[..k].fill(127.0);
    x.values_mut()[k..].fill(-127.0);
    for isa in Isa::available() {
        for (source, bytes, expected) in [
            (SourceType::Q8_0, &q8, 32.0 * 127.0 * (127.0 - 128.0)),
            (SourceType::Q4_1, &q4, 64.0 * 127.0 * 15.0),
        ] {
            let part = MatrixPart { n, k, source, bytes, row_order: None };
            let w = pack(&pool, &mut Arena::default(), &[part], WeightFormat::Auto).unwrap();
            let out = product(&pool, isa, &w, None, &x);
            assert_eq!(out.row(0), [expected; 24], "{source:?} {isa:?}");
            assert_eq!(out.row(1), [-expected; 24], "{source:?} {isa:?}");
        }
    }
}

#[test]
fn faults_in_a_row_stay_visible_and_stay_in_the_row() {
    let mut rng = SmallRng::seed_from_u64(3);
    let pool = Pool::start(1).unwrap();
    let (n, k) = (24, 96);
    for (source, format) in FORMATS {
        let bytes = random_bytes(&mut rng, source, n, k);
        let part = MatrixPart { n, k, source, bytes: &bytes, row_order: None };
        let w = pack(&pool, &mut Arena::default(), &[part], format).unwrap();
        let mut x = random_tensor(&mut rng, 5, k);
        x.values_mut()[2 * k + 7] = f32::NAN;
        for isa in Isa::available() {
            let out = product(&pool, isa, &w, None, &x);
            assert!(out.row(2).iter().all(|value| value.is_nan()), "{source:?} {isa:?}");
            for row in [0, 1, 3, 4] {
                assert!(out.row(row).iter().all(|value| value.is_finite()), "{source:?} {isa:?}");
            }
        }
    }
}

#[test]
fn stacked_parts_of_different_forms_are_one_product() {
    let mut rng = SmallRng::seed_from_u64(11);
    let pool = Pool::start(2).unwrap();
    let k = 64;
    let kinds = [(20, SourceType::Q4_1), (9, SourceType::Q8_0), (17, SourceType::F32)];
    let bytes = kinds.map(|(n, source)| random_bytes(&mut rng, source, n, k));
    let parts: Vec<MatrixPart<'_>> = kinds
        .iter()
        .zip(&bytes)
        .map(|(&(n, source), bytes)| MatrixPart { n, k, source, bytes, row_order: None })
        .collect();
    let w = pack(&pool, &mut Arena::default(), &parts, WeightFormat::Auto).unwrap();
    assert_eq!(w.describe(), "q4+q8+f32 panels");
    let x = random_tensor(&mut rng, 7, k);
    let bias = Vector { values: (0..46).map(|i| i as f32).collect() };
    let whole = product(&pool, Isa::detect(), &w, Some(&bias), &x);
    let mut first = 0;
    for part in parts {
        let bias = Vector { values: bias.values[first..first + part.n].to_vec() };
        let n = part.n;
        let alone = pack(&pool, &mut Arena::default(), &[part], WeightFormat::Auto).unwrap();
        let alone = product(&pool, Isa::detect(), &alone, Some(&bias), &x);
        for row in 0..7 {
            assert_eq!(whole.row(row)[first..first + n], *alone.row(row));
        }
        first += n;
    }
}
