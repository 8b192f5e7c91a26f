//! How the weights of a Hugging Face checkpoint are quantized: the object `quantization_config` of its `config.json`.
//!
//! The lists of modules that are not quantized (`modules_to_not_convert`, `ignore`) are not read: the type of a matrix
//! in the file says whether it is quantized.

use super::ConfigError;
use super::hf::{Fields, object};
use super::limits::integer;
use serde_json::Value;
use std::ops::RangeInclusive;

/// Supported methods, to be listed in error messages.
pub(super) const METHODS: &str = "fp8 (fmt e4m3), compressed-tensors (format float-quantized, and \
     pack-quantized with 4 or 8 bits), awq (version gemm, 4 bits with zero points) and gptq (4 or 8 bits, \
     checkpoint_format gptq or gptq_v2)";

/// Formats of compressed-tensors that are read. A checkpoint that is `naive-quantized` with floats has the tensors of
/// `float-quantized`.
const FORMATS: &[&str] = &["float-quantized", "naive-quantized", "pack-quantized"];

/// Most characters of a value from the file that an error message shows: a hostile file must not flood the log.
const SHOWN: usize = 64;
const BITS: RangeInclusive<u64> = 1..=32;
/// Range of group sizes, and of the rows and columns of blocks, weights.
const GROUP: RangeInclusive<u64> = 1..=1 << 20;
/// Group size that both AutoAWQ and AutoGPTQ assume if the configuration states none.
const DEFAULT_GROUP: usize = 128;
/// Rows and columns of blocks that transformers assumes for `fp8` if the configuration states none.
const DEFAULT_BLOCK: [usize; 2] = [128, 128];

/// How the matrices of a checkpoint are quantized. Matrices may also be stored as floats.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Quantization {
    /// 8-bit floats (E4M3) with a scale per matrix, per row or per block.
    Fp8 {
        /// Rows and columns of the blocks that share a scale, if the checkpoint has scales per block.
        block: Option<[usize; 2]>,
    },
    /// AWQ in the layout `gemm`: integers of 4 bits with zero points.
    Awq {
        /// Inputs of a row that share a scale and a zero point; `None`: all inputs.
        group: Option<usize>,
    },
    /// GPTQ: integers of 4 or 8 bits with zero points.
    Gptq(GptqFormat),
    /// Integers of 4 or 8 bits as compressed-tensors packs them.
    Packed(PackedFormat),
}

/// Settings of a GPTQ checkpoint.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct GptqFormat {
    /// Bits of a weight: 4 or 8.
    pub(crate) bits: usize,
    /// Inputs of a row that share a scale and a zero point; `None`: all inputs.
    pub(crate) group: Option<usize>,
    /// Whether inputs were quantized in the order of their activations (`desc_act`), so that a group's inputs need not
    /// be neighbours.
    pub(crate) act_order: bool,
    /// Whether zero points are stored less 1 (`checkpoint_format` gptq; not gptq_v2).
    pub(crate) zeros_less_one: bool,
    /// Whether the zero points are in the middle of the integers (`sym`), whatever zero points are stored: some
    /// programs store them less 1, others as they are, under the same `checkpoint_format`.
    pub(crate) symmetric: bool,
}

/// Settings of a checkpoint of compressed-tensors with packed integers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct PackedFormat {
    /// Bits of a weight: 4 or 8.
    pub(crate) bits: usize,
    /// Inputs of a row that share a scale; `None`: all inputs.
    pub(crate) group: Option<usize>,
    /// Whether the integers lie around zero, so that there are no zero points.
    pub(crate) symmetric: bool,
}

impl Quantization {
    /// Reads how the weights are quantized from the text of a `config.json`. `None`: they are not.
    ///
    /// # Errors
    /// [`ConfigError`] if a field is wrong or not supported.
    pub(crate) fn from_hf(json: &[u8]) -> Result<Option<Quantization>, ConfigError> {
        let map = object(json)?;
        let Some(fields) = Fields(&map).object("quantization_config")? else { return Ok(None) };
        let Some(method) = fields.text("quant_method")? else {
            let stated = Stated { method: "not stated", path: String::new(), fields };
            return Err(stated.refused("quant_method", "absent"));
        };
        let stated = Stated { method, path: String::new(), fields };
        let found = match method {
            "fp8" => stated.fp8(),
            "compressed-tensors" => stated.compressed_tensors(),
            "awq" => stated.awq(),
            "gptq" => stated.gptq(),
            _ => Err(stated.refused("quant_method", method)),
        };
        found.map(Some)
    }
}

