//! Random response templates and answers: the split of an answer changes nothing, and the answer loses no text.

use crate::responses::{parser, told};
use proptest::prelude::*;
use regex::Regex;
use serde_json::{Map, Value, json};
use tiercel_dialect::Piece;

const THINKING: [(&str, &str); 5] = [
    ("<t>", "</t>"),
    ("<t>", r"</t>(?:\s*<a>)?"),
    ("<t>", "</t|</t>"),
    (r"<t>|\bthink\b", r"\s*</t>|</t>\s*<a>"),
    (r"\s*<t>\s*", "<a>.*b"),
];
const CONTENT: [(&str, &str); 6] = [
    ("", ""),
    ("", "<a>"),
    ("", r"\s*(?:<e>|$)"),
    ("", r"<a>(?:\s*<e>)?"),
    ("<c>", "</c>"),
    ("<c>|<c><e>", r"</c>\s*"),
];
const CALLS: [(&str, &str); 4] =
    [("<f>", "</f>"), (r"<f>\s*", r"\s*</f>"), (r"\s*<f>", r"</f>(?:\s*<a>)?"), ("<f>", "")];

/// Pieces of answers, whole and broken.
const FRAGMENTS: [&str; 26] = [
    "<t>",
    "</t>",
    "</t",
    "<a>",
    "<e>",
    "<c>",
    "</c>",
    "<f>",
    "</f>",
    "think",
    "a",
    "b",
    "<",
    "</",
    "c>",
    "ä",
    "Yes.",
    " ",
    "\n",
    "  \n",
    "{\"name\": \"f\", \"arguments\": {\"a\": 1}}",
    "[{\"name\": \"g\"}, {\"name\": \"f\"}]",
    "[]",
    "{\"name\": \"f\"",
    "{}",
    "<f>{\"name\": \"f\"}</f>",
];

fn template() -> impl Strategy<Value = Value> {
    let (thinking, content, calls) = (0..THINKING.len(), 0..CONTENT.len(), 0..CALLS.len());
    (thinking, content, calls, any::<bool>(), any::<bool>()).prop_map(
        |(thinking, content, calls, strip, join)| {
            let field = |(open, close): (&str, &str)| {
                let mut field = Map::new();
                for (key, source) in [("open_pattern", open), ("close_pattern", close)] {
                    if !source.is_empty() {
                        field.insert(key.to_owned(), source.into());
                    }
                }
                Value::Object(field)
            };
            let mut fields = json!({
                "thinking": field(THINKING[thinking]), "content": field(CONTENT[content]),
                "tool_calls": field(CALLS[calls]),
            });
            fields["tool_calls"]["content"] = "json".into();
            fields["content"]["content_args"] = json!({"strip": strip});
            fields["content"]["join"] = if join { "\n".into() } else { Value::Null };
            json!({"start_anchor": "<start>", "fields": fields})
        },
    )
}

fn answer() -> impl Strategy<Value = String> {
    let fragments = prop::collection::vec(prop::sample::select(FRAGMENTS.to_vec()), 0..16);
    fragments.prop_map(|fragments| fragments.concat())
}

/// Answer with texts that are longer than the limits of the parser.
fn long_answer() -> impl Strategy<Value = String> {
    let run = |text: &'static str, min: usize, max: usize| {
        (min..max).prop_map(move |length| text.repeat(length))
    };
    let fragment = prop_oneof![
        12 => prop::sample::select(FRAGMENTS.to_vec()).prop_map(str::to_owned),
        2 => run(" ", 1000, 1050),
        1 => run(" y", 1000, 20_000),
        1 => run("\n", 1, 3000),
    ];
    prop::collection::vec(fragment, 0..12).prop_map(|fragments| fragments.concat())
}

fn whole(template: &Value, text: &str) -> Vec<Piece> {
    let mut parser = parser(template, "");
    [parser.push(text), parser.finish()].concat()
}

/// Parses an answer in pieces of the given lengths, in turn.
fn split(template: &Value, text: &str, lengths: &[usize]) -> Vec<Piece> {
    let mut parser = parser(template, "");
    let (mut pieces, mut rest) = (Vec::new(), text);
    for length in lengths.iter().cycle() {
        if rest.is_empty() {
            break;
        }
        let (part, after) = rest.split_at(rest.ceil_char_boundary(*length.min(&rest.len())));
        pieces.extend(parser.push(part));
        rest = after;
    }
    pieces.extend(parser.finish());
    pieces
}

/// The characters of an answer without whitespace, each part on a line of its own.
fn characters(pieces: Vec<Piece>) -> String {
    let (mut out, mut last) = (String::new(), "");
    for piece in pieces {
        let (kind, text) = match piece {
            Piece::Content(text) => ("content", text),
            Piece::Reasoning(text) => ("reasoning", text),
            Piece::CallBegin { name, .. } => ("call", name),
            Piece::CallArguments { json, .. } => ("arguments", json),
            Piece::CallEnd { .. } => continue,
        };
        let text: String = text.split_whitespace().collect();
        if text.is_empty() {
            continue;
        }
        if kind != last || kind == "call" {
            out.push_str(&format!("\n{kind}:"));
        }
        out.push_str(&text);
        last = kind;
    }
    out
}

/// Reference parser, which sees the whole answer: at each position, the longest delimiter that may come there counts.
struct Reference<'a> {
    fields: &'a Map<String, Value>,
    /// Name of the open field, its opening delimiter, and its text.
    open: Option<(&'a str, String, String)>,
    /// Text outside of all fields; `None` if this text is markup.
    outside: Option<String>,
    /// Whether a call was refused, so that the text outside of all fields is content until a field follows.
    refused: bool,
    out: Vec<Piece>,
}

