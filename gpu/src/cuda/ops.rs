//! The [`Ops`] implementation for GPUs: checks shapes, then launches kernels.
//!
//! Launches are asynchronous. The first launch that the driver does not accept is kept as a fault, later work of the
//! step is skipped, and [`Ops::finish`] returns the fault at the end of the step.

use super::attention::SpanMemory;
use super::batch::{Layout, SPANS_MAX};
use super::driver::{Arg, CudaError, DevicePtr, Driver, KernelShape, SLOTS};
use super::graph_cache::GraphCache;
use super::kernels::{HEAD_NORM_THREADS, norm_shared_bytes, norm_threads, row_threads};
use super::linear::Strip;
use super::memory::{CudaKv, CudaMatrix, CudaRope, CudaTensor, CudaVector};
use super::steps::Steps;
use super::weights;

use crate::cpu::{Pool, Rope};
use crate::{
    AttentionShape, Draw, Drawn, MatrixPart, OpError, Ops, QuantizedPart, RowInput, SeqRows,
    TensorUse, WeightFormat,
};
use std::ops::Range;
use tiercel_device::{BlockId, StepError, StepId};

/// Flag bit of the 32-bit word that tells the GPU a row's input token. With the flag, the other bits are the index of a
/// sampled row of the previous step, and the input is the token sampled from that row. Without the flag, the other bits
/// are the input token.
pub(super) const DRAWN: u32 = 1 << 31;

/// Description of a batch (positions, block tables, attention work) in device memory, for the kernels.
#[derive(Debug)]
pub struct CudaBatch {
    pub(super) layout: Layout,
    /// Device address of the 32-bit words that describe the batch.
    pub(super) words: DevicePtr,
}

impl CudaBatch {
    pub(super) fn word(&self, index: usize) -> Arg {
        Arg::Ptr(self.words.offset(index * 4))
    }
}

/// Options of a model's computation on a GPU.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CudaOptions {
    /// Whether a row's result is the same bit for bit however its prompt was cut into chunks and whatever else is in
    /// the batch. Prefill is slower then.
    pub exact: bool,
    /// Number of host threads for sampling and for converting weights.
    pub threads: usize,
    /// KV block that no sequence uses and that padding rows may write. With such a block, decode steps can be padded
    /// and replayed as CUDA graphs.
    pub scratch: Option<BlockId>,
}

/// Op set on a GPU: runs the operations of a forward pass through the GPU's driver.
pub struct CudaOps<D> {
    pub(super) driver: D,
    pub(super) kv: CudaKv,
    pub(super) shape: KernelShape,
    /// Whether attention is computed by spans for all rows.
    pub(super) exact: bool,
    /// Whether a row's result of a matrix product must not depend on the number of rows.
    pub(super) exact_products: bool,
    pub(super) strip: Strip,
    pub(super) spans: SpanMemory,
    pool: Pool,
    pub(super) steps: Steps,
    pub(super) graphs: GraphCache,
    pub(super) fault: Option<CudaError>,
}

impl<D: Driver> CudaOps<D> {
    /// Makes the op set of a GPU: loads the kernels for a model with `queries` query heads per key head, whose keys and
    /// values are in `kv`, and allocates working memory.
    ///
    /// # Errors
    /// [`CudaError`] for shapes without kernels, kernels that do not compile, and too little memory.
    pub fn new(
        mut driver: D,
        kv: CudaKv,
        queries: usize,
        options: CudaOptions,
    ) -> Result<CudaOps<D>, CudaError> {
        let shape = KernelShape { head_dim: kv.head_dim, queries, q8: kv.q8 };
        shape.check()?;
        assert!(!kv.q8 || kv.block_size.is_multiple_of(8), "8-bit blocks of {}", kv.block_size);
        driver.load(shape)?;
        let spans = SpanMemory::new(&mut driver, shape, kv.kv_heads)?;
        let pool = Pool::start(options.threads)
            .map_err(|error| CudaError::Unavailable(error.to_string()))?;
        Ok(CudaOps {
            steps: Steps::new(&mut driver)?,
            graphs: GraphCache::new(options.scratch),
            exact: options.exact || !shape.has_tiles(),
            exact_products: options.exact,
            strip: Strip::default(),
            driver,
            kv,
            shape,
            spans,
            pool,
            fault: None,
        })
    }

