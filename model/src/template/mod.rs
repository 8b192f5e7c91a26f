//! Chat templates: Jinja programs that render a conversation as one text, with the markup that the model was trained
//! on.
//!
//! Chat templates are written for Hugging Face's renderer. They come with the model, so they are untrusted programs.
//! minijinja runs a chat template with a limit on the executed instructions and on the written text. The memory of the
//! template's values has no limit, and one instruction can double the length of a text. Therefore, do not serve models
//! of people whose programs you would not run.
//!
//! | file | content |
//! |---|---|
//! | `source.rs` | reads the Jinja source of a model's chat templates |
//! | `functions.rs` | functions and filters that chat templates expect |
//! | `conversation.rs` | messages, tools and variables that are rendered |
//! | `spelled_out.rs` | tools for chat templates that know no tools |

mod conversation;
mod error;
mod functions;
mod source;
mod spelled_out;
#[cfg(test)]
mod tests;

pub use conversation::{Conversation, Ending, Message};
pub use error::TemplateError;
pub use source::response_template;

use crate::source::ModelFiles;
use crate::tokenizer::{SpecialTokens, TEXT_BYTES_MAX, Tokenizer};
use conversation::text;
use error::one_line;
use minijinja::syntax::SyntaxConfig;
use minijinja::value::{Serde, Value};
use minijinja::{Environment, Error, context};
use source::{CHATML, SOURCE_BYTES_MAX, Sources};
use std::io::{self, Write};
use std::path::Path;
use tiercel_device::TokenId;

/// Maximum number of minijinja instructions for one rendering of a chat template. A conversation of thousands of
/// messages needs fewer instructions.
const FUEL: u64 = 20_000_000;
/// Maximum length of [`Prompt::tail`], characters.
const TAIL_CHARS: usize = 512;

/// Mark at the end of a message that the model continues: a noncharacter, which Unicode reserves for use inside
/// programs. A space follows the mark. If the rendered text lacks this space, the template removes spaces at the end of
/// a message.
const END_MARK: char = '\u{FDD1}';

/// A rendered and encoded conversation.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Prompt {
    /// Tokens of the rendered conversation.
    pub tokens: Vec<TokenId>,
    /// Last characters of the rendered conversation, at most 512. The tail shows whether the template has begun the
    /// answer, for example with the tag that opens reasoning.
    pub tail: String,
}

/// Compiled chat templates of a model: one template for all conversations, or a second template for conversations with
/// tools.
#[derive(Debug)]
pub struct ChatTemplate {
    environment: Environment<'static>,
    default: Facts,
    tool_use: Option<Facts>,
    bos: String,
    eos: String,
}

/// Properties of a chat template, which are read from its source.
#[derive(Debug, Clone)]
struct Facts {
    /// Name of the template in the environment.
    name: &'static str,
    source: String,
    /// Whether the template writes tools. For a template that writes no tools, the tools are spelled out.
    knows_tools: bool,
    /// Whether the template knows the role `developer`. For a template that does not know the role, `developer` becomes
    /// `system`.
    knows_developer: bool,
}

impl Facts {
    fn new(name: &'static str, source: &str) -> Facts {
        Facts {
            name,
            source: source.to_owned(),
            knows_tools: source.contains("tools"),
            knows_developer: source.contains("developer"),
        }
    }
}

impl ChatTemplate {
    /// Reads and compiles the chat templates of a model. A model without a template gets ChatML, and a warning is
    /// logged.
    ///
    /// # Errors
    /// [`TemplateError`] for unreadable files, and for templates that are too long or do not compile.
    pub fn from_files(
        files: &ModelFiles,
        tokenizer: &Tokenizer,
    ) -> Result<ChatTemplate, TemplateError> {
        ChatTemplate::new(Sources::of(files)?, tokenizer.special(), &|token| {
            String::from_utf8_lossy(tokenizer.token_bytes(token)).into_owned()
        })
    }

    /// Reads and compiles a chat template from a file, in place of a model's own. Without a tokenizer, the texts of the
    /// special tokens are empty.
    ///
    /// # Errors
    /// [`TemplateError`] for an unreadable file, and for a template that is too long or does not compile.
    pub fn from_file(
        path: &Path,
        tokenizer: Option<&Tokenizer>,
    ) -> Result<ChatTemplate, TemplateError> {
        let none = SpecialTokens::default();
        let special = tokenizer.map_or(&none, Tokenizer::special);
        ChatTemplate::new(Sources::of_file(path)?, special, &|token| {
            let bytes = tokenizer.map(|tokenizer| tokenizer.token_bytes(token));
            String::from_utf8_lossy(bytes.unwrap_or_default()).into_owned()
        })
    }

    fn new(
        sources: Sources,
        special: &SpecialTokens,
        text: &dyn Fn(TokenId) -> String,
    ) -> Result<ChatTemplate, TemplateError> {
        let default = sources.default.unwrap_or_else(|| {
            tracing::warn!("the model has no chat template; using ChatML");
            CHATML.to_owned()
        });
        let mut environment = Environment::new();
        // Configure minijinja like Hugging Face's renderer, with the same options, functions and filters.
        let syntax = SyntaxConfig::builder().trim_blocks(true).lstrip_blocks(true).build();
        environment.set_syntax(syntax.map_err(|error| TemplateError::Template(one_line(&error)))?);
        functions::add_to(&mut environment);
        environment.set_fuel(Some(FUEL));
        let default = add(&mut environment, "chat", &default)?;
        let tool_use = sources.tool_use.map(|source| add(&mut environment, "tool_use", &source));
        let token = |token: Option<TokenId>| token.map(text).unwrap_or_default();
        Ok(ChatTemplate {
            environment,
            default,
            tool_use: tool_use.transpose()?,
            bos: token(special.bos),
            eos: token(special.eos),
        })
    }

