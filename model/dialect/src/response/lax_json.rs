//! JSON as models write it: strings in delimiters of their own, and keys without quotes.

use crate::parser::{Scan, Scanner, quoted};
use serde_json::Value;

/// Ways in which a model's JSON differs from JSON.
#[derive(Debug, Clone, Default)]
pub(super) struct LaxJson {
    /// Whether keys may have no quotes.
    pub(super) unquoted_keys: bool,
    /// Pairs of delimiters around strings.
    pub(super) string_delimiters: Vec<(String, String)>,
    /// Whether a text that is no JSON is a string.
    pub(super) allow_non_json: bool,
}

impl LaxJson {
    /// Parses a text; `None` if the text is no JSON.
    pub(super) fn parse(&self, text: &str) -> Option<Value> {
        let is_plain = !self.unquoted_keys && self.string_delimiters.is_empty();
        let parsed =
            if is_plain { value(text) } else { self.strict(text).and_then(|json| value(&json)) };
        parsed.or_else(|| self.allow_non_json.then(|| Value::from(text.trim())))
    }

    /// Converts a text to JSON; `None` if a string has no end.
    fn strict(&self, text: &str) -> Option<String> {
        let (mut out, mut rest) = (String::with_capacity(text.len() + 16), text);
        // Whether a key may come next.
        let mut at_key = false;
        // For each pair of delimiters, whether the rest may have the closing delimiter.
        let mut closes = vec![true; self.string_delimiters.len()];
        while let Some(first) = rest.chars().next() {
            let mut delimiters = self.string_delimiters.iter().zip(&mut closes);
            let delimited = delimiters.find_map(|((open, close), closes)| {
                let after = rest.strip_prefix(open.as_str()).filter(|_| *closes)?;
                let parts = after.split_once(close.as_str());
                *closes = parts.is_some();
                parts
            });
            if let Some((inner, after)) = delimited {
                out.push_str(&quoted(inner));
                (rest, at_key) = (after, false);
            } else if first == '"' {
                let end = string_end(rest)?;
                out.push_str(&rest[..end]);
                (rest, at_key) = (&rest[end..], false);
            } else if at_key && let Some(end) = self.bare_key(rest) {
                out.push_str(&quoted(&rest[..end]));
                (rest, at_key) = (&rest[end..], false);
            } else {
                out.push(first);
                at_key = matches!(first, '{' | ',') || at_key && first.is_whitespace();
                rest = &rest[first.len_utf8()..];
            }
        }
        Some(out)
    }

    /// Returns the length of a key without quotes at the start of a text, bytes.
    fn bare_key(&self, text: &str) -> Option<usize> {
        let end = text.find(|ch: char| !ch.is_alphanumeric() && ch != '_')?;
        (self.unquoted_keys && end > 0 && text[end..].starts_with(':')).then_some(end)
    }
}

/// Returns the length of the JSON string at the start of a text, bytes.
fn string_end(text: &str) -> Option<usize> {
    let mut escaped = false;
    for (at, ch) in text.char_indices().skip(1) {
        match ch {
            _ if escaped => escaped = false,
            '\\' => escaped = true,
            '"' => return Some(at + 1),
            _ => (),
        }
    }
    None
}

/// Parses a text that is one JSON value. Control characters may stand in strings, because models write them.
fn value(text: &str) -> Option<Value> {
    let (mut scanner, mut json) = (Scanner::new(), String::with_capacity(text.len()));
    // A space after the text ends a number.
    let mut chars = text.trim().chars().chain([' ']);
    loop {
        let ch = chars.next()?;
        match scanner.feed(ch, &mut json) {
            Scan::More => (),
            Scan::Before if ch != ' ' => return None,
            Scan::Before | Scan::End => break,
            Scan::Invalid => return None,
        }
    }
    chars.all(char::is_whitespace).then(|| exact(&json))?
}

/// Parses JSON; `None` if the JSON has an integer beyond 64 bits, whose digits the parsed value could not keep.
pub(super) fn exact(json: &str) -> Option<Value> {
    let value = serde_json::from_str(json).ok()?;
    let mut rest = json;
    while let Some(at) = rest.find(|ch: char| matches!(ch, '"' | '-' | '0'..='9')) {
        rest = &rest[at..];
        let end = if rest.starts_with('"') { string_end(rest)? } else { number_end(rest) };
        let token = &rest[..end];
        let is_integer = !token.contains(['"', '.', 'e', 'E']);
        if is_integer && token.parse::<i64>().is_err() && token.parse::<u64>().is_err() {
            return None;
        }
        rest = &rest[end..];
    }
    Some(value)
}

/// Returns the length of the JSON number at the start of a text, bytes.
fn number_end(text: &str) -> usize {
    let is_part = |ch: char| matches!(ch, '0'..='9' | '+' | '-' | '.' | 'e' | 'E');
    text.find(|ch| !is_part(ch)).unwrap_or(text.len())
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests state what must hold")]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn json_is_json() {
        let parse = |text: &str| LaxJson::default().parse(text);
        assert_eq!(parse(" {\"a\": [1, \"x\ny\"]}\n"), Some(json!({"a": [1, "x\ny"]})));
        assert_eq!(parse("12"), Some(json!(12)));
        assert_eq!(parse("[-0.5e1, 1e3]"), Some(json!([-5.0, 1e3])));
        assert_eq!(parse("18446744073709551615"), Some(json!(u64::MAX)));
        assert_eq!(parse("[\"18446744073709551616\"]"), Some(json!(["18446744073709551616"])));
        for text in ["[18446744073709551616]", "{\"a\": -9223372036854775809}"] {
            assert_eq!(parse(text), None, "{text}");
        }
        for text in ["", "{", "{a: 1}", "1 2", "{} x", "12x", "\"a"] {
            assert_eq!(parse(text), None, "{text}");
        }
        let lax = LaxJson { allow_non_json: true, ..LaxJson::default() };
        assert_eq!(lax.parse(" Paris \n"), Some(json!("Paris")));
        assert_eq!(lax.parse("7"), Some(json!(7)));
    }

    #[test]
    fn keys_and_strings_may_be_written_in_other_ways() {
        let quote = "<|\"|>".to_owned();
        let string_delimiters = vec![(quote.clone(), quote)];
        let lax = LaxJson { unquoted_keys: true, string_delimiters, allow_non_json: false };
        for (text, json) in [
            (
                "{hour:7,label:<|\"|>a \"b\"\n{c:1}<|\"|>}",
                json!({"hour": 7, "label": "a \"b\"\n{c:1}"}),
            ),
            ("{ a_ü : 1}", Value::Null),
            (
                "{a: {b:[true,{c:null}]}, \"d\": \"{e:1}\"}",
                json!({"a": {"b": [true, {"c": null}]}, "d": "{e:1}"}),
            ),
            ("{}", json!({})),
            ("{a:\"\\\"x,y:\"}", json!({"a": "\"x,y:"})),
        ] {
            assert_eq!(lax.parse(text).unwrap_or_default(), json, "{text}");
        }
        assert_eq!(lax.parse("{a:<|\"|>b}"), None);
        assert_eq!(lax.parse("{a:\"b}"), None);
    }
}
