//! Measures how much packed weights and types of the KV cache change the next-token distribution of SmolLM2 against f32
//! weights and f32 KV, beside llama.cpp.
//!
//! ```text
//! cargo run --release -p tiercel-model --example kl
//! ```
//!
//! P is the distribution of this program's f32 path, Q that of a weight format and a type of the KV cache (see
//! `MEASURED`). The result is KL(P || Q) over all positions of one fixed text, as
//! `tests/reference/kl_llamacpp.py` computes it for llama.cpp. The same run compares P with the log-probabilities of
//! Hugging Face transformers. The run fails if P differs from transformers by more than a tolerance, or if the mean KL
//! of a Q is above that of llama.cpp's Q8_0.

use safetensors::SafeTensors;
use safetensors::tensor::TensorView;
use serde::Deserialize;
use std::collections::BTreeMap;
use std::error::Error;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use tiercel_device::{BlockId, TokenId};
use tiercel_gpu::{KvType, RowInput, SeqRows, WeightFormat};
use tiercel_model::forward::ForwardBatch;
use tiercel_model::load::{KvCapacity, LoadOptions, Parts, open};
use tiercel_model::source::Resolver;
use tiercel_model::weights::Checkpoint;

/// Chunk size of the measurement: number of tokens of the text that one step computes.
const CHUNK: usize = 128;
/// Tolerance, nats: the run fails if a log-probability of this program's f32 path differs by more from that of
/// transformers.
const F32_TOLERANCE: f64 = 1e-3;

/// A weight format and type of the KV cache that is measured, and the run of llama.cpp whose mean KL it may not exceed.
struct Measured {
    weights: WeightFormat,
    kv_type: KvType,
    bar: &'static str,
}

const MEASURED: [Measured; 5] = [
    Measured { weights: WeightFormat::Auto, kv_type: KvType::F32, bar: "q8_0, KV f32" },
    Measured { weights: WeightFormat::Auto, kv_type: KvType::F16, bar: "q8_0, KV f16 (default)" },
    Measured { weights: WeightFormat::Auto, kv_type: KvType::Q8, bar: "q8_0, KV f16 (default)" },
    Measured { weights: WeightFormat::F32, kv_type: KvType::F16, bar: "q8_0, KV f16 (default)" },
    Measured { weights: WeightFormat::F32, kv_type: KvType::Q8, bar: "q8_0, KV f16 (default)" },
];

/// Reference values for a text of `T` tokens, computed by transformers and read from `kl_reference.safetensors`.
struct Reference {
    /// Token ids of the reference text, `[T]`.
    tokens: Vec<TokenId>,
    /// Log-probability of token `i + 1` after the tokens `0 ..= i`, `[T - 1]`.
    next_logprob: Vec<f32>,
    /// Ids of the eight likeliest next tokens at each position, best first, `[T, 8]`.
    top_ids: Vec<TokenId>,
    /// Log-probabilities of the eight likeliest next tokens at each position, best first, `[T, 8]`.
    top_logprobs: Vec<f32>,
}

/// Quality of one packed weight format, compared with f32 weights: KL divergence, agreement of the best token,
/// perplexity.
#[derive(Debug, Clone, Deserialize)]
struct Figures {
    mean_kl_nats: f64,
    p99_kl_nats: f64,
    top1_agreement: f64,
    perplexity: f64,
}

#[derive(Deserialize)]
struct LlamaCpp {
    runs: BTreeMap<String, Figures>,
}

/// A loaded model that computes the text chunk by chunk, each chunk after the KV of the chunks before.
struct Reader {
    parts: Parts,
    table: Arc<[BlockId]>,
    done: usize,
}

/// Differences between one packed model and the f32 model, collected position by position.
#[derive(Default)]
struct Tally {
    kl: Vec<f64>,
    agreed: usize,
    next_logprob: Vec<f64>,
}

fn reference_dir() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/reference/smollm2")
}

fn words(tensor: &TensorView<'_>) -> Vec<[u8; 4]> {
    tensor.data().as_chunks::<4>().0.to_vec()
}

