//! The CPU device's implementation of [`Ops`]: checks shapes, then calls the kernels.

use super::attention::{Attention, Memory, attention, is_vectorised};
use super::isa::Isa;
use super::kv::KvMemory;
use super::kv_write::write_kv;
use super::linear::{ActRows, linear};
use super::pool::Pool;
use super::rows;
use super::tensor::{Rope, Tensor, Vector};
use super::weights::{Arena, Matrix, pack};
use crate::{
    AttentionShape, Drawn, MatrixPart, OpError, Ops, RowInput, SeqRows, TensorUse, WeightFormat,
};
use std::ops::Range;
use std::sync::Arc;
use tiercel_device::StepError;

/// Compute side of the CPU device: runs the operations of a forward pass.
pub struct CpuOps {
    pool: Pool,
    isa: Isa,
    kv: Arc<KvMemory>,
    arena: Arena,
    acts: ActRows,
    attention: Memory,
}

impl CpuOps {
    pub(crate) fn new(pool: Pool, kv: Arc<KvMemory>) -> CpuOps {
        let mut arena = Arena::default();
        arena.promise(kv.bytes());
        CpuOps {
            pool,
            isa: Isa::detect(),
            kv,
            arena,
            acts: ActRows::default(),
            attention: Memory::default(),
        }
    }

    /// Returns the number of compute threads, the calling thread included.
    pub fn threads(&self) -> usize {
        self.pool.threads()
    }

    /// Returns the name of the instruction set that the kernels use.
    pub fn instruction_set(&self) -> &'static str {
        self.isa.name()
    }

    /// Whether attention runs on the portable kernels, which are several times slower, only because the head width or
    /// the block size does not fit the vector kernels of this processor.
    pub fn attention_misses_vectors(&self) -> bool {
        let layout = self.kv.layout();
        self.isa != Isa::Portable && !is_vectorised(self.isa, layout.block_size, layout.head_dim)
    }

    /// Promises `bytes` of memory to the activations, which are allocated after the weights: packing weights leaves
    /// these bytes free.
    pub fn promise(&mut self, bytes: u64) {
        self.arena.promise(usize::try_from(bytes).unwrap_or(usize::MAX));
    }

    fn check_attention(&self, qkv: &Tensor, shape: &AttentionShape, batch: &[SeqRows]) {
        let layout = self.kv.layout();
        assert_eq!(
            (shape.kv_heads, shape.head_dim, shape.qkv_cols()),
            (layout.kv_heads, layout.head_dim, qkv.cols()),
            "kv heads, head width, qkv columns"
        );
        assert!(shape.heads.is_multiple_of(shape.kv_heads), "heads in groups: {shape:?}");
        for seq in batch {
            let end = seq.first_pos as usize + seq.rows.len();
            let held = seq.table.len() * layout.block_size;
            assert!(seq.rows.end <= qkv.rows(), "rows {:?} of {}", seq.rows, qkv.rows());
            assert!(end <= held, "{end} positions in a table for {held}");
        }
    }
}

impl Ops for CpuOps {
    type Matrix = Matrix;
    type Vector = Vector;
    type Tensor = Tensor;
    type Rope = Rope;
    type Batch = Vec<SeqRows>;

