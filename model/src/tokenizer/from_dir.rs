//! Builds tokenizers from Hugging Face directories: `tokenizer.json` and the configuration files beside it.

use super::encoder::Encoder;
use super::vocab::{ByteChars, byte_token};
use super::{SpecialTokens, Tokenizer, TokenizerError, Vocab};
use serde_json::Value;
use std::fs::File;
use std::io::Read;
use std::path::Path;
use tiercel_device::TokenId;

/// Largest accepted `tokenizer.json`, bytes. The largest vocabularies in use take 33 MB.
const TOKENIZER_BYTES_MAX: u64 = 256 << 20;
const CONFIG_BYTES_MAX: u64 = 16 << 20;
/// Maximum number of token ids of a vocabulary. A file with more ids is taken as an attempt to exhaust memory.
const VOCAB_MAX: usize = 1 << 22;
const SENTENCE_PIECE_SPACE: &str = "\u{2581}";

/// Builds the tokenizer of a Hugging Face directory.
pub(super) fn read(dir: &Path) -> Result<Tokenizer, TokenizerError> {
    let path = dir.join("tokenizer.json");
    let bytes = read_bounded(&path, TOKENIZER_BYTES_MAX)?;
    let invalid = |reason: String| TokenizerError::Invalid { path: path.clone(), reason };
    let mut encoder =
        tokenizers::Tokenizer::from_bytes(&bytes).map_err(|error| invalid(error.to_string()))?;
    // Turn off truncation and padding: some `tokenizer.json` files still hold these settings of a training run.
    encoder.with_truncation(None).map_err(|error| invalid(error.to_string()))?;
    encoder.with_padding(None);
    let decoder = match encoder.get_decoder() {
        None => Decoding::Literal,
        Some(decoder) => {
            let json = serde_json::to_value(decoder).map_err(|error| invalid(error.to_string()))?;
            Decoding::of(&json)?
        }
    };
    let vocab = vocab(&encoder, decoder).map_err(invalid)?;
    let special = special_tokens(dir, &encoder)?;
    let encoder = Encoder::from_hugging_face(encoder, None);
    Tokenizer::new(encoder, vocab, special)
}

/// Reads a JSON configuration file of a model directory; returns `None` if the file does not exist.
///
/// # Errors
/// The file cannot be read, is too large, or is not JSON.
pub(crate) fn read_config(path: &Path) -> Result<Option<Value>, TokenizerError> {
    if !path.exists() {
        return Ok(None);
    }
    let bytes = read_bounded(path, CONFIG_BYTES_MAX)?;
    let json = serde_json::from_slice(&bytes);
    json.map(Some).map_err(|error| TokenizerError::Invalid {
        path: path.to_owned(),
        reason: error.to_string(),
    })
}

fn read_bounded(path: &Path, limit: u64) -> Result<Vec<u8>, TokenizerError> {
    let io = |source| TokenizerError::Io { path: path.to_owned(), source };
    let file = File::open(path).map_err(io)?;
    let bytes = file.metadata().map_err(io)?.len();
    if bytes > limit {
        return Err(TokenizerError::FileTooLarge { path: path.to_owned(), bytes, limit });
    }
    let mut content = Vec::new();
    file.take(limit).read_to_end(&mut content).map_err(io)?;
    Ok(content)
}

/// Notation in which the vocabulary of a `tokenizer.json` writes the bytes of its tokens.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Decoding {
    /// Literal notation: the vocabulary lists each token as the text that the token stands for.
    Literal,
    /// Byte-level vocabulary: each character of a token stands for one byte (GPT-2's table).
    ByteLevel,
    /// SentencePiece vocabulary: `▁` stands for a space. With `byte_fallback`, a token like `<0x0A>` stands for a byte.
    SentencePiece { byte_fallback: bool, strips_leading_space: bool },
}

