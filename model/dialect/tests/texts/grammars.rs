//! Tests of the grammars of calls: llguidance compiles each grammar, and the parser finds calls whose arguments follow
//! the schemas in each text that the grammar allows.

use crate::corpus::{Answer, cases, tools};
use llguidance::api::TopLevelGrammar;
use llguidance::toktrie::{ApproximateTokEnv, TokEnv, TokRxInfo, TokTrie};
use llguidance::{Matcher, ParserFactory};
use serde_json::{Value, json};
use std::sync::Arc;
use tiercel_dialect::grammar::{self, GRAMMAR_BYTES_MAX, GrammarTooLong, Output};
use tiercel_dialect::{Dialects, Parser, ReasoningDialect, Tool, ToolDialect, Tools};

/// Texts that are tokens of the test vocabulary. In one half of the tests, these tokens are special tokens.
const MARKUP: [&str; 10] = [
    "<tool_call>",
    "</tool_call>",
    "<think>",
    "</think>",
    "[TOOL_CALLS]",
    "[ARGS]",
    "[THINK]",
    "[/THINK]",
    "<|python_tag|>",
    "<|python_start|>",
];
/// Ordinary tokens of several bytes, with which random texts end sooner.
const WORDS: [&str; 12] =
    ["\"}", "\"", "}", "\n</parameter>\n", "</parameter>", ", ", "]", ")", "\n", "'", "ab", "42"];
const END: u32 = 0;

/// Vocabulary of single bytes and some longer texts. If `special` is set, the texts of [`MARKUP`] are special tokens,
/// otherwise ordinary tokens.
struct Vocabulary {
    texts: Vec<Vec<u8>>,
    special: bool,
    factory: ParserFactory,
}

impl Vocabulary {
    fn new(special: bool) -> Vocabulary {
        let mark = |text: &str| [&[TokTrie::SPECIAL_TOKEN_MARKER][..], text.as_bytes()].concat();
        let mut words = vec![mark("<end>")];
        words
            .extend(MARKUP.map(|text| if special { mark(text) } else { text.as_bytes().to_vec() }));
        words.extend(WORDS.map(|text| text.as_bytes().to_vec()));
        words.extend((0..u8::MAX).map(|byte| vec![byte]));
        let trie = TokTrie::from(&TokRxInfo::new(words.len() as u32, END), &words);
        let tokens: TokEnv = Arc::new(ApproximateTokEnv::new(trie));
        let mut factory = ParserFactory::new_simple(&tokens).unwrap();
        factory.quiet();
        let texts =
            words.into_iter().map(|word| word.strip_prefix(&[0xff]).unwrap_or(&word).to_vec());
        Vocabulary { texts: texts.collect(), special, factory }
    }

    /// Returns the id of the special token with this text; `None` if there is none.
    fn special(&self, text: &str) -> Option<u32> {
        let at = MARKUP.iter().position(|markup| *markup == text)?;
        self.special.then_some(at as u32 + 1)
    }

    fn matcher(&self, grammar: &str) -> Matcher {
        let parser = self.factory.create_parser(TopLevelGrammar::from_lark(grammar.to_owned()));
        Matcher::new(Ok(parser.unwrap_or_else(|error| panic!("{error:#}\n{grammar}"))))
    }

    /// Whether a grammar allows a whole text. Markup in the text becomes special tokens if the vocabulary has them.
    fn allows(&self, grammar: &str, text: &str) -> bool {
        let mut matcher = self.matcher(grammar);
        let mut rest = text;
        while let Some(first) = rest.chars().next() {
            let markup = MARKUP.iter().find(|markup| self.special && rest.starts_with(**markup));
            let part = markup.copied().unwrap_or(&rest[..first.len_utf8()]);
            rest = &rest[part.len()..];
            let tokens = match markup {
                Some(markup) => vec![self.special(markup).unwrap()],
                None => part
                    .bytes()
                    .map(|byte| u32::from(byte) + 1 + (MARKUP.len() + WORDS.len()) as u32)
                    .collect(),
            };
            if matcher.try_consume_tokens(&tokens).unwrap() != tokens.len() {
                return false;
            }
        }
        matcher.is_accepting().unwrap()
    }