    fn matrix(
        &mut self,
        parts: &[MatrixPart<'_>],
        format: WeightFormat,
    ) -> Result<Matrix, OpError> {
        pack(&self.pool, &mut self.arena, parts, format)
    }

    fn describe(&self, matrix: &Matrix) -> String {
        matrix.describe()
    }

    fn vector(&mut self, values: &[f32]) -> Result<Vector, OpError> {
        Ok(Vector { values: values.to_vec() })
    }

    fn tensor(
        &mut self,
        max_rows: usize,
        cols: usize,
        _holds: TensorUse,
    ) -> Result<Tensor, OpError> {
        Ok(Tensor::new(max_rows, cols))
    }

    fn rope(
        &mut self,
        inv_freq: &[f32],
        attention_factor: f32,
        max_positions: usize,
    ) -> Result<Rope, OpError> {
        Ok(Rope::new(inv_freq, attention_factor, max_positions))
    }

    fn batch(&mut self, seqs: &[SeqRows], _shapes: &[AttentionShape]) -> Vec<SeqRows> {
        seqs.to_vec()
    }

    fn embed(&mut self, table: &Matrix, inputs: &[RowInput], out: &mut Tensor) {
        let cols = out.cols();
        assert_eq!(table.k, cols, "embedding width, output columns");
        out.set_rows(inputs.len());
        self.pool.rows(out.values_mut(), cols, 8, |row, out| match inputs[row] {
            RowInput::Token(token) => table.row(token as usize, out),
            RowInput::Drawn(_) => panic!("the CPU draws nothing"),
        });
    }

    fn linear(&mut self, w: &Matrix, bias: Option<&Vector>, x: &Tensor, out: &mut Tensor) {
        assert_eq!((w.k, w.n), (x.cols(), out.cols()), "linear: [n, k] and the tensors' columns");
        if let Some(bias) = bias {
            assert_eq!(bias.values.len(), w.n, "bias and output features");
        }
        out.set_rows(x.rows());
        linear((&self.pool, self.isa), &mut self.acts, w, bias, x, out);
    }

    fn add_rms_norm(
        &mut self,
        residual: &mut Tensor,
        delta: Option<&Tensor>,
        weight: &Vector,
        eps: f32,
        out: &mut Tensor,
    ) {
        let cols = residual.cols();
        assert_eq!((cols, cols), (out.cols(), weight.values.len()), "norm widths");
        if let Some(delta) = delta {
            assert_eq!((delta.rows(), delta.cols()), (residual.rows(), cols), "residual and delta");
            self.pool.rows(residual.values_mut(), cols, 16, |row, residual| {
                for (residual, delta) in residual.iter_mut().zip(delta.row(row)) {
                    *residual += delta;
                }
            });
        }
        out.set_rows(residual.rows());
        self.pool.rows(out.values_mut(), cols, 16, |row, out| {
            rows::rms_norm(residual.row(row), &weight.values, eps, out);
        });
    }

    fn head_rms_norm(
        &mut self,
        qkv: &mut Tensor,
        heads: Range<usize>,
        shape: &AttentionShape,
        weight: &Vector,
        eps: f32,
    ) {
        let (cols, dim) = (qkv.cols(), shape.head_dim);
        assert_eq!((cols, weight.values.len()), (shape.qkv_cols(), dim), "head norm widths");
        self.pool.rows(qkv.values_mut(), cols, 8, |_, row| {
            for head in row[heads.start * dim..heads.end * dim].chunks_exact_mut(dim) {
                rows::rms_norm_in_place(head, &weight.values, eps);
            }
        });
    }

    fn rope_kv_write(
        &mut self,
        qkv: &mut Tensor,
        rope: &Rope,
        shape: &AttentionShape,
        layer: usize,
        batch: &Vec<SeqRows>,
    ) {
        self.check_attention(qkv, shape, batch);
        assert_eq!(rope.half * 2, shape.head_dim, "rotary and head widths");
        let (cols, kv) = (qkv.cols(), &self.kv);
        let block_size = kv.layout().block_size;
        self.pool.rows(qkv.values_mut(), cols, 8, |row, values| {
            let Some(seq) = batch.iter().find(|seq| seq.rows.contains(&row)) else { return };
            let position = seq.first_pos as usize + row - seq.rows.start;
            rows::rotate(values, shape, rope, position);
            let keys_values = &values[shape.heads * shape.head_dim..];
            write_kv(
                kv,
                layer,
                seq.table[position / block_size],
                position % block_size,
                keys_values,
            );
        });
    }

    fn attention(
        &mut self,
        qkv: &Tensor,
        shape: &AttentionShape,
        layer: usize,
        batch: &Vec<SeqRows>,
        out: &mut Tensor,
    ) {
        self.check_attention(qkv, shape, batch);
        assert_eq!(out.cols(), shape.heads * shape.head_dim, "attention output columns");
        out.set_rows(qkv.rows());
        let call = Attention { isa: self.isa, kv: &self.kv, qkv, shape, layer, batch };
        attention(&self.pool, &call, &mut self.attention, out);
    }

    fn silu_mul(&mut self, gate_up: &Tensor, out: &mut Tensor) {
        let cols = out.cols();
        assert_eq!(gate_up.cols(), cols * 2, "gate and up columns");
        out.set_rows(gate_up.rows());
        let isa = self.isa;
        self.pool.rows(out.values_mut(), cols, 4, |row, out| {
            rows::silu_mul(isa, gate_up.row(row), out);
        });
    }

    fn gather_rows(&mut self, x: &Tensor, rows: &[usize], out: &mut Tensor) {
        assert_eq!(x.cols(), out.cols(), "gather widths");
        out.set_rows(rows.len());
        let cols = out.cols();
        for (out, row) in out.values_mut().chunks_exact_mut(cols).zip(rows) {
            out.copy_from_slice(x.row(*row));
        }
    }

    fn for_each_row(
        &mut self,
        x: &mut Tensor,
        rows: &[usize],
        each: &(dyn Fn(usize, &mut [f32]) + Sync),
    ) {
        let cols = x.cols();
        self.pool.rows(x.values_mut(), cols, 1, |row, values| {
            if rows.binary_search(&row).is_ok() {
                each(row, values);
            }
        });
    }

    fn finish(&mut self) -> Result<Vec<Drawn>, StepError> {
        // CPU operations have ended when they return, and they fail only by a panic, so there is no work to wait for
        // and no fault to report.
        Ok(Vec::new())
    }
}
