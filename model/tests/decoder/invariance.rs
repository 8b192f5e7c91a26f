//! Checks that the logits of a sequence depend on its tokens alone, bit for bit. Prefill chunk sizes, other sequences
//! in the batch, the choice of KV blocks, a swap through the host pool and the number of compute threads must make no
//! difference.

use crate::harness::{Rig, Sequence, some_tokens, tiny};
use tiercel_device::{QueuedCopier, TokenId};
use tiercel_gpu::{KvType, Ops, WeightFormat};
use tiercel_model::load::{KvCapacity, LoadOptions};
use tiercel_model::source::Resolver;
use tiercel_model::weights::ModelFiles;

/// Number of last positions of a sequence whose logits are all compared; of the earlier positions, only some are
/// compared.
const TAIL: usize = 24;
const OTHERS: usize = 31;

/// Logits of each compared position, as bit patterns: (position, bits of the logits).
type Bits = Vec<(usize, Vec<u32>)>;

struct Case {
    files: ModelFiles,
    weights: WeightFormat,
    kv_type: KvType,
    tokens: Vec<TokenId>,
}

impl Case {
    fn options(&self, threads: usize) -> LoadOptions {
        let blocks = self.tokens.len().div_ceil(16) * 3 + OTHERS * 4;
        LoadOptions {
            weights: self.weights,
            kv_type: self.kv_type,
            threads,
            kv_capacity: KvCapacity::Blocks(blocks as u32),
            host_bytes: Some(1 << 28),
            max_num_seqs: 64,
            max_num_batched_tokens: self.tokens.len() + 100,
            ..LoadOptions::default()
        }
    }

    fn wanted(&self, position: usize) -> bool {
        position + TAIL >= self.tokens.len() || position % 50 == 7
    }

    /// Runs the sequence in chunks of `chunk` tokens, and its last `alone` tokens one by one, as decoding does. Returns
    /// the logits of the compared positions.
    fn run<O: Ops, C: QueuedCopier>(
        &self,
        rig: &mut Rig<O, C>,
        chunk: usize,
        alone: usize,
    ) -> Bits {
        self.run_with(rig, chunk, alone, &mut |_, _| {})
    }

    /// Runs the sequence in chunks as [`Case::run`] does, and calls `between` before each step, for example to swap the
    /// sequence out and in.
    fn run_with<O: Ops, C: QueuedCopier>(
        &self,
        rig: &mut Rig<O, C>,
        chunk: usize,
        alone: usize,
        between: &mut dyn FnMut(&mut Rig<O, C>, &mut Sequence),
    ) -> Bits {
        let mut sequence = Sequence::new(self.tokens.clone());
        let mut bits = Bits::new();
        while sequence.left() > 0 {
            between(rig, &mut sequence);
            let count = next_chunk(sequence.left(), chunk, alone);
            let rows = rig.step(&mut [(&mut sequence, count)], &|_, at| self.wanted(at));
            bits.extend(rows.into_iter().map(|row| (row.position, to_bits(&row.logits))));
        }
        rig.free.extend(sequence.table);
        bits
    }

    /// Runs the sequence in batches with 31 other sequences, as number 17 (from 0) of 32. The others start and end
    /// meanwhile; some decode, some prefill.
    fn run_in_a_crowd<O: Ops, C: QueuedCopier>(
        &self,
        rig: &mut Rig<O, C>,
        chunk: usize,
        alone: usize,
    ) -> Bits {
        let vocab = rig.parts.info.vocab_size;
        let mut ours = Sequence::new(self.tokens.clone());
        let fresh = |seed: usize| Sequence::new(some_tokens(10 + seed % 50, seed as u64, vocab));
        let mut others: Vec<Sequence> = (0..OTHERS).map(fresh).collect();
        let mut bits = Bits::new();
        let mut started = OTHERS;
        while ours.left() > 0 {
            for other in others.iter_mut().filter(|other| other.left() == 0) {
                rig.free.append(&mut other.table);
                *other = fresh(started);
                started += 1;
            }
            let count = next_chunk(ours.left(), chunk, alone);
            // Of the other sequences, those with odd numbers decode, and those with even numbers prefill a few tokens.
            let counts: Vec<usize> = (others.iter().enumerate())
                .map(|(number, other)| other.left().min(if number % 2 == 0 { 3 } else { 1 }))
                .collect();
            let mut batch: Vec<(&mut Sequence, usize)> = others.iter_mut().zip(counts).collect();
            batch.insert(17, (&mut ours, count));
            let rows = rig.step(&mut batch, &|number, position| match number {
                17 => self.wanted(position),
                _ => position == 9,
            });
            let rows = rows.into_iter().filter(|row| row.sequence == 17);
            bits.extend(rows.map(|row| (row.position, to_bits(&row.logits))));
        }
        others.into_iter().for_each(|other| rig.free.extend(other.table));
        rig.free.extend(ours.table);
        bits
    }

    /// Checks on the CPU that the logits are equal under all ways of cutting and batching the sequence.
    fn check(&self) {
        self.check_on(&|threads| Rig::open(&self.files, &self.options(threads)));
    }