impl Reference {
    fn read() -> Result<Reference, Box<dyn Error>> {
        let bytes = std::fs::read(reference_dir().join("kl_reference.safetensors"))?;
        let file = SafeTensors::deserialize(&bytes)?;
        let ids = |name: &str| {
            let values = words(&file.tensor(name)?).into_iter().map(u32::from_le_bytes);
            Ok::<_, Box<dyn Error>>(values.collect())
        };
        let floats = |name: &str| {
            let values = words(&file.tensor(name)?).into_iter().map(f32::from_le_bytes);
            Ok::<_, Box<dyn Error>>(values.collect())
        };
        Ok(Reference {
            tokens: ids("tokens")?,
            next_logprob: floats("next_logprob")?,
            top_ids: ids("top_ids")?,
            top_logprobs: floats("top_logprobs")?,
        })
    }

    /// Returns the largest absolute difference at `position` between `logprobs` and the reference log-probabilities of
    /// the eight likeliest tokens and of the token that follows in the text.
    fn difference(&self, position: usize, logprobs: &[f64]) -> f64 {
        let width = self.top_ids.len() / self.tokens.len();
        let top = position * width..(position + 1) * width;
        let best = self.top_ids[top.clone()].iter().zip(&self.top_logprobs[top]);
        let next = self.tokens.get(position + 1).zip(self.next_logprob.get(position));
        best.chain(next)
            .map(|(&id, &expected)| (logprobs[id as usize] - f64::from(expected)).abs())
            .fold(0.0, f64::max)
    }
}

impl Reader {
    fn open(
        checkpoint: &Checkpoint,
        weights: WeightFormat,
        kv_type: KvType,
        positions: usize,
    ) -> Result<Reader, Box<dyn Error>> {
        let options = LoadOptions { weights, kv_type, ..LoadOptions::default() };
        let blocks = positions.div_ceil(options.block_size) as u32;
        let options = LoadOptions {
            kv_capacity: KvCapacity::Blocks(blocks),
            max_num_seqs: CHUNK,
            max_num_batched_tokens: CHUNK,
            ..options
        };
        let parts = open(checkpoint, &options, &mut |_| {})?;
        Ok(Reader { parts, table: (0..blocks).map(BlockId).collect(), done: 0 })
    }

    /// Runs the forward pass over the next tokens of the text and returns the logits after each token.
    fn read(&mut self, tokens: &[TokenId]) -> Vec<Vec<f32>> {
        let seqs = [SeqRows {
            rows: 0..tokens.len(),
            first_pos: self.done as u32,
            table: Arc::clone(&self.table),
        }];
        let sampled: Vec<usize> = (0..tokens.len()).collect();
        let Parts { ops, decoder, .. } = &mut self.parts;
        let inputs: Vec<RowInput> = tokens.iter().copied().map(RowInput::Token).collect();
        decoder.forward(ops, ForwardBatch { inputs: &inputs, seqs: &seqs, sampled: &sampled });
        self.done += tokens.len();
        let mut logits = Vec::with_capacity(tokens.len());
        for rows in decoder.logit_chunks() {
            let tensor = decoder.logits(ops, rows);
            let cols = tensor.cols();
            logits.extend(tensor.values().chunks_exact(cols).map(<[f32]>::to_vec));
        }
        logits
    }
}

impl Tally {
    fn add(&mut self, p: &[f64], q: &[f64], next: Option<TokenId>) {
        self.kl.push(p.iter().zip(q).map(|(p, q)| p.exp() * (p - q)).sum());
        self.agreed += usize::from(likeliest(p) == likeliest(q));
        self.next_logprob.extend(next.map(|token| q[token as usize]));
    }

    fn figures(mut self) -> Figures {
        let mean = |values: &[f64]| values.iter().sum::<f64>() / values.len() as f64;
        self.kl.sort_by(f64::total_cmp);
        // Compute the 99th percentile by linear interpolation between the two nearest values, as numpy's `percentile`
        // does.
        let at = 0.99 * (self.kl.len() - 1) as f64;
        let (low, high) = (self.kl[at.floor() as usize], self.kl[at.ceil() as usize]);
        Figures {
            mean_kl_nats: mean(&self.kl),
            p99_kl_nats: low + (high - low) * at.fract(),
            top1_agreement: self.agreed as f64 / self.kl.len() as f64,
            perplexity: (-mean(&self.next_logprob)).exp(),
        }
    }
}

