//! Text that a response template does not describe: such text is content, and no part of it is lost.

use crate::responses::{channels, objects, parse, parser, qwen, told};
use serde_json::{Value, json};
use tiercel_dialect::HELD_BYTES_MAX;

/// Template with the given fields.
fn fields(fields: Value) -> Value {
    json!({"start_anchor": "<start>", "fields": fields})
}

/// Template with a field for calls of the given content, whose delimiter names the function.
fn named(content: &str, args: Value) -> Value {
    fields(json!({"content": {}, "tool_calls": {
        "open_pattern": r"<f=(?P<name>\w+)>", "close": "</f>", "content": content, "content_args": args,
        "transform": {"function": {"name": "{name}", "arguments": "{content}"}},
    }}))
}

/// Parses an answer in pieces of some thousand characters.
fn parse_long(template: &Value, text: &str) -> String {
    let split = |length: usize| {
        let mut parser = parser(template, "");
        let mut pieces = Vec::new();
        let mut rest = text;
        while !rest.is_empty() {
            let (part, after) = rest.split_at(rest.ceil_char_boundary(length.min(rest.len())));
            pieces.extend(parser.push(part));
            rest = after;
        }
        pieces.extend(parser.finish());
        told(pieces)
    };
    let whole = split(text.len());
    for length in [1000, 4099, HELD_BYTES_MAX + 1] {
        assert!(split(length) == whole, "pieces of {length} bytes make a difference");
    }
    whole
}

#[test]
fn the_longest_delimiter_is_taken_in_any_split() {
    for (close, text, expected) in [
        (r"</t>(?:\s*<a>)?", "<t>x</t> <a>y", "|reasoning:x|content:y"),
        (r"</t>(?:\s*<a>)?", "<t>x</t> <y", "|reasoning:x|content:<y"),
        ("a.*b", "<t>x ab c b d", "|reasoning:x|content:d"),
    ] {
        let template =
            fields(json!({"thinking": {"open": "<t>", "close_pattern": close}, "content": {}}));
        assert_eq!(parse(&template, "", text), expected);
    }
}

#[test]
fn empty_delimiters_are_found_in_any_split() {
    let template = fields(json!({"content": {"close_pattern": "x*"}, "thinking": {"open": "<t>"}}));
    assert_eq!(parse(&template, "", "abxxc<t> d"), "|content:abc|reasoning:d");
    let begun =
        fields(json!({"content": {}, "thinking": {"open_pattern": "^(?:<t>)?", "close": "</t>"}}));
    assert_eq!(parse(&begun, "", "a</t>b"), "|reasoning:a|content:b");
}

#[test]
fn delimiters_may_have_word_boundaries() {
    let template = fields(
        json!({"content": {}, "thinking": {"open_pattern": r"\bT>", "close_pattern": r"\bE\b"}}),
    );
    assert_eq!(
        parse(&template, "", "é äT> T>éE üE E. T"),
        "|content:é äT>|reasoning:éE üE|content:. T"
    );
}

#[test]
fn the_whitespace_around_a_refused_call_is_content() {
    let text = "Hello <tool_call>x</tool_call> there";
    assert_eq!(parse(&objects(), "", text), format!("|content:{text}"));
    let text = "Hello\n<tool_call>x</tool_call>\n\n<tool_call>y</tool_call>\nthere";
    assert_eq!(parse(&objects(), "", &format!(" {text} ")), format!("|content:{text}"));
}

#[test]
fn text_outside_of_fields_is_content_if_all_calls_are_refused() {
    let template = fields(json!({
        "content": {"open": "<c>", "close": "</c>"}, "tool_calls": {"open": "<call>", "close": "</call>", "content": "json"},
    }));
    for (text, expected) in [
        ("Yes. <call>bad</call> So. ", "|content:Yes. <call>bad</call> So."),
        ("Yes. <call>bad</call> So. <c>No</c> x", "|content:Yes. <call>bad</call> So.No"),
        ("Yes. <call>{\"name\": \"f\"}</call> So.", "|call:f|arguments:{}|end:"),
        ("Yes. <call>[]</call> So.", "|content:Yes.  So."),
        ("Yes. <c>No</c> So. <call>bad</call>", "|content:No<call>bad</call>"),
    ] {
        assert_eq!(parse(&template, "", text), expected);
    }
}

