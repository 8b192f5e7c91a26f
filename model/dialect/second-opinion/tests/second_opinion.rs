//! Compares the parsers of `tiercel-dialect` with the crate `tool-parser` (of the Shepherd model gateway) on the same
//! transcripts. `DIFFERENCES` lists the transcripts with different results, and the reasons.

#![allow(clippy::unwrap_used, reason = "tests state what must hold")]

#[path = "../../tests/texts/corpus.rs"]
#[allow(dead_code, reason = "the expected pieces are for the tests of the parsers")]
mod corpus;

use corpus::{Call, cases, parse};
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use tiercel_dialect::ToolDialect;
use tool_parser::ToolParser;
use tool_parser::parsers::{LlamaParser, MistralParser, PythonicParser, QwenParser, QwenXmlParser};

/// Cases in which the two parsers differ, by reason. A case is given as `dialect: name of the case`.
const DIFFERENCES: &[(&str, &[&str])] = &[
    (
        "tool-parser gives the whole text back as content where the call is cut, ours the part of the call that there is",
        &[
            "hermes: cut in the arguments",
            "hermes: arguments that stop being JSON",
            "hermes: a call after one that stops being JSON",
            "llama3_json: cut in the arguments",
            "mistral: cut in the arguments",
            "mistral: cut in the array",
            "mistral: text in the array",
            "pythonic: cut in a number",
            "pythonic: cut in a string",
            "pythonic: an expression as an argument",
            "qwen3_coder: cut in a string",
            "qwen3_coder: cut in a closing tag",
            "qwen3_coder: a closing tag without the next tag",
        ],
    ),
    (
        "tool-parser needs the closing tag, and line breaks where the template has them; ours forgives a missing brace or tag",
        &[
            "hermes: a closing brace is missing",
            "hermes: the closing tag is missing",
            "hermes: a second opening tag",
            "hermes: text after the call",
            "qwen3_coder: the opening tag of the call is missing",
        ],
    ),
    (
        "tool-parser needs strict JSON; ours escapes a line break, and a backslash that escapes nothing, in a string",
        &["hermes: a line break in a string", "hermes: a backslash that escapes nothing"],
    ),
    (
        "tool-parser passes on arguments that are no object; ours makes them one",
        &["hermes: arguments are null", "hermes: arguments as a string"],
    ),
    (
        "tool-parser takes any object with a name for a call, without arguments; ours needs `parameters` or `arguments`",
        &["llama3_json: JSON that is an answer", "llama3_json: arguments instead of parameters"],
    ),
    (
        "tool-parser wants semicolons between calls and nothing after them, and drops what it cannot read after a semicolon",
        &[
            "llama3_json: JSON after the call that is no call",
            "llama3_json: several calls on lines",
            "llama3_json: text after the call",
        ],
    ),
    (
        "tool-parser knows only `[TOOL_CALLS] [`, with the space, and not the forms since version 11 of the tokenizer",
        &[
            "mistral: a name without a tag after it",
            "mistral: a single object",
            "mistral: an array with two calls",
            "mistral: ids in the array",
            "mistral: names",
            "mistral: names and ids",
            "mistral: text before the calls",
            "mistral: two calls with names",
        ],
    ),
    (
        "tool-parser looks for calls in the middle of an answer; ours, as vLLM, at its start",
        &["pythonic: a call in the middle of an answer"],
    ),
    (
        "tool-parser does not read these names, and counts brackets in strings",
        &["pythonic: names with dots and dashes", "pythonic: brackets in strings"],
    ),
    (
        "tool-parser guesses the type of an argument that has no schema; ours, as vLLM, leaves it a string",
        &["qwen3_coder: an unknown function and an unknown argument"],
    ),
    (
        "tool-parser trims values, and ends them at the first closing tag or drops them",
        &[
            "qwen3_coder: many lines, quotes and indentation",
            "qwen3_coder: tags of the dialect in a value",
            "qwen3_coder: the closing tag of a parameter is missing",
            "qwen3_coder: text instead of a parameter",
        ],
    ),
];

/// Parses a text with `tool-parser`. Returns the content, and the names and arguments of the calls.
fn theirs(dialect: ToolDialect, text: &str) -> (String, Vec<Value>) {
    let parser: Box<dyn ToolParser> = match dialect {
        ToolDialect::Hermes => Box::new(QwenParser::new()),
        ToolDialect::QwenXml => Box::new(QwenXmlParser::new()),
        ToolDialect::Llama3Json => Box::new(LlamaParser::new()),
        ToolDialect::Pythonic => Box::new(PythonicParser::new()),
        ToolDialect::Mistral => Box::new(MistralParser::new()),
    };
    let tools: Vec<Value> =
        serde_json::from_str(include_str!("../../tests/corpus/tools.json")).unwrap();
    let tools: Vec<Value> = tools
        .into_iter()
        .map(|tool| serde_json::json!({"type": "function", "function": tool}))
        .collect();
    let tools = serde_json::from_value::<Vec<_>>(tools.into()).unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    let (content, calls) =
        runtime.block_on(parser.parse_complete_with_tools(text, &tools)).unwrap();
    let call = |call: tool_parser::ToolCall| -> Value {
        let arguments: Value = call.function.arguments.parse().unwrap();
        vec![Value::from(call.function.name), arguments].into()
    };
    (content, calls.into_iter().map(call).collect())
}

#[test]
fn another_parser_finds_the_same_calls_but_for_listed_differences() {
    let mut found = BTreeMap::new();
    let mut compared = 0;
    for (dialects, case) in cases() {
        let (Some(dialect), None) = (dialects.tools, dialects.reasoning) else { continue };
        compared += 1;
        let ours = parse(&dialects, [case.text.as_str()]);
        let calls = ours.calls.iter().filter(|call| call.complete);
        let pair = |call: &Call| -> Value {
            let arguments: Value = call.arguments.parse().unwrap();
            vec![Value::from(call.name.as_str()), arguments].into()
        };
        let calls: Vec<Value> = calls.map(pair).collect();
        let theirs = theirs(dialect, &case.text);
        // Whitespace around the content is not compared.
        if (ours.content.trim(), &calls) != (theirs.0.trim(), &theirs.1) {
            found.insert(format!("{dialect}: {}", case.name), theirs);
        }
    }
    assert!(compared >= 60, "{compared}");
    let listed: BTreeSet<&str> =
        DIFFERENCES.iter().flat_map(|(_, names)| names.iter().copied()).collect();
    let names: BTreeSet<&str> = found.keys().map(String::as_str).collect();
    assert_eq!(names, listed, "{found:#?}");
}
