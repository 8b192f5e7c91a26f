//! What a decoder is made of: one [`ModelConfig`] for Llama 2/3, SmolLM2, Mistral, Qwen2 and Qwen3, read
//! from a Hugging Face `config.json` ([`ModelConfig::from_hf`]) or from GGUF metadata
//! ([`ModelConfig::from_gguf`]).
//!
//! Files are not trusted: every number has a range, and what is outside it is an error that names the
//! field. Sizes that pass here can be multiplied in `usize` without overflow.

mod error;
mod gguf;
mod hf;
mod limits;
mod rope;

pub use error::ConfigError;
pub use rope::{RopeConfig, RopeScaling};

use std::fmt;
use tiercel_gpu::AttentionShape;

/// The families of decoders that the forward pass covers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Family {
    /// Llama 2 and 3, SmolLM2 and everything else that calls itself `llama`.
    Llama,
    /// Mistral: Llama with a sliding window in its first version.
    Mistral,
    /// Qwen2 and Qwen2.5: biases on q, k and v.
    Qwen2,
    /// Qwen3: RMS norms on the heads of q and k.
    Qwen3,
}

impl Family {
    /// All families, for error messages.
    pub const ALL: [Family; 4] = [Family::Llama, Family::Mistral, Family::Qwen2, Family::Qwen3];

    /// The name used in files and logs.
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

/// The shape of a decoder. All sizes are checked: see the ranges in [`ModelConfig::from_hf`]'s errors.
#[derive(Debug, Clone, PartialEq)]
pub struct ModelConfig {
    /// Which family, for logs and for how a GGUF file stores q and k.
    pub family: Family,
    /// Rows of the embedding.
    pub vocab_size: usize,
    /// Width of the residual stream.
    pub hidden_size: usize,
    /// Width of the MLP.
    pub intermediate_size: usize,
    /// Query heads.
    pub heads: usize,
    /// Key/value heads; divides `heads`.
    pub kv_heads: usize,
    /// Width of a head; even.
    pub head_dim: usize,
    /// Added to the mean square in every RMS norm.
    pub norm_eps: f32,
    /// Longest context the model was made for, tokens.
    pub max_positions: usize,
    /// Rotary embedding.
    pub rope: RopeConfig,
    /// The output matrix is the embedding.
    pub tied_embeddings: bool,
    /// q, k and v have a bias.
    pub qkv_bias: bool,
    /// The attention's output projection has a bias.
    pub output_bias: bool,
    /// Heads of q and k are normalised before RoPE.
    pub head_norms: bool,
    /// One entry per layer: `Some(w)` sees the last `w` positions only, its own included.
    pub windows: Vec<Option<u32>>,
}

impl ModelConfig {
    /// Number of layers.
    pub fn layers(&self) -> usize {
        self.windows.len()
    }

    /// The attention of one layer, as the op set wants it.
    pub fn attention(&self, layer: usize) -> AttentionShape {
        AttentionShape {
            heads: self.heads,
            kv_heads: self.kv_heads,
            head_dim: self.head_dim,
            scale: 1.0 / (self.head_dim as f32).sqrt(),
            sliding_window: self.windows[layer],
        }
    }

    /// Columns of all query heads.
    pub fn q_cols(&self) -> usize {
        self.heads * self.head_dim
    }

    /// Columns of all key heads, and of all value heads.
    pub fn kv_cols(&self) -> usize {
        self.kv_heads * self.head_dim
    }

    /// Number of weights, embeddings counted once if tied.
    pub fn parameters(&self) -> u64 {
        let (hidden, inter) = (self.hidden_size as u64, self.intermediate_size as u64);
        let attention = hidden * (2 * self.q_cols() as u64 + 2 * self.kv_cols() as u64);
        let layer = attention + 3 * hidden * inter + 2 * hidden;
        let embeddings = if self.tied_embeddings { 1 } else { 2 };
        layer * self.layers() as u64 + embeddings * hidden * self.vocab_size as u64 + hidden
    }
}
