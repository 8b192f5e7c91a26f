//! Pre-tokenization: cuts text before the BPE merges, as the byte-level vocabulary of a GGUF file requires; its key
//! `tokenizer.ggml.pre` names the rules. The regular expressions are those of the models' own tokenizers.

use super::TokenizerError;
use tokenizers::normalizers::NFC;
use tokenizers::pre_tokenizers::byte_level::ByteLevel;
use tokenizers::pre_tokenizers::sequence::Sequence;
use tokenizers::pre_tokenizers::split::{Split, SplitPattern};
use tokenizers::{NormalizerWrapper, PreTokenizerWrapper, SplitDelimiterBehavior};

const GPT2: &str = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+";
const LLAMA3: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const QWEN2: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const TEKKEN: &str = r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+";

/// Pre-tokenization rules of one family of vocabularies.
#[derive(Debug)]
pub(super) struct Family {
    /// Regular expressions that cut the text, applied in order, each to the pieces that the one before it made.
    splits: &'static [&'static str],
    nfc: bool,
    /// Whether a piece of text that equals a token becomes that token at once, instead of being merged from its bytes.
    pub(super) ignore_merges: bool,
    /// Whether a prompt begins with the beginning-of-text token if the GGUF file does not say.
    pub(super) add_bos: bool,
}

const PLAIN: Family = Family { splits: &[GPT2], nfc: false, ignore_merges: false, add_bos: false };

impl Family {
    /// Returns the pre-tokenization rules that the GGUF key `tokenizer.ggml.pre` names. A file older than the key lacks
    /// it and gets the rules named `default`, as in llama.cpp.
    pub(super) fn named(pre: Option<&str>) -> Result<Family, TokenizerError> {
        let Some(pre) = pre else {
            tracing::warn!(
                "the GGUF file does not name its pre-tokenizer; text may be split into wrong tokens"
            );
            return Family::named(Some("default"));
        };
        Ok(match pre {
            "gpt-2" | "phi-2" | "gigachat" | "roberta-bpe" | "jina-es" | "jina-de" | "mpt"
            | "olmo" => PLAIN,
            "smollm" | "starcoder" | "refact" | "command-r" | "codeshell" | "exaone"
            | "minerva-7b" => Family { splits: &[r"\p{N}", GPT2], ..PLAIN },
            "default" => Family {
                splits: &[r"[\p{P}\$\+<=>\^~\|]+", GPT2, r"\p{N}+", r"[0-9][0-9][0-9]"],
                ..PLAIN
            },
            "llama3" | "llama-v3" | "llama-bpe" | "falcon3" | "pixtral" => {
                Family { splits: &[LLAMA3], ignore_merges: true, add_bos: true, ..PLAIN }
            }
            "dbrx" | "smaug-bpe" => Family { splits: &[LLAMA3], ..PLAIN },
            // Normalise text to NFC for Qwen2, as the models' own tokenizers do; llama.cpp does not.
            "qwen2" | "deepseek-r1-qwen" => Family { splits: &[QWEN2], nfc: true, ..PLAIN },
            "stablelm2" | "hunyuan" | "megrez" => Family { splits: &[QWEN2], ..PLAIN },
            "tekken" => Family { splits: &[TEKKEN], ignore_merges: true, add_bos: true, ..PLAIN },
            other => {
                return Err(TokenizerError::Unsupported {
                    what: format!("the GGUF pre-tokenizer `{other}`"),
                    instead: "use the model's Hugging Face directory with its tokenizer.json",
                });
            }
        })
    }

    pub(super) fn normalizer(&self) -> Option<NormalizerWrapper> {
        self.nfc.then_some(NormalizerWrapper::NFC(NFC))
    }

    pub(super) fn pre_tokenizer(&self) -> Result<PreTokenizerWrapper, TokenizerError> {
        let mut steps: Vec<PreTokenizerWrapper> = Vec::with_capacity(self.splits.len() + 1);
        for pattern in self.splits {
            let pattern = SplitPattern::Regex((*pattern).to_owned());
            let split = Split::new(pattern, SplitDelimiterBehavior::Isolated, false);
            steps.push(split.map_err(|error| TokenizerError::Encode(error.to_string()))?.into());
        }
        steps.push(ByteLevel::new(false, false, false).into());
        Ok(Sequence::new(steps).into())
    }
}
