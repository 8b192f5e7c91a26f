//! Random weights for a model's sizes: for checks and measurements without model files.

use super::load::{HeadNorms, LayerWeights, Weights};
use crate::arch::ModelConfig;
use half::bf16;
use tiercel_gpu::{MatrixPart, OpError, Ops, SourceType, WeightFormat};

/// Number of different random weights; larger matrices repeat them. A prime, so that the rows of a matrix do not
/// repeat.
const PERIOD: usize = 1_048_573;

/// Source of random bf16 weights, handed out as matrices.
struct Numbers {
    values: Vec<f32>,
    bytes: Vec<u8>,
}

impl<O: Ops> Weights<O> {
    /// Creates random weights for the sizes of a model, scaled so that activations neither vanish nor grow. The same
    /// seed gives the same weights on every device.
    ///
    /// # Errors
    /// [`OpError`]: too little memory, or sizes that the device does not take.
    pub fn random(
        ops: &mut O,
        config: &ModelConfig,
        format: WeightFormat,
        seed: u64,
    ) -> Result<Weights<O>, OpError> {
        let mut numbers = Numbers::new(seed);
        let (hidden, vocab) = (config.hidden_size, config.vocab_size);
        let embedding = numbers.matrix(ops, format, vocab, hidden)?;
        let lm_head = match config.tied_embeddings {
            true => None,
            false => Some(numbers.matrix(ops, format, vocab, hidden)?),
        };
        let layers = (0..config.layers()).map(|_| numbers.layer(ops, config, format));
        let layers = layers.collect::<Result<_, _>>()?;
        Ok(Weights { embedding, lm_head, final_norm: numbers.norm(ops, hidden)?, layers })
    }
}

impl Numbers {
    fn new(seed: u64) -> Numbers {
        // Marsaglia's xorshift generator. Its randomness is weak, but no result depends on that.
        let mut state = seed | 1;
        let mut next = || {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            (state >> 40) as f32 / (1 << 23) as f32 - 1.0
        };
        Numbers { values: (0..PERIOD).map(|_| next()).collect(), bytes: Vec::new() }
    }

    /// Creates a random weight matrix `[n, k]` with standard deviation `1 / sqrt(k)`.
    fn matrix<O: Ops>(
        &mut self,
        ops: &mut O,
        format: WeightFormat,
        n: usize,
        k: usize,
    ) -> Result<O::Matrix, OpError> {
        let scale = (3.0 / k as f32).sqrt();
        let rounded = self.values.iter().flat_map(|v| bf16::from_f32(v * scale).to_le_bytes());
        self.bytes.clear();
        self.bytes.extend(rounded.take(n * k * 2));
        // Rotate the list of random numbers, so that the next matrix starts at another of them.
        self.values.rotate_left(n * k % PERIOD);
        let period = self.bytes.len();
        while self.bytes.len() < n * k * 2 {
            let more = period.min(n * k * 2 - self.bytes.len());
            self.bytes.extend_from_within(..more);
        }
        let source = SourceType::Bf16;
        ops.matrix(&[MatrixPart { n, k, source, bytes: &self.bytes, row_order: None }], format)
    }

    fn vector<O: Ops>(
        &mut self,
        ops: &mut O,
        len: usize,
        (middle, spread): (f32, f32),
    ) -> Result<O::Vector, OpError> {
        let values: Vec<f32> =
            self.values.iter().take(len).map(|value| middle + spread * value).collect();
        self.values.rotate_left(len % PERIOD);
        ops.vector(&values)
    }

    fn norm<O: Ops>(&mut self, ops: &mut O, len: usize) -> Result<O::Vector, OpError> {
        self.vector(ops, len, (1.0, 0.2))
    }

    fn layer<O: Ops>(
        &mut self,
        ops: &mut O,
        config: &ModelConfig,
        format: WeightFormat,
    ) -> Result<LayerWeights<O>, OpError> {
        let (hidden, inter) = (config.hidden_size, config.intermediate_size);
        let (q, qkv) = (config.q_cols(), config.q_cols() + 2 * config.kv_cols());
        Ok(LayerWeights {
            attention_norm: self.norm(ops, hidden)?,
            qkv: self.matrix(ops, format, qkv, hidden)?,
            qkv_bias: match config.qkv_bias {
                true => Some(self.vector(ops, qkv, (0.0, 0.5))?),
                false => None,
            },
            head_norms: match config.head_norms {
                true => Some(HeadNorms {
                    q: self.norm(ops, config.head_dim)?,
                    k: self.norm(ops, config.head_dim)?,
                }),
                false => None,
            },
            output: self.matrix(ops, format, hidden, q)?,
            output_bias: match config.output_bias {
                true => Some(self.vector(ops, hidden, (0.0, 0.5))?),
                false => None,
            },
            mlp_norm: self.norm(ops, hidden)?,
            gate_up: self.matrix(ops, format, 2 * inter, hidden)?,
            down: self.matrix(ops, format, hidden, inter)?,
        })
    }
}
