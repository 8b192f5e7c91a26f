//! Chat templates: render a conversation as one text, with the markup that the model was trained on.
//!
//! Templates are Jinja, written for Hugging Face's renderer. They come with the model, so they are programs of
//! strangers. They run in minijinja with a limit on the executed instructions and on the written text. The memory that
//! a template's values take meanwhile has no limit, and one instruction can double a text. So do not serve models of
//! people whose programs you would not run.

use crate::gguf::{GgufError, GgufFile};
use crate::source::ModelFiles;
use crate::tokenizer::{SpecialTokens, TEXT_BYTES_MAX, Tokenizer, TokenizerError, read_config};
use minijinja::syntax::SyntaxConfig;
use minijinja::value::{Kwargs, Serde, Value};
use minijinja::{Environment, Error, ErrorKind, context};
use serde::Serialize;
use serde_json::ser::{Formatter, PrettyFormatter, Serializer};
use std::fs::File;
use std::io::{self, Read, Write};
use std::path::Path;
use tiercel_device::{Clock, TokenId};

/// Maximum number of minijinja instructions that one rendering of a chat template may execute; thousands of messages
/// need fewer.
const FUEL: u64 = 20_000_000;
/// Maximum size of a chat template's source, bytes.
const SOURCE_BYTES_MAX: usize = 1 << 20;
const NAME: &str = "chat";
/// Maximum indentation of JSON that a chat template writes, in spaces; a larger one is reduced to it.
const INDENT_MAX: usize = 16;

/// The ChatML chat template, used for models without a template of their own. Most instruction-tuned models understand
/// ChatML.
const CHATML: &str = "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\\n' + \
     message['content'] + '<|im_end|>' + '\\n' }}{% endfor %}\
     {% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}";

/// One message of a conversation.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct ChatMessage {
    /// Author of the message: `system`, `user`, `assistant` or `tool`.
    pub role: String,
    /// Text of the message.
    pub content: String,
}