fn log_softmax(logits: &[f32]) -> Vec<f64> {
    let most = f64::from(logits.iter().copied().fold(f32::NEG_INFINITY, f32::max));
    let sum: f64 = logits.iter().map(|&logit| (f64::from(logit) - most).exp()).sum();
    let norm = most + sum.ln();
    logits.iter().map(|&logit| f64::from(logit) - norm).collect()
}

/// Returns the token with the largest log-probability; of equally likely tokens, the lowest id.
fn likeliest(logprobs: &[f64]) -> usize {
    let mut best = 0;
    for (index, &value) in logprobs.iter().enumerate() {
        if value > logprobs[best] {
            best = index;
        }
    }
    best
}

/// Runs the text through the f32 model `exact` and all `packed` models, chunk by chunk. Returns the largest difference
/// between the log-probabilities of the f32 model and the reference, and the quality figures of each packed model.
fn compare(
    reference: &Reference,
    exact: &mut Reader,
    packed: &mut [Reader],
) -> (f64, Vec<Figures>) {
    let mut tallies: Vec<Tally> = packed.iter().map(|_| Tally::default()).collect();
    let mut worst = 0.0f64;
    for (chunk, tokens) in reference.tokens.chunks(CHUNK).enumerate() {
        let first = chunk * CHUNK;
        let p: Vec<Vec<f64>> = exact.read(tokens).iter().map(|row| log_softmax(row)).collect();
        for (row, logprobs) in p.iter().enumerate() {
            worst = worst.max(reference.difference(first + row, logprobs));
        }
        for (reader, tally) in packed.iter_mut().zip(&mut tallies) {
            for (row, (p, logits)) in p.iter().zip(reader.read(tokens)).enumerate() {
                let next = reference.tokens.get(first + row + 1).copied();
                tally.add(p, &log_softmax(&logits), next);
            }
        }
    }
    (worst, tallies.into_iter().map(Tally::figures).collect())
}

fn print_row(who: &str, what: &str, figures: &Figures) {
    let Figures { mean_kl_nats, p99_kl_nats, top1_agreement, perplexity } = figures;
    let agreement = top1_agreement * 100.0;
    println!(
        "| {who:9} | {what:22} | {mean_kl_nats:9.3e} | {p99_kl_nats:9.3e} | {agreement:6.2} % | {perplexity:7.4} |"
    );
}

fn main() -> Result<ExitCode, Box<dyn Error>> {
    let reference = Reference::read()?;
    let text = std::fs::read_to_string(reference_dir().join("kl_llamacpp.json"))?;
    let llamacpp: LlamaCpp = serde_json::from_str(&text)?;
    let model = Resolver::from_env()?.resolve(None)?;
    let checkpoint = Checkpoint::open(&model.files)?;
    let positions = reference.tokens.len();
    let mut exact = Reader::open(&checkpoint, WeightFormat::F32, KvType::F32, positions)?;
    let mut packed = MEASURED
        .iter()
        .map(|Measured { weights, kv_type, .. }| {
            Reader::open(&checkpoint, *weights, *kv_type, positions)
        })
        .collect::<Result<Vec<_>, _>>()?;
    let (worst, figures) = compare(&reference, &mut exact, &mut packed);

    println!("{} over {positions} positions, KL from f32", model.name);
    println!("our f32 path is within {worst:.1e} nats of transformers\n");
    println!("| who       | weights, KV            | mean KL   | p99 KL    | same top | perpl.  |");
    println!("|-----------|------------------------|-----------|-----------|----------|---------|");
    for (Measured { weights, kv_type, .. }, figures) in MEASURED.iter().zip(&figures) {
        print_row("tiercel", &format!("{weights:?}, KV {kv_type}").to_lowercase(), figures);
    }
    for (label, figures) in &llamacpp.runs {
        print_row("llama.cpp", label, figures);
    }
    let mut good = worst <= F32_TOLERANCE;
    for (ours, Measured { bar, .. }) in figures.iter().zip(&MEASURED) {
        let bar =
            llamacpp.runs.get(*bar).ok_or_else(|| format!("kl_llamacpp.json has no {bar}"))?;
        good &= ours.mean_kl_nats <= bar.mean_kl_nats;
    }
    println!("\n{}", if good { "within the bar" } else { "WORSE than the bar: see the table" });
    Ok(if good { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}
