//! The configuration of a decoder: one [`ModelConfig`] for Llama 2/3, SmolLM2, Mistral, Qwen2 and Qwen3, read from a
//! Hugging Face `config.json` ([`ModelConfig::from_hf`]) or from GGUF metadata ([`ModelConfig::from_gguf`]).
//!
//! Files are not trusted. Every number has a range, and a number outside its range is an error that names the field.
//! Sizes within their ranges can be multiplied in `usize` without overflow.

mod error;
mod gguf;
mod hf;
mod limits;
mod quantization;
mod rope;

pub use error::ConfigError;
pub(crate) use quantization::{GptqFormat, PackedFormat, Quantization};
pub use rope::{RopeConfig, RopeScaling};

use std::fmt;
use tiercel_gpu::AttentionShape;

/// A family of decoder models that the forward pass supports.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Family {
    /// Llama 2 and 3, SmolLM2 and every other model whose file states the architecture `llama`.
    Llama,
    /// Mistral: like Llama; its first version has sliding-window attention.
    Mistral,
    /// Qwen2 and Qwen2.5: like Llama, with biases on the q, k and v projections.
    Qwen2,
    /// Qwen3: like Llama, with RMS norms on the q and k heads.
    Qwen3,
}

impl Family {
    /// All supported model families, to be listed in error messages.
    pub const ALL: [Family; 4] = [Family::Llama, Family::Mistral, Family::Qwen2, Family::Qwen3];

    /// Returns the name of the model family as files and logs spell it, such as `llama`.
    pub fn name(self) -> &'static str {
        match self {
            Family::Llama => "llama",
            Family::Mistral => "mistral",
            Family::Qwen2 => "qwen2",
            Family::Qwen3 => "qwen3",
        }
    }
}

impl fmt::Display for Family {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Configuration of a decoder model. All sizes have been checked; the errors of [`ModelConfig::from_hf`] name their
/// ranges.
#[derive(Debug, Clone, PartialEq)]
pub struct ModelConfig {
    /// Model family, used in logs and to know the order in which a GGUF file stores the rows of q and k.
    pub family: Family,
    /// Size of the vocabulary: rows of the embedding matrix.
    pub vocab_size: usize,
    /// Width of the residual stream.
    pub hidden_size: usize,
    /// Width of the MLP's inner layer.
    pub intermediate_size: usize,
    /// Number of query heads.
    pub heads: usize,
    /// Number of key/value heads; divides `heads`.
    pub kv_heads: usize,
    /// Width of an attention head; even.
    pub head_dim: usize,
    /// Epsilon that is added to the mean square in every RMS norm.
    pub norm_eps: f32,
    /// Longest context that the model was made for, tokens.
    pub max_positions: usize,
    /// Settings of the rotary embedding (RoPE).
    pub rope: RopeConfig,
    /// Whether embeddings are tied: the output matrix is the embedding matrix.
    pub tied_embeddings: bool,
    /// Whether the q, k and v projections have biases.
    pub qkv_bias: bool,
    /// Whether the attention's output projection has a bias.
    pub output_bias: bool,
    /// Whether the q and k heads are RMS-normalised before RoPE.
    pub head_norms: bool,
    /// Sliding window of each layer's attention: with `Some(w)`, a position attends to the last `w` positions only,
    /// itself included.
    pub windows: Vec<Option<u32>>,
}

impl ModelConfig {
    /// Returns the number of layers of the model.
    pub fn layers(&self) -> usize {
        self.windows.len()
    }

    /// Returns the attention shape of one layer (heads, head width, sliding window) in the form that the op set takes.
    pub fn attention(&self, layer: usize) -> AttentionShape {
        AttentionShape {
            heads: self.heads,
            kv_heads: self.kv_heads,
            head_dim: self.head_dim,
            scale: 1.0 / (self.head_dim as f32).sqrt(),
            sliding_window: self.windows[layer],
        }
    }

    /// Returns the total width of the query projection: query heads times head dimension.
    pub fn q_cols(&self) -> usize {
        self.heads * self.head_dim
    }

    /// Returns the width of the key projection, and of the value projection: KV heads times head dimension.
    pub fn kv_cols(&self) -> usize {
        self.kv_heads * self.head_dim
    }

    /// Returns the number of weights of the model, without biases and head norms. Tied embeddings count once.
    pub fn parameters(&self) -> u64 {
        let (hidden, inter) = (self.hidden_size as u64, self.intermediate_size as u64);
        let attention = hidden * (2 * self.q_cols() as u64 + 2 * self.kv_cols() as u64);
        let layer = attention + 3 * hidden * inter + 2 * hidden;
        let embeddings = if self.tied_embeddings { 1 } else { 2 };
        layer * self.layers() as u64 + embeddings * hidden * self.vocab_size as u64 + hidden
    }
}
