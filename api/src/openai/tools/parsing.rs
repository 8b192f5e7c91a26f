//! Splits the text of an answer into content, reasoning and tool calls while the text arrives.

use crate::http::ApiError;
use crate::openai::structured::Rule;
use crate::openai::tools::{Offer, rules};
use crate::text::Forms;
use std::sync::Arc;
use tiercel_device::TokenId;
use tiercel_dialect::{Dialects, Parser, Piece, ReasoningDialect, ResponseTemplate, ToolDialect};

/// Part of an answer to a client.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Part {
    /// Text of the answer; never empty.
    Content(String),
    /// Text of the model's reasoning; never empty.
    Reasoning(String),
    /// Beginning of a call of a function.
    Call {
        /// Number of the call in the answer, from 0.
        index: u32,
        /// Id of the call. The message with the function's result repeats the id.
        id: String,
        /// Name of the function.
        name: String,
    },
    /// More of the JSON of a call's arguments.
    Arguments {
        /// Number of the call in the answer, from 0.
        index: u32,
        json: String,
    },
}

/// Rules for splitting the answers to a request into parts. All choices of a request have the same rules.
#[derive(Debug, Clone)]
pub(crate) struct Parsing {
    /// Response template of the model, and the end of the prompt; `None` if the answers are parsed by their dialects.
    template: Option<(Arc<ResponseTemplate>, Arc<str>)>,
    dialects: Dialects,
    offer: Offer,
    shown: Arc<[TokenId]>,
    /// Whether the prompt has closed the reasoning, so that the answer has no reasoning.
    closed: bool,
}

impl Parsing {
    /// Returns the rules for splitting the answers to a request that offers the tools in `offer`. The rendered prompt
    /// of the request ends with `tail`. Returns `None` if the answers are only content.
    pub(crate) fn new(model: &Forms, offer: Offer, tail: &str) -> Option<Parsing> {
        let tools = model.tools.filter(|_| offer.is_open());
        let reasoning_open = model.reasoning.is_some_and(|dialect| dialect.is_open(tail));
        let dialects = Dialects { tools, reasoning: model.reasoning, reasoning_open };
        let template = model.template.clone().map(|template| (template, Arc::from(tail)));
        let nothing =
            template.is_none() && dialects.tools.is_none() && dialects.reasoning.is_none();
        let shown = if offer.is_open() { &model.markup } else { &model.reasoning_markup };
        let closed = |dialect: ReasoningDialect| tail.trim_end().ends_with(dialect.close_tag());
        let closed = model.reasoning.is_some_and(closed);
        (!nothing).then(|| Parsing { template, dialects, offer, shown: shown.clone(), closed })
    }

    /// Returns the grammar of the answers. `stated` is the grammar that the request states for the content of the
    /// answers.
    ///
    /// # Errors
    /// 400 if the request's grammar cannot be combined with the request's tools or the model's reasoning.
    pub(crate) fn rule(
        &self,
        stated: Option<Rule>,
        model: &Forms,
    ) -> Result<Option<Rule>, ApiError> {
        let reasoning = self.dialects.reasoning.filter(|_| !self.closed);
        let dialects = Dialects { reasoning, ..self.dialects };
        if let Some(stated) = stated.as_ref().filter(|_| reasoning.is_none())
            && self.reads().is_in_reasoning()
        {
            let message = format!(
                "'{}' cannot stand beside the reasoning of this model; turn reasoning off",
                stated.param
            );
            return Err(ApiError::unsupported(stated.param.clone(), message));
        }
        rules::rule(stated, &self.offer, &dialects, model)
    }

    /// Returns the special tokens that the decoder must show to the parser, because these tokens mark calls or
    /// reasoning.
    pub(crate) fn shown(&self) -> &Arc<[TokenId]> {
        &self.shown
    }

    /// Returns the parser of one answer's text.
    pub(super) fn reads(&self) -> Parser {
        let tools = &self.offer.callable;
        match &self.template {
            Some((template, tail)) => {
                Parser::of_template(template, tail, Some(tools).filter(|_| self.offer.is_open()))
            }
            None => Parser::new(&self.dialects, tools),
        }
    }

    /// Returns a parser for one answer.
    pub(crate) fn parser(&self) -> AnswerParser {
        let parser = self.reads();
        AnswerParser {
            in_reasoning: parser.is_in_reasoning(),
            parser,
            tools: self.dialects.tools,
            parallel: self.offer.parallel,
            undecided_tokens: 0,
            reasoning_tokens: 0,
            complete_calls: 0,
            ended: false,
        }
    }
}

