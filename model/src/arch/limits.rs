//! Accepted ranges of the numbers in a model description, and checks that several fields agree with each other.

use super::{ConfigError, ModelConfig, RopeScaling};
use std::ops::RangeInclusive;

pub(super) const VOCAB: RangeInclusive<u64> = 2..=1 << 20;
pub(super) const HIDDEN: RangeInclusive<u64> = 2..=1 << 16;
pub(super) const INTERMEDIATE: RangeInclusive<u64> = 1..=1 << 19;
pub(super) const LAYERS: RangeInclusive<u64> = 1..=1024;
pub(super) const HEADS: RangeInclusive<u64> = 1..=1024;
pub(super) const HEAD_DIM: RangeInclusive<u64> = 2..=1024;
pub(super) const POSITIONS: RangeInclusive<u64> = 1..=1 << 24;
pub(super) const NORM_EPS: RangeInclusive<f64> = 1e-12..=0.1;
pub(super) const ROPE_THETA: RangeInclusive<f64> = 1.0..=1e12;
pub(super) const ROPE_FACTOR: RangeInclusive<f64> = 1.0..=1e4;

/// Returns an integer of a model description as `usize` if it lies in `range`, otherwise an error. All ranges end far
/// below `usize::MAX`.
pub(super) fn integer(
    field: &str,
    value: u64,
    range: RangeInclusive<u64>,
) -> Result<usize, ConfigError> {
    if range.contains(&value) {
        return Ok(value as usize);
    }
    Err(ConfigError::Range {
        field: field.to_owned(),
        value: value as f64,
        min: *range.start() as f64,
        max: *range.end() as f64,
    })
}

/// Returns a real number of a model description if it lies in `range`, otherwise an error. NaN lies in no range.
pub(super) fn real(
    field: &str,
    value: f64,
    range: RangeInclusive<f64>,
) -> Result<f64, ConfigError> {
    if range.contains(&value) {
        return Ok(value);
    }
    let (min, max) = (*range.start(), *range.end());
    Err(ConfigError::Range { field: field.to_owned(), value, min, max })
}

/// Checks of a model configuration what the ranges of single fields do not cover: that the head counts and the rope
/// factors fit, that the head width is even, and that the rows of q are not too wide.
pub(super) fn check(config: ModelConfig) -> Result<ModelConfig, ConfigError> {
    let fail = |text: String| Err(ConfigError::Inconsistent(text));
    if !config.heads.is_multiple_of(config.kv_heads) {
        let (heads, kv) = (config.heads, config.kv_heads);
        return fail(format!("{heads} attention heads cannot share {kv} key/value heads"));
    }
    if !config.head_dim.is_multiple_of(2) {
        return fail(format!("rotary embedding needs an even head width, not {}", config.head_dim));
    }
    let widest = *HIDDEN.end() as usize * 4;
    if config.q_cols() > widest {
        return fail(format!(
            "{} heads of {} make rows of {}, more than {widest}",
            config.heads,
            config.head_dim,
            config.q_cols()
        ));
    }
    if let RopeScaling::Factors(factors) = &config.rope.scaling
        && factors.len() != config.head_dim / 2
    {
        let (found, half) = (factors.len(), config.head_dim / 2);
        return fail(format!("{found} rope factors for heads that need {half}"));
    }
    Ok(config)
}
