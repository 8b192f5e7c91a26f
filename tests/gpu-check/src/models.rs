//! Checks whole models with random weights on a GPU: logits of every model family against the CPU's, and equal bits
//! however prompts are cut into chunks and batches.

use crate::CheckError;
use crate::report::Report;
use std::sync::Arc;
use std::sync::Mutex;
use tiercel_device::{BlockId, TokenId};
use tiercel_gpu::cpu::{CpuDevice, CpuOptions};
use tiercel_gpu::cuda::{CudaKv, CudaOps, CudaOptions, DevicePtr, Driver};
use tiercel_gpu::{KvType, Ops, RowInput, SeqRows, WeightFormat};
use tiercel_model::arch::ModelConfig;
use tiercel_model::forward::{Decoder, DecoderLimits, ForwardBatch};
use tiercel_model::weights::Weights;

/// Limits of the difference between the logits of GPU and CPU: the norm of all differences as a share of the norm of
/// the logits, and the largest difference as a share of the largest logit. The GPU rounds activations to bf16 in each
/// of the three layers.
const LIMITS: (f32, f32) = (4e-2, 8e-2);
pub(crate) const BLOCK_SIZE: usize = 16;
pub(crate) const BLOCKS: u32 = 64;
const SEED: u64 = 7;

/// Configurations of small models of every family, with the family's features: query heads per key head, sliding
/// windows, biases and head norms.
const FAMILIES: [(&str, &str); 5] = [
    (
        "llama",
        r#"{"model_type": "llama", "num_attention_heads": 4, "num_key_value_heads": 4, "head_dim": 64"#,
    ),
    (
        "llama, grouped, scaled rope",
        r#"{"model_type": "llama", "num_attention_heads": 8, "num_key_value_heads": 2, "head_dim": 128,
            "rope_theta": 500000.0, "rope_scaling": {"rope_type": "llama3", "factor": 8.0,
            "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 64}"#,
    ),
    (
        "mistral",
        r#"{"model_type": "mistral", "num_attention_heads": 8, "num_key_value_heads": 1, "head_dim": 64,
            "sliding_window": 24"#,
    ),
    (
        "qwen2",
        r#"{"model_type": "qwen2", "num_attention_heads": 2, "num_key_value_heads": 2, "head_dim": 128,
            "tie_word_embeddings": true"#,
    ),
    (
        "qwen3",
        r#"{"model_type": "qwen3", "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16,
            "tie_word_embeddings": true"#,
    ),
];
const SHARED: &str = r#", "vocab_size": 320, "hidden_size": 128, "intermediate_size": 192,
    "num_hidden_layers": 3, "max_position_embeddings": 512, "rms_norm_eps": 1e-5}"#;

/// A model that is loaded on a device, with the op set that runs it.
pub(crate) struct Machine<O: Ops> {
    pub(crate) ops: O,
    pub(crate) decoder: Decoder<O>,
}

/// Sequence in a check of a model's computation: its tokens, the number of tokens computed so far, and its block table.
struct Sequence {
    tokens: Vec<TokenId>,
    done: usize,
    table: Arc<[BlockId]>,
}

/// Steps of a run that checks a model's computation: for each step, how many tokens it computes of the first sequence,
/// whose logits are checked, and how many of each other sequence.
type Steps<'a> = &'a [(usize, usize)];