/// Parser of one answer. The parser also counts the calls and the reasoning tokens of the answer.
#[derive(Debug)]
pub(crate) struct AnswerParser {
    parser: Parser,
    tools: Option<ToolDialect>,
    parallel: bool,
    /// Whether the last piece was reasoning; before the first piece, whether the answer begins within the reasoning.
    in_reasoning: bool,
    /// Number of tokens since the last piece. The next piece shows whether these tokens are reasoning.
    undecided_tokens: u32,
    reasoning_tokens: u32,
    complete_calls: u32,
    /// Whether the answer has ended with the only call that the request allows. Text after this call is no part of the
    /// answer.
    ended: bool,
}

impl AnswerParser {
    /// Counts an output token. The caller counts a token before it pushes the token's text.
    pub(crate) fn token(&mut self) {
        self.undecided_tokens += 1;
    }

    /// Takes more text of the answer. Returns the parts that are certain after this text, and whether the answer is
    /// complete. An answer to a request that allows only one call is complete after the first call.
    pub(crate) fn push(&mut self, text: &str) -> (Vec<Part>, bool) {
        let pieces = self.parser.push(text);
        self.parts(pieces)
    }

    /// Ends the answer and returns the parts that were held back.
    pub(crate) fn finish(&mut self) -> Vec<Part> {
        if self.ended {
            return Vec::new();
        }
        let pieces = self.parser.finish();
        let (parts, _) = self.parts(pieces);
        if self.in_reasoning {
            self.reasoning_tokens += std::mem::take(&mut self.undecided_tokens);
        }
        parts
    }

    /// Whether the answer has a complete call.
    pub(crate) fn has_calls(&self) -> bool {
        self.complete_calls > 0
    }

    /// Returns the number of output tokens of the reasoning. The tokens of a tag that opens the reasoning count too.
    pub(crate) fn reasoning_tokens(&self) -> u32 {
        self.reasoning_tokens
    }

    fn parts(&mut self, pieces: Vec<Piece>) -> (Vec<Part>, bool) {
        let mut parts = Vec::with_capacity(pieces.len());
        for piece in pieces {
            self.count(matches!(piece, Piece::Reasoning(_)));
            match piece {
                Piece::Content(text) => parts.push(Part::Content(text)),
                Piece::Reasoning(text) => parts.push(Part::Reasoning(text)),
                Piece::CallBegin { index, name } => {
                    parts.push(Part::Call { index, id: call_id(self.tools), name });
                }
                Piece::CallArguments { index, json } => parts.push(Part::Arguments { index, json }),
                Piece::CallEnd { .. } => {
                    self.complete_calls += 1;
                    if !self.parallel {
                        self.ended = true;
                        return (parts, true);
                    }
                }
            }
        }
        (parts, false)
    }

    /// Counts the tokens since the last piece as tokens of the next piece. `reasoning` says whether the next piece is
    /// reasoning.
    fn count(&mut self, reasoning: bool) {
        let tokens = std::mem::take(&mut self.undecided_tokens);
        if reasoning {
            self.reasoning_tokens += tokens;
        }
        self.in_reasoning = reasoning;
    }
}

