//! Tokens to text and back, for a model or for the mock's vocabulary of bytes.

mod bytes;
mod stops;
mod utf8;

pub(crate) use stops::StopMatcher;

use crate::openai::Message;
use std::borrow::Cow;
use std::sync::Arc;
use tiercel_device::TokenId;
use utf8::Utf8Buffer;

/// A vocabulary, a chat template, and the tokens that end an answer.
pub(crate) struct Text {
    end_tokens: Vec<TokenId>,
}

impl Text {
    /// The mock's vocabulary.
    pub(crate) fn of_bytes() -> Text {
        Text { end_tokens: vec![bytes::END] }
    }

    pub(crate) fn of_model(
        _files: &tiercel_model::weights::ModelFiles,
        _checkpoint: &tiercel_model::weights::Checkpoint,
    ) -> Result<Text, String> {
        Err("no tokenizer yet".into())
    }

    /// Tokens that end an answer, unless the request ignores them.
    pub(crate) fn end_tokens(&self) -> &[TokenId] {
        &self.end_tokens
    }

    /// A text as tokens; with `special`, inside the tokens that the model wants around a text.
    pub(crate) fn encode(&self, text: &str, special: bool) -> Result<Vec<TokenId>, String> {
        let _ = special;
        Ok(bytes::encode(text))
    }

    /// A conversation as tokens; `open` begins the assistant's answer.
    pub(crate) fn encode_chat(
        &self,
        messages: &[Message],
        open: bool,
    ) -> Result<Vec<TokenId>, String> {
        let pairs = messages.iter().map(|m| (m.role.as_str(), m.content.as_str()));
        Ok(bytes::encode_chat(pairs, open))
    }

    /// Bytes of a token; they need not be whole characters.
    pub(crate) fn token_bytes(&self, token: TokenId) -> Cow<'_, [u8]> {
        bytes::token_bytes(token)
    }

    /// Tokens as text; broken characters are replaced.
    pub(crate) fn decode(self: &Arc<Self>, tokens: &[TokenId]) -> String {
        let mut decoder = self.decoder();
        let mut text: String = tokens.iter().map(|token| decoder.push(*token)).collect();
        text.push_str(&decoder.finish());
        text
    }

    /// Decodes a stream of tokens.
    pub(crate) fn decoder(self: &Arc<Self>) -> StreamDecoder {
        StreamDecoder { text: self.clone(), buffer: Utf8Buffer::default() }
    }
}

/// Decodes tokens one by one; never emits part of a character.
pub(crate) struct StreamDecoder {
    text: Arc<Text>,
    buffer: Utf8Buffer,
}

impl StreamDecoder {
    pub(crate) fn push(&mut self, token: TokenId) -> String {
        self.buffer.push(&self.text.token_bytes(token))
    }

    pub(crate) fn finish(&mut self) -> String {
        self.buffer.finish()
    }
}
