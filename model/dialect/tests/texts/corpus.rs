//! Reads the transcripts in `tests/corpus`, which were written from the public documentation of each dialect, and
//! parses texts.

use serde::Deserialize;
use serde_json::Value;
use tiercel_dialect::{Dialects, Parser, Piece, Tool, ToolDialect, Tools};

/// Transcript: a text of a model, and the expected result of the parser.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Case {
    pub(crate) name: String,
    pub(crate) text: String,
    /// Name of the reasoning dialect. Without a name, the parser recognizes no reasoning.
    pub(crate) reasoning_tags: Option<String>,
    /// Whether the prompt has opened the reasoning.
    #[serde(default)]
    pub(crate) open: bool,
    #[serde(default)]
    pub(crate) content: String,
    #[serde(default)]
    pub(crate) reasoning: String,
    /// Names and arguments of the complete calls, as JSON.
    pub(crate) calls: Option<String>,
    /// Name and partial arguments of the cut call, as JSON.
    pub(crate) cut: Option<String>,
}

/// Result of a parser for one text.
#[derive(Debug, Default, PartialEq)]
pub(crate) struct Answer {
    pub(crate) content: String,
    pub(crate) reasoning: String,
    pub(crate) calls: Vec<Call>,
}

#[derive(Debug, PartialEq)]
pub(crate) struct Call {
    pub(crate) name: String,
    pub(crate) arguments: String,
    pub(crate) complete: bool,
}

impl Answer {
    /// Adds a piece, and checks that the piece may follow the earlier pieces.
    pub(crate) fn add(&mut self, piece: Piece) {
        let count = u32::try_from(self.calls.len()).unwrap();
        match piece {
            Piece::Content(text) => {
                assert!(!text.is_empty());
                self.content.push_str(&text);
            }
            Piece::Reasoning(text) => {
                assert!(!text.is_empty() && self.content.is_empty() && count == 0);
                self.reasoning.push_str(&text);
            }
            Piece::CallBegin { index, name } => {
                assert_eq!(index, count);
                self.calls.push(Call { name, arguments: String::new(), complete: false });
            }
            Piece::CallArguments { index, json } => {
                let call = self.calls.last_mut().unwrap();
                assert!(index + 1 == count && !call.complete && !json.is_empty());
                call.arguments.push_str(&json);
            }
            Piece::CallEnd { index } => {
                let call = self.calls.last_mut().unwrap();
                assert!(index + 1 == count && !call.complete);
                let arguments = call.arguments.parse::<Value>();
                assert!(arguments.as_ref().is_ok_and(Value::is_object), "{arguments:?}: {call:?}");
                call.complete = true;
            }
        }
    }
}

/// Parses a text that arrives in these parts.
pub(crate) fn parse<'a>(dialects: &Dialects, parts: impl IntoIterator<Item = &'a str>) -> Answer {
    let mut parser = Parser::new(dialects, &tools());
    let mut answer = Answer::default();
    parts.into_iter().for_each(|part| {
        parser.push(part).into_iter().for_each(|piece| answer.add(piece));
    });
    parser.finish().into_iter().for_each(|piece| answer.add(piece));
    answer
}

/// Returns the functions that the transcripts call.
pub(crate) fn tools() -> Tools {
    let list: Vec<Value> = serde_json::from_str(include_str!("../corpus/tools.json")).unwrap();
    let tool = |tool: &Value| Tool {
        name: tool["name"].as_str().unwrap().to_owned(),
        parameters: Some(tool["parameters"].clone()),
    };
    Tools::new(list.iter().map(tool).collect())
}

/// Returns all transcripts, with the dialects that their parsers recognize.
pub(crate) fn cases() -> Vec<(Dialects, Case)> {
    #[derive(Deserialize)]
    struct File {
        case: Vec<Case>,
    }
    let files = [
        (Some(ToolDialect::Hermes), include_str!("../corpus/hermes.toml")),
        (Some(ToolDialect::QwenXml), include_str!("../corpus/qwen3_coder.toml")),
        (Some(ToolDialect::Llama3Json), include_str!("../corpus/llama3_json.toml")),
        (Some(ToolDialect::Pythonic), include_str!("../corpus/pythonic.toml")),
        (Some(ToolDialect::Mistral), include_str!("../corpus/mistral.toml")),
        (None, include_str!("../corpus/reasoning.toml")),
    ];
    let read = |(tools, text)| {
        let file: File = toml::from_str(text).unwrap();
        file.case.into_iter().map(move |case| {
            let reasoning = case.reasoning_tags.as_ref().map(|name| name.parse().unwrap());
            (Dialects { tools, reasoning, reasoning_open: case.open }, case)
        })
    };
    files.into_iter().flat_map(read).collect()
}