impl Decoding {
    /// Recognises the notation of the vocabulary's tokens from the decoder in `tokenizer.json`. A decoder with a step
    /// that no supported model family uses is refused.
    fn of(decoder: &Value) -> Result<Decoding, TokenizerError> {
        let unsupported = |what: &str| TokenizerError::Unsupported {
            what: format!("the decoder {what} of tokenizer.json"),
            instead: "only byte-level and SentencePiece vocabularies can be decoded in a stream",
        };
        let steps = match decoder["type"].as_str() {
            Some("Sequence") => decoder["decoders"].as_array().map_or(&[][..], Vec::as_slice),
            _ => std::slice::from_ref(decoder),
        };
        let (mut spaces, mut byte_fallback, mut strips_leading_space) = (false, false, false);
        for step in steps {
            match step["type"].as_str().unwrap_or("") {
                "ByteLevel" => return Ok(Decoding::ByteLevel),
                "ByteFallback" => byte_fallback = true,
                "Fuse" => {}
                "Replace"
                    if step["content"] == " "
                        && step["pattern"]["String"] == SENTENCE_PIECE_SPACE =>
                {
                    spaces = true;
                }
                "Strip" if step["content"] == " " && step["stop"] == 0 => {
                    strips_leading_space |= step["start"] == 1;
                }
                "Metaspace" if step["replacement"] == SENTENCE_PIECE_SPACE => {
                    spaces = true;
                    strips_leading_space |= step["prepend_scheme"] != "never";
                }
                other => return Err(unsupported(other)),
            }
        }
        if spaces || byte_fallback {
            Ok(Decoding::SentencePiece { byte_fallback, strips_leading_space })
        } else {
            Ok(Decoding::Literal)
        }
    }

    fn bytes(self, token: &str, chars: &ByteChars) -> Vec<u8> {
        match self {
            Decoding::Literal => token.as_bytes().to_vec(),
            Decoding::ByteLevel => chars.decode(token),
            Decoding::SentencePiece { byte_fallback, .. } => match byte_token(token) {
                Some(byte) if byte_fallback => vec![byte],
                _ => token.replace(SENTENCE_PIECE_SPACE, " ").into_bytes(),
            },
        }
    }
}

fn vocab(encoder: &tokenizers::Tokenizer, decoding: Decoding) -> Result<Vocab, String> {
    let added = encoder.get_added_tokens_decoder();
    let by_text = encoder.get_vocab(true);
    let len = by_text.values().max().map_or(0, |&id| id as usize + 1);
    if len == 0 || len > VOCAB_MAX {
        return Err(format!("a vocabulary of {len} ids is not possible"));
    }
    let mut texts: Vec<Option<&str>> = vec![None; len];
    for (text, &id) in &by_text {
        texts[id as usize] = Some(text);
    }
    let chars = ByteChars::new();
    let mut vocab = Vocab::default();
    for (id, text) in texts.into_iter().enumerate() {
        let text = text.unwrap_or_default();
        match added.get(&(id as TokenId)) {
            Some(token) => vocab.push(token.content.as_bytes(), token.special),
            None => vocab.push(&decoding.bytes(text, &chars), false),
        }
    }
    vocab.strips_leading_space =
        matches!(decoding, Decoding::SentencePiece { strips_leading_space: true, .. });
    Ok(vocab)
}

fn special_tokens(
    dir: &Path,
    encoder: &tokenizers::Tokenizer,
) -> Result<SpecialTokens, TokenizerError> {
    let config = read_config(&dir.join("tokenizer_config.json"))?.unwrap_or_default();
    let map = read_config(&dir.join("special_tokens_map.json"))?.unwrap_or_default();
    let named = |name: &str| -> Option<TokenId> {
        let text = token_text(&config[name]).or_else(|| token_text(&map[name]))?;
        encoder.token_to_id(text)
    };
    let mut special = SpecialTokens {
        bos: named("bos_token"),
        eos: named("eos_token"),
        unknown: named("unk_token"),
        padding: named("pad_token"),
        ends: Vec::new(),
    };
    // The end-of-generation tokens are those of `generation_config.json`, or else of `config.json`. The tokenizer's own
    // end token is always added; if it has none, the lowest of the ids stands for it.
    let generation = read_config(&dir.join("generation_config.json"))?.unwrap_or_default();
    let mut ends = token_ids(&generation["eos_token_id"]);
    if ends.is_empty() {
        let model = read_config(&dir.join("config.json"))?.unwrap_or_default();
        ends = token_ids(&model["eos_token_id"]);
    }
    ends.extend(special.eos);
    ends.sort_unstable();
    ends.dedup();
    special.eos = special.eos.or(ends.first().copied());
    special.ends = ends;
    Ok(special)
}

/// Returns the text of a token that a JSON file gives as a string or as `{"content": ...}`.
fn token_text(value: &Value) -> Option<&str> {
    value.as_str().or_else(|| value["content"].as_str())
}

/// Returns the token ids of a JSON value, which is one id or a list of ids.
fn token_ids(value: &Value) -> Vec<TokenId> {
    let values = value.as_array().map_or(std::slice::from_ref(value), Vec::as_slice);
    values.iter().filter_map(|id| TokenId::try_from(id.as_u64()?).ok()).collect()
}
