//! Reads a model's configuration from the metadata of a GGUF file.

use super::limits::{self, integer, real};
use super::{ConfigError, Family, ModelConfig, RopeConfig, RopeScaling};
use crate::gguf::{GgmlType, GgufFile, Metadata};
use std::ops::RangeInclusive;

const ROPE_FACTORS: &str = "rope_freqs.weight";

impl ModelConfig {
    /// Reads the configuration of a model from the metadata of an open GGUF file. Vocabulary size, tied embeddings,
    /// biases and rope factors are not in the metadata and are read from the tensors.
    ///
    /// # Errors
    /// [`ConfigError`] if a key is missing, wrong or not supported, or if keys contradict each other.
    pub fn from_gguf(file: &GgufFile) -> Result<ModelConfig, ConfigError> {
        let metadata = file.metadata();
        let family = family(&metadata)?;
        let keys = Keys { metadata, family };
        let layers = keys.need("block_count", limits::LAYERS)?;
        let hidden_size = keys.need("embedding_length", limits::HIDDEN)?;
        let heads = keys.need("attention.head_count", limits::HEADS)?;
        let head_dim = head_dim(&keys, hidden_size, heads)?;
        refuse_unsupported(&keys, head_dim)?;
        let window = keys.int("attention.sliding_window", 0..=*limits::POSITIONS.end())?;
        let window = window.filter(|&window| window > 0).map(|window| window as u32);
        limits::check(ModelConfig {
            family,
            vocab_size: vocab_size(file)?,
            hidden_size,
            intermediate_size: keys.need("feed_forward_length", limits::INTERMEDIATE)?,
            heads,
            kv_heads: keys.int("attention.head_count_kv", limits::HEADS)?.unwrap_or(heads),
            head_dim,
            norm_eps: keys
                .real("attention.layer_norm_rms_epsilon", limits::NORM_EPS)?
                .ok_or_else(|| keys.missing("attention.layer_norm_rms_epsilon"))?
                as f32,
            max_positions: keys.need("context_length", limits::POSITIONS)?,
            rope: rope(&keys, file)?,
            tied_embeddings: file.tensor("output.weight").is_none(),
            qkv_bias: file.tensor("blk.0.attn_q.bias").is_some(),
            output_bias: file.tensor("blk.0.attn_output.bias").is_some(),
            head_norms: family == Family::Qwen3,
            windows: vec![window; layers],
        })
    }
}

/// Typed access to the GGUF metadata keys that begin with the name of a model's architecture (`llama.block_count`,
/// ...).
struct Keys<'a> {
    metadata: Metadata<'a>,
    family: Family,
}

impl Keys<'_> {
    fn key(&self, name: &str) -> String {
        format!("{}.{name}", self.family)
    }

    fn missing(&self, name: &str) -> ConfigError {
        ConfigError::Missing(self.key(name))
    }

    fn int(&self, name: &str, range: RangeInclusive<u64>) -> Result<Option<usize>, ConfigError> {
        let key = self.key(name);
        let value = self.metadata.u32(&key).map_err(metadata_error)?;
        value.map(|value| integer(&key, value.into(), range)).transpose()
    }

    fn need(&self, name: &str, range: RangeInclusive<u64>) -> Result<usize, ConfigError> {
        self.int(name, range)?.ok_or_else(|| self.missing(name))
    }

    fn real(&self, name: &str, range: RangeInclusive<f64>) -> Result<Option<f64>, ConfigError> {
        let key = self.key(name);
        let value = self.metadata.f32(&key).map_err(metadata_error)?;
        value.map(|value| real(&key, value.into(), range)).transpose()
    }
}

fn metadata_error(error: crate::gguf::GgufError) -> ConfigError {
    ConfigError::Metadata(error.to_string())
}

fn family(metadata: &Metadata<'_>) -> Result<Family, ConfigError> {
    let field = "general.architecture";
    let found = metadata.str(field).map_err(metadata_error)?;
    match found.ok_or_else(|| ConfigError::Missing(field.to_owned()))? {
        "llama" => Ok(Family::Llama),
        "mistral" => Ok(Family::Mistral),
        "qwen2" => Ok(Family::Qwen2),
        "qwen3" => Ok(Family::Qwen3),
        other => Err(ConfigError::Architecture { found: other.chars().take(64).collect() }),
    }
}

