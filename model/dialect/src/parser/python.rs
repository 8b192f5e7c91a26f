//! Parser that reads a Python literal character by character and writes the literal as JSON.

use super::form::is_space;
use super::json::{Scan, push_escaped};
use serde_json::Value;

/// Maximum depth of nested lists and dicts.
const DEPTH_MAX: usize = 64;
/// Maximum length of a number or word, bytes.
const WORD_BYTES_MAX: usize = 320;

/// Parser of one literal: a string, number, `True`, `False`, `None`, list, tuple, or dict with strings as keys. The
/// JSON words `true`, `false` and `null` are accepted too, because models mix them in.
#[derive(Debug)]
pub(super) struct Literal {
    state: State,
    /// Closing delimiters of the open lists, tuples and dicts, the innermost last.
    open: Vec<char>,
}

#[derive(Debug)]
enum State {
    Value,
    ValueOrEnd,
    Key,
    KeyOrEnd,
    Colon,
    AfterValue,
    /// In a string: the closing quote, and the escape that is being read, if any.
    Text {
        key: bool,
        quote: char,
        escape: Option<String>,
    },
    /// In a number or word.
    Word(String),
}

/// Converts a text that is one Python literal to JSON; `None` for any other text.
pub(super) fn literal(text: &str) -> Option<String> {
    let (mut reader, mut out) = (Literal::new(), String::new());
    // A space after the text ends a number or word.
    let mut chars = text.trim().chars().chain([' ']);
    loop {
        let ch = chars.next()?;
        match reader.feed(ch, &mut out) {
            Scan::More => (),
            Scan::Before if !is_space(ch) => return None,
            Scan::Before | Scan::End => return chars.all(is_space).then_some(out),
            Scan::Invalid => return None,
        }
    }
}

impl Literal {
    pub(super) fn new() -> Literal {
        Literal { state: State::Value, open: Vec::new() }
    }

    /// Parses the next character, and appends the corresponding JSON to `out`. A number or word ends when the character
    /// after it is parsed.
    pub(super) fn feed(&mut self, ch: char, out: &mut String) -> Scan {
        match &mut self.state {
            State::Text { .. } => return self.text(ch, out),
            State::Word(word) => {
                if ch.is_ascii_alphanumeric() || matches!(ch, '.' | '+' | '-' | '_') {
                    word.push(ch);
                    let fits = word.len() <= WORD_BYTES_MAX;
                    return if fits { Scan::More } else { Scan::Invalid };
                }
                let Some(json) = word_json(word) else { return Scan::Invalid };
                out.push_str(&json);
                self.state = State::AfterValue;
                if self.open.is_empty() {
                    return Scan::Before;
                }
            }
            _ => (),
        }
        if is_space(ch) && (!self.open.is_empty() || matches!(self.state, State::Value)) {
            return Scan::More;
        }
        self.structure(ch, out)
    }

    /// Ends the text within the literal, and returns the JSON of a buffered number or word.
    pub(super) fn finish(&self) -> String {
        match &self.state {
            State::Word(word) => word_json(word).unwrap_or_default(),
            _ => String::new(),
        }
    }

    fn structure(&mut self, ch: char, out: &mut String) -> Scan {
        match (&self.state, ch) {
            (State::Value | State::ValueOrEnd, '[' | '(' | '{') if self.open.len() < DEPTH_MAX => {
                let (close, json, state) = match ch {
                    '[' => (']', '[', State::ValueOrEnd),
                    '(' => (')', '[', State::ValueOrEnd),
                    _ => ('}', '{', State::KeyOrEnd),
                };
                self.open.push(close);
                out.push(json);
                self.state = state;
            }
            (State::ValueOrEnd | State::AfterValue, ']' | ')')
            | (State::KeyOrEnd | State::AfterValue, '}')
                if self.open.last() == Some(&ch) =>
            {
                self.open.pop();
                out.push(if ch == ')' { ']' } else { ch });
                return self.end_value();
            }
            (State::Value | State::ValueOrEnd, '"' | '\'') => {
                out.push('"');
                self.state = State::Text { key: false, quote: ch, escape: None };
            }
            (State::Key | State::KeyOrEnd, '"' | '\'') => {
                out.push('"');
                self.state = State::Text { key: true, quote: ch, escape: None };
            }
            (
                State::Value | State::ValueOrEnd,
                '0'..='9' | 'a'..='z' | 'A'..='Z' | '-' | '+' | '.',
            ) => {
                self.state = State::Word(ch.to_string());
            }
            (State::Colon, ':') => {
                out.push_str(": ");
                self.state = State::Value;
            }
            (State::AfterValue, ',') => {
                out.push_str(", ");
                let dict = self.open.last() == Some(&'}');
                self.state = if dict { State::Key } else { State::Value };
            }
            _ => return Scan::Invalid,
        }
        Scan::More
    }

