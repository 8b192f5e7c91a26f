//! Packs the weights of a checkpoint into a device: q, k and v become one matrix, gate and up another.

use super::WeightError;
use super::checkpoint::{Checkpoint, interleaved_rows, rotated_heads};
use super::roles::{LayerRole, Role};
use super::stored::{Content, Stored};
use half::{bf16, f16};
use tiercel_gpu::{MatrixPart, OpError, Ops, SourceType, WeightFormat};

/// Weights of a decoder on a device.
pub struct Weights<O: Ops> {
    /// Embedding matrix, `[vocab, hidden]`.
    pub(crate) embedding: O::Matrix,
    /// Output matrix, `[vocab, hidden]`; `None` if it is the embedding matrix.
    pub(crate) lm_head: Option<O::Matrix>,
    pub(crate) final_norm: O::Vector,
    pub(crate) layers: Vec<LayerWeights<O>>,
}

/// Weights of one decoder layer on a device.
pub(crate) struct LayerWeights<O: Ops> {
    pub(crate) attention_norm: O::Vector,
    /// Stacked weight matrix of the q, k and v projections, `[(heads + 2 kv_heads) head_dim, hidden]`.
    pub(crate) qkv: O::Matrix,
    pub(crate) qkv_bias: Option<O::Vector>,
    pub(crate) head_norms: Option<HeadNorms<O>>,
    pub(crate) output: O::Matrix,
    pub(crate) output_bias: Option<O::Vector>,
    pub(crate) mlp_norm: O::Vector,
    /// Stacked weight matrix of the MLP's gate and up projections, `[2 intermediate, hidden]`.
    pub(crate) gate_up: O::Matrix,
    pub(crate) down: O::Matrix,
}

/// Weights of the RMS norms of q and k heads, applied before RoPE.
pub(crate) struct HeadNorms<O: Ops> {
    pub(crate) q: O::Vector,
    pub(crate) k: O::Vector,
}

/// Progress of loading weights, in parts: one per layer and one for the embeddings.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LoadProgress {
    /// Number of parts (layers, embeddings) that are packed so far.
    pub done: usize,
    /// Total number of parts of the model's weights to pack: one for each layer, and one for the embeddings.
    pub total: usize,
}

impl<O: Ops> Weights<O> {
    /// Packs all weights of a checkpoint into a device and logs the packed formats of its matrices (of the layers, the
    /// first stands for all).
    ///
    /// # Errors
    /// [`WeightError`], which names the tensor.
    pub fn load(
        ops: &mut O,
        checkpoint: &Checkpoint,
        format: WeightFormat,
        progress: &mut dyn FnMut(LoadProgress),
    ) -> Result<Weights<O>, WeightError> {
        let config = checkpoint.config();
        let total = config.layers() + 1;
        let mut packer = Packer { ops, checkpoint, format, decoded: Vec::new() };
        let embedding = packer.matrix(&[Role::Embedding])?;
        let lm_head = match config.tied_embeddings {
            true => None,
            false => Some(packer.matrix(&[Role::LmHead])?),
        };
        let final_norm = packer.vector(&[Role::FinalNorm])?;
        progress(LoadProgress { done: 1, total });
        let mut layers = Vec::with_capacity(config.layers());
        for layer in 0..config.layers() {
            layers.push(packer.layer(layer)?);
            progress(LoadProgress { done: layer + 2, total });
        }
        packer.log_decoded();
        let weights = Weights { embedding, lm_head, final_norm, layers };
        weights.log(ops, checkpoint);
        Ok(weights)
    }

    /// Returns the output matrix (hidden state to logits), which is the embedding matrix if the embeddings are tied.
    pub(crate) fn output(&self) -> &O::Matrix {
        self.lm_head.as_ref().unwrap_or(&self.embedding)
    }

    fn log(&self, ops: &O, checkpoint: &Checkpoint) {
        let config = checkpoint.config();
        // Log the packed formats of the first layer only: all layers are packed the same way, except in files with
        // mixed encodings.
        let first = &self.layers[0];
        tracing::info!(
            family = %config.family,
            parameters = config.parameters(),
            layers = config.layers(),
            embedding = ops.describe(&self.embedding),
            output = ops.describe(self.output()),
            qkv = ops.describe(&first.qkv),
            attention_output = ops.describe(&first.output),
            gate_up = ops.describe(&first.gate_up),
            down = ops.describe(&first.down),
            "weights loaded"
        );
    }
}

struct Packer<'a, O: Ops> {
    ops: &'a mut O,
    checkpoint: &'a Checkpoint,
    format: WeightFormat,
    /// Names of quantized matrices that a device holds decoded, although it holds others quantized.
    decoded: Vec<String>,
}