    /// Returns the length of the longest sequence that attention on the GPU supports, positions: the buffer of partial
    /// results must hold all spans of one row.
    pub fn longest(&self) -> usize {
        SPANS_MAX * self.driver.span()
    }

    fn allocate(&mut self, bytes: usize) -> Result<DevicePtr, OpError> {
        let failed = |error: CudaError| OpError::Memory { bytes, why: error.to_string() };
        self.driver.allocate(bytes.max(1)).map_err(failed)
    }

    fn upload_floats(&mut self, values: &[f32]) -> Result<DevicePtr, OpError> {
        let bytes: Vec<u8> = values.iter().flat_map(|value| value.to_ne_bytes()).collect();
        let at = self.allocate(bytes.len())?;
        self.driver.upload(at, &bytes).map_err(|error| OpError::Device(error.to_string()))?;
        Ok(at)
    }
}

impl<D: Driver> Ops for CudaOps<D> {
    const STEPS: usize = SLOTS;
    // Limits the logits that are held at once to 256 MiB: about 256 rows of the largest vocabularies.
    const LOGIT_BYTES: usize = 256 << 20;
    const DRAWS: bool = true;
    const QUANTIZED: bool = true;
    type Matrix = CudaMatrix;
    type Vector = CudaVector;
    type Tensor = CudaTensor;
    type Rope = CudaRope;
    type Batch = CudaBatch;

