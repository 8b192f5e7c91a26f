//! Converts text to tokens and back, with a model's tokenizer or the mock device's vocabulary of bytes.

mod bytes;
mod forms;
mod pieces;

pub(crate) use bytes::{Message, MockVocabulary};

pub(crate) use forms::Forms;

use forms::Signs;
use std::borrow::Cow;
use std::path::Path;
use std::sync::Arc;
use tiercel_config::ModelSettings;
use tiercel_device::TokenId;
use tiercel_dialect::ResponseTemplate;
use tiercel_grammar::TokenText;

use tiercel_model::source::ModelFiles;
use tiercel_model::template::{
    ChatTemplate, Conversation, Ending, Prompt, TemplateError, response_template,
};
use tiercel_model::tokenizer::{self, TEXT_BYTES_MAX, Tokenizer, TokenizerError, Utf8Decoder};

/// Tokenizer and chat template of a model, or the mock device's vocabulary of bytes, with the tokens that end an
/// answer.
pub(crate) struct Text {
    kind: Kind,
    /// Chat template, or the reason why it cannot be used and chat completions are not available. `None` for a mock
    /// device without a chat template, which needs none.
    template: Option<Result<ChatTemplate, String>>,
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
    /// Response template of the model, if the model has one that the server can follow.
    response: Option<Arc<ResponseTemplate>>,
}

impl Text {
    /// Longest text that is tokenized, bytes: 1/32 below the tokenizer's own limit, to leave room for the markup that a
    /// chat template adds.
    pub(crate) const BYTES_MAX: usize = TEXT_BYTES_MAX - TEXT_BYTES_MAX / 32;

    /// Returns the text handling of a mock device without replies: a text is encoded as one token per byte. Of the
    /// tokens that are no bytes, the marks of a chat message have no text, and all others have made-up texts.
    #[cfg(test)]
    pub(crate) fn of_bytes() -> Text {
        Text::of_mock(Arc::default(), None).expect("a mock device needs no chat template")
    }

    /// Returns the text handling of a mock device, which has no model. `vocabulary` is the vocabulary of the mock
    /// device. `chat_template` is the file of a chat template, which decides the forms of calls and of reasoning.
    ///
    /// # Errors
    /// If the chat template cannot be used.
    pub(crate) fn of_mock(
        vocabulary: Arc<MockVocabulary>,
        chat_template: Option<&Path>,
    ) -> Result<Text, String> {
        let template = chat_template.map(|path| stated(path, None)).transpose()?;
        let end_tokens = vec![bytes::END];
        Ok(Text { kind: Kind::Bytes(vocabulary), template: template.map(Ok), end_tokens })
    }

    /// Opens a model's tokenizer and chat template. A chat template of the model that cannot be used is no error,
    /// because text completions need none. `chat_template` is the file of a chat template that replaces the model's.
    ///
    /// # Errors
    /// If the model's tokenizer cannot be read, or if the file `chat_template` cannot be used.
    pub(crate) fn of_model(
        files: &ModelFiles,
        chat_template: Option<&Path>,
    ) -> Result<Text, String> {
        let tokenizer = Tokenizer::from_files(files).map_err(|error| error.to_string())?;
        let template = match chat_template {
            Some(path) => Ok(stated(path, Some(&tokenizer))?),
            None => ChatTemplate::from_files(files, &tokenizer).map_err(|error| error.to_string()),
        };
        if let Err(why) = &template {
            tracing::warn!("chat completions are not available: {why}");
        }
        let response = if chat_template.is_none() { response(files)? } else { None };
        let end_tokens = tokenizer.special().ends.clone();
        let kind = Kind::Model(Box::new(Model { tokenizer, response }));
        Ok(Text { kind, template: Some(template), end_tokens })
    }

    /// Returns whether conversations can be rendered as prompts, so that chat completions are available.
    pub(crate) fn has_chat(&self) -> bool {
        self.template.as_ref().is_none_or(Result::is_ok)
    }

    /// Returns the sources of the model's chat templates; none if the model has no usable chat template.
    pub(crate) fn templates(&self) -> Vec<&str> {
        let template = self.usable_template();
        let source = template.map(ChatTemplate::source);
        source.into_iter().chain(template.and_then(ChatTemplate::tools_source)).collect()
    }

