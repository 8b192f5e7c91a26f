//! The ways in which models write tool calls.

use crate::UnknownDialect;
use std::fmt;
use std::str::FromStr;

/// The form in which a model writes tool calls.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ToolDialect {
    /// `<tool_call>{"name": …, "arguments": {…}}</tool_call>`: Hermes 2 and 3, Qwen2.5, Qwen3, SmolLM3.
    Hermes,
    /// `<tool_call><function=…><parameter=…>…</parameter></function></tool_call>`: Qwen3-Coder, Qwen3.5.
    QwenXml,
    /// `{"name": …, "parameters": {…}}` as the whole answer, or after `<|python_tag|>`: Llama 3.1 to 3.3.
    Llama3Json,
    /// `[f(a=1), g(b="x")]` as the whole answer, or after `<|python_start|>`: Llama 3.2 and 4.
    Pythonic,
    /// `[TOOL_CALLS]` and a JSON array, or `[TOOL_CALLS]f[ARGS]{…}`: Mistral.
    Mistral,
}

impl ToolDialect {
    /// All tool dialects.
    pub const ALL: [ToolDialect; 5] = [
        ToolDialect::Hermes,
        ToolDialect::QwenXml,
        ToolDialect::Llama3Json,
        ToolDialect::Pythonic,
        ToolDialect::Mistral,
    ];

    /// Name of the dialect in settings: the name that vLLM has for it.
    pub fn name(self) -> &'static str {
        match self {
            ToolDialect::Hermes => "hermes",
            ToolDialect::QwenXml => "qwen3_coder",
            ToolDialect::Llama3Json => "llama3_json",
            ToolDialect::Pythonic => "pythonic",
            ToolDialect::Mistral => "mistral",
        }
    }

    /// Returns the dialect of a model whose chat template has this source and whose tokenizer has added tokens with
    /// these texts; `None` if the model was trained on none of the known dialects, or on no tool calls.
    pub fn detect(template: &str, added_tokens: &[&str]) -> Option<ToolDialect> {
        let written = |text: &str| template.contains(text);
        let token = |text: &str| added_tokens.contains(&text);
        if written("<tool_call>") {
            return match () {
                () if written("<function=") => Some(ToolDialect::QwenXml),
                // GLM's calls have the same tag around another form.
                () if written("<arg_key>") => None,
                () => Some(ToolDialect::Hermes),
            };
        }
        match () {
            () if written("[TOOL_CALLS]") => Some(ToolDialect::Mistral),
            () if written("[func_name1(") || token("<|python_start|>") => {
                Some(ToolDialect::Pythonic)
            }
            () if written("\"parameters\": dictionary") || written("<|python_tag|>") => {
                Some(ToolDialect::Llama3Json)
            }
            () if token("[TOOL_CALLS]") => Some(ToolDialect::Mistral),
            () if token("<tool_call>") => Some(ToolDialect::Hermes),
            () if token("<|python_tag|>") => Some(ToolDialect::Llama3Json),
            () => None,
        }
    }

    /// Texts that open a call and that are special tokens in some tokenizers, which must be shown to the parser.
    pub fn triggers(self) -> &'static [&'static str] {
        match self {
            ToolDialect::Hermes => &["<tool_call>"],
            ToolDialect::QwenXml => &["<tool_call>", "<function="],
            ToolDialect::Llama3Json => &["<|python_tag|>"],
            ToolDialect::Pythonic => &["<|python_start|>"],
            ToolDialect::Mistral => &["[TOOL_CALLS]"],
        }
    }
}

impl fmt::Display for ToolDialect {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for ToolDialect {
    type Err = UnknownDialect;

    fn from_str(given: &str) -> Result<ToolDialect, UnknownDialect> {
        let all = ToolDialect::ALL;
        all.into_iter().find(|dialect| dialect.name() == given).ok_or_else(|| UnknownDialect {
            given: given.to_owned(),
            known: all.map(ToolDialect::name).join(", "),
        })
    }
}