    fn matrix(
        &mut self,
        parts: &[MatrixPart<'_>],
        format: WeightFormat,
    ) -> Result<CudaMatrix, OpError> {
        weights::check(parts)?;
        if format == WeightFormat::Auto
            && let Some(parts) = weights::quantized_parts(&self.pool, parts)
            && let Some(matrix) = self.quantized(&parts)?
        {
            return Ok(matrix);
        }
        weights::upload(&mut self.driver, &self.pool, parts)
    }

    fn quantized(&mut self, parts: &[QuantizedPart]) -> Result<Option<CudaMatrix>, OpError> {
        let matrix = weights::upload_quantized(&mut self.driver, parts)?;
        if let Some(CudaMatrix { n, k, .. }) = matrix {
            self.strip.needs(n, k, self.driver.strip_bytes());
        }
        Ok(matrix)
    }

    fn describe(&self, matrix: &CudaMatrix) -> String {
        weights::describe(matrix)
    }

    fn vector(&mut self, values: &[f32]) -> Result<CudaVector, OpError> {
        Ok(CudaVector { at: self.upload_floats(values)?, len: values.len() })
    }

    fn tensor(
        &mut self,
        max_rows: usize,
        cols: usize,
        holds: TensorUse,
    ) -> Result<CudaTensor, OpError> {
        if !cols.is_multiple_of(8) && holds != TensorUse::Logits {
            let why = format!("activations of {cols} columns, where a multiple of 8 is needed");
            return Err(OpError::Device(why));
        }
        let wide = holds != TensorUse::Activations;
        let (at, masks) = (DevicePtr::default(), DevicePtr::default());
        let mut tensor = CudaTensor { at, max_rows, rows: 0, cols, wide, masks };
        tensor.at = self.allocate(max_rows * tensor.row_bytes())?;
        if holds == TensorUse::Logits {
            tensor.masks = self.allocate(tensor.mask_bytes())?;
        }
        Ok(tensor)
    }

    fn rope(
        &mut self,
        inv_freq: &[f32],
        attention_factor: f32,
        max_positions: usize,
    ) -> Result<CudaRope, OpError> {
        let table = Rope::new(inv_freq, attention_factor, max_positions);
        Ok(CudaRope {
            cosines: self.upload_floats(&table.cos)?,
            sines: self.upload_floats(&table.sin)?,
            half: table.half,
        })
    }

    fn pad_decode(&mut self, rows: usize, most: usize, flushed: bool) -> Option<(usize, BlockId)> {
        self.graphs.pad(rows, most, flushed)
    }

    fn batch(&mut self, seqs: &[SeqRows], shapes: &[AttentionShape]) -> CudaBatch {
        let layout = self.lay_out(seqs, shapes);
        let words = self.put_words(&layout.words);
        let rows = seqs.iter().map(|seq| seq.rows.len()).sum();
        self.look_up(&layout, rows, words, shapes);
        CudaBatch { layout, words }
    }

    fn embed(&mut self, table: &CudaMatrix, inputs: &[RowInput], out: &mut CudaTensor) {
        self.look_up_rows(table, inputs, out);
    }

    fn linear(
        &mut self,
        w: &CudaMatrix,
        bias: Option<&CudaVector>,
        x: &CudaTensor,
        out: &mut CudaTensor,
    ) {
        assert_eq!((w.k, w.n), (x.cols, out.cols), "linear: [n, k] and the tensors' columns");
        let narrow = !x.wide && (bias.is_none() || !out.wide);
        assert!(narrow, "products are of bf16, and so are sums with a bias");
        out.set_rows(x.rows);
        if x.rows == 0 {
            return;
        }
        self.multiply(w, x, out);
        if let Some(bias) = bias {
            assert_eq!(bias.len, w.n, "bias and output features");
            let args = [Arg::Ptr(out.at), Arg::Ptr(bias.at), Arg::U32(w.n as u32)];
            self.launch("add_bias", (x.rows, 1), row_threads(w.n), &args);
        }
    }

    fn add_rms_norm(
        &mut self,
        residual: &mut CudaTensor,
        delta: Option<&CudaTensor>,
        weight: &CudaVector,
        eps: f32,
        out: &mut CudaTensor,
    ) {
        let cols = residual.cols;
        assert_eq!((cols, cols), (out.cols, weight.len), "norm widths");
        assert!(residual.wide && !out.wide, "the residual is f32, what is normed bf16");
        if let Some(delta) = delta {
            let shape = (delta.rows, delta.cols, delta.wide);
            assert_eq!(shape, (residual.rows, cols, false), "residual and delta");
        }
        out.set_rows(residual.rows);
        let args = [
            Arg::Ptr(residual.at),
            Arg::Ptr(delta.map_or(DevicePtr::default(), |delta| delta.at)),
            Arg::Ptr(weight.at),
            Arg::F32(eps),
            Arg::U32(cols as u32),
            Arg::Ptr(out.at),
        ];
        let threads = norm_threads(cols);
        let block = (threads, norm_shared_bytes(threads));
        self.launch_shared("add_rms_norm", (residual.rows, 1), block, &args);
    }

    fn head_rms_norm(
        &mut self,
        qkv: &mut CudaTensor,
        heads: Range<usize>,
        shape: &AttentionShape,
        weight: &CudaVector,
        eps: f32,
    ) {
        let dim = shape.head_dim;
        assert_eq!((qkv.cols, weight.len), (shape.qkv_cols(), dim), "head norm widths");
        let args = [
            Arg::Ptr(qkv.at),
            Arg::U32(qkv.cols as u32),
            Arg::U32((heads.start * dim) as u32),
            Arg::U32(heads.len() as u32),
            Arg::U32(dim as u32),
            Arg::Ptr(weight.at),
            Arg::F32(eps),
        ];
        // Each warp of a thread block normalizes one head of a row.
        let blocks = heads.len().div_ceil(HEAD_NORM_THREADS as usize / 32);
        self.launch("head_rms_norm", (qkv.rows, blocks), HEAD_NORM_THREADS, &args);
    }

    fn rope_kv_write(
        &mut self,
        qkv: &mut CudaTensor,
        rope: &CudaRope,
        shape: &AttentionShape,
        layer: usize,
        batch: &CudaBatch,
    ) {
        self.check_attention(qkv, shape);
        assert_eq!(rope.half * 2, shape.head_dim, "rotary and head widths");
        let args = [
            Arg::Ptr(qkv.at),
            Arg::Ptr(rope.cosines),
            Arg::Ptr(rope.sines),
            batch.word(batch.layout.positions),
            batch.word(batch.layout.places),
            Arg::Ptr(self.kv.layer(layer)),
            Arg::U64(self.kv.block_bytes() as u64),
            Arg::U32(self.kv.block_size as u32),
            Arg::U32(shape.heads as u32),
            Arg::U32(shape.kv_heads as u32),
            Arg::U32(shape.head_dim as u32),
        ];
        let threads = row_threads(qkv.cols);
        // The kernel for bf16 rotates four pairs of a row in each thread.
        let (kernel, parts) = match self.kv.q8 {
            true => ("rope_kv_write_q8", 1),
            false => ("rope_kv_write", qkv.cols.div_ceil(8 * threads as usize)),
        };
        self.launch(kernel, (qkv.rows, parts), threads, &args);
    }

    fn attention(
        &mut self,
        qkv: &CudaTensor,
        shape: &AttentionShape,
        layer: usize,
        batch: &CudaBatch,
        out: &mut CudaTensor,
    ) {
        self.check_attention(qkv, shape);
        assert_eq!(out.cols, shape.heads * shape.head_dim, "attention output columns");
        out.set_rows(qkv.rows);
        self.attend(qkv, shape, layer, batch, out);
    }

    fn silu_mul(&mut self, gate_up: &CudaTensor, out: &mut CudaTensor) {
        let cols = out.cols;
        assert_eq!(gate_up.cols, cols * 2, "gate and up columns");
        out.set_rows(gate_up.rows);
        let args = [Arg::Ptr(gate_up.at), Arg::Ptr(out.at), Arg::U32(cols as u32)];
        let parts = cols.div_ceil(8 * 256);
        self.launch("silu_mul", (gate_up.rows, parts), row_threads(cols), &args);
    }

    fn gather_rows(&mut self, x: &CudaTensor, rows: &[usize], out: &mut CudaTensor) {
        assert_eq!((x.cols, x.wide), (out.cols, out.wide), "gather widths");
        assert!(rows.iter().all(|row| *row < x.rows), "rows {rows:?} of {}", x.rows);
        out.set_rows(rows.len());
        let which = self.put(rows.iter().map(|row| *row as u32));
        let words = (x.row_bytes() / 16) as u32;
        let args = [Arg::Ptr(x.at), Arg::Ptr(which), Arg::Ptr(out.at), Arg::U32(words)];
        self.launch("gather_rows", (rows.len(), 1), row_threads(words as usize * 8), &args);
    }

    fn draw_rows(&mut self, x: &CudaTensor, vocab: usize, first: usize, draws: &[Draw<'_>]) {
        self.draw(x, vocab, first, draws);
    }

    fn for_each_row(
        &mut self,
        x: &mut CudaTensor,
        rows: &[usize],
        each: &(dyn Fn(usize, &mut [f32]) + Sync),
    ) {
        assert!(x.wide, "only f32 is read by the host");
        for run in rows.chunk_by(|a, b| a + 1 == *b) {
            match self.read_rows(x, run[0]..run[0] + run.len()) {
                Ok(mut values) => {
                    self.pool
                        .rows(&mut values, x.cols, 1, |row, values| each(run[0] + row, values));
                }
                Err(error) => {
                    self.fault.get_or_insert(error);
                }
            }
        }
    }

    fn begin(&mut self, step: StepId) {
        self.begin_step(step);
    }

    fn flush(&mut self) {
        self.replay();
    }

    fn submit(&mut self) {
        self.submit_step();
    }

    fn has_ended(&mut self) -> bool {
        self.step_has_ended()
    }

    fn finish(&mut self) -> Result<Vec<Drawn>, StepError> {
        self.finish_step()
    }

    fn step_us(&self) -> Option<u64> {
        self.steps.last_us()
    }
}
