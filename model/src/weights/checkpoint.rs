//! Checkpoint: a model on disk in either format, with its configuration and its tensors by role.

use super::hf_dir::{HfDir, read_json};
use super::roles::{LayerRole, Role};
use super::stored::{Content, Stored};
use super::{WeightError, quantized};
use crate::arch::{Family, ModelConfig, Quantization};
use crate::gguf::GgufFile;
use crate::source::ModelFiles;
use tiercel_gpu::WeightFormat;
use tiercel_gpu::cpu::packed_bytes;

/// Maximum number of tensor names that a message about missing or unused tensors lists.
const MISSING_SHOWN: usize = 5;

/// A model on disk: its files mapped, its configuration read, and all its tensors present in the right shapes.
pub struct Checkpoint {
    config: ModelConfig,
    store: Store,
}

enum Store {
    Gguf(GgufFile),
    /// A Hugging Face directory, and how its matrices are quantized if they are.
    Hf(HfDir, Option<Quantization>),
}

impl Checkpoint {
    /// Opens a checkpoint and checks that every tensor that its configuration implies is present and has the right
    /// shape.
    ///
    /// # Errors
    /// [`WeightError`].
    pub fn open(files: &ModelFiles) -> Result<Checkpoint, WeightError> {
        let checkpoint = match files {
            ModelFiles::Gguf(path) => {
                let file = GgufFile::open(path)?;
                Checkpoint { config: ModelConfig::from_gguf(&file)?, store: Store::Gguf(file) }
            }
            ModelFiles::HfDir(dir) => {
                let json = read_json(&dir.join("config.json"))?;
                let (config, quantization) =
                    (ModelConfig::from_hf(&json)?, Quantization::from_hf(&json)?);
                Checkpoint { config, store: Store::Hf(HfDir::open(dir)?, quantization) }
            }
        };
        checkpoint.check()?;
        Ok(checkpoint)
    }

    /// Returns the configuration of the model.
    pub fn config(&self) -> &ModelConfig {
        &self.config
    }

    /// Returns the GGUF file if the checkpoint is one; it contains the tokenizer and the chat template too.
    pub fn gguf(&self) -> Option<&GgufFile> {
        match &self.store {
            Store::Gguf(file) => Some(file),
            Store::Hf(..) => None,
        }
    }

    /// Returns the bytes that the weights of the checkpoint take in memory when they are packed in the weight format
    /// `format`.
    ///
    /// # Errors
    /// [`WeightError`] for a tensor that cannot be read. [`Checkpoint::open`] has found all tensors readable.
    pub fn packed_bytes(&self, format: WeightFormat) -> Result<u64, WeightError> {
        let mut bytes = 0_u64;
        for role in Role::required(&self.config) {
            let stored = self.tensor(role)?;
            bytes += match stored.shape[..] {
                [n, k] => packed_bytes(n, k, stored.source(format), format),
                _ => stored.shape.iter().product::<usize>() as u64 * 4,
            };
        }
        Ok(bytes)
    }

    /// Returns the bytes that the weights of the checkpoint take in the memory of a GPU in the weight format `format`,
    /// at least.
    ///
    /// # Errors
    /// As [`Checkpoint::packed_bytes`].
    pub fn cuda_bytes(&self, format: WeightFormat) -> Result<u64, WeightError> {
        let mut bytes = 0_u64;
        for role in Role::required(&self.config) {
            let stored = self.tensor(role)?;
            bytes += match stored.shape[..] {
                [n, k] => stored.cuda_bytes([n, k], format),
                _ => stored.shape.iter().product::<usize>() as u64 * 4,
            };
        }
        Ok(bytes)
    }

    /// Returns whether the checkpoint stores the rows of q and k in the order for interleaved RoPE. Only GGUF files of
    /// the families Llama and Mistral do, because llama.cpp's converter permutes these rows.
    pub(crate) fn permuted(&self) -> bool {
        matches!(self.store, Store::Gguf(_))
            && matches!(self.config.family, Family::Llama | Family::Mistral)
    }

    /// Returns the name that this checkpoint gives the tensor of a role (such as the q matrix of layer 3).
    pub(crate) fn name(&self, role: Role) -> String {
        match &self.store {
            Store::Gguf(_) => role.gguf_name(),
            Store::Hf(..) => role.hf_name(),
        }
    }

