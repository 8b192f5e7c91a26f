//! Shows where the time of a step goes. Times whole decode and prefill steps of a model through the runner, and then
//! each operation of the forward pass.
//!
//! `cargo run --release -p tiercel-model --example step_profile [MODEL] [THREADS] [WEIGHTS] [KV_TYPE]`

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;
use tiercel_device::{
    BlockId, Clock, QueuedRunner, SamplingParams, SeqId, SeqSlice, SeqStart, SliceInput, StepBatch,
    StepError, StepId, StepTiming,
};
use tiercel_gpu::cpu::CpuOps;
use tiercel_gpu::{
    AttentionShape, Drawn, KvType, MatrixPart, OpError, Ops, RowInput, SeqRows, TensorUse,
    WeightFormat,
};
use tiercel_model::forward::{Decoder, DecoderLimits, ForwardBatch};
use tiercel_model::load::{KvCapacity, LoadOptions, open};
use tiercel_model::source::Resolver;
use tiercel_model::weights::{Checkpoint, Weights};

/// Wrapper of the op set `O` that adds up the time of each operation (matrix product, attention, norm), by its name.
struct Timed<O> {
    inner: O,
    clock: Clock,
    spent_us: Spent,
}

impl<O> Timed<O> {
    fn time<T>(&mut self, name: &'static str, work: impl FnOnce(&mut O) -> T) -> T {
        let start = self.clock.now();
        let result = work(&mut self.inner);
        let entry = self.spent_us.entry(name).or_default();
        entry.0 += self.clock.now().since_us(start);
        entry.1 += 1;
        result
    }
}

/// Guesses from the output width `n` and the input width `k` which of the model's matrix products one is (such as gate
/// and up), and returns its name.
fn linear_name(n: usize, k: usize) -> &'static str {
    match (n, k) {
        (n, _) if n > 20_000 => "linear: output",
        (n, k) if n > 2 * k => "linear: gate, up",
        (n, k) if k > 2 * n => "linear: down",
        (n, k) if n > k => "linear: q, k, v",
        _ => "linear: attention output",
    }
}

impl Ops for Timed<CpuOps> {
    type Matrix = <CpuOps as Ops>::Matrix;
    type Vector = <CpuOps as Ops>::Vector;
    type Tensor = <CpuOps as Ops>::Tensor;
    type Rope = <CpuOps as Ops>::Rope;
    type Batch = <CpuOps as Ops>::Batch;