impl<O: Ops> Packer<'_, O> {
    fn layer(&mut self, layer: usize) -> Result<LayerWeights<O>, WeightError> {
        use LayerRole::*;
        let config = self.checkpoint.config();
        let (qkv_bias, output_bias) = (config.qkv_bias, config.output_bias);
        let head_norms = config.head_norms;
        let role = |role| Role::Layer(layer, role);
        Ok(LayerWeights {
            attention_norm: self.vector(&[role(AttentionNorm)])?,
            qkv: self.matrix(&[role(Q), role(K), role(V)])?,
            qkv_bias: self.optional(qkv_bias, &[role(QBias), role(KBias), role(VBias)])?,
            head_norms: match head_norms {
                true => Some(HeadNorms {
                    q: self.vector(&[role(QNorm)])?,
                    k: self.vector(&[role(KNorm)])?,
                }),
                false => None,
            },
            output: self.matrix(&[role(O)])?,
            output_bias: self.optional(output_bias, &[role(OBias)])?,
            mlp_norm: self.vector(&[role(MlpNorm)])?,
            gate_up: self.matrix(&[role(Gate), role(Up)])?,
            down: self.matrix(&[role(Down)])?,
        })
    }

    /// Packs tensors of equal width (such as q, k and v) into one matrix, stacked one below the other.
    fn matrix(&mut self, roles: &[Role]) -> Result<O::Matrix, WeightError> {
        if O::QUANTIZED && self.format == WeightFormat::Auto {
            let stored = roles.iter().map(|&role| self.checkpoint.tensor(role));
            let stored = stored.collect::<Result<Vec<_>, _>>()?;
            let parts: Option<Vec<_>> = stored.iter().map(Stored::held).collect();
            if let Some(parts) = parts
                && let Some(matrix) =
                    self.ops.quantized(&parts).map_err(|source| self.failed(roles, source))?
            {
                return Ok(matrix);
            }
            let quantized = stored.iter().zip(roles).filter(|(stored, _)| stored.is_quantized());
            self.decoded.extend(quantized.map(|(_, role)| self.checkpoint.name(*role)));
        }
        self.floats(roles)
    }

    /// Packs tensors into one matrix. All quantized tensors of the matrix are decoded before, so they are in memory as
    /// floats at the same time.
    fn floats(&mut self, roles: &[Role]) -> Result<O::Matrix, WeightError> {
        let mut tensors = Vec::with_capacity(roles.len());
        for &role in roles {
            let stored = self.checkpoint.tensor(role)?;
            let bytes = stored.bytes(self.format)?;
            tensors.push((role, stored, bytes));
        }
        let mut parts = Vec::with_capacity(roles.len());
        for (role, stored, bytes) in &tensors {
            // Indexing `shape` with 0 and 1 cannot panic: the shapes of all matrices were checked when the checkpoint
            // was opened.
            let (n, k) = (stored.shape[0], stored.shape[1]);
            let (source, row_order) = (stored.source(self.format), self.row_order(*role));
            parts.push(MatrixPart { n, k, source, bytes, row_order });
        }
        self.ops.matrix(&parts, self.format).map_err(|source| self.failed(roles, source))
    }

    fn failed(&self, roles: &[Role], source: OpError) -> WeightError {
        WeightError::Pack { name: self.checkpoint.name(roles[0]), source }
    }

    /// Logs the quantized matrices that the device holds decoded.
    fn log_decoded(&self) {
        if let Some(first) = self.decoded.first() {
            tracing::warn!(
                count = self.decoded.len(),
                first,
                "quantized matrices are held in bf16: the inputs of their groups are not neighbours (desc_act of GPTQ), \
                 their sizes or scales have no kernel, or parts of one matrix differ"
            );
        }
    }

    fn optional(
        &mut self,
        present: bool,
        roles: &[Role],
    ) -> Result<Option<O::Vector>, WeightError> {
        present.then(|| self.vector(roles)).transpose()
    }

    fn vector(&mut self, roles: &[Role]) -> Result<O::Vector, WeightError> {
        let mut values = Vec::new();
        for &role in roles {
            let part =
                floats(&self.checkpoint.tensor(role)?).ok_or_else(|| WeightError::Encoding {
                    name: self.checkpoint.name(role),
                    encoding: "a quantized vector".to_owned(),
                    supported: "norms and biases must be F32, F16 or BF16",
                })?;
            match self.row_order(role) {
                Some(order) => values.extend(order.iter().map(|&row| part[row as usize])),
                None => values.extend(part),
            }
        }
        self.ops.vector(&values).map_err(|source| self.failed(roles, source))
    }

    fn row_order(&self, role: Role) -> Option<Vec<u32>> {
        let Role::Layer(_, role) = role else { return None };
        let config = self.checkpoint.config();
        let heads = rotated_heads(role, config).filter(|_| self.checkpoint.permuted())?;
        Some(interleaved_rows(heads, config.head_dim))
    }
}

/// Converts an unquantized tensor to f32; returns `None` for a quantized tensor.
fn floats(stored: &Stored<'_>) -> Option<Vec<f32>> {
    let Content::Encoded(source, bytes) = stored.content else { return None };
    let pairs = || bytes.chunks_exact(2).map(|b| [b[0], b[1]]);
    match source {
        SourceType::F32 => {
            let words = bytes.chunks_exact(4);
            Some(words.map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]])).collect())
        }
        SourceType::F16 => Some(pairs().map(|b| f16::from_le_bytes(b).to_f32()).collect()),
        SourceType::Bf16 => Some(pairs().map(|b| bf16::from_le_bytes(b).to_f32()).collect()),
        _ => None,
    }
}
