//! Forms in which a model writes tool calls and reasoning. The settings state the forms, or the server detects the
//! forms from the chat template and the vocabulary of the model.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use tiercel_config::{ModelSettings, ReasoningParser, ToolParser};
use tiercel_device::TokenId;
use tiercel_dialect::{ReasoningDialect, ResponseTemplate, ToolDialect};

/// Texts that stand inside calls or close calls, and that are special tokens of some vocabularies.
const INNER: &[&str] = &["</tool_call>", "[ARGS]", "[CALL_ID]", "<|python_end|>"];

/// Forms in which a model writes tool calls and reasoning.
#[derive(Debug, Clone, Default)]
pub(crate) struct Forms {
    /// Response template of the model, by which answers are parsed; `None` if the model has none that the server can
    /// follow, or if the settings state a form or a chat template. With a response template, the other fields serve
    /// grammars and budgets of reasoning only.
    pub(crate) template: Option<Arc<ResponseTemplate>>,
    /// Form of tool calls; `None` if the server knows no form of the model, or if the settings turn parsing off.
    pub(crate) tools: Option<ToolDialect>,
    /// Tags around reasoning; `None` if the model has no tags that the server knows, or if the settings turn parsing
    /// off.
    pub(crate) reasoning: Option<ReasoningDialect>,
    /// Ids of the special tokens that open, divide or close calls, or open or close reasoning, for example
    /// `<tool_call>`.
    pub(crate) markup: Arc<[TokenId]>,
    /// Ids of the special tokens that open or close reasoning, for example `<think>`.
    pub(crate) reasoning_markup: Arc<[TokenId]>,
    /// Ids of the special tokens that look like markup, by the texts of the tokens.
    pub(crate) special: Arc<BTreeMap<String, TokenId>>,
    /// Ids of all tokens that look like markup, special or not, by the texts of the tokens.
    pub(crate) tokens: Arc<BTreeMap<String, TokenId>>,
}

/// Properties of a model from which the server detects its forms.
pub(crate) struct Signs<'a> {
    /// Source of the chat template for conversations without tools.
    pub(crate) template: &'a str,
    /// Source of the chat template for conversations with tools. `None` if the model has no template that writes tools;
    /// the server then spells tools out in the form of the Hermes models.
    pub(crate) tools_template: Option<&'a str>,
    /// Response template of the model.
    pub(crate) response: Option<Arc<ResponseTemplate>>,
    /// Tokens of the vocabulary that look like markup: id, text, and whether the token is special.
    pub(crate) tokens: Vec<(TokenId, &'a str, bool)>,
}

impl Forms {
    /// Returns the forms that the settings state. For a setting `auto`, returns the form that the model shows.
    pub(crate) fn of(signs: &Signs<'_>, settings: &ModelSettings) -> Forms {
        let texts: Vec<&str> = signs.tokens.iter().map(|(_, text, _)| *text).collect();
        let tools = match settings.tool_parser {
            ToolParser::Auto => match signs.tools_template {
                Some(template) => ToolDialect::detect(template, &texts),
                None => Some(ToolDialect::Hermes),
            },
            ToolParser::None => None,
            stated => ToolDialect::ALL.into_iter().find(|dialect| dialect.name() == stated.word()),
        };
        let reasoning = match settings.reasoning_parser {
            ReasoningParser::Auto => ReasoningDialect::detect(signs.template, &texts),
            ReasoningParser::None => None,
            stated => {
                ReasoningDialect::ALL.into_iter().find(|dialect| dialect.name() == stated.word())
            }
        };
        let is_auto = settings.tool_parser == ToolParser::Auto
            && settings.reasoning_parser == ReasoningParser::Auto;
        // If the chat template shows a form of calls or reasoning, a response template without a field for calls or
        // reasoning, respectively, is not used. A response template with a field for calls is not used if the server
        // spells tools out, because the calls then have the form of the Hermes models.
        let is_whole = |template: &Arc<ResponseTemplate>| {
            (template.has_calls() || tools.is_none())
                && (!template.has_calls() || signs.tools_template.is_some())
                && (template.has_reasoning() || reasoning.is_none())
        };
        let template = signs.response.clone().filter(|template| is_auto && is_whole(template));
        let tags = reasoning.map(|dialect| [dialect.open_tag(), dialect.close_tag()]);
        let tags: BTreeSet<&str> = tags.into_iter().flatten().collect();
        let triggers = tools.map_or(&[][..], ToolDialect::triggers).iter().chain(INNER).copied();
        let all: BTreeSet<&str> = tags.iter().copied().chain(triggers).collect();
        let special = |wanted: &BTreeSet<&str>, with_calls: bool| -> Arc<[TokenId]> {
            let is_markup = |text: &str| match &template {
                Some(template) => template.marks(text, with_calls),
                None => wanted.contains(text),
            };
            let tokens =
                signs.tokens.iter().filter(|(_, text, special)| *special && is_markup(text));
            tokens.map(|(id, _, _)| *id).collect()
        };
        let by_text = |all: bool| {
            let tokens = signs.tokens.iter().filter(|(_, _, special)| all || *special);
            Arc::new(tokens.map(|(id, text, _)| ((*text).to_owned(), *id)).collect())
        };
        Forms {
            markup: special(&all, true),
            reasoning_markup: special(&tags, false),
            special: by_text(false),
            tokens: by_text(true),
            template,
            tools,
            reasoning,
        }
    }

