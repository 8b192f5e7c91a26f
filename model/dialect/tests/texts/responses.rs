//! Answers in the forms of response templates, parsed whole, by characters and in pieces.

use proptest::prelude::*;
use serde_json::{Value, json};
use std::sync::Arc;
use tiercel_dialect::{HELD_BYTES_MAX, Parser, Piece, ResponseTemplate, Tool, Tools};

/// Template of Gemma 4: content without delimiters, and JSON with strings in delimiters of their own.
pub(crate) fn gemma() -> Value {
    json!({
        "defaults": {"role": "assistant"},
        "start_anchor": ["<|turn>model\n", "<tool_response|>"],
        "fields": {
            "thinking": {"open": "<|channel>thought\n", "close": "<channel|>", "content": "text"},
            "tool_calls": {
                "open_pattern": r"<\|tool_call>call:(?P<name>\w+)", "close": "<tool_call|>", "repeats": true,
                "content": "json", "content_args": {"unquoted_keys": true, "string_delims": [["<|\"|>", "<|\"|>"]]},
                "transform": {"type": "function", "function": {"name": "{name}", "arguments": "{content}"}},
            },
            "content": {"close": ["<turn|>", "<|tool_response>", "<eos>"]},
        },
    })
}

/// Template of Qwen 3.5: tags around arguments, and no field for content.
pub(crate) fn qwen() -> Value {
    json!({
        "start_anchor": "<|im_start|>assistant\n",
        "fields": {
            "reasoning_content": {"open": "<think>", "close": "</think>"},
            "tool_calls": {
                "open_pattern": r"<tool_call>\s*<function=(?P<name>[^>\n]+)>",
                "close_pattern": r"</function>\s*</tool_call>", "repeats": true, "content": "xml-inline",
                "content_args": {"tag_pattern": r"<parameter=(?P<key>[^>\n]+)>\s*(?P<value>.*?)\s*</parameter>"},
                "transform": {"type": "function", "function": {"name": "{name}", "arguments": "{content}"}},
            },
        },
    })
}

/// Template of gpt-oss: all parts have delimiters, and the closing delimiter of a call ends the answer.
pub(crate) fn channels() -> Value {
    json!({
        "start_anchor": "<|start|>assistant",
        "fields": {
            "thinking": {"open": "<|channel|>analysis<|message|>", "close": "<|end|>", "repeats": true, "join": "\n"},
            "content": {"open": "<|channel|>final<|message|>", "close": "<|end|>"},
            "tool_calls": {
                "open_pattern": r"<\|channel\|>commentary to=functions\.(?P<name>\w+).*?<\|message\|>",
                "close": "<|call|>", "repeats": true, "content": "json",
                "transform": {"type": "function", "function": {"name": "{name}", "arguments": "{content}"}},
            },
        },
    })
}

/// Template of Command models: one list with all calls.
pub(crate) fn actions() -> Value {
    json!({
        "start_anchor": "<|CHATBOT_TOKEN|>",
        "fields": {
            "content": {"open": "<|START_RESPONSE|>", "close": "<|END_RESPONSE|>"},
            "thinking": {"open": "<|START_THINKING|>", "close": "<|END_THINKING|>"},
            "tool_calls": {
                "open": "<|START_ACTION|>", "close": "<|END_ACTION|>", "content": "json", "transform_each": true,
                "transform": {"type": "function", "function": {"name": "{tool_name}", "arguments": "{parameters}"}},
            },
        },
    })
}

/// Template of SmolLM3: a JSON object with name and arguments.
pub(crate) fn objects() -> Value {
    json!({
        "start_anchor": "<|im_start|>assistant\n",
        "fields": {
            "thinking": {"open": "<think>", "close": "</think>"},
            "tool_calls": {
                "open": "<tool_call>", "close": "</tool_call>", "repeats": true, "content": "json",
                "transform": {"type": "function", "function": "{content}"},
            },
            "content": {"close_pattern": r"\s*(?:<\|im_end\|>|$)"},
        },
    })
}

fn tools() -> Tools {
    let properties = json!({"days": {"type": "integer"}, "city": {"type": "string"}});
    let parameters = Some(json!({"type": "object", "properties": properties}));
    Tools::new(vec![Tool { name: "weather".into(), parameters }])
}

/// Parts of an answer, as one line.
pub(crate) fn told(pieces: Vec<Piece>) -> String {
    let mut told = String::new();
    let mut last = "";
    for piece in pieces {
        let (kind, text) = match piece {
            Piece::Content(text) => ("content", text),
            Piece::Reasoning(text) => ("reasoning", text),
            Piece::CallBegin { name, .. } => ("call", name),
            Piece::CallArguments { json, .. } => ("arguments", json),
            Piece::CallEnd { .. } => ("end", String::new()),
        };
        if kind != last || kind == "call" {
            told.push_str(&format!("|{kind}:"));
        }
        told.push_str(&text);
        last = kind;
    }
    told
}

pub(crate) fn parser(template: &Value, prompt: &str) -> Parser {
    let template = Arc::new(ResponseTemplate::read(template).unwrap());
    Parser::of_template(&template, prompt, Some(&tools()))
}

