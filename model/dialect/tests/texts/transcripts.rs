//! Tests of parsers on texts of models: the parser finds the expected pieces, wherever the text is split, and loses no
//! text.

use crate::corpus::{Answer, Case, cases, parse};
use proptest::prelude::*;
use serde_json::Value;
use tiercel_dialect::{Dialects, HELD_BYTES_MAX, Parser, ReasoningDialect, ToolDialect};

/// Returns the names and arguments of the complete calls.
fn complete(answer: &Answer) -> Value {
    let complete = answer.calls.iter().filter(|call| call.complete);
    let pair = |call: &crate::corpus::Call| -> [Value; 2] {
        [call.name.as_str().into(), call.arguments.parse().unwrap()]
    };
    complete.map(|call| Value::from(pair(call).to_vec())).collect()
}

fn check(case: &Case, answer: &Answer) {
    assert_eq!(answer.content, case.content, "{}", case.name);
    assert_eq!(answer.reasoning, case.reasoning, "{}", case.name);
    let expected: Value = case.calls.as_deref().unwrap_or("[]").parse().unwrap();
    assert_eq!(complete(answer), expected, "{}: {answer:?}", case.name);
    let cut = answer.calls.iter().find(|call| !call.complete);
    let cut = cut.map(|call| Value::from(vec![call.name.clone(), call.arguments.clone()]));
    let expected = case.cut.as_ref().map(|cut| cut.parse().unwrap());
    assert_eq!(cut, expected, "{}", case.name);
}

#[test]
fn every_transcript_gives_its_pieces() {
    let cases = cases();
    assert!(cases.len() >= 100, "{}", cases.len());
    for (dialects, case) in &cases {
        check(case, &parse(dialects, [case.text.as_str()]));
    }
}

#[test]
fn every_transcript_gives_the_same_pieces_character_by_character() {
    for (dialects, case) in cases() {
        let parts = case.text.char_indices().map(|(at, ch)| &case.text[at..at + ch.len_utf8()]);
        check(&case, &parse(&dialects, parts));
    }
}

/// Splits a text at these places, which are fractions of the text's length in units of 1/65536.
fn cut<'a>(text: &'a str, places: &[u16]) -> Vec<&'a str> {
    let at = |place: &u16| text.floor_char_boundary((text.len() * usize::from(*place)) >> 16);
    let mut places: Vec<usize> = places.iter().map(at).chain([0, text.len()]).collect();
    places.sort_unstable();
    places.windows(2).map(|pair| &text[pair[0]..pair[1]]).collect()
}

/// Checks that the answer has every uppercase letter of the text, in any order. The markup of the test texts has no
/// uppercase letters.
fn nothing_is_lost(text: &str, answer: &Answer) -> Result<(), String> {
    let letters = |text: &str| -> String { text.chars().filter(|ch| ch.is_uppercase()).collect() };
    let mut found: Vec<char> = letters(&answer.reasoning).chars().collect();
    found.extend(letters(&answer.content).chars());
    for call in &answer.calls {
        found.extend(letters(&call.name).chars().chain(letters(&call.arguments).chars()));
    }
    let mut expected: Vec<char> = letters(text).chars().collect();
    found.sort_unstable();
    expected.sort_unstable();
    if found == expected { Ok(()) } else { Err(format!("{text:?} gave {answer:?}")) }
}

fn dialects() -> impl Strategy<Value = Dialects> {
    let tools = prop::sample::select(ToolDialect::ALL.to_vec());
    let reasoning = prop::option::of(Just(ReasoningDialect::Think));
    (tools, reasoning, any::<bool>()).prop_map(|(tools, reasoning, open)| Dialects {
        tools: Some(tools),
        reasoning,
        reasoning_open: open,
    })
}