    fn matrix(&mut self, p: &[MatrixPart<'_>], f: WeightFormat) -> Result<Self::Matrix, OpError> {
        self.inner.matrix(p, f)
    }
    fn describe(&self, matrix: &Self::Matrix) -> String {
        self.inner.describe(matrix)
    }
    fn vector(&mut self, values: &[f32]) -> Result<Self::Vector, OpError> {
        self.inner.vector(values)
    }
    fn tensor(
        &mut self,
        max_rows: usize,
        cols: usize,
        holds: TensorUse,
    ) -> Result<Self::Tensor, OpError> {
        self.inner.tensor(max_rows, cols, holds)
    }
    fn rope(
        &mut self,
        inv_freq: &[f32],
        factor: f32,
        max_positions: usize,
    ) -> Result<Self::Rope, OpError> {
        self.inner.rope(inv_freq, factor, max_positions)
    }
    fn batch(&mut self, seqs: &[SeqRows], shapes: &[AttentionShape]) -> Self::Batch {
        self.inner.batch(seqs, shapes)
    }
    fn embed(&mut self, table: &Self::Matrix, inputs: &[RowInput], out: &mut Self::Tensor) {
        self.time("embed", |ops| ops.embed(table, inputs, out));
    }
    fn linear(
        &mut self,
        w: &Self::Matrix,
        bias: Option<&Self::Vector>,
        x: &Self::Tensor,
        out: &mut Self::Tensor,
    ) {
        let name = linear_name(out.cols(), x.cols());
        self.time(name, |ops| ops.linear(w, bias, x, out));
    }
    fn add_rms_norm(
        &mut self,
        residual: &mut Self::Tensor,
        delta: Option<&Self::Tensor>,
        weight: &Self::Vector,
        eps: f32,
        out: &mut Self::Tensor,
    ) {
        self.time("add, norm", |ops| ops.add_rms_norm(residual, delta, weight, eps, out));
    }
    fn head_rms_norm(
        &mut self,
        qkv: &mut Self::Tensor,
        heads: Range<usize>,
        shape: &AttentionShape,
        weight: &Self::Vector,
        eps: f32,
    ) {
        self.time("head norms", |ops| ops.head_rms_norm(qkv, heads, shape, weight, eps));
    }
    fn rope_kv_write(
        &mut self,
        qkv: &mut Self::Tensor,
        rope: &Self::Rope,
        shape: &AttentionShape,
        layer: usize,
        batch: &Self::Batch,
    ) {
        self.time("rope, KV write", |ops| ops.rope_kv_write(qkv, rope, shape, layer, batch));
    }
    fn attention(
        &mut self,
        qkv: &Self::Tensor,
        shape: &AttentionShape,
        layer: usize,
        batch: &Self::Batch,
        out: &mut Self::Tensor,
    ) {
        self.time("attention", |ops| ops.attention(qkv, shape, layer, batch, out));
    }
    fn silu_mul(&mut self, gate_up: &Self::Tensor, out: &mut Self::Tensor) {
        self.time("silu", |ops| ops.silu_mul(gate_up, out));
    }
    fn gather_rows(&mut self, x: &Self::Tensor, rows: &[usize], out: &mut Self::Tensor) {
        self.time("gather", |ops| ops.gather_rows(x, rows, out));
    }
    fn for_each_row(
        &mut self,
        x: &mut Self::Tensor,
        rows: &[usize],
        each: &(dyn Fn(usize, &mut [f32]) + Sync),
    ) {
        self.time("sample", |ops| ops.for_each_row(x, rows, each));
    }
    fn finish(&mut self) -> Result<Vec<Drawn>, StepError> {
        self.inner.finish()
    }
}

/// A step to measure: `seqs` sequences of `tokens` tokens each, after `context` tokens of context.
struct Shape {
    name: &'static str,
    seqs: u32,
    tokens: u32,
    context: u32,
}

const SHAPES: [Shape; 6] = [
    Shape { name: "decode 1, context 128", seqs: 1, tokens: 1, context: 128 },
    Shape { name: "decode 1, context 1024", seqs: 1, tokens: 1, context: 1024 },
    Shape { name: "decode 16, context 128", seqs: 16, tokens: 1, context: 128 },
    Shape { name: "decode 32, context 128", seqs: 32, tokens: 1, context: 128 },
    Shape { name: "decode 32, context 512", seqs: 32, tokens: 1, context: 512 },
    Shape { name: "prefill 256", seqs: 1, tokens: 256, context: 0 },
];
const REPEATS: u64 = 20;
const BLOCK: u32 = 16;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments = std::env::args().skip(1);
    let model = arguments.next().filter(|model| model != "default");
    let threads = arguments.next().map_or(Ok(0), |text| text.parse())?;
    let weights = match arguments.next().as_deref() {
        Some("f32") => WeightFormat::F32,
        Some("bf16") => WeightFormat::Bf16,
        Some("q8_0") => WeightFormat::Q8_0,
        Some("native") => WeightFormat::Native,
        _ => WeightFormat::Auto,
    };
    let kv_type = match arguments.next().as_deref() {
        Some("f32") => KvType::F32,
        Some("bf16") => KvType::Bf16,
        _ => KvType::F16,
    };
    let files = Resolver::from_env()?.resolve(model.as_deref())?.files;
    let checkpoint = Checkpoint::open(&files)?;
    let options = LoadOptions {
        threads,
        weights,
        kv_type,
        kv_capacity: KvCapacity::Blocks(32 * 40),
        ..LoadOptions::default()
    };
    through_the_runner(&checkpoint, &options)?;
    by_operation(&checkpoint, &options)
}

fn table(number: u32, shape: &Shape) -> Arc<[BlockId]> {
    let blocks = (shape.context + shape.tokens).div_ceil(BLOCK);
    (number * blocks..(number + 1) * blocks).map(BlockId).collect()
}

