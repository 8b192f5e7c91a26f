//! Tests of the CPU's attention: against a f64 reference, and that the result of a row depends on that row's inputs
//! alone.

use super::*;
use crate::cpu::kv::KvLayout;
use crate::cpu::kv_write::write_kv;
use proptest::prelude::*;
use rand::rngs::SmallRng;
use rand::seq::SliceRandom;
use rand::{Rng, SeedableRng};
use std::sync::Arc;
use tiercel_device::BlockId;

/// Sequence of an attention test: queries, keys and values of every position in one tensor.
struct Sequence {
    qkv: Vec<Vec<f32>>,
}

struct Setup {
    shape: AttentionShape,
    layout: KvLayout,
    sequences: Vec<Sequence>,
}

const LAYER: usize = 1;

fn setup(seed: u64, group: usize, kv_heads: usize, layout: KvLayout, lengths: &[usize]) -> Setup {
    let mut rng = SmallRng::seed_from_u64(seed);
    let shape = AttentionShape {
        heads: group * kv_heads,
        kv_heads,
        head_dim: layout.head_dim,
        scale: 1.0 / (layout.head_dim as f32).sqrt(),
        sliding_window: None,
    };
    let mut row = || (0..shape.qkv_cols()).map(|_| rng.random_range(-2.0_f32..2.0)).collect();
    let sequences = lengths.iter().map(|len| Sequence { qkv: (0..*len).map(|_| row()).collect() });
    Setup { shape, layout, sequences: sequences.collect() }
}

fn layout(kv_heads: usize, head_dim: usize, block_size: usize, kv_type: KvType) -> KvLayout {
    KvLayout { layers: 2, kv_heads, head_dim, block_size, kv_type }
}

impl Setup {
    /// Writes the KV of all test sequences into blocks in random order and returns the KV memory and the block tables.
    /// Token slots of blocks that belong to no position are NaN.
    fn write(&self, seed: u64) -> (KvMemory, Vec<Arc<[BlockId]>>) {
        let size = self.layout.block_size;
        let counts: Vec<usize> =
            self.sequences.iter().map(|seq| seq.qkv.len().div_ceil(size)).collect();
        let total: usize = counts.iter().sum();
        let mut free: Vec<u32> = (0..total as u32 + 3).collect();
        free.shuffle(&mut SmallRng::seed_from_u64(seed));
        let kv = KvMemory::allocate(self.layout, total as u32 + 3, 0).unwrap();
        let faults = vec![f32::NAN; 2 * self.layout.kv_heads * self.layout.head_dim];
        for block in 0..total as u32 + 3 {
            for slot in 0..size {
                write_kv(&kv, LAYER, BlockId(block), slot, &faults);
            }
        }
        let mut tables = Vec::new();
        for (seq, count) in self.sequences.iter().zip(counts) {
            let table: Arc<[BlockId]> = free.drain(..count).map(BlockId).collect();
            for (position, qkv) in seq.qkv.iter().enumerate() {
                let keys_values = &qkv[self.shape.heads * self.shape.head_dim..];
                write_kv(&kv, LAYER, table[position / size], position % size, keys_values);
            }
            tables.push(table);
        }
        (kv, tables)
    }

    /// Computes attention for the `(sequence, positions)` pairs of `work` in one call. Returns the output rows in the
    /// order of `work`.
    fn attend(
        &self,
        memory: &(KvMemory, Vec<Arc<[BlockId]>>),
        work: &[(usize, std::ops::Range<usize>)],
        threads: usize,
        isa: Isa,
    ) -> Vec<Vec<f32>> {
        let rows: usize = work.iter().map(|(_, positions)| positions.len()).sum();
        let mut qkv = Tensor::new(rows, self.shape.qkv_cols());
        qkv.set_rows(rows);
        let mut batch = Vec::new();
        let mut row = 0;
        for (seq, positions) in work {
            batch.push(SeqRows {
                rows: row..row + positions.len(),
                first_pos: positions.start as u32,
                table: memory.1[*seq].clone(),
            });
            for position in positions.clone() {
                let cols = qkv.cols();
                let from = &self.sequences[*seq].qkv[position];
                qkv.values_mut()[row * cols..(row + 1) * cols].copy_from_slice(from);
                row += 1;
            }
        }
        let mut out = Tensor::new(rows, self.shape.heads * self.shape.head_dim);
        out.set_rows(rows);
        out.values_mut().fill(f32::NAN);
        let call = Attention {
            isa,
            kv: &memory.0,
            qkv: &qkv,
            shape: &self.shape,
            layer: LAYER,
            batch: &batch,
        };
        let pool = Pool::start(threads).unwrap();
        attention(&pool, &call, &mut Memory::default(), &mut out);
        (0..rows).map(|row| out.row(row).to_vec()).collect()
    }