    /// Returns the Jinja source of the template for conversations with tools; `None` if this template writes no tools,
    /// so that tools are spelled out in the form of the Hermes models.
    pub fn tools_source(&self) -> Option<&str> {
        let facts = self.facts(true);
        facts.knows_tools.then_some(&facts.source)
    }

    /// Returns the Jinja source of the template for conversations without tools.
    pub fn source(&self) -> &str {
        &self.default.source
    }

    /// Renders a conversation and encodes the text as tokens. If a text of the conversation contains the name of a
    /// control token, the name is encoded as ordinary text.
    ///
    /// # Errors
    /// The errors of [`ChatTemplate::render`], and [`TemplateError::Tokenizer`].
    pub fn encode(
        &self,
        tokenizer: &Tokenizer,
        conversation: &Conversation,
    ) -> Result<Prompt, TemplateError> {
        let protected = conversation.map_texts(&|text| tokenizer.protect(text).into_owned());
        let text = self.rendered(protected)?;
        let tail = tail(Tokenizer::unprotected(&text));
        Ok(Prompt { tokens: tokenizer.encode_markup(&text)?, tail })
    }

    /// Renders a conversation, and returns the last characters of the text, as in [`Prompt::tail`].
    ///
    /// # Errors
    /// The errors of [`ChatTemplate::render`].
    pub fn tail(&self, conversation: &Conversation) -> Result<String, TemplateError> {
        Ok(tail(self.render(conversation)?.chars()))
    }

    /// Renders a conversation as text with markup. The text contains the beginning-of-text token if the template writes
    /// this token, so encode the text without adding special tokens.
    ///
    /// # Errors
    /// [`TemplateError::Messages`] if the template raises an error, takes too long or writes too much.
    pub fn render(&self, conversation: &Conversation) -> Result<String, TemplateError> {
        self.rendered(conversation.clone())
    }

    fn rendered(&self, conversation: Conversation) -> Result<String, TemplateError> {
        let facts = self.facts(!conversation.tools.is_empty());
        let suited = suited(conversation, facts);
        let continued = suited.ending == Ending::Continued;
        let failed = |error: Error| TemplateError::Messages(one_line(&error));
        let template = self.environment.get_template(facts.name).map_err(failed)?;
        let tools = (!suited.tools.is_empty()).then(|| Value::from(Serde(&suited.tools)));
        let variables = Value::from(Serde(&suited.variables));
        let context = context! {
            messages => Value::from(Serde(&suited.messages)),
            tools => tools.unwrap_or(Value::from(())),
            documents => Value::from(()),
            add_generation_prompt => suited.ending == Ending::Open,
            bos_token => self.bos.as_str(),
            eos_token => self.eos.as_str(),
            ..variables
        };
        let mut written = Bounded(Vec::new());
        template.render_captured_to(context, &mut written).map_err(failed)?;
        let rendered = String::from_utf8(written.0)
            .map_err(|error| TemplateError::Messages(error.to_string()))?;
        if continued { cut_at_end_mark(rendered) } else { Ok(rendered) }
    }

    /// Returns the properties of the template that renders conversations with or without tools.
    fn facts(&self, with_tools: bool) -> &Facts {
        self.tool_use.as_ref().filter(|_| with_tools).unwrap_or(&self.default)
    }
}

/// Compiles a template and adds it to the environment under `name`.
fn add(
    environment: &mut Environment<'static>,
    name: &'static str,
    source: &str,
) -> Result<Facts, TemplateError> {
    if source.len() > SOURCE_BYTES_MAX {
        let why = format!("it has more than {SOURCE_BYTES_MAX} bytes");
        return Err(TemplateError::Template(why));
    }
    environment
        .add_template_owned(name, source::without_generation_tags(source))
        .map_err(|error| TemplateError::Template(one_line(&error)))?;
    Ok(Facts::new(name, source))
}

/// Converts a conversation to the form that a template can render: tools are spelled out for a template that writes no
/// tools, and the role `developer` becomes `system` for a template that does not know the role `developer`.
fn suited(mut conversation: Conversation, facts: &Facts) -> Conversation {
    if !facts.knows_developer {
        for message in &mut conversation.messages {
            if text(message, "role") == "developer" {
                message.insert("role".into(), "system".into());
            }
        }
    }
    if !facts.knows_tools {
        conversation = conversation.spelled_out("user");
    }
    if let (Ending::Continued, Some(last)) = (conversation.ending, conversation.messages.last_mut())
    {
        let marked = format!("{}{END_MARK} ", text(last, "content"));
        last.insert("content".into(), marked.into());
    }
    conversation
}

/// Cuts a rendered conversation at the mark that ends its last message. If the template has removed the space after the
/// mark, the spaces before the mark are removed too, because the template would have removed these spaces without the
/// mark.
fn cut_at_end_mark(mut rendered: String) -> Result<String, TemplateError> {
    let at = rendered.rfind(END_MARK).ok_or_else(|| {
        let why = "the template does not write the last message, so that it cannot be continued";
        TemplateError::Messages(why.into())
    })?;
    let kept = rendered[at + END_MARK.len_utf8()..].starts_with(' ');
    rendered.truncate(at);
    if !kept {
        rendered.truncate(rendered.trim_end().len());
    }
    Ok(rendered)
}

fn tail(characters: impl DoubleEndedIterator<Item = char>) -> String {
    let reversed: Vec<char> = characters.rev().take(TAIL_CHARS).collect();
    reversed.into_iter().rev().collect()
}

/// Writer that collects the rendered conversation, and fails if the conversation is longer than the longest text that
/// the tokenizer accepts.
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