/// Returns random texts that are joined from fragments of models' texts. Only contents, names and values have uppercase
/// letters.
fn texts() -> impl Strategy<Value = String> {
    let parts = [
        "<tool_call>",
        "</tool_call>",
        "<function=f>",
        "</function>",
        "<parameter=x>",
        "</parameter>",
        "<think>",
        "</think>",
        "<|python_tag|>",
        "<|python_start|>",
        "{\"name\": \"F\", \"arguments\": {",
        "\"name\": \"Q\"",
        "{\"parameters\": {\"a\": \"B\"}, \"name\": \"C\"}",
        "\"x\": \"D\"",
        "\"x\": [1, {\"y\": null}]",
        "}",
        "}}",
        "{",
        "[",
        "]",
        "[f(x='E",
        "', y=2)",
        ")",
        "f(",
        "x=",
        ", ",
        "; ",
        "\n",
        " ",
        "\"",
        "'",
        "\\",
        "G",
        "Ä",
        "7",
        "-",
        "true",
        "<",
        "</",
        "[g(",
        "\n\n",
    ];
    prop::collection::vec(prop::sample::select(parts.to_vec()), 0..24)
        .prop_map(|parts| parts.concat())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn cuts_change_nothing(
        case in prop::sample::select((0..cases().len()).collect::<Vec<_>>()),
        places in prop::collection::vec(any::<u16>(), 0..12),
    ) {
        let (dialects, case) = &cases()[case];
        check(case, &parse(dialects, cut(&case.text, &places)));
    }

    #[test]
    fn cuts_change_nothing_in_any_text(
        dialects in dialects(), text in texts(), places in prop::collection::vec(any::<u16>(), 0..12),
    ) {
        let whole = parse(&dialects, [text.as_str()]);
        prop_assert_eq!(&parse(&dialects, cut(&text, &places)), &whole);
        nothing_is_lost(&text, &whole).map_err(TestCaseError::fail)?;
    }

    #[test]
    fn text_without_markup_is_content(dialects in dialects(), text in "[a-z .,!?\n]{0,80}") {
        let dialects = Dialects { reasoning_open: false, ..dialects };
        let answer = parse(&dialects, [text.as_str()]);
        prop_assert_eq!(answer.content, text);
    }
}

#[test]
fn what_is_held_back_is_bounded() {
    let openings = [
        (ToolDialect::Hermes, "<tool_call>{\"arguments\": {\"a\": \""),
        (ToolDialect::Hermes, "<tool_call>"),
        (ToolDialect::QwenXml, "<tool_call>"),
        (ToolDialect::QwenXml, "<function="),
        (ToolDialect::QwenXml, "<function=search><parameter=tags>"),
        (ToolDialect::QwenXml, "<function=search><parameter=tags></parameter>"),
        (ToolDialect::Llama3Json, "{\"type\": \""),
        (ToolDialect::Llama3Json, "{\"name\": \""),
        (ToolDialect::Pythonic, "["),
        (ToolDialect::Pythonic, "[f(a"),
        (ToolDialect::Mistral, "[TOOL_CALLS]f"),
        (ToolDialect::Mistral, "[TOOL_CALLS][{\"a\": [\""),
    ];
    for (dialect, opening) in openings {
        for filler in ["x", " ", "\n"] {
            let dialects = Dialects { tools: Some(dialect), ..Dialects::default() };
            let mut parser = Parser::new(&dialects, &crate::corpus::tools());
            let mut answer = Answer::default();
            let text = format!("{opening}{}", filler.repeat(2 * HELD_BYTES_MAX));
            parser.push(&text).into_iter().for_each(|piece| answer.add(piece));
            let passed_on = answer.content.len()
                + answer.calls.iter().map(|call| call.arguments.len()).sum::<usize>();
            assert!(
                passed_on + HELD_BYTES_MAX + 64 >= text.len(),
                "{opening}{filler}: {passed_on}"
            );
        }
    }
}

#[test]
fn a_text_of_openings_takes_no_long_time() {
    for (dialect, part) in [
        (ToolDialect::Hermes, "<tool_call>"),
        (ToolDialect::Hermes, "<tool_call>{\"a\":\"<tool_call>{\",\":\""),
        (ToolDialect::QwenXml, "<tool_call>\n"),
        (ToolDialect::QwenXml, "<function="),
        (ToolDialect::Llama3Json, "<|python_tag|>{"),
        (ToolDialect::Pythonic, "<|python_start|>[f("),
        (ToolDialect::Mistral, "[TOOL_CALLS][{\"a\": [\"[TOOL_CALLS][{\\\""),
    ] {
        let text = part.repeat((256 << 10) / part.len());
        let dialects = Dialects { tools: Some(dialect), ..Dialects::default() };
        assert_eq!(parse(&dialects, [text.as_str()]).content, text);
    }
}
