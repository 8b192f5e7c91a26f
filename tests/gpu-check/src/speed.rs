//! Measures a GPU's speed with a model: decode and prefill against the memory bandwidth and matrix throughput of the
//! same GPU.

use crate::CheckError;
use crate::beside_copies::measure_beside_copies;
use crate::link;
use crate::pace::{self, Pace, measure_pace};
use crate::quantized_speed::{measure_exact_products, measure_products};
use crate::report::Report;
use std::sync::Arc;
use tiercel_device::{BlockId, Clock, QueuedCopier};
use tiercel_gpu::cuda::{CudaCopier, CudaKv, CudaOps, CudaOptions, DevicePtr, Driver};
use tiercel_gpu::{Draw, MatrixPart, Ops, RowInput, SeqRows, SourceType, TensorUse, WeightFormat};
use tiercel_model::arch::ModelConfig;
use tiercel_model::forward::{Decoder, DecoderLimits, ForwardBatch};
use tiercel_model::runner::{ModelRunner, RunnerLimits};
use tiercel_model::weights::Weights;

/// Sizes of a GPU's speed measurement: model, batches and copies.
#[derive(Debug, Clone)]
pub struct SpeedPlan {
    /// Model to measure: the text of a `config.json`.
    pub model: String,
    /// Decode steps to measure: (number of sequences, context length of each sequence in tokens).
    pub decodes: Vec<(usize, usize)>,
    /// Prompt lengths whose prefill is measured, tokens.
    pub prefills: Vec<usize>,
    /// Number of repetitions of each measured step; the median time is reported.
    pub repeats: usize,
    /// Size of the measured block copies, and of each copy out and each copy in that runs while decode steps are
    /// measured, bytes.
    pub copied_bytes: usize,
    /// Length of the sequence whose resume from host memory (copy of its KV to the device) is measured, tokens.
    pub resumed_tokens: usize,
    /// Number of rows and of columns of the square matrices whose product measures the GPU's matrix throughput.
    pub product: usize,
    /// Number of bytes that are read and written to measure the GPU's memory bandwidth.
    pub moved_bytes: usize,
    /// Whether a measurement that misses its goal is reported as failed.
    pub judged: bool,
}

impl SpeedPlan {
    /// Returns the decode step that is also measured with two steps in flight, as the engine runs it: the first with at
    /// least 64 sequences, or else the last.
    fn pace(&self) -> Option<Pace> {
        let many = self.decodes.iter().find(|(seqs, _)| *seqs >= 64).or(self.decodes.last());
        many.map(|&(seqs, context)| Pace { seqs, context, block_size: 16, steps: self.repeats })
    }
}

/// Number of steps that are submitted without waiting between them, so that the GPU's time is measured without the
/// CPU's.
const AT_ONCE: usize = 8;
/// Goal for decode steps of up to 16 sequences: at least this share of the GPU's measured memory bandwidth, percent.
const DECODE_AIM: f64 = 80.0;

/// Measured limits of the GPU: memory bandwidth and bf16 matrix throughput.
#[derive(Debug, Clone, Copy)]
struct Ceilings {
    bytes_per_s: f64,
    flops: f64,
}

struct Bench<D: Driver> {
    ops: CudaOps<D>,
    decoder: Decoder<CudaOps<D>>,
    config: ModelConfig,
    kv: CudaKv,
}

/// Measures a GPU's speed with a model of random weights: decode, prefill, and block copies.
///
/// # Errors
/// [`CheckError`] if something could not be run at all.
pub fn measure_speed<D: Driver>(
    open: &dyn Fn() -> Result<D, CheckError>,
    plan: &SpeedPlan,
    report: &mut Report,
) -> Result<(), CheckError> {
    let config = ModelConfig::from_hf(plan.model.as_bytes())?;
    let ceilings = ceilings(open()?, plan, report)?;
    measure_exact_products(open()?, plan.product, plan.repeats, report)?;
    let mut driver = open()?;
    let kv = kv(&mut driver, &config, plan)?;
    let copies = driver.copies(plan.copied_bytes)?;
    let mut bench = Bench::new(driver, kv, config, plan)?;
    bench.decodes(plan, ceilings, report)?;
    bench.prefills(plan, ceilings, report)?;
    let blocks = (plan.copied_bytes / kv.block_bytes()).max(1) as u32;
    let mut copier = CudaCopier::new(copies, kv, blocks);
    // The last KV block is for the padding rows of CUDA graphs, so the copied blocks lie before it.
    let first = kv.blocks - 1 - blocks;
    let range = link::Range { first, blocks, block_bytes: kv.block_bytes() };
    let sequence = (plan.resumed_tokens / kv.block_size) as u32;
    link::measure_link(&mut copier, range, sequence, plan.judged, report)?;
    bench.pace(plan, copier, range, report)
}