    /// Draws random tokens that a grammar allows until the output ends, and returns the text. Returns `None` if the
    /// output does not end in time, or has a number with an exponent, which may be too large for a float.
    fn draw(&self, grammar: &str, random: &mut Random) -> Option<String> {
        let mut matcher = self.matcher(grammar);
        let mut bytes = Vec::new();
        for _ in 0..1500 {
            let mask = matcher.compute_mask_or_eos().unwrap();
            let allowed: Vec<u32> =
                (0..self.texts.len() as u32).filter(|token| mask.is_allowed(*token)).collect();
            assert!(!allowed.is_empty(), "{}\n{grammar}", String::from_utf8_lossy(&bytes));
            let end = allowed.contains(&END) && random.below(3) == 0;
            let long = allowed
                .iter()
                .filter(|token| (1..=(MARKUP.len() + WORDS.len()) as u32).contains(*token));
            let long: Vec<u32> = long.copied().collect();
            let token = match () {
                () if end || allowed == [END] => {
                    let exponent =
                        |pair: &[u8]| pair[0].is_ascii_digit() && matches!(pair[1], b'e' | b'E');
                    let text = String::from_utf8(bytes).unwrap();
                    return (!text.as_bytes().windows(2).any(exponent)).then_some(text);
                }
                () if !long.is_empty() && random.below(2) == 0 => long[random.below(long.len())],
                () => allowed[random.below(allowed.len())],
            };
            if token != END {
                matcher.consume_token(token).unwrap();
                bytes.extend(&self.texts[token as usize]);
            }
        }
        None
    }
}

/// Small random number generator (SplitMix64).
struct Random(u64);

impl Random {
    fn below(&mut self, bound: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((z ^ (z >> 31)) % bound as u64) as usize
    }
}

/// Returns functions whose schemas cover the features that schemas of functions usually have.
fn rich_tools() -> Tools {
    let tool = |name: &str, parameters: Value| Tool {
        name: name.to_owned(),
        parameters: Some(parameters),
    };
    let all = vec![
        tool(
            "plan_trip",
            json!({
                "type": "object",
                "properties": {
                    "to": {"type": "string"},
                    "mode": {"enum": ["train", "bus"]},
                    "seats": {"type": "integer"},
                    "window": {"type": "boolean"},
                    "via": {"type": "array", "items": {"type": "string"}},
                    "who": {"$ref": "#/$defs/Person"},
                    "note": {"anyOf": [{"type": "string"}, {"type": "null"}]},
                },
                "required": ["to", "who"], "additionalProperties": false,
                "$defs": {"Person": {
                    "type": "object", "properties": {"name": {"type": "string"}, "age": {"type": "integer"}},
                    "required": ["name"], "additionalProperties": false,
                }},
            }),
        ),
        tool(
            "set_level",
            json!({
                "type": "object", "properties": {"level": {"type": "number"}, "soft": {"type": "boolean"}},
                "additionalProperties": false,
            }),
        ),
        tool(
            "paint",
            json!({
                "type": "object",
                "properties": {
                    "color": {"$ref": "#/$defs/Color"},
                    "finish": {"anyOf": [{"const": "matt"}, {"enum": ["satin", "gloss"]}, {"type": "null"}]},
                    "layer": {"type": "string", "enum": ["first", null]},
                },
                "required": ["color"], "additionalProperties": false,
                "$defs": {"Color": {"type": "string", "enum": ["red", "deep blue"]}},
            }),
        ),
        tool("log", json!({"properties": {}, "additionalProperties": true})),
        Tool { name: "stop_all".to_owned(), parameters: None },
        tool(
            "no_arguments",
            json!({"type": "object", "properties": {}, "additionalProperties": false}),
        ),
    ];
    Tools::new(all)
}