fn head_dim(keys: &Keys<'_>, hidden: usize, heads: usize) -> Result<usize, ConfigError> {
    let Some(key) = keys.int("attention.key_length", limits::HEAD_DIM)? else {
        if hidden.is_multiple_of(heads) {
            let field = "embedding_length / attention.head_count";
            return integer(field, (hidden / heads) as u64, limits::HEAD_DIM);
        }
        return Err(ConfigError::Inconsistent(format!(
            "embedding_length {hidden} is not a multiple of {heads} attention heads"
        )));
    };
    let value = keys.int("attention.value_length", limits::HEAD_DIM)?.unwrap_or(key);
    if value != key {
        return Err(ConfigError::unsupported(
            &keys.key("attention.value_length"),
            value,
            "the same width as attention.key_length",
        ));
    }
    Ok(key)
}

fn refuse_unsupported(keys: &Keys<'_>, head_dim: usize) -> Result<(), ConfigError> {
    if let Some(rotated) = keys.int("rope.dimension_count", 0..=u32::MAX.into())?
        && rotated != head_dim
    {
        let field = keys.key("rope.dimension_count");
        return Err(ConfigError::unsupported(&field, rotated, "the width of a head"));
    }
    if let Some(experts) = keys.int("expert_count", 0..=u32::MAX.into())?
        && experts > 0
    {
        return Err(ConfigError::unsupported(&keys.key("expert_count"), experts, "dense models"));
    }
    Ok(())
}

fn vocab_size(file: &GgufFile) -> Result<usize, ConfigError> {
    let name = "token_embd.weight";
    let tensor = file.tensor(name).ok_or_else(|| ConfigError::Missing(name.to_owned()))?;
    let rows = tensor.dims.get(1).copied().unwrap_or(1);
    integer("rows of token_embd.weight", rows, limits::VOCAB)
}

fn rope(keys: &Keys<'_>, file: &GgufFile) -> Result<RopeConfig, ConfigError> {
    let theta = keys.real("rope.freq_base", limits::ROPE_THETA)?.unwrap_or(10_000.0) as f32;
    let key = keys.key("rope.scaling.type");
    let kind = keys.metadata.str(&key).map_err(metadata_error)?;
    let factor = match keys.real("rope.scaling.factor", 0.0..=*limits::ROPE_FACTOR.end())? {
        Some(factor) => Some(factor),
        None => keys.real("rope.scale_linear", 0.0..=*limits::ROPE_FACTOR.end())?,
    };
    // Older GGUF files have no RoPE scaling type, only a factor. Some files write a factor of 0 or 1 for no scaling.
    let factor = factor.filter(|&factor| factor > 1.0).map(|factor| factor as f32);
    let linear = factor.map_or(RopeScaling::None, |factor| RopeScaling::Linear { factor });
    let scaling = match (kind, factors(file)?) {
        (Some("none") | None, Some(factors)) => RopeScaling::Factors(factors),
        (Some("none"), None) => RopeScaling::None,
        (Some("linear") | None, None) => linear,
        (other, _) => {
            let shown: String = other.unwrap_or_default().chars().take(64).collect();
            let supported = "none, linear, or a rope_freqs tensor";
            return Err(ConfigError::unsupported(&key, shown, supported));
        }
    };
    Ok(RopeConfig { theta, scaling })
}

fn factors(file: &GgufFile) -> Result<Option<Vec<f32>>, ConfigError> {
    let Some(tensor) = file.tensor(ROPE_FACTORS) else { return Ok(None) };
    let most = *limits::HEAD_DIM.end() / 2;
    if tensor.ggml_type != GgmlType::F32 || tensor.dims.iter().product::<u64>() > most {
        return Err(ConfigError::kind(ROPE_FACTORS, "at most 512 f32 numbers"));
    }
    let values = tensor.bytes.chunks_exact(4).map(|bytes| {
        let value = f32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]);
        real(ROPE_FACTORS, value.into(), 1e-3..=1e6).map(|value| value as f32)
    });
    values.collect::<Result<Vec<f32>, _>>().map(Some)
}

#[cfg(test)]
#[path = "gguf_tests.rs"]
mod tests;
