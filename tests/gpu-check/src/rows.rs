//! Checks the GPU's row-wise operations (embedding, norms, activation function) and matrix products against the CPU's.

use crate::CheckError;
use crate::pair::{Both, Pair, PairOptions, Setting, shape};
use crate::report::Report;
use std::sync::atomic::{AtomicUsize, Ordering};
use tiercel_gpu::cuda::{CudaMatrix, CudaTensor, Driver};
use tiercel_gpu::{Ops, RowInput, TensorUse};

/// Limits of the difference between the results of GPU and CPU: the norm of all differences as a share of the norm of
/// the results, and the largest difference as a share of the largest result. They are that wide because bf16 has only 8
/// significant bits.
const LIMITS: (f32, f32) = (5e-3, 1e-2);

/// Products of activations `[rows, k]` with a bf16 matrix `[n, k]`: rows, n and k.
const PRODUCTS: [(usize, usize, usize); 7] = [
    (1, 8, 16),
    (5, 96, 64),
    (17, 64, 104),
    (64, 256, 512),
    (130, 72, 1144),
    (12, 72, 264),
    (100, 72, 264),
];

/// Checks every row-wise operation and the matrix product of a GPU against the CPU, over widths and numbers of rows.
///
/// # Errors
/// [`CheckError`] if something could not be run at all.
pub fn check_rows<D: Driver>(
    open: &dyn Fn() -> Result<D, CheckError>,
    report: &mut Report,
) -> Result<(), CheckError> {
    for (seed, (rows, cols)) in (1..).zip([(1, 8), (3, 64), (5, 576), (2, 2056), (9, 248)]) {
        let mut pair = plain(open, seed, false)?;
        embedding_and_norms(&mut pair, (rows, cols), report)?;
        activation_and_gather(&mut pair, (rows, cols), report)?;
    }
    for (seed, size) in (1..).zip(PRODUCTS) {
        for exact in [false, true] {
            products(&mut plain(open, seed, exact)?, size, exact, report)?;
        }
    }
    for (head_dim, queries, kv_heads) in [(16, 2, 2), (64, 3, 3), (80, 1, 4), (128, 8, 1)] {
        head_norms(open, (head_dim, queries, kv_heads), report)?;
    }
    Ok(())
}

fn plain<D: Driver>(
    open: &dyn Fn() -> Result<D, CheckError>,
    seed: u64,
    exact: bool,
) -> Result<Pair<D>, CheckError> {
    let options = PairOptions { exact, ..PairOptions::default() };
    let setting = Setting { shape: shape(16, 2, 2), blocks: 1, options };
    Pair::new(open()?, setting, seed)
}

fn compare<D: Driver>(
    pair: &mut Pair<D>,
    both: &Both,
    what: &str,
    report: &mut Report,
) -> Result<(), CheckError> {
    let cuda = pair.cuda.read(&both.cuda)?;
    let what = format!("{what}, {} x {}", both.cpu.rows(), both.cpu.cols());
    report.compare(&what, &cuda, both.cpu.values(), LIMITS);
    pair.cuda.finish()?;
    Ok(())
}

fn embedding_and_norms<D: Driver>(
    pair: &mut Pair<D>,
    (rows, cols): (usize, usize),
    report: &mut Report,
) -> Result<(), CheckError> {
    let (table, cpu_table) = pair.matrix(20, cols)?;
    let mut residual = pair.empty(rows, cols, TensorUse::Residual)?;
    let tokens: Vec<RowInput> = (0..rows as u32).map(|row| RowInput::Token(row * 7 % 20)).collect();
    pair.cuda.embed(&table, &tokens, &mut residual.cuda);
    pair.cpu.embed(&cpu_table, &tokens, &mut residual.cpu);
    compare(pair, &residual, "embedding", report)?;
    let delta = pair.random(rows, cols, TensorUse::Activations)?;
    let weights = pair.numbers(cols, 1.5);
    let (weight, cpu_weight) = (pair.cuda.vector(&weights)?, pair.cpu.vector(&weights)?);
    let mut out = pair.empty(rows, cols, TensorUse::Activations)?;
    for with in [true, false] {
        let (cuda, cpu) = (with.then_some(&delta.cuda), with.then_some(&delta.cpu));
        pair.cuda.add_rms_norm(&mut residual.cuda, cuda, &weight, 1e-5, &mut out.cuda);
        pair.cpu.add_rms_norm(&mut residual.cpu, cpu, &cpu_weight, 1e-5, &mut out.cpu);
        compare(pair, &residual, "residual", report)?;
        compare(pair, &out, "norm", report)?;
    }
    Ok(())
}

