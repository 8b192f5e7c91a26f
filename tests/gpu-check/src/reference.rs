//! Compares the GPU's logits with those that Hugging Face transformers computed for the same checkpoints and prompts.

use crate::CheckError;
use crate::models::{best_is_near, machine};
use crate::report::Report;
use safetensors::SafeTensors;
use std::path::Path;
use tiercel_device::TokenId;
use tiercel_gpu::WeightFormat;
use tiercel_gpu::cuda::Driver;
use tiercel_model::weights::{Checkpoint, ModelFiles, Weights};

/// Maximum relative errors of the GPU's logits, percent of the norm of a position's logits: for the median position,
/// and for the worst position. Weights, activations and KV are bf16, and random weights amplify rounding.
const TOLERANCES: (f64, f64) = (2.5, 8.0);
const FAMILIES: [&str; 5] = ["llama2", "llama3", "mistral", "qwen2", "qwen3"];

/// Compares the GPU's logits at every position of a prompt, and its greedy tokens, with those that Hugging Face
/// transformers computed for the checkpoints in `folder` (`tests/reference/make_tiny.py`).
///
/// # Errors
/// [`CheckError`] if something could not be run at all.
pub fn check_reference<D: Driver>(
    open: &dyn Fn() -> Result<D, CheckError>,
    folder: &Path,
    report: &mut Report,
) -> Result<(), CheckError> {
    for family in FAMILIES {
        let path = folder.join(family);
        let (tokens, expected) = expected(&path)?;
        let checkpoint = Checkpoint::open(&ModelFiles::HfDir(path))?;
        for exact in [false, true] {
            let mut gpu = machine(open()?, checkpoint.config(), (exact, false), |ops| {
                Ok(Weights::load(ops, &checkpoint, WeightFormat::Auto, &mut |_| {})?)
            })?;
            let found = gpu.logits_of(&tokens)?;
            let what = format!("{family} against transformers, row by row: {exact}");
            compare(&what, &found, &expected, report);
        }
    }
    Ok(())
}

fn compare(what: &str, found: &[Vec<f32>], expected: &[Vec<f32>], report: &mut Report) {
    let mut errors: Vec<f64> = found.iter().zip(expected).map(|(a, b)| error(a, b)).collect();
    errors.sort_by(f64::total_cmp);
    let median = errors.get(errors.len() / 2).copied().unwrap_or(f64::NAN);
    let worst = errors.last().copied().unwrap_or(f64::NAN);
    report.at_most(&format!("{what}, median position"), 100.0 * median, TOLERANCES.0, "%");
    report.at_most(&format!("{what}, worst position"), 100.0 * worst, TOLERANCES.1, "%");
    let near = found.iter().zip(expected).all(|(ours, theirs)| best_is_near(ours, theirs));
    report.holds(&format!("{what}, greedy tokens"), near && found.len() == expected.len());
}

/// Returns the relative error of logits: the norm of the difference of `ours` and `theirs`, divided by the norm of
/// `theirs`.
fn error(ours: &[f32], theirs: &[f32]) -> f64 {
    let square = |value: f32| f64::from(value) * f64::from(value);
    let difference: f64 = ours.iter().zip(theirs).map(|(a, b)| square(a - b)).sum();
    let norm: f64 = theirs.iter().copied().map(square).sum();
    (difference / norm).sqrt()
}

/// Reads a reference file: the tokens of a prompt and the expected logits after each token.
fn expected(path: &Path) -> Result<(Vec<TokenId>, Vec<Vec<f32>>), CheckError> {
    let file = path.join("expected.safetensors");
    let wrong = |why: &dyn std::fmt::Display| {
        CheckError::Reference(format!(
            "{}: {why}; name the folder with --reference",
            file.display()
        ))
    };
    let bytes = std::fs::read(&file).map_err(|error| wrong(&error))?;
    let tensors = SafeTensors::deserialize(&bytes).map_err(|error| wrong(&error))?;
    let tokens = tensors.tensor("tokens").map_err(|error| wrong(&error))?;
    let logits = tensors.tensor("logits").map_err(|error| wrong(&error))?;
    let vocab = logits.shape().last().copied().filter(|vocab| *vocab > 0);
    let vocab = vocab.ok_or_else(|| wrong(&"logits without a vocabulary"))?;
    // The reference file stores token ids in 64 bits; the ids are small, so the low 32 bits are enough.
    let tokens =
        tokens.data().chunks_exact(8).map(|b| u32::from_le_bytes([b[0], b[1], b[2], b[3]]));
    let values =
        logits.data().chunks_exact(4).map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]]));
    let values: Vec<f32> = values.collect();
    Ok((tokens.collect(), values.chunks_exact(vocab).map(<[f32]>::to_vec).collect()))
}