    fn usable_template(&self) -> Option<&ChatTemplate> {
        self.template.as_ref().and_then(|template| template.as_ref().ok())
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
                let tail = self.usable_template().map(|template| template.tail(conversation));
                let tail = tail.transpose()?.unwrap_or_default();
                let conversation = conversation.clone().spelled_out("tool");
                let open = conversation.ending == Ending::Open;
                let mut tokens = vocabulary.encode_chat(conversation.texts(), open);
                if conversation.ending == Ending::Continued {
                    tokens.pop();
                }
                Ok(Prompt { tokens, tail })
            }
            Kind::Model(model) => match &self.template {
                Some(Ok(template)) => Ok(template.encode(&model.tokenizer, conversation)?),
                Some(Err(why)) => Err(TextError::Unreadable(why.clone())),
                None => Err(TextError::Unreadable("the model has no chat template".into())),
            },
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
        let template = self.usable_template();
        let tools_template = template.and_then(ChatTemplate::tools_source);
        let signs = match &self.kind {
            // Without a chat template, the mock device spells tools out in the form of the Hermes models, and its
            // replies may have reasoning.
            Kind::Bytes(vocabulary) => {
                let token = |tag| match vocabulary.encode(tag)[..] {
                    [token] => Some((token, tag, false)),
                    _ => None,
                };
                let tokens = ["<think>", "</think>"].into_iter().filter_map(token).collect();
                let made_up = vocabulary.cut().map_or("", |_| "<think></think>");
                let template = template.map_or(made_up, ChatTemplate::source);
                Signs { template, tools_template, response: None, tokens }
            }
            Kind::Model(model) => Signs {
                template: template.map_or("", ChatTemplate::source),
                tools_template,
                response: model.response.clone(),
                tokens: model.tokenizer.markup().collect(),
            },
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
                let mut decoder = self.decoder(ShownTokens::None);
                let text: String = tokens.iter().map(|token| decoder.push(*token)).collect();
                text + &decoder.finish()
            }
            Kind::Model(model) => model.tokenizer.decode(tokens, false),
        }
    }

    /// Returns a streaming decoder for the tokens that are generated after a prompt. The decoder spells out the control
    /// tokens that `shown` names, and leaves out the others.
    pub(crate) fn decoder(&self, shown: ShownTokens<'_>) -> StreamDecoder {
        match &self.kind {
            Kind::Bytes(vocabulary) => {
                StreamDecoder::Bytes(vocabulary.clone(), Utf8Decoder::default())
            }
            Kind::Model(model) => {
                let decoder = model.tokenizer.stream_decoder(shown != ShownTokens::All);
                StreamDecoder::Model(match shown {
                    ShownTokens::Only(tokens) => decoder.showing(tokens.clone()),
                    ShownTokens::All | ShownTokens::None => decoder,
                })
            }
        }
    }
}

/// Reads the chat template that the settings name.
fn stated(path: &Path, tokenizer: Option<&Tokenizer>) -> Result<ChatTemplate, String> {
    let failed = |error| format!("the chat template {}: {error}", path.display());
    ChatTemplate::from_file(path, tokenizer).map_err(failed)
}

/// Control tokens that a streaming decoder spells out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ShownTokens<'a> {
    /// No control token.
    None,
    /// These control tokens, which the parser of the answer needs.
    Only(&'a Arc<[TokenId]>),
    /// All control tokens, as a request with `skip_special_tokens` false asks for.
    All,
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

    /// Whether the decoder holds back the beginning of a character.
    pub(crate) fn is_within_character(&self) -> bool {
        match self {
            StreamDecoder::Bytes(_, decoder) => decoder.is_within_character(),
            StreamDecoder::Model(decoder) => decoder.is_within_character(),
        }
    }

    pub(crate) fn finish(&mut self) -> String {
        match self {
            StreamDecoder::Bytes(_, decoder) => decoder.finish(),
            StreamDecoder::Model(decoder) => decoder.finish(),
        }
    }
}