fn activation_and_gather<D: Driver>(
    pair: &mut Pair<D>,
    (rows, cols): (usize, usize),
    report: &mut Report,
) -> Result<(), CheckError> {
    let gate_up = pair.random(rows, 2 * cols, TensorUse::Activations)?;
    let mut out = pair.empty(rows, cols, TensorUse::Activations)?;
    pair.cuda.silu_mul(&gate_up.cuda, &mut out.cuda);
    pair.cpu.silu_mul(&gate_up.cpu, &mut out.cpu);
    compare(pair, &out, "silu", report)?;
    let residual = pair.random(rows, cols, TensorUse::Residual)?;
    let which: Vec<usize> = (0..rows).rev().collect();
    let mut picked = pair.empty(rows, cols, TensorUse::Residual)?;
    pair.cuda.gather_rows(&residual.cuda, &which, &mut picked.cuda);
    pair.cpu.gather_rows(&residual.cpu, &which, &mut picked.cpu);
    compare(pair, &picked, "gathered rows", report)
}

fn products<D: Driver>(
    pair: &mut Pair<D>,
    (rows, n, k): (usize, usize, usize),
    exact: bool,
    report: &mut Report,
) -> Result<(), CheckError> {
    let (w, cpu_w) = pair.matrix(n, k)?;
    let bias = pair.numbers(n, 3.0);
    let (bias, cpu_bias) = (pair.cuda.vector(&bias)?, pair.cpu.vector(&bias)?);
    let x = pair.random(rows, k, TensorUse::Activations)?;
    let mut out = pair.empty(rows, n, TensorUse::Activations)?;
    for (what, with) in [("product with bias", true), ("product", false)] {
        pair.cuda.linear(&w, with.then_some(&bias), &x.cuda, &mut out.cuda);
        pair.cpu.linear(&cpu_w, with.then_some(&cpu_bias), &x.cpu, &mut out.cpu);
        compare(pair, &out, &format!("{what}, exact {exact}"), report)?;
    }
    if exact {
        let together = pair.cuda.read(&out.cuda)?;
        let alone = alone(pair, &w, &x.cuda, (n, k))?;
        let same = alone.iter().map(|v| v.to_bits()).eq(together.iter().map(|v| v.to_bits()));
        report.holds(&format!("rows of {rows} x {n} alone"), same);
    }
    let mut logits = pair.empty(rows, n, TensorUse::Logits)?;
    pair.cuda.linear(&w, None, &x.cuda, &mut logits.cuda);
    pair.cpu.linear(&cpu_w, None, &x.cpu, &mut logits.cpu);
    compare(pair, &logits, "logits", report)?;
    let seen = AtomicUsize::new(0);
    let all: Vec<usize> = (0..rows).collect();
    pair.cuda.for_each_row(&mut logits.cuda, &all, &|row, values| {
        seen.fetch_add((row + 1) * usize::from(values.len() == n), Ordering::Relaxed);
    });
    report.holds("the host sees every row once", seen.into_inner() == rows * (rows + 1) / 2);
    pair.cuda.finish()?;
    Ok(())
}

/// Returns the products of the rows of `x` with a matrix `[n, k]`, each computed alone.
fn alone<D: Driver>(
    pair: &mut Pair<D>,
    w: &CudaMatrix,
    x: &CudaTensor,
    (n, k): (usize, usize),
) -> Result<Vec<f32>, CheckError> {
    let mut all = Vec::new();
    let mut one = pair.cuda.tensor(1, k, TensorUse::Activations)?;
    let mut out = pair.cuda.tensor(1, n, TensorUse::Activations)?;
    for row in 0..x.rows() {
        pair.cuda.gather_rows(x, &[row], &mut one);
        pair.cuda.linear(w, None, &one, &mut out);
        all.extend(pair.cuda.read(&out)?);
    }
    Ok(all)
}

fn head_norms<D: Driver>(
    open: &dyn Fn() -> Result<D, CheckError>,
    (head_dim, queries, kv_heads): (usize, usize, usize),
    report: &mut Report,
) -> Result<(), CheckError> {
    let shape = shape(head_dim, queries, kv_heads);
    let setting = Setting { shape, blocks: 1, options: PairOptions::default() };
    let mut pair = Pair::new(open()?, setting, head_dim as u64)?;
    let mut qkv = pair.random(5, shape.qkv_cols(), TensorUse::Activations)?;
    let weights = pair.numbers(head_dim, 1.5);
    let (weight, cpu_weight) = (pair.cuda.vector(&weights)?, pair.cpu.vector(&weights)?);
    for heads in [0..shape.heads, shape.heads..shape.heads + kv_heads, 1..1] {
        pair.cuda.head_rms_norm(&mut qkv.cuda, heads.clone(), &shape, &weight, 1e-6);
        pair.cpu.head_rms_norm(&mut qkv.cpu, heads, &shape, &cpu_weight, 1e-6);
    }
    compare(&mut pair, &qkv, "head norms", report)
}