    /// Computes the reference attention output of one head at one position in f64, from keys and values as the KV
    /// blocks store them.
    fn reference(&self, seq: usize, position: usize, head: usize) -> Vec<f64> {
        let shape = &self.shape;
        let (dim, kv_head) = (shape.head_dim, head / (shape.heads / shape.kv_heads));
        let qkv = &self.sequences[seq].qkv;
        let part = |position: usize, head: usize| &qkv[position][head * dim..(head + 1) * dim];
        let stored = |position: usize, head: usize| -> Vec<f64> {
            let part = part(position, head);
            let largest = part.iter().fold(0.0_f32, |most, value| most.max(value.abs()));
            let store = |value: f32| match self.layout.kv_type {
                KvType::F32 => f64::from(value),
                KvType::F16 => f64::from(f16::from_f32(value)),
                KvType::Bf16 => f64::from(bf16::from_f32(value)),
                KvType::Q8 => {
                    let scale = largest / 127.0;
                    f64::from((value * (1.0 / scale)).round_ties_even()) * f64::from(scale)
                }
            };
            part.iter().map(|value| store(*value)).collect()
        };
        let range = visible(shape, position);
        let scores: Vec<f64> = range
            .clone()
            .map(|p| {
                let key = stored(p, shape.heads + kv_head);
                let pairs = part(position, head).iter().zip(key);
                f64::from(shape.scale) * pairs.map(|(q, k)| f64::from(*q) * k).sum::<f64>()
            })
            .collect();
        let max = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        let total: f64 = scores.iter().map(|score| (score - max).exp()).sum();
        let mut out = vec![0.0; dim];
        for (p, score) in range.zip(scores) {
            let weight = (score - max).exp() / total;
            let values = stored(p, shape.heads + shape.kv_heads + kv_head);
            out.iter_mut().zip(values).for_each(|(out, v)| *out += weight * v);
        }
        out
    }

    fn check(&self, threads: usize, isa: Isa, sample: &mut SmallRng) -> Result<(), TestCaseError> {
        let memory = self.write(5);
        let whole: Vec<_> = self
            .sequences
            .iter()
            .enumerate()
            .map(|(seq, sequence)| (seq, 0..sequence.qkv.len()))
            .collect();
        let out = self.attend(&memory, &whole, threads, isa);
        let mut first_row = 0;
        for (seq, positions) in whole {
            for _ in 0..4 {
                let position = sample.random_range(positions.clone());
                let head = sample.random_range(0..self.shape.heads);
                let dim = self.shape.head_dim;
                let actual = &out[first_row + position][head * dim..(head + 1) * dim];
                let expected = self.reference(seq, position, head);
                for (actual, expected) in actual.iter().zip(expected) {
                    prop_assert!(
                        (f64::from(*actual) - expected).abs() < 5e-6,
                        "{isa:?} seq {seq} position {position} head {head}: {actual} {expected}"
                    );
                }
            }
            first_row += positions.len();
        }
        Ok(())
    }
}

fn kv_types() -> impl Strategy<Value = KvType> {
    prop_oneof![Just(KvType::F32), Just(KvType::F16), Just(KvType::Bf16), Just(KvType::Q8)]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(40))]

    #[test]
    fn matches_a_f64_reference(
        seed in any::<u64>(),
        dim in prop_oneof![Just(32), Just(64), Just(80), Just(96), Just(128), Just(16), Just(40), Just(12)],
        group in 1_usize..=8,
        kv_heads in 1_usize..=3,
        size in prop_oneof![Just(8_usize), Just(16), Just(32), Just(5), Just(48)],
        kv_type in kv_types(),
        lengths in prop::collection::vec(1_usize..330, 1..4),
        window in prop_oneof![Just(None), (1_u32..400).prop_map(Some)],
        threads in 1_usize..=3,
    ) {
        let mut setup = setup(seed, group, kv_heads, layout(kv_heads, dim, size, kv_type), &lengths);
        setup.shape.sliding_window = window;
        let mut sample = SmallRng::seed_from_u64(seed);
        setup.check(threads, Isa::detect(), &mut sample)?;
        if seed % 4 == 0 {
            setup.check(threads, Isa::Portable, &mut sample)?;
        }
    }
}