/// Runs each decode and prefill step of a plan twice, without measuring it: for a profiler.
///
/// # Errors
/// [`CheckError`] if something could not be run at all.
pub fn run_each_step<D: Driver>(
    open: &dyn Fn() -> Result<D, CheckError>,
    plan: &SpeedPlan,
) -> Result<(), CheckError> {
    let config = ModelConfig::from_hf(plan.model.as_bytes())?;
    let mut driver = open()?;
    let kv = kv(&mut driver, &config, plan)?;
    let mut bench = Bench::new(driver, kv, config, plan)?;
    for &(seqs, context) in &plan.decodes {
        bench.step_us((seqs, context, 1), 1)?;
    }
    for &tokens in &plan.prefills {
        bench.step_us((1, 0, tokens), 1)?;
    }
    Ok(())
}

/// Allocates KV blocks for the largest measured step, for the block copies, and for padding rows of CUDA graphs.
fn kv<D: Driver>(
    driver: &mut D,
    config: &ModelConfig,
    plan: &SpeedPlan,
) -> Result<CudaKv, CheckError> {
    let mut kv = CudaKv {
        at: DevicePtr::default(),
        blocks: 0,
        block_size: 16,
        layers: config.layers(),
        kv_heads: config.kv_heads,
        head_dim: config.head_dim,
        q8: false,
    };
    let decodes = plan.decodes.iter().map(|(seqs, context)| seqs * (context / 16 + 1)).max();
    let decodes = decodes.max(plan.pace().map(pace::blocks));
    let prefills = plan.prefills.iter().map(|tokens| tokens / 16 + 1).max();
    let copied = plan.copied_bytes.div_ceil(kv.block_bytes());
    // Add one KV block for the padding rows of CUDA graphs.
    kv.blocks = (decodes.max(prefills).unwrap_or(1) + copied + 1) as u32;
    kv.at = driver.allocate(kv.blocks as usize * kv.block_bytes())?;
    Ok(kv)
}

/// Measures the GPU's limits: memory bandwidth by copying rows of a matrix, and matrix throughput by a large product.
/// The op set needs a KV cache, so it gets one dummy block.
fn ceilings<D: Driver>(
    mut driver: D,
    plan: &SpeedPlan,
    report: &mut Report,
) -> Result<Ceilings, CheckError> {
    let at = driver.allocate(1 << 16)?;
    let kv =
        CudaKv { at, blocks: 1, block_size: 16, layers: 1, kv_heads: 1, head_dim: 64, q8: false };
    let mut ops =
        CudaOps::new(driver, kv, 1, CudaOptions { exact: false, threads: 1, scratch: None })?;
    // Copy few long rows, so that uploading the row numbers takes negligible time.
    let cols = (1 << 16).min(plan.moved_bytes / 64);
    let rows = (plan.moved_bytes / cols / 8).max(1);
    let mut from = ops.tensor(rows, cols, TensorUse::Residual)?;
    let mut to = ops.tensor(rows, cols, TensorUse::Residual)?;
    ops.write(&mut from, &vec![1.5; rows * cols])?;
    let which: Vec<usize> = (0..rows).collect();
    let us = median_us(plan.repeats, || {
        ops.gather_rows(&from, &which, &mut to);
        Ok(ops.finish().map(drop)?)
    })?;
    let bytes_per_s = (2 * rows * cols * 4) as f64 / us * 1e6;
    let n = plan.product;
    let bytes: Vec<u8> = (0..n * n * 2).map(|i| if i % 2 == 1 { 0x3f } else { i as u8 }).collect();
    let part = MatrixPart { n, k: n, source: SourceType::Bf16, bytes: &bytes, row_order: None };
    let w = ops.matrix(&[part], WeightFormat::Auto)?;
    let mut x = ops.tensor(n, n, TensorUse::Activations)?;
    let mut out = ops.tensor(n, n, TensorUse::Activations)?;
    let noise: Vec<f32> = (0..n * n).map(|i| (i * 7919 % 1013) as f32 / 1013.0 - 0.5).collect();
    ops.write(&mut x, &noise)?;
    let us = median_us(plan.repeats, || {
        ops.linear(&w, None, &x, &mut out);
        Ok(ops.finish().map(drop)?)
    })?;
    let flops = 2.0 * (n as f64).powi(3) / us * 1e6;
    report.measured("memory, read and written", format!("{:.0} GB/s", bytes_per_s / 1e9));
    report.measured("matrix units, bf16", format!("{:.0} TFLOP/s", flops / 1e12));
    measure_products(&mut ops, n, plan.repeats, report)?;
    Ok(Ceilings { bytes_per_s, flops })
}

