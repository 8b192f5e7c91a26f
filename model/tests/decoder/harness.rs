//! Test harness that drives a decoder directly, without the engine.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use tiercel_device::{BlockId, CopyBatch, CopyDirection, CopyId, CopyPair, QueuedCopier, TokenId};
use tiercel_emulated::{EmulatedCopies, EmulatedDriver};
use tiercel_gpu::cpu::{CpuCopier, CpuOps};
use tiercel_gpu::cuda::{CudaCopier, CudaOps};
use tiercel_gpu::{Ops, RowInput, SeqRows};
use tiercel_model::forward::ForwardBatch;
use tiercel_model::load::{GpuUse, LoadOptions, Parts, open, open_cuda};
use tiercel_model::weights::{Checkpoint, ModelFiles};

/// Test rig: a loaded model and its free KV blocks.
pub(crate) struct Rig<O: Ops = CpuOps, C = CpuCopier> {
    pub(crate) parts: Parts<O, C>,
    pub(crate) free: Vec<BlockId>,
}

/// Test rig on an emulated GPU, which runs the GPU's kernels on the host.
pub(crate) type EmulatedRig = Rig<CudaOps<EmulatedDriver>, CudaCopier<EmulatedCopies>>;

/// Memory of an emulated GPU, bytes.
const GPU_BYTES: usize = 1 << 30;

/// Test sequence whose tokens are all known from the start.
#[derive(Debug, Clone)]
pub(crate) struct Sequence {
    pub(crate) tokens: Vec<TokenId>,
    pub(crate) done: usize,
    pub(crate) table: Vec<BlockId>,
}

/// Logits of one position of one test sequence.
pub(crate) struct Row {
    pub(crate) sequence: usize,
    pub(crate) position: usize,
    pub(crate) logits: Vec<f32>,
}

impl Sequence {
    pub(crate) fn new(tokens: Vec<TokenId>) -> Sequence {
        Sequence { tokens, done: 0, table: Vec::new() }
    }

    pub(crate) fn left(&self) -> usize {
        self.tokens.len() - self.done
    }
}

impl Rig {
    pub(crate) fn open(files: &ModelFiles, options: &LoadOptions) -> Rig {
        let checkpoint = Checkpoint::open(files).expect("a good checkpoint");
        Rig::new(open(&checkpoint, options, &mut |_| {}).expect("a device"))
    }
}

impl EmulatedRig {
    /// Opens a model on an emulated GPU. With `exact`, the results of a row do not depend on the other rows of its
    /// step.
    pub(crate) fn emulated(files: &ModelFiles, options: &LoadOptions, exact: bool) -> EmulatedRig {
        let checkpoint = Checkpoint::open(files).expect("a good checkpoint");
        let driver = EmulatedDriver::new(GPU_BYTES);
        let parts = open_cuda(
            driver,
            GpuUse { exact, ..GpuUse::default() },
            &checkpoint,
            options,
            &mut |_| {},
        );
        Rig::new(parts.expect("a device"))
    }
}

impl<O: Ops, C: QueuedCopier> Rig<O, C> {
    fn new(parts: Parts<O, C>) -> Rig<O, C> {
        let free = (0..parts.info.device_blocks).rev().map(BlockId).collect();
        Rig { parts, free }
    }

    /// Runs the next `count` tokens of each sequence in one batch. Returns the logits of every position for which
    /// `wanted`, called with the number of the sequence and the position, is true.
    pub(crate) fn step(
        &mut self,
        sequences: &mut [(&mut Sequence, usize)],
        wanted: &dyn Fn(usize, usize) -> bool,
    ) -> Vec<Row> {
        let size = self.parts.info.block_size as usize;
        let (mut inputs, mut seqs, mut rows) = (Vec::new(), Vec::new(), Vec::new());
        for (number, (sequence, count)) in sequences.iter_mut().enumerate() {
            let (first, end) = (sequence.done, sequence.done + *count);
            while sequence.table.len() * size < end {
                sequence.table.push(self.free.pop().expect("a free block"));
            }
            let start = inputs.len();
            inputs.extend(sequence.tokens[first..end].iter().copied().map(RowInput::Token));
            for position in (first..end).filter(|&position| wanted(number, position)) {
                rows.push((number, position, start + position - first));
            }
            let table: Arc<[BlockId]> = sequence.table.clone().into();
            seqs.push(SeqRows { rows: start..inputs.len(), first_pos: first as u32, table });
            sequence.done = end;
        }
        let sampled: Vec<usize> = rows.iter().map(|&(.., row)| row).collect();
        let batch = ForwardBatch { inputs: &inputs, seqs: &seqs, sampled: &sampled };
        let Parts { ops, decoder, .. } = &mut self.parts;
        decoder.forward(ops, batch);
        let mut logits = Vec::new();
        for chunk in decoder.logit_chunks() {
            let found: Vec<Mutex<Vec<f32>>> = chunk.clone().map(|_| Mutex::default()).collect();
            let tensor = decoder.logits(ops, chunk);
            let all: Vec<usize> = (0..found.len()).collect();
            let keep =
                |row: usize, values: &mut [f32]| *found[row].lock().unwrap() = values.to_vec();
            ops.for_each_row(tensor, &all, &keep);
            logits.extend(found.into_iter().map(|row| row.into_inner().unwrap()));
        }
        ops.finish().expect("a device that works");
        assert_eq!(logits.len(), rows.len());
        let rows = rows.into_iter().zip(logits);
        rows.map(|((sequence, position, _), logits)| Row { sequence, position, logits }).collect()
    }

    /// Swaps a sequence out to the host pool and in again: copies its KV blocks out, frees them, and copies its KV into
    /// other device blocks.
    pub(crate) fn swap(&mut self, sequence: &mut Sequence) {
        let old = std::mem::take(&mut sequence.table);
        let mut new: Vec<BlockId> = self.free.drain(..old.len()).collect();
        new.reverse();
        self.copy(CopyDirection::Out, &old);
        self.free.extend(&old);
        self.copy(CopyDirection::In, &new);
        sequence.table = new;
    }

    fn copy(&mut self, direction: CopyDirection, blocks: &[BlockId]) {
        let pairs = (0..)
            .zip(blocks)
            .map(|(host, &device)| CopyPair { device, host: tiercel_device::HostBlockId(host) });
        let batch = CopyBatch::needed(CopyId(1), direction, pairs.collect());
        self.parts.copier.copy(&batch).expect("a copy in memory");
    }
}

/// Returns the directory of a tiny reference checkpoint of the workspace's tests.
pub(crate) fn tiny(family: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/reference/tiny").join(family)
}

/// Returns pseudo-random tokens below `vocab`.
pub(crate) fn some_tokens(count: usize, seed: u64, vocab: u32) -> Vec<TokenId> {
    let mut state = seed;
    let mut next = || {
        state =
            state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) as u32 % vocab
    };
    (0..count).map(|_| next()).collect()
}