fn bits(rows: &[Vec<f32>]) -> Vec<Vec<u32>> {
    rows.iter().map(|row| row.iter().map(|value| value.to_bits()).collect()).collect()
}

/// Checks that attention output rows have the same bits whether sequences are computed alone and whole, or as chunks of
/// several sequences with other block tables and thread counts.
fn check_identity(setup: &Setup, isa: Isa) {
    let memory = setup.write(1);
    let lengths: Vec<usize> = setup.sequences.iter().map(|seq| seq.qkv.len()).collect();
    let alone: Vec<Vec<Vec<u32>>> = lengths
        .iter()
        .enumerate()
        .map(|(seq, len)| bits(&setup.attend(&memory, &[(seq, 0..*len)], 1, isa)))
        .collect();
    // Computes the prompts again in chunks, with other block tables and thread counts, to compare the output bits.
    for (chunk, threads, seed) in [(1, 1, 2), (7, 2, 3), (16, 3, 4), (100, 2, 5), (257, 2, 6)] {
        let other = setup.write(seed);
        let mut at = 0;
        while at < *lengths.iter().max().unwrap() {
            let work: Vec<_> = lengths
                .iter()
                .enumerate()
                .filter(|(_, len)| at < **len)
                .map(|(seq, len)| (seq, at..(at + chunk).min(*len)))
                .rev()
                .collect();
            let out = bits(&setup.attend(&other, &work, threads, isa));
            let mut rows = out.iter();
            for (seq, positions) in work {
                for position in positions {
                    let row = rows.next().expect("a row for every position");
                    assert!(*row == alone[seq][position], "{isa:?} {chunk} {threads} {position}");
                }
            }
            at += chunk * if chunk == 1 { 13 } else { 1 };
        }
    }
}

#[test]
fn chunks_batches_tables_and_threads_never_change_a_bit() {
    let lengths = [700, 33, 260];
    for (kv_type, window) in [
        (KvType::F32, None),
        (KvType::F16, None),
        (KvType::F32, Some(3)),
        (KvType::Bf16, Some(300)),
        (KvType::Q8, None),
    ] {
        let mut setup = setup(9, 3, 2, layout(2, 32, 16, kv_type), &lengths);
        setup.shape.sliding_window = window;
        check_identity(&setup, Isa::detect());
    }
    for kv_type in [KvType::F32, KvType::Q8] {
        check_identity(&setup(9, 2, 1, layout(1, 20, 12, kv_type), &[270, 30]), Isa::Portable);
    }
}

#[test]
fn a_fault_reaches_only_the_rows_that_see_it() {
    for kv_type in [KvType::F32, KvType::Q8] {
        let mut setup = setup(4, 3, 1, layout(1, 64, 16, kv_type), &[300]);
        let cols = setup.shape.qkv_cols();
        setup.sequences[0].qkv[270][cols - 1] = f32::NAN;
        for isa in [Isa::detect(), Isa::Portable] {
            let out = setup.attend(&setup.write(1), &[(0, 0..300)], 2, isa);
            for (position, row) in out.iter().enumerate() {
                assert_eq!(row.iter().any(|value| value.is_nan()), position >= 270, "{position}");
            }
        }
    }
}

#[test]
fn block_sizes_do_not_matter() {
    let sizes = [8, 16, 64, 256];
    for kv_type in [KvType::F32, KvType::Q8] {
        let out = sizes.map(|size| {
            let setup = setup(2, 4, 2, layout(2, 64, size, kv_type), &[513]);
            bits(&setup.attend(&setup.write(1), &[(0, 0..513)], 2, Isa::detect()))
        });
        assert!(out.iter().all(|rows| *rows == out[0]));
    }
}