impl<D: Driver> Bench<D> {
    fn new(
        driver: D,
        kv: CudaKv,
        config: ModelConfig,
        plan: &SpeedPlan,
    ) -> Result<Bench<D>, CheckError> {
        let scratch = Some(BlockId(kv.blocks - 1));
        let options = CudaOptions { exact: false, threads: 1, scratch };
        let mut ops = CudaOps::new(driver, kv, config.heads / config.kv_heads, options)?;
        let weights = Weights::random(&mut ops, &config, WeightFormat::Auto, 3)?;
        let most_seqs = plan.decodes.iter().map(|(seqs, _)| *seqs).max().unwrap_or(1);
        let most_tokens = plan.prefills.iter().copied().max().unwrap_or(1).max(most_seqs);
        let longest = plan.decodes.iter().map(|(_, context)| *context).max().unwrap_or(1);
        let longest = longest.max(plan.pace().map_or(0, pace::positions));
        let limits = DecoderLimits {
            max_batched_tokens: most_tokens.next_multiple_of(16),
            // Steps that are replayed as CUDA graphs are padded to certain numbers of rows, at most to the next
            // multiple of 16.
            max_sampled_rows: most_seqs.next_multiple_of(16),
            max_positions: longest.max(most_tokens),
        };
        let decoder = Decoder::new(&mut ops, config.clone(), weights, limits)?;
        Ok(Bench { ops, decoder, config, kv })
    }

    /// Returns a batch of `seqs` sequences that compute `tokens` tokens each after `context` positions: its input
    /// tokens, its sequences, and the rows to sample from.
    fn decode_batch(
        &self,
        seqs: usize,
        context: usize,
        tokens: usize,
    ) -> (Vec<RowInput>, Vec<SeqRows>, Vec<usize>) {
        let blocks = (context + tokens).div_ceil(self.kv.block_size) as u32;
        let vocab = self.config.vocab_size as u32;
        let input = |i| RowInput::Token(i * 7919 % vocab);
        let inputs: Vec<RowInput> = (0..(seqs * tokens) as u32).map(input).collect();
        let rows: Vec<SeqRows> = (0..seqs)
            .map(|seq| {
                let first = seq as u32 * blocks;
                let table: Arc<[BlockId]> = (first..first + blocks).map(BlockId).collect();
                let rows = seq * tokens..(seq + 1) * tokens;
                SeqRows { rows, first_pos: context as u32, table }
            })
            .collect();
        let sampled: Vec<usize> = rows.iter().map(|seq| seq.rows.end - 1).collect();
        (inputs, rows, sampled)
    }

    /// Returns the median time of a step of `seqs` sequences that compute `tokens` tokens each after `context`
    /// positions, us. The step computes logits but does not sample.
    fn step_us(
        &mut self,
        (seqs, context, tokens): (usize, usize, usize),
        repeats: usize,
    ) -> Result<f64, CheckError> {
        let (inputs, rows, sampled) = self.decode_batch(seqs, context, tokens);
        let Bench { ops, decoder, .. } = self;
        median_us(repeats, || {
            let batch = ForwardBatch { inputs: &inputs, seqs: &rows, sampled: &sampled };
            decoder.forward(ops, batch);
            for chunk in decoder.logit_chunks() {
                decoder.logits(ops, chunk);
            }
            Ok(ops.finish().map(drop)?)
        })
    }

    /// Returns the GPU's time for one decode step with sampling, us. Several steps are submitted without waiting
    /// between them, so that the CPU's time does not count.
    fn device_us(&mut self, pace: Pace) -> Result<f64, CheckError> {
        let (inputs, rows, sampled) = self.decode_batch(pace.seqs, pace.context, 1);
        let vocab = self.config.vocab_size;
        let Bench { ops, decoder, .. } = self;
        let all_us = median_us(pace.steps.div_ceil(AT_ONCE), || {
            for _ in 0..AT_ONCE {
                let batch = ForwardBatch { inputs: &inputs, seqs: &rows, sampled: &sampled };
                decoder.forward(ops, batch);
                for chunk in decoder.logit_chunks() {
                    let draws: Vec<Draw<'_>> = (0..chunk.len()).map(Draw::greedy).collect();
                    let first = chunk.start;
                    let logits = decoder.logits(ops, chunk);
                    ops.draw_rows(logits, vocab, first, &draws);
                }
            }
            Ok(ops.finish().map(drop)?)
        })?;
        Ok(all_us / AT_ONCE as f64)
    }

