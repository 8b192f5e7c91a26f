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
//! | `utf8.rs` | bytes to text as they arrive |

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
mod utf8;
mod vocab;

pub use error::TokenizerError;
pub use stop::{StopMatcher, StopOutcome};
pub use stream::StreamDecoder;
pub use utf8::Utf8Decoder;
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

/// Longest text that is tokenized, bytes. No context holds a longer text, and tokenizing takes time.
pub const TEXT_BYTES_MAX: usize = 2 << 20;

/// Special tokens of a vocabulary that the server must know.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct SpecialTokens {
    /// Beginning-of-text token of the vocabulary.
    pub bos: Option<TokenId>,
    /// End-of-text token of the vocabulary.
    pub eos: Option<TokenId>,
    /// Unknown token, which stands for text that cannot be encoded.
    pub unknown: Option<TokenId>,
    /// Padding token, which fills up batches in training.
    pub padding: Option<TokenId>,
    /// All tokens that end a generation (end of text, of turn, of message), sorted by id.
    pub ends: Vec<TokenId>,
}

/// The tokenizer of a model, shared by all requests: any number of threads may encode at once.
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

    /// Reads the tokenizer of a model from its GGUF file or Hugging Face directory.
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

    /// Encodes `text` as tokens. With `add_special`, adds the special tokens that the model expects before and after a
    /// text (such as the beginning-of-text token). With `parse_special`, control tokens spelled in the text
    /// (`<|im_start|>`) are encoded as such, as a rendered chat template needs; without it, they are encoded as plain
    /// characters.
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

    /// Prepares a message's text for a rendered chat template, so that [`Tokenizer::encode_markup`] finds no control
    /// token in it. A text that spells no control token is not changed, except that the separator character U+FDD0 is
    /// removed.
    pub fn protect<'a>(&self, text: &'a str) -> Cow<'a, str> {
        self.guard.protect(text)
    }

    /// Returns the characters of a text without the changes of [`Tokenizer::protect`].
    pub(crate) fn unprotected(text: &str) -> impl DoubleEndedIterator<Item = char> {
        text.chars().filter(|&c| c != BREAK)
    }

    /// Encodes a rendered chat template, whose messages have been [protected](Tokenizer::protect). Without protected
    /// texts, the result is that of [`Tokenizer::encode`] without `add_special` and with `parse_special`.
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

    /// Decodes a whole sequence of tokens as text. Ids beyond the vocabulary decode to nothing.
    pub fn decode(&self, tokens: &[TokenId], skip_special: bool) -> String {
        let mut decoder = StreamDecoder::from_start(self.vocab.clone(), skip_special);
        let mut text = String::new();
        tokens.iter().for_each(|&token| decoder.push_to(token, &mut text));
        text + &decoder.finish()
    }

    /// Returns a streaming decoder (tokens to text) for the tokens that the model writes after a prompt; with
    /// `skip_special`, it leaves out special tokens.
    pub fn stream_decoder(&self, skip_special: bool) -> StreamDecoder {
        StreamDecoder::continuing(self.vocab.clone(), skip_special)
    }

    /// Returns the bytes of a token, which may begin or end within a character. Empty for an id beyond the vocabulary.
    pub fn token_bytes(&self, token: TokenId) -> &[u8] {
        self.vocab.token_bytes(token)
    }

    /// Returns whether a token is a special token (markup such as the end of a turn) instead of text.
    pub fn is_special(&self, token: TokenId) -> bool {
        self.vocab.is_special(token)
    }

    /// Returns the tokens whose texts look like markup (`<...>` or `[...]`): the id, the text, and whether the token is
    /// special.
    pub fn markup(&self) -> impl Iterator<Item = (TokenId, &str, bool)> {
        (0..self.vocab.len() as TokenId).filter_map(|id| {
            let text = std::str::from_utf8(self.vocab.token_bytes(id)).ok()?;
            let tagged = |open, close| text.starts_with(open) && text.ends_with(close);
            let is_markup = text.len() > 2 && (tagged('<', '>') || tagged('[', ']'));
            is_markup.then(|| (id, text, self.is_special(id)))
        })
    }

    /// Returns the number of token ids of the vocabulary. (The model's output matrix may have more rows.)
    pub fn vocab_size(&self) -> usize {
        self.vocab.len()
    }

    /// Returns the vocabulary (bytes of each token) in a shared pointer.
    pub fn vocab(&self) -> &Arc<Vocab> {
        &self.vocab
    }

    /// Returns the special tokens of the vocabulary that the server must know.
    pub fn special(&self) -> &SpecialTokens {
        &self.special
    }
}

fn check_length(text: &str) -> Result<(), TokenizerError> {
    let (bytes, limit) = (text.len(), TEXT_BYTES_MAX);
    if bytes > limit { Err(TokenizerError::TextTooLong { bytes, limit }) } else { Ok(()) }
}