    /// Returns the stored tensor of a role (such as the q matrix of layer 3). [`Checkpoint::open`] has found every
    /// required tensor present.
    pub(crate) fn tensor(&self, role: Role) -> Result<Stored<'_>, WeightError> {
        self.find(&self.name(role))?.ok_or_else(|| self.missing(vec![self.name(role)]))
    }

    fn find(&self, name: &str) -> Result<Option<Stored<'_>>, WeightError> {
        let file = match &self.store {
            Store::Hf(dir, quantization) => {
                if let Some(quantization) = quantization
                    && let Some(matrix) = quantized::find(dir, quantization, name)?
                {
                    return Ok(Some(matrix));
                }
                return dir.tensor(name);
            }
            Store::Gguf(file) => file,
        };
        let Some(view) = file.tensor(name) else { return Ok(None) };
        let Some(source) = view.ggml_type.source() else {
            return Err(WeightError::Encoding {
                name: name.to_owned(),
                encoding: view.ggml_type.name().to_owned(),
                supported: "use a file in F32, F16, BF16, Q4_0 to Q8_0 or Q2_K to Q6_K",
            });
        };
        // Reverse the dimensions: ggml lists the fastest-running one first. Each fits `usize`, because the size of the
        // tensor was checked against the size of the file.
        let shape = view.dims.iter().rev().map(|&dim| dim as usize).collect();
        Ok(Some(Stored { shape, content: Content::Encoded(source, view.bytes) }))
    }

    fn check(&self) -> Result<(), WeightError> {
        let roles = Role::required(&self.config);
        let mut missing = Vec::new();
        for &role in &roles {
            let name = self.name(role);
            let Some(stored) = self.find(&name)? else {
                missing.push(name);
                continue;
            };
            let expected = role.shape(&self.config);
            if stored.shape != expected {
                return Err(WeightError::Shape { name, found: stored.shape, expected });
            }
        }
        if !missing.is_empty() {
            return Err(self.missing(missing));
        }
        self.check_unused(&roles)
    }

    fn missing(&self, names: Vec<String>) -> WeightError {
        let mut shown = names[..names.len().min(MISSING_SHOWN)].join(", ");
        if names.len() > MISSING_SHOWN {
            shown.push_str(", ...");
        }
        WeightError::Missing { count: names.len(), shown }
    }

    /// Checks the tensors of the file that this program does not read. Logs a warning, because the model may compute
    /// something that this program leaves out. An unread bias of a layer is an error, unless it is zero: AutoGPTQ
    /// writes zero biases for models without biases.
    fn check_unused(&self, roles: &[Role]) -> Result<(), WeightError> {
        let known: std::collections::HashSet<String> =
            roles.iter().map(|&role| self.name(role)).collect();
        let names: Box<dyn Iterator<Item = &str>> = match &self.store {
            Store::Gguf(file) => Box::new(file.tensor_names()),
            Store::Hf(dir, _) => Box::new(dir.names()),
        };
        let is_part = |name: &str| {
            quantized::weight_of_part(name).is_some_and(|weight| known.contains(&weight))
        };
        let mut unused: Vec<&str> = names
            .filter(|name| !known.contains(*name) && !is_derived(name) && !is_part(name))
            .collect();
        unused.sort_unstable();
        for name in unused.iter().filter(|name| is_bias_of_layer(name)) {
            if !self.find(name)?.is_some_and(|stored| stored.is_zero()) {
                return Err(WeightError::Unread { name: (*name).to_owned() });
            }
        }
        if !unused.is_empty() {
            let shown = &unused[..unused.len().min(MISSING_SHOWN)];
            tracing::warn!(
                count = unused.len(), first = ?shown,
                "the model's file holds tensors that are not used"
            );
        }
        Ok(())
    }
}

fn is_bias_of_layer(name: &str) -> bool {
    name.ends_with(".bias") && (name.starts_with("blk.") || name.starts_with("model.layers."))
}

/// Returns whether a tensor may have no role: the tensor repeats the configuration or another tensor, or is read as a
/// part of the configuration (`rope_freqs.weight`).
fn is_derived(name: &str) -> bool {
    name.ends_with("rotary_emb.inv_freq") || name == "rope_freqs.weight" || name == "lm_head.weight"
}

/// Returns the order of rows that undoes the permutation of q and k by llama.cpp's converter, which interleaves the two
/// halves of every head's rows. Row `i` of the Hugging Face order is row `order[i]` of a GGUF file of the llama family.
pub(crate) fn interleaved_rows(heads: usize, head_dim: usize) -> Vec<u32> {
    let half = head_dim / 2;
    (0..heads * head_dim)
        .map(|row| {
            let (head, i) = (row / head_dim, row % head_dim);
            (head * head_dim + 2 * (i % half) + i / half) as u32
        })
        .collect()
}

/// Returns the number of heads if the tensor belongs to the q or k projection, whose rows RoPE rotates; otherwise
/// `None`.
pub(crate) fn rotated_heads(role: LayerRole, config: &ModelConfig) -> Option<usize> {
    match role {
        LayerRole::Q | LayerRole::QBias => Some(config.heads),
        LayerRole::K | LayerRole::KBias => Some(config.kv_heads),
        _ => None,
    }
}