    /// Checks on an emulated GPU, in the mode `exact`, that the logits are equal however the sequence is cut into
    /// chunks and batched with others.
    fn check_emulated(&self) {
        self.check_on(&|threads| Rig::emulated(&self.files, &self.options(threads), true));
    }

    fn check_on<O: Ops, C: QueuedCopier>(&self, open: &dyn Fn(usize) -> Rig<O, C>) {
        let mut rig = open(2);
        let alone = self.run(&mut rig, 256, 0);
        assert!(alone.iter().all(|(_, bits)| bits.iter().all(|&b| f32::from_bits(b).is_finite())));
        let same = |what: &str, other: &Bits| assert_same(what, &alone, other);
        same("chunks of 64", &self.run(&mut rig, 64, 0));
        same("chunks of 16, then decoding", &self.run(&mut rig, 16, TAIL));
        rig.free.reverse();
        same("other blocks in another order", &self.run(&mut rig, 64, TAIL));
        same("one of 32", &self.run_in_a_crowd(&mut rig, 64, TAIL));
        let mut steps = 0;
        let swapped = self.run_with(&mut rig, 64, TAIL, &mut |rig, sequence| {
            steps += 1;
            if steps % 3 == 0 {
                rig.swap(sequence);
            }
        });
        same("swapped out and in", &swapped);
        drop(rig);
        same("one thread", &self.run(&mut open(1), 64, TAIL));
    }
}

fn next_chunk(left: usize, chunk: usize, alone: usize) -> usize {
    if left <= alone { 1 } else { chunk.min(left - alone) }
}

fn to_bits(logits: &[f32]) -> Vec<u32> {
    logits.iter().map(|logit| logit.to_bits()).collect()
}

fn assert_same(what: &str, expected: &Bits, found: &Bits) {
    assert_eq!(expected.len(), found.len(), "{what}: positions");
    for ((position, expected), (other, found)) in expected.iter().zip(found) {
        assert_eq!(position, other, "{what}: positions");
        let differ = expected.iter().zip(found).filter(|(a, b)| a != b).count();
        let worst = (expected.iter().zip(found))
            .map(|(&a, &b)| (f32::from_bits(a) - f32::from_bits(b)).abs())
            .fold(0.0, f32::max);
        assert_eq!(differ, 0, "{what}: {differ} logits at {position} differ, by up to {worst:e}");
    }
}

fn tiny_case(family: &str, weights: WeightFormat, kv_type: KvType) {
    let files = ModelFiles::HfDir(tiny(family));
    Case { files, weights, kv_type, tokens: some_tokens(200, 7, 300) }.check();
}

#[test]
fn llama3_in_f32() {
    tiny_case("llama3", WeightFormat::F32, KvType::F32);
}

#[test]
fn llama3_packed() {
    tiny_case("llama3", WeightFormat::Q8_0, KvType::F16);
}

#[test]
fn mistral_in_bf16() {
    tiny_case("mistral", WeightFormat::Auto, KvType::Bf16);
}

#[test]
fn qwen2_packed() {
    tiny_case("qwen2", WeightFormat::Q8_0, KvType::F32);
}

#[test]
fn qwen3_in_f32() {
    tiny_case("qwen3", WeightFormat::F32, KvType::F16);
}

#[test]
fn qwen2_with_8_bit_kv() {
    tiny_case("qwen2", WeightFormat::F32, KvType::Q8);
}

fn emulated_case(family: &str, kv_type: KvType) {
    let weights = WeightFormat::Auto;
    let files = ModelFiles::HfDir(tiny(family));
    Case { files, weights, kv_type, tokens: some_tokens(130, 7, 300) }.check_emulated();
}

#[test]
fn llama2_on_an_exact_gpu() {
    emulated_case("llama2", KvType::Bf16);
}

#[test]
fn mistral_on_an_exact_gpu() {
    emulated_case("mistral", KvType::Bf16);
}

#[test]
fn qwen3_on_an_exact_gpu() {
    emulated_case("qwen3", KvType::Bf16);
}

#[test]
fn llama3_with_8_bit_kv_on_an_exact_gpu() {
    emulated_case("llama3", KvType::Q8);
}

/// Checks with the default model, fetched as the server fetches it, that the logits are equal under all ways of cutting
/// and batching the sequence.
fn smollm2(weights: WeightFormat, kv_type: KvType) {
    let resolver = Resolver::from_env().expect("a cache directory");
    let files = resolver.resolve(None).expect("the default model").files;
    Case { files, weights, kv_type, tokens: some_tokens(280, 7, 49_152) }.check();
}

#[test]
fn smollm2_in_f32() {
    smollm2(WeightFormat::F32, KvType::F32);
}

#[test]
fn smollm2_packed() {
    smollm2(WeightFormat::Auto, KvType::F16);
}

#[test]
fn smollm2_packed_with_8_bit_kv() {
    smollm2(WeightFormat::Auto, KvType::Q8);
}