fn through_the_runner(
    checkpoint: &Checkpoint,
    options: &LoadOptions,
) -> Result<(), Box<dyn std::error::Error>> {
    let clock = Clock::wall();
    let (mut runner, _) = open(checkpoint, options, &mut |_| {})?.into_runner(64);
    let greedy = Arc::new(SamplingParams::greedy());
    let start =
        |seq| SeqStart { seq: SeqId(seq), sampling: greedy.clone(), prompt: Arc::from([0]) };
    let starts = (0..32).map(start).collect();
    runner.run(&StepBatch { id: StepId(0), starts, ends: vec![], slices: vec![] })?;
    println!(
        "{:24} {:>10} {:>10} {:>10} {:>10} {:>10}",
        "step", "mean us", "best us", "forward", "sampling", "tok/s"
    );
    for shape in &SHAPES {
        let mut best: Option<(u64, StepTiming)> = None;
        let mut spent_us = 0;
        for id in 1..=REPEATS {
            let slices = (0..shape.seqs).map(|number| SeqSlice {
                seq: SeqId(number.into()),
                first_pos: shape.context,
                input: SliceInput::Known((0..shape.tokens).map(|i| i * 7 + number).collect()),
                table: table(number, shape),
                sample: Some(0),
            });
            let batch = StepBatch {
                id: StepId(id),
                starts: vec![],
                ends: vec![],
                slices: slices.collect(),
            };
            let begin = clock.now();
            let output = runner.run(&batch)?;
            let us = clock.now().since_us(begin);
            spent_us += us;
            if best.is_none_or(|(best_us, _)| us < best_us) {
                best = Some((us, output.timing));
            }
        }
        let (us, timing) = best.ok_or("no repeats")?;
        let rate = f64::from(shape.seqs * shape.tokens) * 1e6 / us as f64;
        let (forward, sampling) = (timing.forward_us, timing.sampling_us);
        let (name, mean) = (shape.name, spent_us / REPEATS);
        println!("{name:24} {mean:>10} {us:>10} {forward:>10} {sampling:>10} {rate:>10.1}");
    }
    Ok(())
}

fn by_operation(
    checkpoint: &Checkpoint,
    options: &LoadOptions,
) -> Result<(), Box<dyn std::error::Error>> {
    let parts = open(checkpoint, options, &mut |_| {})?;
    let limits =
        DecoderLimits { max_batched_tokens: 256, max_sampled_rows: 64, max_positions: 2048 };
    let mut ops = Timed { inner: parts.ops, clock: Clock::wall(), spent_us: BTreeMap::new() };
    let weights = Weights::load(&mut ops, checkpoint, options.weights, &mut |_| {})?;
    let mut decoder = Decoder::new(&mut ops, checkpoint.config().clone(), weights, limits)?;
    for shape in &SHAPES {
        let inputs: Vec<RowInput> = (0..shape.seqs * shape.tokens).map(RowInput::Token).collect();
        let seq = |number: u32| SeqRows {
            rows: (number * shape.tokens) as usize..((number + 1) * shape.tokens) as usize,
            first_pos: shape.context,
            table: table(number, shape),
        };
        let seqs: Vec<SeqRows> = (0..shape.seqs).map(seq).collect();
        let sampled: Vec<usize> = seqs.iter().map(|seq| seq.rows.end - 1).collect();
        // Of all repeats of a step, report the fastest: disturbances by other programs can only add time.
        let mut best = None;
        for _ in 0..REPEATS {
            ops.spent_us.clear();
            decoder.forward(
                &mut ops,
                ForwardBatch { inputs: &inputs, seqs: &seqs, sampled: &sampled },
            );
            for rows in decoder.logit_chunks() {
                decoder.logits(&mut ops, rows);
            }
            let spent = std::mem::take(&mut ops.spent_us);
            if best.as_ref().is_none_or(|best| total_us(&spent) < total_us(best)) {
                best = Some(spent);
            }
        }
        print_table(shape, &best.ok_or("no repeats")?);
    }
    Ok(())
}

/// Time spent in each operation, us, and number of its calls, by the operation's name.
type Spent = BTreeMap<&'static str, (u64, u64)>;

fn total_us(spent: &Spent) -> u64 {
    spent.values().map(|(us, _)| us).sum()
}

fn print_table(shape: &Shape, spent: &Spent) {
    let total = total_us(spent);
    println!("\n{}: {total} us in operations", shape.name);
    for (name, (us, calls)) in spent {
        let share = *us as f64 * 100.0 / total.max(1) as f64;
        println!("  {name:26} {us:>8} us {share:>5.1} % {:>8} ns a call", us * 1000 / calls);
    }
}