fn parse(output: &Output<'_>, tools: &Tools, text: &str) -> Answer {
    let (reasoning, reasoning_open) = (output.reasoning, output.reasoning_open);
    let dialects = Dialects { tools: Some(output.dialect), reasoning, reasoning_open };
    let mut parser = Parser::new(&dialects, tools);
    let mut answer = Answer::default();
    let pieces = [parser.push(text), parser.finish()].concat();
    pieces.into_iter().for_each(|piece| answer.add(piece));
    answer
}

/// Checks that all calls are complete, name a function of the request, and have arguments that follow the function's
/// schema.
fn check_calls(tools: &Tools, answer: &Answer, text: &str) {
    for call in &answer.calls {
        assert!(call.complete, "{text}");
        let tool = tools.get(&call.name).unwrap_or_else(|| panic!("{text}"));
        let arguments: Value = call.arguments.parse().unwrap();
        let schema = tool.parameters.clone().unwrap_or_else(|| json!({"type": "object"}));
        let result = jsonschema::validate(&schema, &arguments);
        assert!(result.is_ok(), "{}: {text}", result.unwrap_err());
    }
}

fn outputs(vocabulary: &Vocabulary, each: impl Fn(&Output<'_>)) {
    let special = |text: &str| vocabulary.special(text);
    for dialect in ToolDialect::ALL {
        let tags = if dialect == ToolDialect::Mistral {
            ReasoningDialect::Mistral
        } else {
            ReasoningDialect::Think
        };
        for (reasoning, reasoning_open) in [(None, false), (Some(tags), false), (Some(tags), true)]
        {
            each(&Output { dialect, reasoning, reasoning_open, special: &special });
        }
    }
}

/// Draws random texts of a grammar, and checks the first `count` texts that end.
fn draw_many(vocabulary: &Vocabulary, grammar: &str, count: usize, check: impl Fn(&str)) {
    let mut random = Random(7);
    let ended = (0..5 * count).filter_map(|_| vocabulary.draw(grammar, &mut random)).take(count);
    let ended = ended.inspect(|text| check(text)).count();
    assert!(ended >= count / 2, "{ended} texts of {count} end\n{grammar}");
}

#[test]
fn required_texts_are_calls_that_follow_the_schemas() {
    for vocabulary in [Vocabulary::new(false), Vocabulary::new(true)] {
        outputs(&vocabulary, |output| {
            for parallel in [false, true] {
                let tools = rich_tools();
                let grammar = grammar::required(output, &tools, parallel).unwrap();
                draw_many(&vocabulary, &grammar, 12, |text| {
                    let answer = parse(output, &tools, text);
                    assert_eq!(answer.content, "", "{text}");
                    assert!(
                        !answer.calls.is_empty() && (parallel || answer.calls.len() == 1),
                        "{text}"
                    );
                    check_calls(&tools, &answer, text);
                });
            }
        });
    }
}

#[test]
fn named_texts_are_one_call_of_the_function() {
    for vocabulary in [Vocabulary::new(false), Vocabulary::new(true)] {
        outputs(&vocabulary, |output| {
            for tool in rich_tools().iter() {
                let grammar = grammar::named(output, tool).unwrap();
                draw_many(&vocabulary, &grammar, 4, |text| {
                    let answer = parse(output, &rich_tools(), text);
                    assert!(answer.calls.len() == 1 && answer.calls[0].name == tool.name, "{text}");
                    assert_eq!(answer.content, "", "{text}");
                    check_calls(&rich_tools(), &answer, text);
                });
            }
        });
    }
}

#[test]
fn calls_in_any_text_follow_the_schemas() {
    for vocabulary in [Vocabulary::new(false), Vocabulary::new(true)] {
        outputs(&vocabulary, |output| {
            for parallel in [false, true] {
                let tools = rich_tools();
                let bare =
                    matches!(output.dialect, ToolDialect::Llama3Json | ToolDialect::Pythonic);
                let Some(grammar) = grammar::auto(output, &tools, parallel).unwrap() else {
                    assert!(bare && !vocabulary.special);
                    continue;
                };
                assert!(
                    vocabulary.allows(
                        &grammar,
                        if output.reasoning_open { "So.</think>Hello." } else { "Hello {\n" }
                    ) || output.reasoning == Some(ReasoningDialect::Mistral)
                );
                draw_many(&vocabulary, &grammar, 12, |text| {
                    let answer = parse(output, &tools, text);
                    assert!(parallel || answer.calls.len() <= 1, "{text}");
                    check_calls(&tools, &answer, text);
                });
            }
        });
    }
}

#[test]
fn texts_of_models_are_allowed_and_wrong_calls_are_not() {
    for vocabulary in [Vocabulary::new(false), Vocabulary::new(true)] {
        let special = |text: &str| vocabulary.special(text);
        for (dialects, case) in cases() {
            let Some(dialect) = dialects.tools else { continue };
            let (reasoning, reasoning_open) = (dialects.reasoning, dialects.reasoning_open);
            let output = Output { dialect, reasoning, reasoning_open, special: &special };
            let Some(grammar) = grammar::auto(&output, &tools(), true).unwrap() else { continue };
            let allowed = ["one call", "an array with one call", "names", "reasoning, then text"];
            let tagged = !case.text.starts_with(['{', '[']) || case.text.starts_with("[TOOL");
            if tagged && allowed.contains(&case.name.as_str()) {
                let newer = vocabulary.special && dialect == ToolDialect::Mistral;
                let fits =
                    !case.text.contains("TOOL_CALLS") || newer == case.text.contains("[ARGS]");
                assert_eq!(vocabulary.allows(&grammar, &case.text), fits, "{}", case.name);
            }
            if ["an unknown function", "arguments that stop being JSON"]
                .contains(&case.name.as_str())
            {
                assert!(!vocabulary.allows(&grammar, &case.text), "{}", case.name);
            }
        }
    }
}

/// Returns a function `f` with a schema of these properties, and with these definitions.
fn tool(properties: Value, definitions: Value) -> Tool {
    let parameters = json!({"type": "object", "properties": properties, "$defs": definitions});
    Tool { name: "f".to_owned(), parameters: Some(parameters) }
}

#[test]
fn functions_that_take_any_arguments_are_called_with_arguments() {
    let vocabulary = Vocabulary::new(false);
    let special = |_: &str| None;
    for (dialect, text) in [
        (
            ToolDialect::QwenXml,
            "<tool_call>\n<function=f>\n<parameter=a>\n1\n</parameter>\n<parameter=b>\nx\n</parameter>\n</function>\n</tool_call>",
        ),
        (ToolDialect::Pythonic, "[f(a=1, b=\"x\")]"),
        (
            ToolDialect::Hermes,
            "<tool_call>\n{\"name\": \"f\", \"arguments\": {\"a\": 1, \"b\": \"x\"}}\n</tool_call>",
        ),
    ] {
        let output = Output { dialect, reasoning: None, reasoning_open: false, special: &special };
        let allows = |parameters: Value| {
            let tool = Tool { name: "f".to_owned(), parameters: Some(parameters) };
            vocabulary.allows(&grammar::named(&output, &tool).unwrap(), text)
        };
        assert!(allows(json!({"additionalProperties": true})), "{dialect}");
        assert!(allows(json!({"properties": {}, "additionalProperties": {}})), "{dialect}");
        assert!(!allows(json!({"properties": {}, "additionalProperties": false})), "{dialect}");
    }
}

#[test]
fn python_values_follow_recursive_schemas_to_any_depth() {
    let vocabulary = Vocabulary::new(false);
    let special = |_: &str| None;
    let dialect = ToolDialect::Pythonic;
    let output = Output { dialect, reasoning: None, reasoning_open: false, special: &special };
    let many = (0..100).map(|at| (format!("p{at:02}"), json!({"$ref": "#"})));
    let all: Value =
        [("n".to_owned(), json!({"type": "integer"}))].into_iter().chain(many).collect();
    let grammar = grammar::named(&output, &tool(all, json!({}))).unwrap();
    let nested =
        |value: &str| format!("[f(p07={}{value}{})]", "{\"p99\": ".repeat(12), "}".repeat(12));
    assert!(vocabulary.allows(&grammar, &nested("{\"n\": 5, \"p01\": {}}")));
    assert!(!vocabulary.allows(&grammar, &nested("{\"n\": \"x\"}")));

    let circles = json!({
        "a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"},
        "c": {"anyOf": [{"$ref": "#/$defs/c"}, {"type": "integer"}]},
        "d": {"anyOf": [{"$ref": "#/$defs/e"}, {"$ref": "#/$defs/a"}]}, "e": {"anyOf": [{"$ref": "#/$defs/d"}]},
    });
    let of = |name: &str| (name.to_owned(), json!({"$ref": format!("#/$defs/{name}")}));
    let all: Value = ["a", "c", "d"].map(of).into_iter().collect();
    let grammar = grammar::named(&output, &tool(all, circles)).unwrap();
    assert!(vocabulary.allows(&grammar, "[f(a=\"x\", c=5, d=None)]"));
    assert!(!vocabulary.allows(&grammar, "[f(c=\"x\")]"));
}