/// Returns a new id for a call. Mistral's chat templates accept only ids of nine letters and digits.
fn call_id(dialect: Option<ToolDialect>) -> String {
    let random = format!("{:032x}", rand::random::<u128>());
    match dialect {
        Some(ToolDialect::Mistral) => random[..9].to_owned(),
        _ => format!("call_{}", &random[..24]),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::openai::fields::Fields;
    use serde_json::{Value, json};

    const CALLS: &str = "<think>\nHm, well.\n</think>\n<tool_call>\n{\"name\": \"f\", \"arguments\": {\"a\": 1}}\n\
                         </tool_call>\n<tool_call>\n{\"name\": \"f\", \"arguments\": {}}\n</tool_call>";

    fn parsing(parallel: bool, tail: &str) -> Parsing {
        let body = json!({"tools": [{"function": {"name": "f"}}], "parallel_tool_calls": parallel});
        let offer = Offer::read(&Fields::root(&body).unwrap()).unwrap();
        let forms = Forms {
            tools: Some(ToolDialect::Hermes),
            reasoning: Some(ReasoningDialect::Think),
            ..Forms::default()
        };
        Parsing::new(&forms, offer, tail).unwrap()
    }

    /// Parses a text in which each character is a token. Returns the parts, and the number of characters that were
    /// parsed.
    fn parse(parser: &mut AnswerParser, text: &str) -> (Vec<Part>, usize) {
        let mut parts = Vec::new();
        for (taken, character) in text.chars().enumerate() {
            parser.token();
            let (more, complete) = parser.push(&character.to_string());
            parts.extend(more);
            if complete {
                parts.extend(parser.finish());
                return (parts, taken + 1);
            }
        }
        parts.extend(parser.finish());
        (parts, text.chars().count())
    }

    fn begun(parts: &[Part]) -> usize {
        parts.iter().filter(|part| matches!(part, Part::Call { .. })).count()
    }

    #[test]
    fn an_answer_with_one_allowed_call_is_complete_after_it() {
        let mut several = parsing(true, "").parser();
        let (parts, taken) = parse(&mut several, CALLS);
        assert_eq!((begun(&parts), taken, several.has_calls()), (2, CALLS.len(), true));
        let mut one = parsing(false, "").parser();
        let (parts, taken) = parse(&mut one, CALLS);
        assert_eq!((begun(&parts), one.has_calls()), (1, true));
        assert!(taken < CALLS.len() / 2 + 40, "{taken}");
    }

    #[test]
    fn tokens_of_reasoning_are_counted() {
        let mut parser = parsing(true, "").parser();
        parse(&mut parser, CALLS);
        let counted = parser.reasoning_tokens() as usize;
        assert!(("Hm, well.".len()..="<think>\nHm, well.\n".len()).contains(&counted), "{counted}");
        let mut opened = parsing(true, "<|im_start|>assistant\n<think>\n").parser();
        parse(&mut opened, "Hm");
        assert_eq!(opened.reasoning_tokens(), 2, "cut off in the reasoning");
        let mut plain = parsing(true, "").parser();
        parse(&mut plain, "Hm");
        assert_eq!(plain.reasoning_tokens(), 0);
    }

    #[test]
    fn a_response_template_parses_the_answers() {
        let template = json!({
            "start_anchor": "<turn>model\n",
            "fields": {
                "thinking": {"open": "<thought>", "close": "</thought>"},
                "tool_calls": {"open": "<call>", "close": "</call>", "repeats": true, "content": "json"},
            },
        });
        let template = Some(Arc::new(ResponseTemplate::read(&template).unwrap()));
        let forms = Forms { template, ..Forms::default() };
        let text = "Hm.</thought>\nYes. <call>{\"name\": \"f\", \"arguments\": {}}</call><call>";
        let answer = |body: Value| {
            let offer = Offer::read(&Fields::root(&body).unwrap()).unwrap();
            let parsing = Parsing::new(&forms, offer, "<turn>model\n<thought>").unwrap();
            let mut parser = parsing.parser();
            let (parts, taken) = parse(&mut parser, text);
            (content(&parts), begun(&parts), parser.has_calls(), parser.reasoning_tokens(), taken)
        };
        let tools = json!([{"function": {"name": "f"}}]);
        let whole = text.len();
        let one = whole - "<call>".len();
        assert_eq!(answer(json!({"tools": tools})), ("Yes.<call>".into(), 1, true, 3, whole));
        let single = json!({"tools": tools, "parallel_tool_calls": false});
        assert_eq!(answer(single), ("Yes.".into(), 1, true, 3, one));
        let none = text[text.find("Yes").unwrap()..].to_owned();
        assert_eq!(answer(json!({})), (none.clone(), 0, false, 3, whole));
        assert_eq!(
            answer(json!({"tools": tools, "tool_choice": "none"})),
            (none, 0, false, 3, whole)
        );
    }

    fn content(parts: &[Part]) -> String {
        let text = |part: &Part| match part {
            Part::Content(text) => Some(text.clone()),
            _ => None,
        };
        parts.iter().filter_map(text).collect()
    }

    #[test]
    fn grammars_need_a_form_that_the_server_knows() {
        let template = json!({
            "start_anchor": "<turn>model\n",
            "fields": {"thinking": {"open": "<thought>"}, "tool_calls": {"open": "<call>", "content": "json"}},
        });
        let template = Some(Arc::new(ResponseTemplate::read(&template).unwrap()));
        let forms = Forms { template, ..Forms::default() };
        let rule = |choice: &str, stated: Option<Rule>, tail: &str| {
            let body = json!({"tools": [{"function": {"name": "f", "strict": true}}], "tool_choice": choice});
            let offer = Offer::read(&Fields::root(&body).unwrap()).unwrap();
            let rule = Parsing::new(&forms, offer, tail).unwrap().rule(stated, &forms);
            rule.map(|rule| rule.is_some()).map_err(|error| error.body()["error"]["param"].clone())
        };
        let source = || tiercel_grammar::Source::JsonObject;
        let stated = || Some(Rule { source: source(), param: "response_format".into() });
        assert_eq!(rule("auto", None, ""), Ok(false));
        assert_eq!(rule("required", None, ""), Err(json!("tool_choice")));
        assert_eq!(rule("auto", stated(), ""), Err(json!("response_format")));
        assert_eq!(rule("none", stated(), ""), Ok(true));
        assert_eq!(rule("none", stated(), "<turn>model\n<thought>"), Err(json!("response_format")));
    }

    #[test]
    fn ids_of_calls_suit_the_dialect() {
        let mistral = call_id(Some(ToolDialect::Mistral));
        assert!(mistral.len() == 9 && mistral.chars().all(|c| c.is_ascii_alphanumeric()));
        let (one, other) = (call_id(Some(ToolDialect::Hermes)), call_id(Some(ToolDialect::Hermes)));
        assert!(one.starts_with("call_") && one != other, "{one}");
    }
}
