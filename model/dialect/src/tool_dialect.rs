//! Tool dialects: the forms in which models write tool calls.

use crate::UnknownDialect;
use std::fmt;
use std::str::FromStr;

/// Form in which a model writes tool calls.
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

    /// Returns the name of the dialect in the settings, which is vLLM's name for the dialect.
    pub fn name(self) -> &'static str {
        match self {
            ToolDialect::Hermes => "hermes",
            ToolDialect::QwenXml => "qwen3_coder",
            ToolDialect::Llama3Json => "llama3_json",
            ToolDialect::Pythonic => "pythonic",
            ToolDialect::Mistral => "mistral",
        }
    }

    /// Returns the tool dialect of a model, given the source of its chat template and the texts of its tokenizer's
    /// added tokens; `None` if the model writes no tool calls, or writes them in an unknown dialect.
    pub fn detect(template: &str, added_tokens: &[&str]) -> Option<ToolDialect> {
        let written = |text: &str| template.contains(text);
        let token = |text: &str| added_tokens.contains(&text);
        if written("<tool_call>") {
            return match () {
                () if written("<function=") => Some(ToolDialect::QwenXml),
                // GLM models write another form of calls in the same tag.
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

    /// Returns the trigger that grammars use.
    pub(crate) fn trigger(self) -> &'static str {
        self.triggers()[0]
    }

    /// Whether every call must open with a trigger.
    pub(crate) fn needs_trigger(self) -> bool {
        !matches!(self, ToolDialect::Llama3Json | ToolDialect::Pythonic)
    }

    /// Returns the texts that open calls. A trigger is a special token in some tokenizers; the decoder must not skip
    /// this special token.
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

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests state what must hold")]
mod tests {
    use super::*;

    #[test]
    fn names_are_read_back() {
        for dialect in ToolDialect::ALL {
            assert_eq!(dialect.to_string().parse(), Ok(dialect));
        }
        let error = "openai".parse::<ToolDialect>().unwrap_err();
        assert!(error.to_string().starts_with("`openai` is no dialect; the dialects are hermes, "));
    }

    #[test]
    fn templates_show_their_dialect() {
        let qwen = r#"return a json object within <tool_call></tool_call> XML tags:\n<tool_call>"#;
        let coder =
            "<tool_call>\n<function=example_function_name>\n<parameter=example_parameter_1>";
        let glm = "<tool_call>{function-name}\n<arg_key>{arg-key-1}</arg_key>";
        let llama = r#"Respond in the format {"name": function name, "parameters": dictionary of argument name"#;
        let llama4 =
            "it should be in the format of\n[func_name1(params_name1=params_value1), func_name2()]";
        let mistral = "{{- '[TOOL_CALLS] [' }}";
        let plain = "<|im_start|>{{ message.role }}";
        for (template, tokens, dialect) in [
            (qwen, &[][..], Some(ToolDialect::Hermes)),
            (coder, &["<tool_call>"], Some(ToolDialect::QwenXml)),
            (glm, &["<tool_call>"], None),
            (llama, &["<|python_tag|>"], Some(ToolDialect::Llama3Json)),
            (llama4, &["<|python_tag|>"], Some(ToolDialect::Pythonic)),
            (mistral, &[], Some(ToolDialect::Mistral)),
            (plain, &[], None),
            (plain, &["[INST]", "[TOOL_CALLS]"], Some(ToolDialect::Mistral)),
            (plain, &["<tool_call>"], Some(ToolDialect::Hermes)),
            (plain, &["<|python_tag|>"], Some(ToolDialect::Llama3Json)),
            (plain, &["<|python_start|>"], Some(ToolDialect::Pythonic)),
        ] {
            assert_eq!(ToolDialect::detect(template, tokens), dialect, "{template} {tokens:?}");
        }
    }
}
