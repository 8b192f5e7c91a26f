//! Encodes text as tokens, with Hugging Face's tokenizers library or with this crate's SentencePiece encoder.

use super::TokenizerError;
use super::spm::SpmEncoder;
use std::sync::OnceLock;
use tiercel_device::TokenId;

/// Special tokens that are put before and after a text (beginning and end of text) when special tokens are added.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Around {
    pub(super) before: Option<TokenId>,
    pub(super) after: Option<TokenId>,
}

pub(super) struct Encoder {
    kind: Kind,
    /// Special tokens that are put before and after a text; `None` if a post-processor of the Hugging Face tokenizer
    /// adds them.
    around: Option<Around>,
}

enum Kind {
    HuggingFace {
        markup: Box<tokenizers::Tokenizer>,
        /// Copy of the tokenizer `markup` that encodes special tokens in a text as plain characters; made on first use.
        plain: OnceLock<Box<tokenizers::Tokenizer>>,
    },
    SentencePiece(Box<SpmEncoder>),
}

impl Encoder {
    pub(super) fn from_hugging_face(
        encoder: tokenizers::Tokenizer,
        around: Option<Around>,
    ) -> Encoder {
        let kind = Kind::HuggingFace { markup: Box::new(encoder), plain: OnceLock::new() };
        Encoder { kind, around }
    }

    pub(super) fn from_sentence_piece(encoder: SpmEncoder, around: Around) -> Encoder {
        Encoder { kind: Kind::SentencePiece(Box::new(encoder)), around: Some(around) }
    }

    pub(super) fn encode(
        &self,
        text: &str,
        add_special: bool,
        parse_special: bool,
    ) -> Result<Vec<TokenId>, TokenizerError> {
        let ids = match &self.kind {
            Kind::SentencePiece(encoder) => encoder.encode(text, parse_special, true),
            Kind::HuggingFace { markup, plain } => {
                let encoder = if parse_special {
                    markup
                } else {
                    plain.get_or_init(|| {
                        let mut plain = markup.clone();
                        plain.set_encode_special_tokens(true);
                        plain
                    })
                };
                let own_special = add_special && self.around.is_none();
                let encoding = encoder.encode_fast(text, own_special);
                let encoding =
                    encoding.map_err(|error| TokenizerError::Encode(error.to_string()))?;
                encoding.get_ids().to_vec()
            }
        };
        Ok(match self.around {
            Some(around) if add_special => {
                around.before.into_iter().chain(ids).chain(around.after).collect()
            }
            _ => ids,
        })
    }

    /// Encodes the continuation of a text whose beginning is already encoded, without the space that SentencePiece puts
    /// before a text. (Some Hugging Face tokenizers put a space before every text they are given, which cannot be
    /// prevented.)
    pub(super) fn encode_rest(&self, text: &str) -> Result<Vec<TokenId>, TokenizerError> {
        match &self.kind {
            Kind::SentencePiece(encoder) => Ok(encoder.encode(text, true, false)),
            Kind::HuggingFace { .. } => self.encode(text, false, true),
        }
    }
}