    /// Measures decode steps as the engine runs them: with sampling, one step at a time, with two steps in flight, and
    /// beside copies of the blocks `range`.
    fn pace(
        mut self,
        plan: &SpeedPlan,
        copier: impl QueuedCopier,
        range: link::Range,
        report: &mut Report,
    ) -> Result<(), CheckError> {
        let Some(pace) = plan.pace() else { return Ok(()) };
        let device_us = self.device_us(pace)?;
        let limits = RunnerLimits {
            block_size: self.kv.block_size,
            device_blocks: self.kv.blocks - 1,
            max_sequences: pace.seqs,
        };
        let mut runner = ModelRunner::new(self.ops, self.decoder, limits);
        measure_pace(&mut runner, pace, device_us, plan.judged, report)?;
        measure_beside_copies(&mut runner, pace, copier, range, plan.judged, report)
    }

    /// Returns the number of weight bytes that a step reads.
    fn weight_bytes(&self) -> f64 {
        let embedding = (self.config.vocab_size * self.config.hidden_size) as f64;
        // Leave out the embedding matrix, of which a step reads only a few rows, unless the model also uses it as
        // output matrix.
        let unread = if self.config.tied_embeddings { 0.0 } else { embedding };
        2.0 * (self.config.parameters() as f64 - unread)
    }

    fn decodes(
        &mut self,
        plan: &SpeedPlan,
        ceilings: Ceilings,
        report: &mut Report,
    ) -> Result<(), CheckError> {
        for &(seqs, context) in &plan.decodes {
            let us = self.step_us((seqs, context, 1), plan.repeats)?;
            let token_bytes = self.kv.block_bytes() as f64 / self.kv.block_size as f64;
            let bytes = self.weight_bytes() + token_bytes * (seqs * context) as f64;
            let share = 100.0 * bytes / ceilings.bytes_per_s * 1e6 / us;
            let what = format!("decode of {seqs}, {context} tokens of context");
            let rate = seqs as f64 / us * 1e6;
            report.measured(&what, format!("{:.2} ms, {rate:.0} tok/s", us / 1e3));
            let what = format!("{what}: of the memory's rate");
            match plan.judged && seqs <= 16 {
                true => report.at_least(&what, share, DECODE_AIM, "%"),
                false => report.measured(&what, format!("{share:.0} %")),
            }
        }
        Ok(())
    }

    fn prefills(
        &mut self,
        plan: &SpeedPlan,
        ceilings: Ceilings,
        report: &mut Report,
    ) -> Result<(), CheckError> {
        for &tokens in &plan.prefills {
            let us = self.step_us((1, 0, tokens), plan.repeats)?;
            // Leave the output matrix out of the operation count of a prefill, which multiplies only one row with it.
            let output = (self.config.vocab_size * self.config.hidden_size) as f64;
            let weights = self.weight_bytes() / 2.0 - output;
            let attention =
                2.0 * (self.config.layers() * self.config.q_cols()) as f64 * tokens as f64;
            let flops = 2.0 * tokens as f64 * (weights + attention / 2.0);
            let rate = tokens as f64 / us * 1e6;
            report.measured(
                &format!("prefill of {tokens}"),
                format!(
                    "{:.1} ms, {rate:.0} tok/s, {:.0} % of the matrix units' rate",
                    us / 1e3,
                    100.0 * flops / ceilings.flops * 1e6 / us
                ),
            );
        }
        Ok(())
    }
}

/// Returns the median time of `repeats` runs, after one warm-up run, us.
pub(crate) fn median_us(
    repeats: usize,
    mut run: impl FnMut() -> Result<(), CheckError>,
) -> Result<f64, CheckError> {
    let clock = Clock::wall();
    run()?;
    let mut times = Vec::with_capacity(repeats);
    for _ in 0..repeats.max(1) {
        let start = clock.now();
        run()?;
        times.push(clock.now().since_us(start).max(1));
    }
    times.sort_unstable();
    Ok(times[times.len() / 2] as f64)
}