/// Parses an answer whole, by characters, and in pieces of three lengths. Returns its parts.
pub(crate) fn parse(template: &Value, prompt: &str, text: &str) -> String {
    let split = |length: usize| {
        let mut parser = parser(template, prompt);
        let characters: Vec<char> = text.chars().collect();
        let mut pieces: Vec<Piece> = Vec::new();
        for part in characters.chunks(length) {
            pieces.extend(parser.push(&part.iter().collect::<String>()));
        }
        pieces.extend(parser.finish());
        told(pieces)
    };
    let whole = split(text.chars().count().max(1));
    for length in [1, 2, 3, 7] {
        assert_eq!(split(length), whole, "{text:?} in pieces of {length} characters");
    }
    whole
}

#[test]
fn answers_have_the_parts_that_their_templates_describe() {
    let weather = "|call:weather|arguments:{\"city\":\"Rome\",\"days\":2}|end:";
    let quoted = "<|tool_call>call:weather{city:<|\"|>Rome<|\"|>,days:2}<tool_call|>";
    let tagged = "<tool_call>\n<function=weather>\n<parameter=city>\nRome\n</parameter>\n<parameter=days>\n2\n</parameter>\n</function>\n</tool_call>";
    let listed = "[\n{\"tool_call_id\": \"0\", \"tool_name\": \"weather\", \"parameters\": {\"city\": \"Rome\", \"days\": 2}}]";
    let object = "{\"name\": \"weather\", \"arguments\": {\"city\": \"Rome\", \"days\": 2}}";
    let (gemma, qwen, channels, actions, objects) =
        (gemma(), qwen(), channels(), actions(), objects());
    for (template, prompt, text, expected) in [
        (&gemma, "<|turn>model\n", "Hello\n there. \n".to_owned(), "|content:Hello\n there.".to_owned()),
        (&gemma, "", format!("<|channel>thought\nHm.\n<channel|> Look: {quoted}{quoted}"), format!("|reasoning:Hm.|content:Look:{weather}{weather}")),
        (&gemma, "<|turn>model\n<|channel>thought\n", "Hm. <channel|>Yes".to_owned(), "|reasoning:Hm.|content:Yes".to_owned()),
        (&gemma, "<|channel>thought\n<|turn>model\n", "Yes <".to_owned(), "|content:Yes <".to_owned()),
        (&qwen, "assistant\n<think>\n", format!("\nHm.\n</think>\n\n{tagged}\n{tagged}"), format!("|content:Hm.\n</think>{weather}{weather}")),
        (&qwen, "<|im_start|>assistant\n<think>\n", format!("\nHm.\n</think>\n\n{tagged}"), format!("|reasoning:Hm.{weather}")),
        (&channels, "<|start|>assistant", "<|channel|>analysis<|message|>Hm.<|end|>assistant<|channel|>analysis<|message|>So.<|end|>assistant<|channel|>final<|message|>Yes".to_owned(), "|reasoning:Hm.\nSo.|content:Yes".to_owned()),
        (&channels, "<|start|>assistant", "<|channel|>commentary to=functions.weather json<|message|>{\"city\": \"Rome\", \"days\": 2}".to_owned(), weather.to_owned()),
        (&channels, "<|start|>assistant", " Yes. ".to_owned(), "|content:Yes.".to_owned()),
        (&actions, "<|CHATBOT_TOKEN|><|START_THINKING|>", format!("Hm.<|END_THINKING|><|START_ACTION|>{listed}<|END_ACTION|><|END_OF_TURN_TOKEN|>"), format!("|reasoning:Hm.{weather}")),
        (&objects, "<|im_start|>assistant\n", format!("<tool_call>{object}</tool_call>\n<tool_call>{object}</tool_call>"), format!("{weather}{weather}")),
        (&objects, "<|im_start|>assistant\nOnce", " upon".to_owned(), "|content: upon".to_owned()),
    ] {
        assert_eq!(parse(template, prompt, &text), expected, "{text:?}");
    }
}

/// Pieces of answers, whole and broken.
const FRAGMENTS: [&str; 36] = [
    "<|channel>thought\n",
    "<channel|>",
    "<|tool_call>call:f",
    "{a:<|\"|>x<|\"|>}",
    "<tool_call|>",
    "<turn|>",
    "<think>",
    "</think>",
    "<tool_call>",
    "</tool_call>",
    "\n<function=f>\n",
    "<parameter=a>\n1\n</parameter>",
    "</function>\n",
    "<|channel|>analysis<|message|>",
    "<|channel|>final<|message|>",
    "<|channel|>commentary to=functions.f json",
    "<|message|>",
    "<|end|>",
    "<|call|>",
    "<|START_RESPONSE|>",
    "<|END_RESPONSE|>",
    "<|START_ACTION|>",
    "<|END_ACTION|>",
    "[{\"tool_name\": \"f\", \"parameters\": {}}]",
    "{\"name\": \"f\", \"arguments\": {}}",
    "<|im_end|>",
    "{}",
    "<",
    "<|",
    "</",
    "|>",
    " ",
    "\n",
    "Yes",
    "no ä",
    "to=f",
];

