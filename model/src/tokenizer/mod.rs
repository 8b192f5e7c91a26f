//! Converts text to tokens and back.
//!
//! A [`Tokenizer`] is built from a Hugging Face `tokenizer.json` or from the metadata of a GGUF file (byte-level BPE
//! with its pre-tokenizer, or SentencePiece with scores). A [`StreamDecoder`] turns the tokens of one sequence into
//! text as they arrive. A [`StopMatcher`] watches the text for stop strings.
//!
//! | file | what it does |
//! |---|---|
//! | `from_dir.rs`, `from_gguf.rs` | build a tokenizer from either format |
//! | `pretokenize.rs` | cutting text for byte-level vocabularies, by the name of the pre-tokenizer |
//! | `spm.rs` | SentencePiece's byte-pair encoding |
//! | `encoder.rs` | text to tokens, with or without reading markup |
//! | `guard.rs` | keeps markup that a message quotes from being read as markup |
//! | `vocab.rs` | tokens to bytes |
//! | `stream.rs`, `stop.rs` | tokens to text as they arrive; stop strings |

mod encoder;
mod error;
mod from_dir;
mod from_gguf;
mod guard;
mod pretokenize;
mod spm;
mod stop;
mod stream;
#[cfg(test)]
mod tests;
mod vocab;

pub use error::TokenizerError;
pub use stop::{StopMatcher, StopOutcome};
pub use stream::StreamDecoder;
pub use vocab::Vocab;

pub(crate) use from_dir::read_config;

use crate::gguf::GgufFile;
use crate::source::ModelFiles;
use encoder::Encoder;
use guard::{BREAK, Guard};
use std::borrow::Cow;
use std::path::Path;
use std::sync::Arc;
use tiercel_device::TokenId;

/// Longest accepted text, bytes. No context holds a longer text, and tokenizing takes time.
pub const TEXT_BYTES_MAX: usize = 2 << 20;

/// Tokens that have a meaning to the server.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct SpecialTokens {
    /// Token that begins a text.
    pub bos: Option<TokenId>,
    /// Token that ends a text.
    pub eos: Option<TokenId>,
    /// Token that stands for text that cannot be encoded.
    pub unknown: Option<TokenId>,
    /// Token that fills up batches in training.
    pub padding: Option<TokenId>,
    /// All tokens that end a generation (end of text, of turn, of message), sorted.
    pub ends: Vec<TokenId>,
}

/// The tokenizer of a model, shared by all requests; encoding needs no lock.
pub struct Tokenizer {
    encoder: Encoder,
    vocab: Arc<Vocab>,
    special: SpecialTokens,
    guard: Guard,
}

impl std::fmt::Debug for Tokenizer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let mut shown = f.debug_struct("Tokenizer");
        shown.field("vocab_size", &self.vocab.len()).field("special", &self.special).finish()
    }
}

impl Tokenizer {
    fn new(
        encoder: Encoder,
        vocab: Vocab,
        special: SpecialTokens,
    ) -> Result<Tokenizer, TokenizerError> {
        let guard = Guard::new(&vocab, &special.ends)?;
        Ok(Tokenizer { encoder, vocab: Arc::new(vocab), special, guard })
    }

    /// Reads the tokenizer of a model.
    ///
    /// # Errors
    /// [`TokenizerError`] for missing, malformed or unsupported tokenizers.
    pub fn from_files(files: &ModelFiles) -> Result<Tokenizer, TokenizerError> {
        match files {
            ModelFiles::Gguf(path) => Tokenizer::from_gguf(&GgufFile::open(path)?),
            ModelFiles::HfDir(dir) => Tokenizer::from_dir(dir),
        }
    }

    /// Reads the tokenizer of an open GGUF file.
    ///
    /// # Errors
    /// The errors of [`Tokenizer::from_files`].
    pub fn from_gguf(file: &GgufFile) -> Result<Tokenizer, TokenizerError> {
        from_gguf::read(file)
    }

    /// Reads the tokenizer of a Hugging Face directory.
    ///
    /// # Errors
    /// The errors of [`Tokenizer::from_files`].
    pub fn from_dir(dir: &Path) -> Result<Tokenizer, TokenizerError> {
        from_dir::read(dir)
    }

    /// Encodes `text` as tokens. With `add_special`, adds the tokens that the model wants around a text (its
    /// beginning-of-text token). With `parse_special`, markup in the text (`<|im_start|>`) becomes its token, as a
    /// rendered chat template needs; without, markup is encoded as its characters.
    ///
    /// # Errors
    /// [`TokenizerError::TextTooLong`], or a failure of the tokenizer.
    pub fn encode(
        &self,
        text: &str,
        add_special: bool,
        parse_special: bool,
    ) -> Result<Vec<TokenId>, TokenizerError> {
        check_length(text)?;
        self.encoder.encode(text, add_special, parse_special)
    }

    /// Prepares a text that will stand among markup, so that [`Tokenizer::encode_markup`] finds no control token in the
    /// text. A text that spells no control token is not changed.
    pub fn protect<'a>(&self, text: &'a str) -> Cow<'a, str> {
        self.guard.protect(text)
    }

    /// Encodes markup around [protected](Tokenizer::protect) texts. Without protected texts, the result is that of
    /// [`Tokenizer::encode`] without `add_special` and with `parse_special`.
    ///
    /// # Errors
    /// The errors of [`Tokenizer::encode`].
    pub fn encode_markup(&self, text: &str) -> Result<Vec<TokenId>, TokenizerError> {
        check_length(text)?;
        let mut pieces = text.split(BREAK);
        let mut ids = self.encoder.encode(pieces.next().unwrap_or_default(), false, true)?;
        for piece in pieces {
            ids.extend(self.encoder.encode_rest(piece)?);
        }
        Ok(ids)
    }

    /// Decodes a whole sequence of tokens as text. Ids beyond the vocabulary are no text.
    pub fn decode(&self, tokens: &[TokenId], skip_special: bool) -> String {
        let mut decoder = StreamDecoder::from_start(self.vocab.clone(), skip_special);
        let mut text = String::new();
        tokens.iter().for_each(|&token| decoder.push_to(token, &mut text));
        text + &decoder.finish()
    }

    /// Returns a decoder for the tokens that the model writes after a prompt; with `skip_special`, it leaves out
    /// special tokens.
    pub fn stream_decoder(&self, skip_special: bool) -> StreamDecoder {
        StreamDecoder::continuing(self.vocab.clone(), skip_special)
    }

    /// Returns the bytes of a token, which need not be whole characters. Empty for an id beyond the vocabulary.
    pub fn token_bytes(&self, token: TokenId) -> &[u8] {
        self.vocab.token_bytes(token)
    }

    /// Whether a token is markup instead of text.
    pub fn is_special(&self, token: TokenId) -> bool {
        self.vocab.is_special(token)
    }

    /// Returns the number of token ids. (The model's last matrix may have more rows.)
    pub fn vocab_size(&self) -> usize {
        self.vocab.len()
    }

    /// Returns the vocabulary, which can be shared.
    pub fn vocab(&self) -> &Arc<Vocab> {
        &self.vocab
    }

    /// Returns the tokens that have a meaning to the server.
    pub fn special(&self) -> &SpecialTokens {
        &self.special
    }
}

fn check_length(text: &str) -> Result<(), TokenizerError> {
    let (bytes, limit) = (text.len(), TEXT_BYTES_MAX);
    if bytes > limit { Err(TokenizerError::TextTooLong { bytes, limit }) } else { Ok(()) }
}