/// An object of the configuration: `quantization_config` itself or an object in it.
struct Stated<'a> {
    method: &'a str,
    /// Names of the objects within `quantization_config` that lead to this one, each with a dot.
    path: String,
    fields: Fields<'a>,
}

impl<'a> Stated<'a> {
    fn refused(&self, field: &str, value: impl ToString) -> ConfigError {
        let cut = |text: &str| text.chars().take(SHOWN).collect::<String>();
        ConfigError::Quantization {
            method: cut(self.method),
            field: format!("{}{}", cut(&self.path), cut(field)),
            value: cut(&value.to_string()),
        }
    }

    /// Returns the object in a field; `None` if it is absent or empty.
    fn inner(&self, field: &str) -> Result<Option<Stated<'a>>, ConfigError> {
        let Some(fields) = self.fields.object(field)? else { return Ok(None) };
        let path = format!("{}{field}.", self.path);
        Ok((!fields.0.is_empty()).then_some(Stated { method: self.method, path, fields }))
    }

    /// Refuses a text field with a value that is not in the list. The field may be absent.
    fn one_of(&self, field: &str, supported: &[&str]) -> Result<Option<&'a str>, ConfigError> {
        let found = self.fields.text(field)?;
        match found {
            Some(text) if !supported.iter().any(|one| one.eq_ignore_ascii_case(text)) => {
                Err(self.refused(field, text))
            }
            _ => Ok(found),
        }
    }

    /// Refuses a field that is true or false with another value than the given one. The field may be absent.
    fn must_be(&self, field: &str, expected: bool) -> Result<(), ConfigError> {
        match self.fields.flag(field)? {
            Some(found) if found != expected => Err(self.refused(field, found)),
            _ => Ok(()),
        }
    }

    /// Returns a number of bits that must be in the list. `names` are the names that the field may have.
    fn bits(&self, names: &[&str], supported: &[usize]) -> Result<usize, ConfigError> {
        for field in names {
            match self.fields.int(field, BITS)? {
                Some(bits) if supported.contains(&bits) => return Ok(bits),
                Some(bits) => return Err(self.refused(field, bits)),
                None => {}
            }
        }
        Err(self.refused(names[0], "absent"))
    }

    /// Returns a group size: `None` if it is -1, which stands for all inputs.
    fn group(&self, names: &[&str]) -> Result<Option<usize>, ConfigError> {
        for field in names {
            match self.fields.get(field) {
                Some(value) if value.as_i64() == Some(-1) => return Ok(None),
                Some(_) => return self.fields.int(field, GROUP),
                None => {}
            }
        }
        Ok(Some(DEFAULT_GROUP))
    }

    /// Returns the rows and columns of blocks: a list of two numbers, or a text such as `128x128`.
    fn block(&self, field: &str) -> Result<Option<[usize; 2]>, ConfigError> {
        let Some(value) = self.fields.get(field) else { return Ok(None) };
        let numbers: Option<Vec<u64>> = match value {
            Value::Array(list) => list.iter().map(Value::as_u64).collect(),
            Value::String(text) => text.split('x').map(|part| part.parse().ok()).collect(),
            _ => None,
        };
        match numbers.as_deref() {
            Some(&[rows, columns]) => {
                Ok(Some([integer(field, rows, GROUP)?, integer(field, columns, GROUP)?]))
            }
            _ => Err(ConfigError::kind(field, "two numbers: the rows and columns of a block")),
        }
    }

    fn fp8(&self) -> Result<Quantization, ConfigError> {
        self.one_of("fmt", &["e4m3"])?;
        let field = "weight_block_size";
        // A checkpoint with a scale for each matrix states `null`. A checkpoint of AutoFP8 states nothing: its single
        // scale is found by the shape of the scale.
        let block = match self.fields.0.contains_key(field) {
            true => self.block(field)?,
            false => Some(DEFAULT_BLOCK),
        };
        Ok(Quantization::Fp8 { block })
    }

    fn compressed_tensors(&self) -> Result<Quantization, ConfigError> {
        let Some(format) = self.one_of("format", FORMATS)? else {
            return Err(self.refused("format", "absent"));
        };
        if let Some(sparsity) = self.inner("sparsity_config")? {
            sparsity.one_of("format", &["dense"])?;
        }
        if self.inner("transform_config")?.is_some() {
            return Err(self.refused("transform_config", "present"));
        }
        let Some(groups) = self.inner("config_groups")? else {
            return Err(self.refused("config_groups", "absent"));
        };
        let mut all: Option<Quantization> = None;
        for name in groups.fields.0.keys() {
            let found = groups.weights_group(name, format)?;
            // Which group a matrix belongs to is not read, so that one description must hold for all groups.
            all = Some(match (all, found) {
                (None | Some(Quantization::Fp8 { block: None }), found) => found,
                (Some(other), Quantization::Fp8 { block: None }) => other,
                (Some(other), found) if other == found => found,
                _ => return Err(groups.refused(&format!("{name}.weights"), "unlike other groups")),
            });
        }
        Ok(all.expect("the list of groups is not empty"))
    }

    /// Checks one group of `config_groups` of compressed-tensors, and returns how its weights are quantized.
    fn weights_group(&self, name: &str, format: &str) -> Result<Quantization, ConfigError> {
        let Some(group) = self.inner(name)? else { return Err(self.refused(name, "absent")) };
        group.one_of("format", &[format])?;
        match group.inner("weights")? {
            None => Err(group.refused("weights", "absent")),
            Some(weights) if format.eq_ignore_ascii_case("pack-quantized") => weights.packed(),
            Some(weights) => weights.float(),
        }
    }

    fn float(&self) -> Result<Quantization, ConfigError> {
        self.bits(&["num_bits"], &[8])?;
        if self.one_of("type", &["float"])?.is_none() {
            return Err(self.refused("type", "absent"));
        }
        self.must_be("symmetric", true)?;
        match self.one_of("strategy", &["tensor", "channel", "block"])? {
            Some(strategy) if strategy.eq_ignore_ascii_case("block") => {
                match self.block("block_structure")? {
                    None => Err(self.refused("block_structure", "absent")),
                    block => Ok(Quantization::Fp8 { block }),
                }
            }
            _ => Ok(Quantization::Fp8 { block: None }),
        }
    }

    fn packed(&self) -> Result<Quantization, ConfigError> {
        self.one_of("type", &["int"])?;
        let group = match self.one_of("strategy", &["group", "channel"])? {
            None => return Err(self.refused("strategy", "absent")),
            Some(strategy) if strategy.eq_ignore_ascii_case("channel") => None,
            Some(_) => match self.fields.int("group_size", GROUP)? {
                None => return Err(self.refused("group_size", "absent")),
                group => group,
            },
        };
        let bits = self.bits(&["num_bits"], &[4, 8])?;
        let symmetric = self.fields.flag("symmetric")?.unwrap_or(true);
        Ok(Quantization::Packed(PackedFormat { bits, group, symmetric }))
    }

    fn awq(&self) -> Result<Quantization, ConfigError> {
        for field in ["version", "format", "checkpoint_format"] {
            self.one_of(field, &["gemm"])?;
        }
        if self.fields.text("backend")? == Some("llm-awq") {
            return Err(self.refused("backend", "llm-awq"));
        }
        self.bits(&["bits", "w_bit"], &[4])?;
        self.must_be("zero_point", true)?;
        Ok(Quantization::Awq { group: self.group(&["group_size", "q_group_size"])? })
    }

    fn gptq(&self) -> Result<Quantization, ConfigError> {
        let mut zeros_less_one = true;
        for field in ["checkpoint_format", "format"] {
            let format = self.one_of(field, &["gptq", "gptq_v2"])?;
            zeros_less_one &= format.is_none_or(|format| format.eq_ignore_ascii_case("gptq"));
        }
        self.must_be("is_marlin_format", false)?;
        self.one_of("pack_dtype", &["int32"])?;
        Ok(Quantization::Gptq(GptqFormat {
            bits: self.bits(&["bits"], &[4, 8])?,
            group: self.group(&["group_size"])?,
            act_order: self.fields.flag("desc_act")?.unwrap_or(false),
            zeros_less_one,
            symmetric: self.fields.flag("sym")?.unwrap_or(false),
        }))
    }
}

#[cfg(test)]
#[path = "quantization_tests.rs"]
mod tests;