/// Errors of reading and compiling a chat template, of rendering a conversation with it, and of encoding the result.
#[derive(Debug, thiserror::Error)]
pub enum TemplateError {
    /// The chat template cannot be used, whatever the messages are.
    #[error(
        "the model's chat template cannot be used: {0}; use /v1/completions, or have the template fixed"
    )]
    Template(String),
    /// The chat template refused the messages of a conversation, took too long or wrote too much. This counts as the
    /// client's fault.
    #[error("the model's chat template does not accept these messages: {0}")]
    Messages(String),
    /// The tokenizer, or a configuration file that belongs to the chat template, cannot be used.
    #[error(transparent)]
    Tokenizer(#[from] TokenizerError),
    /// The GGUF file that holds the chat template, or the template's entry in it, cannot be read.
    #[error(transparent)]
    Gguf(#[from] GgufError),
}

/// A model's compiled chat template.
#[derive(Debug)]
pub struct ChatTemplate {
    environment: Environment<'static>,
    bos: String,
    eos: String,
}

impl ChatTemplate {
    /// Reads the chat template of a model. For a model without a template, uses ChatML and logs a warning.
    ///
    /// # Errors
    /// [`TemplateError`] for unreadable files, and for templates that are too long or do not compile.
    pub fn from_files(
        files: &ModelFiles,
        tokenizer: &Tokenizer,
    ) -> Result<ChatTemplate, TemplateError> {
        let source = match files {
            ModelFiles::Gguf(path) => of_gguf(path)?,
            ModelFiles::HfDir(dir) => of_dir(dir)?,
        };
        let source = source.unwrap_or_else(|| {
            tracing::warn!("the model has no chat template; using ChatML");
            CHATML.to_owned()
        });
        ChatTemplate::new(source, tokenizer.special(), &|token| {
            String::from_utf8_lossy(tokenizer.token_bytes(token)).into_owned()
        })
    }

    fn new(
        source: String,
        special: &SpecialTokens,
        text: &dyn Fn(TokenId) -> String,
    ) -> Result<ChatTemplate, TemplateError> {
        if source.len() > SOURCE_BYTES_MAX {
            let why = format!("it has more than {SOURCE_BYTES_MAX} bytes");
            return Err(TemplateError::Template(why));
        }
        let mut environment = Environment::new();
        // Configure minijinja like Hugging Face's renderer: its options, functions and filters.
        let syntax = SyntaxConfig::builder().trim_blocks(true).lstrip_blocks(true).build();
        environment.set_syntax(syntax.map_err(|error| TemplateError::Template(one_line(&error)))?);
        environment
            .set_unknown_method_callback(minijinja_contrib::pycompat::unknown_method_callback);
        environment.add_function("raise_exception", raise_exception);
        environment.add_function("strftime_now", strftime_now);
        environment.add_filter("tojson", tojson);
        environment.set_fuel(Some(FUEL));
        environment
            .add_template_owned(NAME, source)
            .map_err(|error| TemplateError::Template(one_line(&error)))?;
        let token = |token: Option<TokenId>| token.map(text).unwrap_or_default();
        Ok(ChatTemplate { environment, bos: token(special.bos), eos: token(special.eos) })
    }

    /// Renders a conversation and encodes it as tokens; with `open`, the prompt ends with the beginning of the
    /// assistant's answer. A control token that is spelled in a message's content is encoded as its characters.
    ///
    /// # Errors
    /// The errors of [`ChatTemplate::render`], and [`TemplateError::Tokenizer`].
    pub fn encode(
        &self,
        tokenizer: &Tokenizer,
        messages: &[ChatMessage],
        open: bool,
    ) -> Result<Vec<TokenId>, TemplateError> {
        let protected = |message: &ChatMessage| ChatMessage {
            role: message.role.clone(),
            content: tokenizer.protect(&message.content).into_owned(),
        };
        let messages: Vec<ChatMessage> = messages.iter().map(protected).collect();
        Ok(tokenizer.encode_markup(&self.render(&messages, open)?)?)
    }

    /// Renders a conversation as text with markup; with `open`, the text ends with the beginning of the assistant's
    /// answer. The text contains the beginning-of-text token if the template writes it, so encode the text without
    /// adding special tokens.
    ///
    /// # Errors
    /// [`TemplateError::Messages`] if the template raises an error, takes too long or writes too much.
    pub fn render(&self, messages: &[ChatMessage], open: bool) -> Result<String, TemplateError> {
        let failed = |error: Error| TemplateError::Messages(one_line(&error));
        let template = self.environment.get_template(NAME).map_err(failed)?;
        let context = context! {
            messages => Value::from(Serde(messages)),
            add_generation_prompt => open,
            bos_token => self.bos.as_str(),
            eos_token => self.eos.as_str(),
        };
        let mut text = Bounded(Vec::new());
        template.render_captured_to(context, &mut text).map_err(failed)?;
        String::from_utf8(text.0).map_err(|error| TemplateError::Messages(error.to_string()))
    }
}

/// Writer that collects the rendered conversation and fails beyond the longest text that can be tokenized.
struct Bounded(Vec<u8>);

impl Write for Bounded {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if bytes.len() > TEXT_BYTES_MAX - self.0.len() {
            let message = format!("the conversation is longer than {TEXT_BYTES_MAX} bytes");
            return Err(io::Error::other(message));
        }
        self.0.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

fn of_gguf(path: &Path) -> Result<Option<String>, TemplateError> {
    let file = GgufFile::open(path)?;
    Ok(file.metadata().str("tokenizer.chat_template")?.map(str::to_owned))
}

/// Reads the chat template of a model directory from `chat_template.jinja`, or else from `tokenizer_config.json`. The
/// latter holds a text, or a list of named texts of which the text named `default` counts.
fn of_dir(dir: &Path) -> Result<Option<String>, TemplateError> {
    let path = dir.join("chat_template.jinja");
    if path.exists() {
        let unreadable = |error: io::Error| TemplateError::Template(error.to_string());
        let mut source = String::new();
        // Read one byte more than the maximum size, so that a chat template that is too long is refused, not cut.
        let bounded = File::open(path).map(|file| file.take(SOURCE_BYTES_MAX as u64 + 1));
        bounded.and_then(|mut file| file.read_to_string(&mut source)).map_err(unreadable)?;
        return Ok(Some(source));
    }
    let Some(config) = read_config(&dir.join("tokenizer_config.json"))? else { return Ok(None) };
    let template = match &config["chat_template"] {
        serde_json::Value::Array(named) => named
            .iter()
            .find(|entry| entry["name"] == "default")
            .and_then(|entry| entry["template"].as_str()),
        other => other.as_str(),
    };
    Ok(template.map(str::to_owned))
}

fn raise_exception(message: String) -> Result<Value, Error> {
    Err(Error::new(ErrorKind::InvalidOperation, message))
}

/// Jinja function: returns the current date in UTC, in the given format of C's `strftime`.
fn strftime_now(format: String) -> Result<String, Error> {
    let invalid = |error: jiff::Error| Error::new(ErrorKind::InvalidOperation, error.to_string());
    let seconds = i64::try_from(Clock::unix_s()).unwrap_or(0);
    let now = jiff::Timestamp::from_second(seconds).map_err(invalid)?;
    jiff::fmt::strtime::format(format, now).map_err(invalid)
}

/// Jinja filter: writes a value as JSON like Python's `json.dumps(ensure_ascii=False)`. minijinja's own filter escapes
/// for HTML.
fn tojson(value: Value, options: Kwargs) -> Result<Value, Error> {
    let indent: Option<usize> = options.get("indent")?;
    // Accept and ignore the option `ensure_ascii`, which some chat templates set: the JSON is never reduced to ASCII.
    options.get::<Option<bool>>("ensure_ascii")?;
    options.assert_all_used()?;
    let mut text = Vec::new();
    let written = match indent {
        None => value.serialize(&mut Serializer::with_formatter(&mut text, Spaced)),
        Some(width) => {
            let indent = " ".repeat(width.min(INDENT_MAX));
            let pretty = PrettyFormatter::with_indent(indent.as_bytes());
            value.serialize(&mut Serializer::with_formatter(&mut text, pretty))
        }
    };
    written.map_err(|error| Error::new(ErrorKind::InvalidOperation, format!("tojson: {error}")))?;
    Ok(Value::from_safe_string(String::from_utf8_lossy(&text).into_owned()))
}

/// JSON formatter that writes a space after commas and colons, as Python does.
struct Spaced;

impl Formatter for Spaced {
    fn begin_array_value<W: ?Sized + Write>(&mut self, out: &mut W, first: bool) -> io::Result<()> {
        if first { Ok(()) } else { out.write_all(b", ") }
    }

    fn begin_object_key<W: ?Sized + Write>(&mut self, out: &mut W, first: bool) -> io::Result<()> {
        if first { Ok(()) } else { out.write_all(b", ") }
    }

    fn begin_object_value<W: ?Sized + Write>(&mut self, out: &mut W) -> io::Result<()> {
        out.write_all(b": ")
    }
}

fn one_line(error: &Error) -> String {
    let mut text = error.detail().map_or_else(|| error.kind().to_string(), str::to_owned);
    if let Some(cause) = std::error::Error::source(error) {
        text = format!("{text}: {cause}");
    }
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(role: &str, content: &str) -> ChatMessage {
        ChatMessage { role: role.into(), content: content.into() }
    }

    fn template(source: &str) -> Result<ChatTemplate, TemplateError> {
        let special = SpecialTokens { bos: Some(1), eos: Some(2), ..SpecialTokens::default() };
        ChatTemplate::new(source.into(), &special, &|token| format!("<{token}>"))
    }

    #[test]
    fn chatml_renders_as_it_was_trained() {
        let chat = template(CHATML).unwrap();
        let messages = [message("system", "Be brief."), message("user", "Hi <b>\"you\"</b>")];
        let expected = "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\n\
                        Hi <b>\"you\"</b><|im_end|>\n<|im_start|>assistant\n";
        assert_eq!(chat.render(&messages, true).unwrap(), expected);
        assert!(!chat.render(&messages, false).unwrap().ends_with("assistant\n"));
    }

    /// Checks that a template gives the text that Jinja2 3.1 gives for it with `trim_blocks` and `lstrip_blocks`.
    #[test]
    fn python_methods_slices_namespaces_and_tokens_work() {
        let chat = template(
            "{{ bos_token }}{% set ns = namespace(n=0) %}\n\
             {% if messages[0]['role'] == 'system' %}\n    {{ messages[0].content.strip() }}\n\
             {% set messages = messages[1:] %}{% endif %}\n\
             {% for m in messages %}{% set ns.n = ns.n + 1 %}[{{ ns.n }}:{{ m.role.upper() }}]\
             {{ m['content'] | trim }}{{ {'a': ['<', 1]} | tojson }}{{ eos_token }}{% endfor %}",
        )
        .unwrap();
        let messages = [message("system", "  S "), message("user", " U ")];
        let expected = "<1>    S\n[1:USER]U{\"a\": [\"<\", 1]}<2>";
        assert_eq!(chat.render(&messages, true).unwrap(), expected);
    }

    /// Checks that values give the JSON that Python's `json.dumps(ensure_ascii=False)` gives for them.
    #[test]
    fn json_is_written_as_python_writes_it() {
        let json = |options: &str| {
            let value = "{'b': [1, 2.0, true, none], 'a': {'é<': 'x\\n'}, 'c': [], 'd': {}}";
            let source = format!("{{{{ {value} | tojson{options} }}}}");
            template(&source).unwrap().render(&[], true).unwrap()
        };
        let flat = r#"{"b": [1, 2.0, true, null], "a": {"é<": "x\n"}, "c": [], "d": {}}"#;
        assert_eq!(json(""), flat);
        assert_eq!(json("(ensure_ascii=false)"), flat);
        let indented = json("(indent=4)");
        assert!(indented.starts_with("{\n    \"b\": [\n        1,\n"), "{indented}");
        assert!(indented.ends_with("    \"c\": [],\n    \"d\": {}\n}"), "{indented}");
    }

    #[test]
    fn a_template_that_raises_says_so_in_one_line() {
        let chat = template("{{ raise_exception('roles must\n alternate') }}").unwrap();
        let error = chat.render(&[message("user", "x")], true).unwrap_err().to_string();
        assert!(error.ends_with("roles must alternate"), "{error}");
    }

    #[test]
    fn a_template_cannot_run_for_ever() {
        let chat = template(
            "{% for a in range(9999) %}{% for b in range(9999) %}{% for c in range(9999) %}\
             {% endfor %}{% endfor %}{% endfor %}",
        )
        .unwrap();
        assert!(matches!(chat.render(&[], true), Err(TemplateError::Messages(_))));
    }

    #[test]
    fn a_rendering_has_a_longest_length() {
        let chat = template("{{ messages[0].content }}").unwrap();
        let render = |bytes| chat.render(&[message("user", &"x".repeat(bytes))], true);
        assert_eq!(render(TEXT_BYTES_MAX).unwrap().len(), TEXT_BYTES_MAX);
        let error = render(TEXT_BYTES_MAX + 1).unwrap_err().to_string();
        assert!(error.contains("longer than"), "{error}");
    }

    #[test]
    fn a_broken_template_is_refused_at_the_start() {
        assert!(matches!(template("{% if %}"), Err(TemplateError::Template(_))));
        assert!(matches!(template(&" ".repeat(2 << 20)), Err(TemplateError::Template(_))));
    }

    #[test]
    fn todays_date_has_the_format_asked_for() {
        let chat = template("{{ strftime_now('%d %b %Y') }}").unwrap();
        let date = chat.render(&[], true).unwrap();
        assert_eq!(date.len(), 11, "{date}");
        assert!(date.ends_with("20") || date[7..].parse::<u32>().unwrap() >= 2024, "{date}");
    }
}
