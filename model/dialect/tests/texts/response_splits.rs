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

/// Text of a field, of which the whitespace at the ends is left out.
#[derive(Default)]
struct Part {
    text: String,
    /// Range of the text that is not left out.
    kept: Option<(usize, usize)>,
}

impl Part {
    /// Adds a text. If the text is `verbatim`, its whitespace is not left out.
    fn push(&mut self, text: &str, verbatim: bool) {
        for ch in text.chars() {
            let at = self.text.len();
            self.text.push(ch);
            if verbatim || !ch.is_whitespace() {
                let start = self.kept.map_or(at, |(start, _)| start);
                self.kept = Some((start, self.text.len()));
            }
        }
    }

    fn kept(&self) -> &str {
        self.kept.map_or("", |(start, end)| &self.text[start..end])
    }
}

/// Reference parser, which sees the whole answer: at each position, the longest delimiter that may come there counts.
struct Reference<'a> {
    fields: &'a Map<String, Value>,
    /// Name of the open field, its opening delimiter, and its text.
    open: Option<(&'a str, String, Part)>,
    /// Text outside of fields that have delimiters.
    loose: Part,
    /// Whether this text is markup.
    is_markup: bool,
    /// Whether this text is content in any case, because a call was refused.
    refused: bool,
    passed: Vec<&'a str>,
    out: Vec<Piece>,
}

impl<'a> Reference<'a> {
    fn parse(template: &'a Value, text: &str) -> Vec<Piece> {
        let fields = template["fields"].as_object().unwrap();
        let (open, loose, passed, out) = (None, Part::default(), Vec::new(), Vec::new());
        let mut reference =
            Reference { fields, open, loose, is_markup: false, refused: false, passed, out };
        let mut at = 0;
        while at < text.len() {
            if let Some((name, opens, end)) = reference.delimiter(text, at) {
                match opens {
                    true => reference.take(name, &text[at..end]),
                    false => reference.close(&text[at..end]),
                }
                at = end;
                continue;
            }
            let end = at + text[at..].chars().next().unwrap().len_utf8();
            let (ch, strips) = (&text[at..end], reference.strips());
            match &mut reference.open {
                Some((_, _, body)) => body.push(ch, !strips),
                None if reference.is_markup => (),
                None => reference.loose.push(ch, !strips),
            }
            at = end;
        }
        reference.close("");
        let loose = std::mem::take(&mut reference.loose);
        reference.pass("content", &loose);
        reference.out
    }

    fn is_implicit(&self) -> bool {
        self.fields["content"].get("open_pattern").is_none()
    }

    /// Whether whitespace at the ends of the current text is left out.
    fn strips(&self) -> bool {
        let is_content = match &self.open {
            Some((name, ..)) => *name == "content",
            None => self.is_implicit(),
        };
        !is_content || self.fields["content"]["content_args"]["strip"] == true
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

    fn take(&mut self, name: &'a str, delimiter: &str) {
        if name != "tool_calls" {
            self.end_loose(true);
        }
        self.open = Some((name, delimiter.to_owned(), Part::default()));
    }

    /// Ends the text outside of fields that have delimiters. `is_markup` says that a field follows.
    fn end_loose(&mut self, is_markup: bool) {
        if self.is_implicit() || self.refused && is_markup {
            let loose = std::mem::take(&mut self.loose);
            self.pass("content", &loose);
        }
        if !self.is_implicit() && is_markup {
            (self.is_markup, self.refused, self.loose) = (true, false, Part::default());
        }
    }

    /// Passes on the text of a field, or the text outside of fields.
    fn pass(&mut self, name: &'a str, part: &Part) {
        let text = part.kept().to_owned();
        if text.is_empty() {
            return;
        }
        let joins = self.passed.contains(&name) && (self.open.is_some() || self.is_implicit());
        let join = self.fields[name].get("join").and_then(Value::as_str).filter(|_| joins);
        let text = join.unwrap_or_default().to_owned() + &text;
        if self.open.is_some() || self.is_implicit() {
            self.passed.push(name);
        }
        self.out.push(match name {
            "thinking" => Piece::Reasoning(text),
            _ => Piece::Content(text),
        });
    }

    fn close(&mut self, closing: &str) {
        let Some((name, opening, body)) = self.open.take() else { return self.end_loose(false) };
        if name != "tool_calls" {
            self.open = Some((name, opening, Part::default()));
            self.pass(name, &body);
            self.open = None;
        } else if let Some(calls) = calls(&body.text) {
            self.end_loose(!calls.is_empty());
            self.out.extend(calls);
        } else {
            let text = opening + &body.text + closing;
            if self.is_markup {
                self.out.push(Piece::Content(text));
            } else {
                self.loose.push(&text, true);
                self.refused = true;
            }
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
        pieces.push(Piece::CallEnd { index: 0 });
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
        let parsed = told(whole(&template, &text));
        prop_assert_eq!(&told(split(&template, &text, &lengths)), &parsed, "{:?}", text);
        prop_assert_eq!(parsed, told(Reference::parse(&template, &text)), "{:?}", text);
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
        prop_assert!(told(whole) == told(split), "{:?}", text);
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
        let whole = told(whole);
        prop_assert!(whole == told(split), "{before:?} {length} {after:?}");
        prop_assert!(whole.matches('y').count() == length, "{before:?} {length} {after:?}");
    }
}