    fn end_value(&mut self) -> Scan {
        self.state = State::AfterValue;
        if self.open.is_empty() { Scan::End } else { Scan::More }
    }

    fn text(&mut self, ch: char, out: &mut String) -> Scan {
        let State::Text { key, quote, escape } = &mut self.state else { return Scan::Invalid };
        if let Some(read) = escape {
            read.push(ch);
            match unescape(read) {
                Unescaped::More => (),
                Unescaped::Char(unescaped) => {
                    unescaped.into_iter().for_each(|ch| push_escaped(ch, out));
                    *escape = None;
                }
                // An escape that Python does not know is kept as text.
                Unescaped::No => {
                    push_escaped('\\', out);
                    read.chars().for_each(|ch| push_escaped(ch, out));
                    *escape = None;
                }
            }
        } else if ch == '\\' {
            *escape = Some(String::new());
        } else if ch == *quote {
            out.push('"');
            if *key {
                self.state = State::Colon;
            } else {
                return self.end_value();
            }
        } else {
            push_escaped(ch, out);
        }
        Scan::More
    }
}

enum Unescaped {
    More,
    /// The unescaped character; `None` for an escaped line break.
    Char(Option<char>),
    No,
}

/// Unescapes an escape, given the text after its backslash.
fn unescape(read: &str) -> Unescaped {
    let plain = match read {
        "n" => '\n',
        "t" => '\t',
        "r" => '\r',
        "b" => '\u{8}',
        "f" => '\u{c}',
        "a" => '\u{7}',
        "v" => '\u{b}',
        "0" => '\0',
        "\\" | "'" | "\"" => return Unescaped::Char(read.chars().next()),
        "\n" => return Unescaped::Char(None),
        _ => {
            let Some((digits, hex)) = (match read.as_bytes().first() {
                Some(b'x') => Some((2, &read[1..])),
                Some(b'u') => Some((4, &read[1..])),
                Some(b'U') => Some((8, &read[1..])),
                _ => None,
            }) else {
                return Unescaped::No;
            };
            if !hex.bytes().all(|byte| byte.is_ascii_hexdigit()) {
                return Unescaped::No;
            }
            if hex.len() < digits {
                return Unescaped::More;
            }
            match u32::from_str_radix(hex, 16).ok().and_then(char::from_u32) {
                Some(ch) => ch,
                None => return Unescaped::No,
            }
        }
    };
    Unescaped::Char(Some(plain))
}

/// Converts a number or word to JSON; `None` if the text is neither.
fn word_json(word: &str) -> Option<String> {
    let json = match word {
        "True" | "true" => "true".to_owned(),
        "False" | "false" => "false".to_owned(),
        "None" | "null" => "null".to_owned(),
        _ => {
            let plain = word.replace('_', "");
            match plain.parse::<Value>() {
                Ok(value) if value.is_number() => plain,
                // Python allows numbers such as `.5`, `1.` and `+1`.
                _ => {
                    let number: f64 =
                        plain.parse().ok().filter(|number: &f64| number.is_finite())?;
                    let digits = plain.starts_with(|ch: char| {
                        ch.is_ascii_digit() || matches!(ch, '.' | '+' | '-')
                    });
                    digits.then(|| Value::from(number).to_string())?
                }
            }
        }
    };
    Some(json)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn literals_become_json() {
        for (python, json) in [
            ("'it\\'s'", r#""it's""#),
            (r#""a\n\x41\u00e9\U0001F600\q""#, "\"a\\nAé😀\\\\q\""),
            ("'a\"b'", r#""a\"b""#),
            ("[1, -2.5, .5, True, None,null]", "[1, -2.5, 0.5, true, null, null]"),
            ("(1, 'a')", r#"[1, "a"]"#),
            ("{'a': {}, \"b\": []}", r#"{"a": {}, "b": []}"#),
            ("1_000", "1000"),
            ("+3", "3.0"),
            (" 12 ", "12"),
            ("''", "\"\""),
        ] {
            assert_eq!(literal(python).as_deref(), Some(json), "{python}");
            assert!(json.parse::<Value>().is_ok(), "{json}");
        }
    }

    #[test]
    fn what_is_no_literal_is_told() {
        for text in [
            "f(1)", "{1: 2}", "[1", "'a", "a b", "inf", "nan", "infinity", "[}", "1 2", "{'a'}",
            "0x", "", "'a' 'b'",
        ] {
            assert_eq!(literal(text), None, "{text}");
        }
        assert_eq!(literal(&("[".repeat(65) + &"]".repeat(65))), None);
    }
}
