//! Converts text to tokens and back, with a model's tokenizer or the mock device's vocabulary of bytes.

mod bytes;
mod forms;
mod pieces;

pub(crate) use bytes::{Message, MockVocabulary};

pub(crate) use forms::Forms;

use forms::Signs;
use std::borrow::Cow;
use std::sync::Arc;
use tiercel_config::ModelSettings;
use tiercel_device::TokenId;
use tiercel_grammar::TokenText;

use tiercel_model::source::ModelFiles;
use tiercel_model::template::{ChatTemplate, Conversation, Ending, Prompt, TemplateError};
use tiercel_model::tokenizer::{self, TEXT_BYTES_MAX, Tokenizer, TokenizerError, Utf8Decoder};

/// Tokenizer and chat template of a model, or the mock device's vocabulary of bytes, with the tokens that end an
/// answer.
pub(crate) struct Text {
    kind: Kind,
    end_tokens: Vec<TokenId>,
}

/// Reason why a text cannot be tokenized.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum TextError {
    /// The text is longer than the tokenizer accepts.
    TooLong,
    /// The tokenizer or the chat template refuses the text; holds the reason.
    Unreadable(String),
}

impl From<TokenizerError> for TextError {
    fn from(error: TokenizerError) -> TextError {
        match error {
            TokenizerError::TextTooLong { .. } => TextError::TooLong,
            other => TextError::Unreadable(other.to_string()),
        }
    }
}

impl From<TemplateError> for TextError {
    fn from(error: TemplateError) -> TextError {
        match error {
            TemplateError::Tokenizer(error) => error.into(),
            other => TextError::Unreadable(other.to_string()),
        }
    }
}

enum Kind {
    Bytes(Arc<MockVocabulary>),
    Model(Box<Model>),
}

struct Model {
    tokenizer: Tokenizer,
    /// Chat template of the model, or the reason why it cannot be used and chat completions are not available.
    template: Result<ChatTemplate, String>,
}

impl Text {
    /// Longest text that is tokenized, bytes: 1/32 below the tokenizer's own limit, to leave room for the markup that a
    /// chat template adds.
    pub(crate) const BYTES_MAX: usize = TEXT_BYTES_MAX - TEXT_BYTES_MAX / 32;

    /// Returns the text handling of a mock device without replies: a text is encoded as one token per byte. Of the
    /// tokens that are no bytes, the marks of a chat message have no text, and all others have made-up texts.
    #[cfg(test)]
    pub(crate) fn of_bytes() -> Text {
        Text::of_mock(Arc::default())
    }

    /// Returns the text handling of a mock device, which has no model. `vocabulary` is the vocabulary of the mock
    /// device.
    pub(crate) fn of_mock(vocabulary: Arc<MockVocabulary>) -> Text {
        Text { kind: Kind::Bytes(vocabulary), end_tokens: vec![bytes::END] }
    }

    /// Opens a model's tokenizer and chat template. A chat template that cannot be used is no error, because text
    /// completions need none.
    ///
    /// # Errors
    /// If the model's tokenizer cannot be read.
    pub(crate) fn of_model(files: &ModelFiles) -> Result<Text, String> {
        let tokenizer = Tokenizer::from_files(files).map_err(|error| error.to_string())?;
        let template =
            ChatTemplate::from_files(files, &tokenizer).map_err(|error| error.to_string());
        if let Err(why) = &template {
            tracing::warn!("chat completions are not available: {why}");
        }
        let end_tokens = tokenizer.special().ends.clone();
        Ok(Text { kind: Kind::Model(Box::new(Model { tokenizer, template })), end_tokens })
    }

    /// Returns whether conversations can be rendered as prompts, so that chat completions are available.
    pub(crate) fn has_chat(&self) -> bool {
        match &self.kind {
            Kind::Bytes(_) => true,
            Kind::Model(model) => model.template.is_ok(),
        }
    }

    /// Returns the end tokens of the model, which end an answer unless the request ignores them (`ignore_eos`).
    pub(crate) fn end_tokens(&self) -> &[TokenId] {
        &self.end_tokens
    }

