//! Reads a model's configuration from a Hugging Face `config.json`.

use super::limits::{self, integer, real};
use super::{ConfigError, Family, ModelConfig, RopeConfig, RopeScaling};
use serde_json::{Map, Value};
use std::ops::RangeInclusive;

impl ModelConfig {
    /// Reads the configuration of a model from the text of a `config.json`.
    ///
    /// # Errors
    /// [`ConfigError`] if a field is missing, wrong or not supported, or if fields contradict each other.
    pub fn from_hf(json: &[u8]) -> Result<ModelConfig, ConfigError> {
        let map = object(json)?;
        let fields = Fields(&map);
        let family = family(&fields)?;
        refuse_unsupported(&fields)?;
        let layers = fields.need("num_hidden_layers", limits::LAYERS)?;
        let hidden_size = fields.need("hidden_size", limits::HIDDEN)?;
        let heads = fields.need("num_attention_heads", limits::HEADS)?;
        let head_dim = match fields.int("head_dim", limits::HEAD_DIM)? {
            Some(width) => width,
            None => default_head_dim(family, hidden_size, heads)?,
        };
        let bias = fields.flag("attention_bias")?.unwrap_or(false);
        limits::check(ModelConfig {
            family,
            vocab_size: fields.need("vocab_size", limits::VOCAB)?,
            hidden_size,
            intermediate_size: fields.need("intermediate_size", limits::INTERMEDIATE)?,
            heads,
            kv_heads: fields.int("num_key_value_heads", limits::HEADS)?.unwrap_or(heads),
            head_dim,
            norm_eps: fields.real("rms_norm_eps", limits::NORM_EPS)?.unwrap_or(1e-6) as f32,
            max_positions: fields
                .int("max_position_embeddings", limits::POSITIONS)?
                .unwrap_or(default_positions(family)),
            rope: rope(&fields)?,
            tied_embeddings: fields.flag("tie_word_embeddings")?.unwrap_or(false),
            qkv_bias: bias || family == Family::Qwen2,
            output_bias: bias && family != Family::Qwen2,
            head_norms: family == Family::Qwen3,
            windows: windows(&fields, family, layers)?,
        })
    }
}

/// Parses the text of a `config.json` as a JSON object.
pub(super) fn object(json: &[u8]) -> Result<Map<String, Value>, ConfigError> {
    let value: Value =
        serde_json::from_slice(json).map_err(|error| ConfigError::Syntax(error.to_string()))?;
    match value {
        Value::Object(map) => Ok(map),
        _ => Err(ConfigError::Syntax("it is not a JSON object".to_owned())),
    }
}

/// Typed access to the fields of a JSON object; a field that is `null` counts as absent.
pub(super) struct Fields<'a>(pub(super) &'a Map<String, Value>);

impl<'a> Fields<'a> {
    pub(super) fn get(&self, field: &str) -> Option<&'a Value> {
        self.0.get(field).filter(|value| !value.is_null())
    }

    pub(super) fn int(
        &self,
        field: &str,
        range: RangeInclusive<u64>,
    ) -> Result<Option<usize>, ConfigError> {
        let Some(value) = self.get(field) else { return Ok(None) };
        match value.as_u64() {
            Some(number) => integer(field, number, range).map(Some),
            None => Err(ConfigError::kind(field, "a whole number, not negative")),
        }
    }

    fn need(&self, field: &str, range: RangeInclusive<u64>) -> Result<usize, ConfigError> {
        self.int(field, range)?.ok_or_else(|| ConfigError::Missing(field.to_owned()))
    }

    fn real(&self, field: &str, range: RangeInclusive<f64>) -> Result<Option<f64>, ConfigError> {
        let Some(value) = self.get(field) else { return Ok(None) };
        match value.as_f64() {
            Some(number) => real(field, number, range).map(Some),
            None => Err(ConfigError::kind(field, "a number")),
        }
    }

    pub(super) fn flag(&self, field: &str) -> Result<Option<bool>, ConfigError> {
        let Some(value) = self.get(field) else { return Ok(None) };
        value.as_bool().map(Some).ok_or_else(|| ConfigError::kind(field, "true or false"))
    }

    pub(super) fn text(&self, field: &str) -> Result<Option<&'a str>, ConfigError> {
        let Some(value) = self.get(field) else { return Ok(None) };
        value.as_str().map(Some).ok_or_else(|| ConfigError::kind(field, "a string"))
    }

    pub(super) fn object(&self, field: &str) -> Result<Option<Fields<'a>>, ConfigError> {
        let Some(value) = self.get(field) else { return Ok(None) };
        let map = value.as_object().ok_or_else(|| ConfigError::kind(field, "an object"))?;
        Ok(Some(Fields(map)))
    }
}

fn family(fields: &Fields<'_>) -> Result<Family, ConfigError> {
    let first = fields.get("architectures").and_then(|list| list.get(0)).and_then(Value::as_str);
    let found = match first {
        Some(name) => name,
        None => fields
            .text("model_type")?
            .ok_or_else(|| ConfigError::Missing("architectures".to_owned()))?,
    };
    match found {
        "LlamaForCausalLM" | "llama" => Ok(Family::Llama),
        "MistralForCausalLM" | "mistral" => Ok(Family::Mistral),
        "Qwen2ForCausalLM" | "qwen2" => Ok(Family::Qwen2),
        "Qwen3ForCausalLM" | "qwen3" => Ok(Family::Qwen3),
        // Cut the unknown architecture's name to 64 characters: it goes to a log line, which a hostile file must not
        // flood.
        other => Err(ConfigError::Architecture { found: other.chars().take(64).collect() }),
    }
}