/// Returns the response template of a model, which describes the answers to prompts in the model's own chat template;
/// `None` if the model has no response template that the server can follow.
fn response(files: &ModelFiles) -> Result<Option<Arc<ResponseTemplate>>, String> {
    let response = response_template(files).map_err(|error| error.to_string())?;
    Ok(response.and_then(|response| {
        let read = ResponseTemplate::read(&response);
        let unused = |error| tracing::warn!("the model's response template is not used: {error}");
        read.map_err(unused).ok().map(Arc::new)
    }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use tiercel_dialect::{ReasoningDialect, ToolDialect};

    #[test]
    fn a_stated_chat_template_decides_the_forms_of_a_mock_device() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let source = "{% if not messages %}{{ raise_exception('empty') }}{% endif %}{{ tools }}[TOOL_CALLS]\n<think>\n";
        std::fs::write(file.path(), source).unwrap();
        let vocabulary = Arc::new(MockVocabulary::of_replies(["Hi"].into_iter()));
        let text = Text::of_mock(vocabulary.clone(), Some(file.path())).unwrap();
        let forms = text.forms(&ModelSettings::default());
        assert_eq!(forms.tools, Some(ToolDialect::Mistral));
        let plain = Text::of_mock(vocabulary, None).unwrap();
        assert_eq!(plain.forms(&ModelSettings::default()).tools, Some(ToolDialect::Hermes));
        let conversation = Conversation::of_texts(&[("user", "Hi")], Ending::Open);
        let (stated, made_up) = (text.encode_chat(&conversation), plain.encode_chat(&conversation));
        let (stated, made_up) = (stated.unwrap(), made_up.unwrap());
        assert!(ReasoningDialect::Think.is_open(&stated.tail), "{stated:?}");
        assert_eq!((stated.tokens, made_up.tail), (made_up.tokens, String::new()));
        assert_eq!((text.templates().len(), plain.templates().len()), (2, 0));
        assert!(text.encode_chat(&Conversation::default()).is_err(), "the template refuses it");
        let error = Text::of_mock(Arc::default(), Some(Path::new("/no/such/file"))).err().unwrap();
        assert!(error.contains("/no/such/file"), "{error}");
    }

    /// Makes a directory with a tokenizer.
    fn tokenizer() -> tempfile::TempDir {
        let dir = tempfile::tempdir().unwrap();
        let tokenizer = Path::new(env!("CARGO_MANIFEST_DIR"))
            .join("../tests/reference/tokenizer/hf_byte_level");
        for file in ["tokenizer.json", "tokenizer_config.json"] {
            std::fs::copy(tokenizer.join(file), dir.path().join(file)).unwrap();
        }
        dir
    }

    #[test]
    fn a_response_template_belongs_to_the_chat_template_of_the_model() {
        let (dir, file) = (tokenizer(), tempfile::NamedTempFile::new().unwrap());
        let config = r#"{"chat_template": "{{ tools }}", "response_template": {"start_anchor": "a", "fields": {"tool_calls": {"open": "<c>", "content": "json"}, "thinking": {"open": "<t>"}}}}"#;
        std::fs::write(dir.path().join("tokenizer_config.json"), config).unwrap();
        std::fs::write(file.path(), "{{ tools }}").unwrap();
        let files = ModelFiles::HfDir(dir.path().to_owned());
        for (path, is_used) in [(None, true), (Some(file.path()), false)] {
            let text = Text::of_model(&files, path).unwrap();
            assert_eq!(text.forms(&ModelSettings::default()).template.is_some(), is_used);
        }
    }

    #[test]
    fn a_model_with_a_broken_chat_template_completes_texts() {
        let dir = tokenizer();
        std::fs::write(dir.path().join("chat_template.jinja"), "{% if %}").unwrap();
        let text = Text::of_model(&ModelFiles::HfDir(dir.path().to_owned()), None).unwrap();
        assert!(!text.encode("Hello", true).unwrap().is_empty());
        assert!(!text.has_chat());
        let conversation = Conversation::of_texts(&[("user", "Hello")], Ending::Open);
        let why = text.encode_chat(&conversation).unwrap_err();
        let TextError::Unreadable(why) = why else { panic!("{why:?}") };
        assert!(why.contains("chat template") && why.contains("/v1/completions"), "{why}");
    }
}