    /// Whether the server can parse calls of the model.
    pub(crate) fn has_calls(&self) -> bool {
        self.template.as_ref().map_or(self.tools.is_some(), |template| template.has_calls())
    }

    /// Logs the forms of the served model.
    pub(crate) fn log(&self) {
        if self.template.is_some() {
            tracing::info!(
                "the model's response_template is the form of tool calls and of reasoning"
            );
            return;
        }
        let tool_parser = self.tools.map_or("none", ToolDialect::name);
        let reasoning_parser = self.reasoning.map_or("none", ReasoningDialect::name);
        tracing::info!(tool_parser, reasoning_parser, "forms of tool calls and of reasoning");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const QWEN: &str = "{{ tools }}<tool_call>{\"name\"{{ '</think>' }}";

    fn signs<'a>(template: &'a str, tools: bool) -> Signs<'a> {
        let tokens = vec![(7, "<tool_call>", true), (8, "</think>", true), (9, "<think>", false)];
        Signs { template, tools_template: tools.then_some(template), response: None, tokens }
    }

    #[test]
    fn the_model_decides_unless_settings_do() {
        let settings = ModelSettings::default();
        let forms = Forms::of(&signs(QWEN, true), &settings);
        assert_eq!(forms.tools, Some(ToolDialect::Hermes));
        assert_eq!(forms.reasoning, Some(ReasoningDialect::Think));
        assert_eq!((&forms.markup[..], &forms.reasoning_markup[..]), (&[7, 8][..], &[8][..]));
        let stated = ModelSettings {
            tool_parser: ToolParser::Mistral,
            reasoning_parser: ReasoningParser::None,
            ..settings
        };
        let forms = Forms::of(&signs(QWEN, true), &stated);
        assert_eq!((forms.tools, forms.reasoning), (Some(ToolDialect::Mistral), None));
    }

    #[test]
    fn a_template_without_tools_has_the_spelled_out_form() {
        let none = Signs { tokens: vec![], ..signs("{{ messages }}", false) };
        let forms = Forms::of(&none, &ModelSettings::default());
        assert_eq!((forms.tools, forms.reasoning), (Some(ToolDialect::Hermes), None));
        let unknown = Signs { tokens: vec![], ..signs("{{ tools }}", true) };
        assert_eq!(Forms::of(&unknown, &ModelSettings::default()).tools, None);
    }

    #[test]
    fn a_response_template_is_the_form_unless_settings_state_one() {
        let response = ResponseTemplate::read(&serde_json::json!({
            "start_anchor": "a",
            "fields": {"tool_calls": {"open": "<tool_call>", "content": "json"}, "thinking": {"open": "<t>"}},
        }));
        let response = Some(Arc::new(response.unwrap()));
        let signs = Signs { response, ..signs("{{ tools }}", true) };
        let forms = Forms::of(&signs, &ModelSettings::default());
        assert!(forms.template.is_some() && forms.has_calls());
        assert_eq!(forms.tools, Some(ToolDialect::Hermes), "the form of grammars");
        assert_eq!((&forms.markup[..], &forms.reasoning_markup[..]), (&[7][..], &[][..]));
        let calls = serde_json::json!({"tool_calls": {"open": "<tool_call>", "content": "json"}});
        let thoughts = serde_json::json!({"thinking": {"open": "<think>"}});
        for fields in [calls, thoughts] {
            let part = serde_json::json!({"start_anchor": "a", "fields": fields});
            let response = Some(Arc::new(ResponseTemplate::read(&part).unwrap()));
            let tokens = signs.tokens.clone();
            let forms = Forms::of(&Signs { response, tokens, ..signs }, &ModelSettings::default());
            assert!(forms.template.is_none(), "calls or reasoning are missing");
        }
        let (response, tokens) = (signs.response.clone(), signs.tokens.clone());
        let spelled_out = Signs { response, tokens, tools_template: None, ..signs };
        assert!(Forms::of(&spelled_out, &ModelSettings::default()).template.is_none());
        for settings in [
            ModelSettings { tool_parser: ToolParser::None, ..ModelSettings::default() },
            ModelSettings { reasoning_parser: ReasoningParser::None, ..ModelSettings::default() },
        ] {
            assert!(Forms::of(&signs, &settings).template.is_none());
        }
    }

    #[test]
    fn settings_know_every_form() {
        let words = |all: Vec<&'static str>| {
            all.into_iter().filter(|word| !["auto", "none"].contains(word)).collect::<Vec<_>>()
        };
        let tools = words(ToolParser::ALL.iter().map(|(_, word)| *word).collect());
        assert_eq!(tools, ToolDialect::ALL.map(ToolDialect::name));
        let reasoning = words(ReasoningParser::ALL.iter().map(|(_, word)| *word).collect());
        assert_eq!(reasoning, ReasoningDialect::ALL.map(ReasoningDialect::name));
    }
}