/// Checks the logits of every model family, with prompts computed by tiles (several rows at once) and row by row. Also
/// checks that row-by-row results are the same bit for bit in all chunks and batches.
///
/// # Errors
/// [`CheckError`] if something could not be run at all.
pub fn check_models<D: Driver>(
    open: &dyn Fn() -> Result<D, CheckError>,
    report: &mut Report,
) -> Result<(), CheckError> {
    for (name, own) in FAMILIES {
        let config = ModelConfig::from_hf(format!("{own}{SHARED}").as_bytes())?;
        let expected = on_cpu(&config)?.run(&[(100, 0)], 1)?;
        for exact in [false, true] {
            let what = format!("{name}, row by row: {exact}");
            let found = on_gpu(open()?, &config, exact)?.run(&[(100, 0)], 1)?;
            report.compare(
                &format!("logits of {what}"),
                &found.concat(),
                &expected.concat(),
                LIMITS,
            );
            let near = found.iter().zip(&expected).all(|(ours, theirs)| best_is_near(ours, theirs));
            report.holds(&format!("most likely tokens of {what}"), near);
        }
        let whole = on_gpu(open()?, &config, true)?.run(&[(100, 0)], 1)?;
        let ways: [(&str, Steps<'_>, usize); 3] = [
            ("cut into chunks", &[(33, 0), (1, 0), (50, 0), (16, 0)], 1),
            ("decoded one by one", &[(90, 0), (1, 0), (1, 0), (8, 0)], 1),
            ("in a batch of 5", &[(40, 7), (1, 1), (59, 3)], 5),
        ];
        for (what, steps, sequences) in ways {
            let found = on_gpu(open()?, &config, true)?.run(steps, sequences)?;
            report.holds(&format!("{name}: the same bits {what}"), bits(&found) == bits(&whole));
        }
    }
    Ok(())
}

/// Returns the configuration of a small Llama model.
pub(crate) fn llama() -> Result<ModelConfig, CheckError> {
    Ok(ModelConfig::from_hf(format!("{}{SHARED}", FAMILIES[0].1).as_bytes())?)
}

fn bits(rows: &[Vec<f32>]) -> Vec<u32> {
    rows.iter().flatten().map(|value| value.to_bits()).collect()
}

/// Whether the token with the highest logit in `ours` also has the highest in `theirs`, or misses it by at most 3 % of
/// the range of `theirs`.
pub(crate) fn best_is_near(ours: &[f32], theirs: &[f32]) -> bool {
    let best = (0..ours.len()).max_by(|a, b| ours[*a].total_cmp(&ours[*b])).unwrap_or(0);
    let most = theirs.iter().copied().fold(f32::MIN, f32::max);
    let spread = most - theirs.iter().copied().fold(f32::MAX, f32::min);
    theirs[best] >= most - 0.03 * spread
}

fn limits() -> DecoderLimits {
    DecoderLimits { max_batched_tokens: 160, max_sampled_rows: 160, max_positions: 256 }
}

fn on_cpu(config: &ModelConfig) -> Result<Machine<tiercel_gpu::cpu::CpuOps>, CheckError> {
    let options = CpuOptions {
        threads: 2,
        kv_type: KvType::F32,
        block_size: BLOCK_SIZE,
        device_blocks: BLOCKS,
        host_blocks: 0,
        layers: config.layers(),
        kv_heads: config.kv_heads,
        head_dim: config.head_dim,
    };
    Machine::new(CpuDevice::open(options)?.0, config, |ops| {
        Ok(Weights::random(ops, config, WeightFormat::F32, SEED)?)
    })
}

fn on_gpu<D: Driver>(
    driver: D,
    config: &ModelConfig,
    exact: bool,
) -> Result<Machine<CudaOps<D>>, CheckError> {
    random(driver, config, (exact, false))
}

/// Loads a model with random weights on a GPU. `graphs` says whether its decode steps may be replayed as CUDA graphs.
pub(crate) fn random<D: Driver>(
    driver: D,
    config: &ModelConfig,
    (exact, graphs): (bool, bool),
) -> Result<Machine<CudaOps<D>>, CheckError> {
    machine(driver, config, (exact, graphs), |ops| {
        Ok(Weights::random(ops, config, WeightFormat::Auto, SEED)?)
    })
}

/// Loads a model on a GPU, with the weights that the function `weights` makes.
pub(crate) fn machine<D: Driver>(
    mut driver: D,
    config: &ModelConfig,
    (exact, graphs): (bool, bool),
    weights: impl FnOnce(&mut CudaOps<D>) -> Result<Weights<CudaOps<D>>, CheckError>,
) -> Result<Machine<CudaOps<D>>, CheckError> {
    let mut kv = CudaKv {
        at: DevicePtr::default(),
        blocks: BLOCKS,
        block_size: BLOCK_SIZE,
        layers: config.layers(),
        kv_heads: config.kv_heads,
        head_dim: config.head_dim,
        q8: false,
    };
    kv.at = driver.allocate(BLOCKS as usize * kv.block_bytes())?;
    // If decode steps may be replayed as CUDA graphs, reserve the last KV block for their padding rows, which write
    // their KV to it; sequences must not use it then.
    let scratch = Some(BlockId(BLOCKS - 1)).filter(|_| graphs);
    let options = CudaOptions { exact, threads: 2, scratch };
    let ops = CudaOps::new(driver, kv, config.heads / config.kv_heads, options)?;
    Machine::new(ops, config, weights)
}

impl<O: Ops> Machine<O> {
    fn new(
        mut ops: O,
        config: &ModelConfig,
        weights: impl FnOnce(&mut O) -> Result<Weights<O>, CheckError>,
    ) -> Result<Self, CheckError> {
        let weights = weights(&mut ops)?;
        let decoder = Decoder::new(&mut ops, config.clone(), weights, limits())?;
        Ok(Machine { ops, decoder })
    }

    /// Runs `steps` with `sequences` sequences in the same batches; returns the logits of the first sequence after each
    /// of its tokens.
    fn run(&mut self, steps: Steps<'_>, sequences: usize) -> Result<Vec<Vec<f32>>, CheckError> {
        let per_sequence = BLOCKS as usize / sequences.max(1);
        let mut all: Vec<Sequence> = (0..sequences)
            .map(|number| Sequence {
                tokens: (0..256).map(|i| ((i * 37 + number * 101 + i * i) % 320) as u32).collect(),
                done: 0,
                // The block table takes KV blocks in descending order, alternating between sequences, so that no block
                // directly follows its predecessor in memory.
                table: (0..per_sequence)
                    .map(|i| BlockId(BLOCKS - 1 - (i * sequences + number) as u32))
                    .collect(),
            })
            .collect();
        let mut logits = Vec::new();
        for (own, other) in steps {
            logits.extend(self.step(&mut all, *own, *other)?);
        }
        Ok(logits)
    }

    /// Computes a prompt in one step and returns the logits after each of its tokens.
    pub(crate) fn logits_of(&mut self, tokens: &[TokenId]) -> Result<Vec<Vec<f32>>, CheckError> {
        let table = (0..BLOCKS).map(BlockId).collect();
        let mut all = [Sequence { tokens: tokens.to_vec(), done: 0, table }];
        self.step(&mut all, tokens.len(), 0)
    }

    fn step(
        &mut self,
        all: &mut [Sequence],
        own: usize,
        other: usize,
    ) -> Result<Vec<Vec<f32>>, CheckError> {
        let (mut inputs, mut seqs, mut sampled) = (Vec::new(), Vec::new(), Vec::new());
        // Put the sequence whose logits are checked last, so that its rows are not the first of the batch.
        for (number, sequence) in all.iter_mut().enumerate().rev() {
            let count = if number == 0 { own } else { other };
            if count == 0 {
                continue;
            }
            let rows = inputs.len()..inputs.len() + count;
            let (first, end) = (sequence.done, sequence.done + count);
            inputs.extend(sequence.tokens[first..end].iter().copied().map(RowInput::Token));
            sequence.done = end;
            if number == 0 {
                sampled.extend(rows.clone());
            }
            let table = Arc::clone(&sequence.table);
            seqs.push(SeqRows { rows, first_pos: first as u32, table });
        }
        let batch = ForwardBatch { inputs: &inputs, seqs: &seqs, sampled: &sampled };
        self.decoder.forward(&mut self.ops, batch);
        let mut found = Vec::new();
        for chunk in self.decoder.logit_chunks() {
            let rows: Vec<Mutex<Vec<f32>>> = chunk.clone().map(|_| Mutex::default()).collect();
            let logits = self.decoder.logits(&mut self.ops, chunk);
            let all: Vec<usize> = (0..rows.len()).collect();
            self.ops.for_each_row(logits, &all, &|row, values| {
                if let Ok(mut row) = rows[row].lock() {
                    *row = values.to_vec();
                }
            });
            found.extend(rows.into_iter().filter_map(|row| row.into_inner().ok()));
        }
        self.ops.finish()?;
        Ok(found)
    }
}