impl<'a> Reference<'a> {
    fn parse(template: &'a Value, text: &str) -> Vec<Piece> {
        let fields = template["fields"].as_object().unwrap();
        let mut reference = Reference {
            fields,
            open: None,
            outside: Some(String::new()),
            refused: false,
            out: Vec::new(),
        };
        let mut at = 0;
        while at < text.len() {
            if let Some((name, opens, end)) = reference.delimiter(text, at) {
                reference.take(name, opens, &text[at..end]);
                at = end;
                continue;
            }
            let ch = text[at..].chars().next().unwrap();
            match &mut reference.open {
                Some((_, _, body)) => body.push(ch),
                None => reference.loose(ch),
            }
            at += ch.len_utf8();
        }
        if reference.open.is_some() {
            reference.close("");
        }
        reference.out.extend(reference.outside.take().map(Piece::Content));
        reference.out
    }

    fn delimiter(&self, text: &str, at: usize) -> Option<(&'a str, bool, usize)> {
        let open = self.open.as_ref().map(|(name, ..)| *name);
        let may_come = |(name, field): (&'a String, &'a Value)| {
            let is_implicit = field.get("open_pattern").is_none();
            let opens = open.is_none() && !is_implicit;
            let counts = opens || open == Some(name) || open.is_none() && is_implicit;
            let source =
                field.get(if opens { "open_pattern" } else { "close_pattern" })?.as_str()?;
            let regex = Regex::new(&format!("(?s){source}")).unwrap();
            let found = regex.find_at(text, at)?;
            let is_here = counts && found.start() == at && !found.is_empty();
            is_here.then_some((name.as_str(), opens, found.end()))
        };
        self.fields.iter().filter_map(may_come).max_by_key(|(_, opens, end)| (*end, *opens))
    }

    /// Takes a character outside of fields that have delimiters.
    fn loose(&mut self, ch: char) {
        let is_implicit = self.fields["content"].get("open_pattern").is_none();
        match &mut self.outside {
            _ if is_implicit => self.out.push(Piece::Content(ch.into())),
            Some(_) if self.refused => self.out.push(Piece::Content(ch.into())),
            Some(outside) => outside.push(ch),
            None => (),
        }
    }

    fn take(&mut self, name: &'a str, opens: bool, delimiter: &str) {
        if !opens {
            return self.close(delimiter);
        }
        self.open = Some((name, delimiter.to_owned(), String::new()));
        if name != "tool_calls" {
            self.outside = None;
        }
    }

    fn close(&mut self, closing: &str) {
        let Some((name, opening, body)) = self.open.take() else { return };
        match name {
            "content" => self.out.push(Piece::Content(body)),
            "thinking" => self.out.push(Piece::Reasoning(body)),
            _ => match calls(&body) {
                Some(calls) => {
                    if !calls.is_empty() {
                        self.outside = None;
                    }
                    self.out.extend(calls);
                }
                None => {
                    self.refused = true;
                    let outside = self.outside.as_mut().map(std::mem::take).unwrap_or_default();
                    self.out.push(Piece::Content(outside + &opening + &body + closing));
                }
            },
        }
    }
}

/// Returns the calls in the text of a field; `None` if the text is no call.
fn calls(body: &str) -> Option<Vec<Piece>> {
    let value: Value = serde_json::from_str(body).ok()?;
    let list = value.as_array().cloned().unwrap_or_else(|| vec![value]);
    let mut pieces = Vec::new();
    for call in list {
        let name = call.get("name")?.as_str()?.to_owned();
        let json = call.get("arguments").map_or("{}".to_owned(), Value::to_string);
        pieces.push(Piece::CallBegin { index: 0, name });
        pieces.push(Piece::CallArguments { index: 0, json });
    }
    Some(pieces)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1000))]
    #[test]
    fn an_answer_loses_no_text(
        template in template(),
        text in answer(),
        lengths in prop::collection::vec(1..9_usize, 1..20),
    ) {
        let parsed = whole(&template, &text);
        prop_assert_eq!(told(split(&template, &text, &lengths)), told(parsed.clone()), "{:?}", text);
        prop_assert_eq!(characters(parsed), characters(Reference::parse(&template, &text)), "{:?}", text);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(100))]
    #[test]
    fn the_split_of_a_long_answer_changes_nothing(
        template in template(),
        text in long_answer(),
        lengths in prop::collection::vec(prop_oneof![1..9_usize, 100..3000_usize], 1..20),
    ) {
        let (whole, split) = (whole(&template, &text), split(&template, &text, &lengths));
        prop_assert!(told(whole.clone()) == told(split), "{:?}", text);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(8))]
    #[test]
    fn the_split_of_a_call_that_is_too_long_changes_nothing(
        template in template(),
        (before, after) in (answer(), answer()),
        length in (1_usize << 20) - 9..(1 << 20) + 9,
        lengths in prop::collection::vec(60_000..600_000_usize, 1..9),
    ) {
        let text = format!("{before}<f>{}</f>{after}", "y".repeat(length));
        let (whole, split) = (whole(&template, &text), split(&template, &text, &lengths));
        prop_assert!(told(whole.clone()) == told(split), "{before:?} {length} {after:?}");
        prop_assert!(characters(whole).contains("yyy"), "the text is lost");
    }
}