fn refuse_unsupported(fields: &Fields<'_>) -> Result<(), ConfigError> {
    if let Some(activation) = fields.text("hidden_act")?
        && activation != "silu"
    {
        return Err(ConfigError::unsupported("hidden_act", activation, "silu"));
    }
    if fields.flag("mlp_bias")? == Some(true) {
        return Err(ConfigError::unsupported("mlp_bias", true, "false"));
    }
    if let Some(partial) = fields.real("partial_rotary_factor", 0.0..=1.0)?
        && partial != 1.0
    {
        return Err(ConfigError::unsupported("partial_rotary_factor", partial, "1"));
    }
    Ok(())
}

fn default_head_dim(family: Family, hidden: usize, heads: usize) -> Result<usize, ConfigError> {
    if family == Family::Qwen3 {
        return Ok(128);
    }
    if !hidden.is_multiple_of(heads) {
        return Err(ConfigError::Inconsistent(format!(
            "hidden_size {hidden} is not a multiple of {heads} attention heads"
        )));
    }
    integer("hidden_size / num_attention_heads", (hidden / heads) as u64, limits::HEAD_DIM)
}

/// Returns the maximum context length, tokens, that the model family's Hugging Face class assumes if `config.json`
/// states none.
fn default_positions(family: Family) -> usize {
    match family {
        Family::Llama => 2048,
        Family::Mistral => 131_072,
        Family::Qwen2 | Family::Qwen3 => 32_768,
    }
}

fn rope(fields: &Fields<'_>) -> Result<RopeConfig, ConfigError> {
    // transformers 5 keeps all RoPE settings in the object `rope_parameters` of `config.json`; earlier versions use the
    // fields `rope_theta` and `rope_scaling`.
    let parameters = fields.object("rope_parameters")?;
    let theta = match &parameters {
        Some(inner) => inner.real("rope_theta", limits::ROPE_THETA)?,
        None => None,
    };
    let theta = match theta {
        Some(theta) => theta,
        None => fields.real("rope_theta", limits::ROPE_THETA)?.unwrap_or(10_000.0),
    };
    let scaling = match parameters {
        Some(inner) => Some(inner),
        None => fields.object("rope_scaling")?,
    };
    let scaling = scaling.map_or(Ok(RopeScaling::None), |inner| rope_scaling(&inner))?;
    Ok(RopeConfig { theta: theta as f32, scaling })
}

fn rope_scaling(inner: &Fields<'_>) -> Result<RopeScaling, ConfigError> {
    let kind = match inner.text("rope_type")? {
        Some(kind) => kind,
        None => inner.text("type")?.unwrap_or("default"),
    };
    let need = |field: &str, range| -> Result<f32, ConfigError> {
        let value = inner.real(field, range)?;
        Ok(value.ok_or_else(|| ConfigError::Missing(format!("rope_scaling.{field}")))? as f32)
    };
    match kind {
        "default" => Ok(RopeScaling::None),
        "linear" => Ok(RopeScaling::Linear { factor: need("factor", limits::ROPE_FACTOR)? }),
        "llama3" => {
            let low_freq_factor = need("low_freq_factor", 1e-3..=1e4)?;
            let high_freq_factor = need("high_freq_factor", 1e-3..=1e4)?;
            if high_freq_factor <= low_freq_factor {
                return Err(ConfigError::Inconsistent(format!(
                    "rope_scaling.high_freq_factor {high_freq_factor} must exceed \
                     low_freq_factor {low_freq_factor}"
                )));
            }
            Ok(RopeScaling::Llama3 {
                factor: need("factor", limits::ROPE_FACTOR)?,
                low_freq_factor,
                high_freq_factor,
                original_positions: need("original_max_position_embeddings", 1.0..=16_777_216.0)?,
            })
        }
        other => {
            let shown: String = other.chars().take(64).collect();
            Err(ConfigError::unsupported(
                "rope_scaling.rope_type",
                shown,
                "default, linear, llama3",
            ))
        }
    }
}

fn windows(
    fields: &Fields<'_>,
    family: Family,
    layers: usize,
) -> Result<Vec<Option<u32>>, ConfigError> {
    let window = fields.int("sliding_window", limits::POSITIONS)?.map(|window| window as u32);
    let window = match family {
        Family::Llama => None,
        // A Mistral model has no sliding window only if `config.json` states `null`. Without the field, the default of
        // the Hugging Face class holds.
        Family::Mistral if !fields.0.contains_key("sliding_window") => Some(4096),
        Family::Mistral => window,
        Family::Qwen2 | Family::Qwen3 => {
            window.filter(|_| matches!(fields.flag("use_sliding_window"), Ok(Some(true))))
        }
    };
    if family == Family::Llama || family == Family::Mistral || window.is_none() {
        return Ok(vec![window; layers]);
    }
    if let Some(types) = fields.get("layer_types") {
        return layer_types(types, window, layers);
    }
    let first = fields.int("max_window_layers", 0..=*limits::LAYERS.end())?.unwrap_or(28);
    Ok((0..layers).map(|layer| window.filter(|_| layer >= first)).collect())
}

fn layer_types(
    types: &Value,
    window: Option<u32>,
    layers: usize,
) -> Result<Vec<Option<u32>>, ConfigError> {
    let list = types.as_array().ok_or_else(|| ConfigError::kind("layer_types", "a list"))?;
    if list.len() != layers {
        return Err(ConfigError::Inconsistent(format!(
            "layer_types describes {} layers of {layers}",
            list.len()
        )));
    }
    list.iter()
        .map(|entry| match entry.as_str() {
            Some("full_attention") => Ok(None),
            Some("sliding_attention") => Ok(window),
            _ => Err(ConfigError::kind(
                "layer_types",
                "a list of \"full_attention\" and \"sliding_attention\"",
            )),
        })
        .collect()
}

#[cfg(test)]
#[path = "hf_tests.rs"]
mod tests;