#[test]
fn types_and_required_members_that_are_listed_twice_count_once() {
    let vocabulary = Vocabulary::new(false);
    let special = |_: &str| None;
    let kinds = vec!["object"; 12];
    let nested = (0..8).fold(
        json!({"type": "integer"}),
        |inner, _| json!({"type": kinds, "properties": {"x": inner}, "required": ["x", "x"]}),
    );
    let parameters = json!({"properties": {"x": nested}, "required": ["x", "x"]});
    let tool = Tool { name: "f".to_owned(), parameters: Some(parameters) };
    let dialect = ToolDialect::Pythonic;
    let output = Output { dialect, reasoning: None, reasoning_open: false, special: &special };
    let grammar = grammar::named(&output, &tool).unwrap();
    let value = format!("{}5{}", "{\"x\": ".repeat(8), "}".repeat(8));
    assert!(vocabulary.allows(&grammar, &format!("[f(x={value})]")));
}

#[test]
fn schemas_that_make_too_long_a_grammar_are_refused() {
    let special = |_: &str| None;
    let many: Value = (0..23_000).map(|at| (format!("p{at}"), json!({}))).collect();
    let text = "x".repeat(GRAMMAR_BYTES_MAX / 2);
    let referring: Value =
        (0..3_000).map(|at| (format!("p{at}"), json!({"$ref": "#/$defs/a"}))).collect();
    let definitions = json!({"a": {"type": "integer", "description": text}});
    let listing: Value = ["a", "b", "c"]
        .map(|name| (name.to_owned(), json!({"enum": [text]})))
        .into_iter()
        .collect();
    for dialect in ToolDialect::ALL {
        let output = Output { dialect, reasoning: None, reasoning_open: false, special: &special };
        for tool in [tool(many.clone(), json!({})), tool(listing.clone(), json!({}))] {
            assert_eq!(grammar::named(&output, &tool), Err(GrammarTooLong), "{dialect}");
        }
        let grammar = grammar::named(&output, &tool(json!({"a": {}}), definitions.clone()));
        assert!(grammar.is_ok(), "{dialect}");
        let grammar = grammar::named(&output, &tool(referring.clone(), definitions.clone()));
        assert_eq!(grammar, Err(GrammarTooLong), "{dialect}");
    }
}