    /// Returns whether a token cuts an answer off. The answer then ends before the token, with the finish reason
    /// `length`. Only replies of a mock device have such a token.
    pub(crate) fn cuts(&self, token: TokenId) -> bool {
        match &self.kind {
            Kind::Bytes(vocabulary) => vocabulary.cut() == Some(token),
            Kind::Model(_) => false,
        }
    }

    /// Tokenizes a text; `special` adds the special tokens that the model expects around a text. Control tokens spelled
    /// in the text, such as `<|im_end|>`, are encoded as such.
    pub(crate) fn encode(&self, text: &str, special: bool) -> Result<Vec<TokenId>, TextError> {
        match &self.kind {
            Kind::Bytes(vocabulary) => Ok(vocabulary.encode(text)),
            Kind::Model(model) => Ok(model.tokenizer.encode(text, special, true)?),
        }
    }

    /// Renders and tokenizes a conversation. Control tokens spelled in a text of the conversation are encoded as plain
    /// characters.
    pub(crate) fn encode_chat(&self, conversation: &Conversation) -> Result<Prompt, TextError> {
        match &self.kind {
            Kind::Bytes(vocabulary) => {
                let conversation = conversation.clone().spelled_out("tool");
                let open = conversation.ending == Ending::Open;
                let mut tokens = vocabulary.encode_chat(conversation.texts(), open);
                if conversation.ending == Ending::Continued {
                    tokens.pop();
                }
                Ok(Prompt { tokens, tail: String::new() })
            }
            Kind::Model(model) => {
                let missing = |why: &String| TextError::Unreadable(why.clone());
                let template = model.template.as_ref().map_err(missing)?;
                Ok(template.encode(&model.tokenizer, conversation)?)
            }
        }
    }

    /// Returns the vocabulary of a model with `size` tokens, in the form that grammars need.
    pub(crate) fn vocabulary(&self, size: u32) -> tiercel_grammar::Vocabulary {
        match &self.kind {
            Kind::Bytes(vocabulary) => {
                let text = |token| vocabulary.token_text(token);
                tiercel_grammar::Vocabulary::new(size as usize, &self.end_tokens, text)
            }
            Kind::Model(model) => {
                let tokenizer = &model.tokenizer;
                let size = tokenizer.vocab_size().min(size as usize);
                tiercel_grammar::Vocabulary::new(size, &self.end_tokens, |id| {
                    TokenText::of(tokenizer.token_bytes(id), tokenizer.is_special(id))
                })
            }
        }
    }

    /// Returns the forms in which the model writes tool calls and reasoning.
    pub(crate) fn forms(&self, settings: &ModelSettings) -> Forms {
        let signs = match &self.kind {
            // The mock device spells tools out in the form of the Hermes models, and its replies may have reasoning.
            Kind::Bytes(vocabulary) => {
                let token = |tag| match vocabulary.encode(tag)[..] {
                    [token] => Some((token, tag, false)),
                    _ => None,
                };
                let tokens = ["<think>", "</think>"].into_iter().filter_map(token).collect();
                let template = vocabulary.cut().map_or("", |_| "<think></think>");
                Signs { template, tools_template: None, tokens }
            }
            Kind::Model(model) => {
                let template = model.template.as_ref().ok();
                Signs {
                    template: template.map_or("", ChatTemplate::source),
                    tools_template: template.and_then(ChatTemplate::tools_source),
                    tokens: model.tokenizer.markup().collect(),
                }
            }
        };
        Forms::of(&signs, settings)
    }