#[test]
fn long_text_is_content_in_any_split() {
    let outside = format!("{} end", "a  b".repeat(HELD_BYTES_MAX / 4));
    assert_eq!(parse_long(&channels(), &format!(" {outside} ")), format!("|content:{outside}"));
    let after = format!("{outside}<|channel|>final<|message|>Yes<|end|> no");
    assert_eq!(parse_long(&channels(), &after), format!("|content:{outside}Yes"));
    let spaces = format!("a{}", " ".repeat(1025));
    assert_eq!(parse_long(&qwen(), &spaces), format!("|content:{spaces}"));
    assert_eq!(parse(&qwen(), "", &spaces), format!("|content:{spaces}"));
    let held = format!("<tool_call>{}", "\n".repeat(HELD_BYTES_MAX + 9));
    let text = format!("{held}.<think>Hm</think>Yes");
    assert_eq!(parse_long(&qwen(), &text), format!("|content:{held}.|reasoning:Hm|content:Yes"));
}

#[test]
fn a_call_that_is_too_long_is_content_in_any_split() {
    for length in [1 << 20, (1 << 20) + 1, (1 << 20) + 2000] {
        let text = format!("Yes <tool_call>{}</tool_call> so", "y".repeat(length));
        assert!(parse_long(&objects(), &text) == format!("|content:{text}"), "{length}");
    }
    let text = format!("<tool_call>{}ä<think>Hm</think>", "y".repeat((1 << 20) - 1));
    let content = text.strip_suffix("<think>Hm</think>").unwrap();
    assert!(parse_long(&objects(), &text) == format!("|content:{content}|reasoning:Hm"));
}

#[test]
fn long_whitespace_and_openings_take_no_long_time() {
    let text = format!("a{}b", " ".repeat(64 << 10));
    assert!(parse_long(&objects(), &text) == format!("|content:{text}"));
    let template = named("json", json!({"string_delims": [["<", ">"], ["<<", "|"]]}));
    let text = format!("<f=f>{{a:{}</f>", "<<".repeat(200 << 10));
    assert!(parse_long(&template, &text) == format!("|content:{text}"));
}

#[test]
fn a_call_with_text_that_is_no_argument_is_content() {
    let lines = named("kv-lines", json!({}));
    let bools = named("kv-lines", json!({"value_parser": {"name": "bool"}}));
    let long = "{\"name\": \"weather\", \"arguments\": {\"days\": 123456789012345678901}}";
    for (template, text) in [
        (&qwen(), "<tool_call>\n<function=f>junk</function>\n</tool_call>".to_owned()),
        (&qwen(), "<tool_call>\n<function=f>\n<parameter=a>\n1\n</parameter>\njunk</function>\n</tool_call>".to_owned()),
        (&lines, "<f=f>a: 1\njunk\n</f>".to_owned()),
        (&bools, "<f=f>a: yes\n</f>".to_owned()),
        (&objects(), "<tool_call>{\"name\": \"f\", \"parameters\": {\"a\": 1}}</tool_call>".to_owned()),
        (&objects(), format!("<tool_call>{long}</tool_call>")),
        (&objects(), format!("<tool_call>{}</tool_call>", long.replace("12", "-12"))),
    ] {
        assert_eq!(parse(template, "", &text), format!("|content:{text}"));
    }
    assert_eq!(parse(&lines, "", "<f=f>\n\na: 1\n \n</f>"), "|call:f|arguments:{\"a\":\"1\"}|end:");
}

#[test]
fn the_digits_of_long_numbers_are_kept() {
    let call = "<tool_call>\n<function=weather>\n<parameter=days>\n123456789012345678901\n</parameter>\n</function>\n</tool_call>";
    let arguments = "|call:weather|arguments:{\"days\":\"123456789012345678901\"}|end:";
    assert_eq!(parse(&qwen(), "", call), arguments);
    let call = "<tool_call>{\"name\": \"f\", \"arguments\": {\"a\": [18446744073709551615, -9223372036854775808, \"123456789012345678901\"]}}</tool_call>";
    let arguments = "|call:f|arguments:{\"a\":[18446744073709551615,-9223372036854775808,\"123456789012345678901\"]}|end:";
    assert_eq!(parse(&objects(), "", call), arguments);
}

#[test]
fn text_of_the_prompt_is_no_text_of_the_answer() {
    let begun = |text: &str| format!("<|im_start|>assistant\n{text}");
    for (prompt, text, expected) in [
        ("<tool_call>{\"name\"", ": 1}</tool_call> x", "|content:: 1}</tool_call> x"),
        ("<tool_call>{\"name\"", ": \"f\"}</tool_call> x", "|call:f|arguments:{}|end:|content:x"),
        ("So <tool_", "call>x</tool_call> y", "|content:call>x</tool_call> y"),
        ("<tool_call>x</tool_", "call> y", "|content:call> y"),
        ("<tool_call>x</tool_call>", " y", "|content: y"),
        ("<tool_call>x", "", ""),
    ] {
        assert_eq!(parse(&objects(), &begun(prompt), text), expected, "{prompt}");
    }
}