proptest! {
    #[test]
    fn the_parts_do_not_depend_on_where_the_text_is_split(
        number in 0..5_usize,
        fragments in prop::collection::vec(prop::sample::select(FRAGMENTS.to_vec()), 0..14),
        lengths in prop::collection::vec(1..12_usize, 1..40),
    ) {
        let template = [gemma(), qwen(), channels(), actions(), objects()][number].clone();
        let text = fragments.concat();
        let mut whole = parser(&template, "");
        let expected = told([whole.push(&text), whole.finish()].concat());
        let mut split = parser(&template, "");
        let (mut pieces, mut rest) = (Vec::new(), text.as_str());
        for length in lengths.iter().cycle() {
            if rest.is_empty() {
                break;
            }
            let (part, after) = rest.split_at(rest.ceil_char_boundary(*length));
            pieces.extend(split.push(part));
            rest = after;
        }
        pieces.extend(split.finish());
        prop_assert_eq!(told(pieces), expected, "{:?}", text);
    }
}

#[test]
fn text_that_is_no_call_is_content_unchanged() {
    let (gemma, qwen, objects) = (gemma(), qwen(), objects());
    for (template, text) in [
        (&objects, "<tool_call>{\"name\": </tool_call>"),
        (&objects, "<tool_call>{\"name\": 1, \"arguments\": {}}</tool_call>"),
        (&objects, "<tool_call>{\"name\": \"f\", \"arguments\": {\"a\": 1"),
        (&gemma, "<|tool_call>call:f{a:<|\"|>x}<tool_call|>"),
        (&gemma, "<|tool_call>call:"),
        (&qwen, "<tool_call><function=f><parameter=a>1</parameter><parameter=b>"),
        (&qwen, "<tool_call>\n<functio"),
    ] {
        assert_eq!(parse(template, "", text), format!("|content:{text}"));
    }
    let long = format!("<tool_call>\n{}", " ".repeat(HELD_BYTES_MAX + 1));
    let mut of_qwen = parser(&qwen, "");
    assert!(
        !of_qwen.push(&long).is_empty(),
        "a text that may become a delimiter is held back without limit"
    );
}

#[test]
fn text_is_held_back_only_where_a_delimiter_may_begin() {
    let mut parser = parser(&gemma(), "");
    let mut steps = Vec::new();
    for text in ["Hello ", "<|", "x ", "<|chan", "nel>thought\nHm", " <ch", "annel|>"] {
        steps.push(told(parser.push(text)));
    }
    let expected = ["|content:Hello", "", "|content: <|x", "", "|reasoning:Hm", "", ""];
    assert_eq!(steps, expected);
}

#[test]
fn calls_are_content_if_the_parser_does_not_look_for_calls() {
    let template = Arc::new(ResponseTemplate::read(&objects()).unwrap());
    let mut parser = Parser::of_template(&template, "", None);
    let text = "<tool_call>{\"name\": \"f\"}</tool_call>";
    let pieces = [parser.push(text), parser.finish()].concat();
    assert_eq!(told(pieces), format!("|content:{text}"));
    assert!(template.has_calls() && !template.marks("<tool_call>", false));
    assert!(template.marks("<tool_call>", true) && template.marks("<think>", false));
}

#[test]
fn a_prompt_that_opens_the_reasoning_is_told() {
    assert!(parser(&qwen(), "<|im_start|>assistant\n<think>\n").is_in_reasoning());
    assert!(!parser(&qwen(), "<|im_start|>assistant\n<think>\n\n</think>\n").is_in_reasoning());
    assert!(!parser(&qwen(), "").is_in_reasoning());
}

#[test]
fn templates_that_the_parser_cannot_follow_are_refused_by_name() {
    let refused = |change: &dyn Fn(&mut Value)| {
        let mut template = objects();
        change(&mut template);
        ResponseTemplate::read(&template).unwrap_err().to_string()
    };
    let field = |name: &'static str, value: Value| {
        refused(&move |template| template["fields"][name] = value.clone())
    };
    for (error, part) in [
        (
            field("tool_calls", json!({"open_pattern": "<(?=x)", "content": "json"})),
            "field `tool_calls`",
        ),
        (field("citations", json!({"open": "<c>"})), "field `citations`"),
        (field("content", json!({"content": "json"})), "field `content`"),
        (field("tool_calls", json!({"open": "<c>"})), "field `tool_calls`"),
        (field("thinking", json!({})), "several fields"),
        (field("thinking", json!({"open": "<c>", "colour": 1})), "`colour`"),
        (refused(&|template| template["version"] = json!(2)), "version 1"),
        (refused(&|template| template["fields"] = json!({})), "`fields`"),
        (refused(&|template| template["start_anchor"] = json!([])), "`start_anchor`"),
        (refused(&|template| template["x"] = json!([])), "`x`"),
    ] {
        assert!(error.starts_with("response_template: ") && error.contains(part), "{error}");
    }
    assert!(ResponseTemplate::read(&json!({"fields": {"content": {}}})).is_err(), "no anchor");
}