    /// Returns the bytes of a token, which may begin or end within a UTF-8 character.
    pub(crate) fn token_bytes(&self, token: TokenId) -> Cow<'_, [u8]> {
        match &self.kind {
            Kind::Bytes(vocabulary) => vocabulary.token_bytes(token),
            Kind::Model(model) => Cow::Borrowed(model.tokenizer.token_bytes(token)),
        }
    }

    /// Returns the name of a single token in log-probabilities, in OpenAI's form: its text, or `bytes:\xNN...` if its
    /// bytes are not whole UTF-8 characters. Tokens with different bytes keep different names.
    pub(crate) fn token_name(&self, token: TokenId) -> String {
        let bytes = self.token_bytes(token);
        match std::str::from_utf8(&bytes) {
            Ok(text) => text.to_owned(),
            Err(_) => {
                let digits = bytes.iter().map(|byte| format!("\\x{byte:02x}"));
                format!("bytes:{}", digits.collect::<String>())
            }
        }
    }

    /// Returns the length of the vocabulary's longest token: the largest number of bytes of a text that one token can
    /// stand for.
    pub(crate) fn longest_token_bytes(&self) -> usize {
        match &self.kind {
            Kind::Bytes(vocabulary) => vocabulary.longest_token_bytes(),
            Kind::Model(model) => {
                let ids = 0..model.tokenizer.vocab_size() as TokenId;
                ids.map(|id| model.tokenizer.token_bytes(id).len()).max().unwrap_or(0)
            }
        }
    }

    /// Decodes tokens as text, with a model's control tokens spelled out; invalid UTF-8 is replaced by U+FFFD.
    pub(crate) fn decode(&self, tokens: &[TokenId]) -> String {
        match &self.kind {
            Kind::Bytes(_) => {
                let mut decoder = self.decoder(None);
                let text: String = tokens.iter().map(|token| decoder.push(*token)).collect();
                text + &decoder.finish()
            }
            Kind::Model(model) => model.tokenizer.decode(tokens, false),
        }
    }

    /// Returns a streaming decoder for the tokens that are generated after a prompt. The decoder leaves out control
    /// tokens, except the tokens in `shown`.
    pub(crate) fn decoder(&self, shown: Option<&Arc<[TokenId]>>) -> StreamDecoder {
        match &self.kind {
            Kind::Bytes(vocabulary) => {
                StreamDecoder::Bytes(vocabulary.clone(), Utf8Decoder::default())
            }
            Kind::Model(model) => {
                let decoder = model.tokenizer.stream_decoder(true);
                StreamDecoder::Model(match shown {
                    Some(shown) => decoder.showing(shown.clone()),
                    None => decoder,
                })
            }
        }
    }
}

/// Streaming decoder: turns tokens into text one by one, and never returns part of a character.
pub(crate) enum StreamDecoder {
    Bytes(Arc<MockVocabulary>, Utf8Decoder),
    Model(tokenizer::StreamDecoder),
}

impl StreamDecoder {
    pub(crate) fn push(&mut self, token: TokenId) -> String {
        match self {
            StreamDecoder::Bytes(vocabulary, decoder) => {
                let mut out = String::new();
                decoder.push_to(&vocabulary.token_bytes(token), &mut out);
                out
            }
            StreamDecoder::Model(decoder) => decoder.push(token),
        }
    }

    pub(crate) fn finish(&mut self) -> String {
        match self {
            StreamDecoder::Bytes(_, decoder) => decoder.finish(),
            StreamDecoder::Model(decoder) => decoder.finish(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::Path;

    #[test]
    fn a_model_with_a_broken_chat_template_completes_texts() {
        let dir = tempfile::tempdir().unwrap();
        let tokenizer = Path::new(env!("CARGO_MANIFEST_DIR"))
            .join("../tests/reference/tokenizer/hf_byte_level");
        for file in ["tokenizer.json", "tokenizer_config.json"] {
            std::fs::copy(tokenizer.join(file), dir.path().join(file)).unwrap();
        }
        std::fs::write(dir.path().join("chat_template.jinja"), "{% if %}").unwrap();
        let text = Text::of_model(&ModelFiles::HfDir(dir.path().to_owned())).unwrap();
        assert!(!text.encode("Hello", true).unwrap().is_empty());
        assert!(!text.has_chat());
        let conversation = Conversation::of_texts(&[("user", "Hello")], Ending::Open);
        let why = text.encode_chat(&conversation).unwrap_err();
        let TextError::Unreadable(why) = why else { panic!("{why:?}") };
        assert!(why.contains("chat template") && why.contains("/v1/completions"), "{why}");
    }
}
