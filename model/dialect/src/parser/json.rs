//! Scanner that reads one JSON value character by character, and reports the end of the value and invalid JSON.

/// Maximum depth of nested arrays and objects, which is also the limit of serde_json.
const DEPTH_MAX: usize = 127;

/// Role of a character in the scanned value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Scan {
    /// The value goes on after the character.
    More,
    /// The character is the last character of the value.
    End,
    /// The value, which is a number, ended before the character.
    Before,
    /// The character makes the value invalid.
    Invalid,
}

/// Scanner of one JSON value without leading whitespace.
#[derive(Debug)]
pub(crate) struct Scanner {
    state: State,
    /// Closing delimiters of the open arrays and objects, the innermost last.
    open: Vec<char>,
}

#[derive(Debug, Clone, Copy)]
enum State {
    Value,
    ValueOrEnd,
    Key,
    KeyOrEnd,
    Colon,
    AfterValue,
    Text {
        key: bool,
        at: At,
    },
    Number(Digits),
    /// The remaining characters of `true`, `false` or `null`.
    Word(&'static str),
}

/// Position in a string.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum At {
    Plain,
    Backslash,
    /// In a `\u` escape: number of digits that were read, their value, and whether the code must be the second half of
    /// a surrogate pair.
    Code {
        digits: u8,
        value: u32,
        second: bool,
    },
    /// After the first escape of a surrogate pair; `true` after the backslash of the second escape.
    Half(bool),
}

/// Position in a number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Digits {
    Minus,
    Zero,
    Whole,
    Point,
    Fraction,
    Exponent,
    Sign,
    Power,
}

impl Scanner {
    pub(crate) fn new() -> Scanner {
        Scanner { state: State::Value, open: Vec::new() }
    }

    /// Scans the next character and appends it to `out`. Models write characters in strings that JSON does not allow:
    /// a control character is appended as an escape, and a backslash before a character that it cannot escape (as in
    /// the regular expression `\d`) counts as a character of the text.
    pub(crate) fn feed(&mut self, ch: char, out: &mut String) -> Scan {
        if let State::Text { key, at } = self.state {
            return self.text(key, at, ch, out);
        }
        if let State::Number(digits) = self.state {
            match number(digits, ch) {
                Some(next) => return self.go(State::Number(next), ch, out),
                None if !complete(digits) => return Scan::Invalid,
                None if self.open.is_empty() => return Scan::Before,
                None => self.state = State::AfterValue,
            }
        }
        if let State::Word(rest) = self.state {
            return match rest.strip_prefix(ch) {
                Some("") => self.end_value(ch, out),
                Some(rest) => self.go(State::Word(rest), ch, out),
                None => Scan::Invalid,
            };
        }
        if matches!(ch, ' ' | '\t' | '\n' | '\r') && !self.open.is_empty() {
            return self.go(self.state, ch, out);
        }
        self.structure(ch, out)
    }

    fn go(&mut self, state: State, ch: char, out: &mut String) -> Scan {
        out.push(ch);
        self.state = state;
        Scan::More
    }

    fn end_value(&mut self, ch: char, out: &mut String) -> Scan {
        self.go(State::AfterValue, ch, out);
        if self.open.is_empty() { Scan::End } else { Scan::More }
    }

    fn structure(&mut self, ch: char, out: &mut String) -> Scan {
        match (self.state, ch) {
            (State::Value | State::ValueOrEnd, '{' | '[') if self.open.len() < DEPTH_MAX => {
                let object = ch == '{';
                self.open.push(if object { '}' } else { ']' });
                let next = if object { State::KeyOrEnd } else { State::ValueOrEnd };
                self.go(next, ch, out)
            }
            (State::ValueOrEnd, ']') | (State::KeyOrEnd, '}') => self.close(ch, out),
            (State::Key | State::KeyOrEnd, '"') => {
                self.go(State::Text { key: true, at: At::Plain }, ch, out)
            }
            (State::Colon, ':') => self.go(State::Value, ch, out),
            (State::AfterValue, ',') => {
                let object = self.open.last() == Some(&'}');
                self.go(if object { State::Key } else { State::Value }, ch, out)
            }
            (State::AfterValue, _) if self.open.last() == Some(&ch) => self.close(ch, out),
            (State::Value | State::ValueOrEnd, _) => match first(ch) {
                Some(state) => self.go(state, ch, out),
                None => Scan::Invalid,
            },
            _ => Scan::Invalid,
        }
    }

    fn close(&mut self, ch: char, out: &mut String) -> Scan {
        self.open.pop();
        self.end_value(ch, out)
    }

    fn text(&mut self, key: bool, at: At, ch: char, out: &mut String) -> Scan {
        let next = match (at, ch) {
            (At::Plain, '"') if key => return self.go(State::Colon, ch, out),
            (At::Plain, '"') => return self.end_value(ch, out),
            (At::Plain, '\\') => At::Backslash,
            (At::Plain, '\0'..'\x20') => {
                push_escaped(ch, out);
                return Scan::More;
            }
            (At::Plain, _) => At::Plain,
            (At::Backslash, 'u') => At::Code { digits: 0, value: 0, second: false },
            (At::Half(false), '\\') => At::Half(true),
            (At::Half(true), 'u') => At::Code { digits: 0, value: 0, second: true },
            (At::Backslash, '"' | '\\' | '/' | 'b' | 'f' | 'n' | 'r' | 't') => At::Plain,
            (At::Code { digits, value, second }, _) => match (ch.to_digit(16), digits) {
                (Some(digit), 3) => match (value * 16 + digit, second) {
                    (0xDC00..0xE000, true) => At::Plain,
                    (_, true) | (0xDC00..0xE000, false) => return Scan::Invalid,
                    (0xD800..0xDC00, false) => At::Half(false),
                    (_, false) => At::Plain,
                },
                (Some(digit), _) => {
                    At::Code { digits: digits + 1, value: value * 16 + digit, second }
                }
                (None, _) => return Scan::Invalid,
            },
            (At::Backslash, _) => {
                out.push('\\');
                push_escaped(ch, out);
                self.state = State::Text { key, at: At::Plain };
                return Scan::More;
            }
            (At::Half(_), _) => return Scan::Invalid,
        };
        self.go(State::Text { key, at: next }, ch, out)
    }
}

/// Returns the state after the first character of a string, a number or a word (`true`, `false`, `null`); `None` for
/// any other character.
fn first(ch: char) -> Option<State> {
    Some(match ch {
        '"' => State::Text { key: false, at: At::Plain },
        '-' => State::Number(Digits::Minus),
        '0' => State::Number(Digits::Zero),
        '1'..='9' => State::Number(Digits::Whole),
        't' => State::Word("rue"),
        'f' => State::Word("alse"),
        'n' => State::Word("ull"),
        _ => return None,
    })
}

fn number(at: Digits, ch: char) -> Option<Digits> {
    Some(match (at, ch) {
        (Digits::Minus, '0') => Digits::Zero,
        (Digits::Minus, '1'..='9') | (Digits::Whole, '0'..='9') => Digits::Whole,
        (Digits::Zero | Digits::Whole, '.') => Digits::Point,
        (Digits::Point | Digits::Fraction, '0'..='9') => Digits::Fraction,
        (Digits::Zero | Digits::Whole | Digits::Fraction, 'e' | 'E') => Digits::Exponent,
        (Digits::Exponent, '+' | '-') => Digits::Sign,
        (Digits::Exponent | Digits::Sign | Digits::Power, '0'..='9') => Digits::Power,
        _ => return None,
    })
}

fn complete(at: Digits) -> bool {
    matches!(at, Digits::Zero | Digits::Whole | Digits::Fraction | Digits::Power)
}

/// Appends a character of a JSON string to `out`, with an escape if JSON requires one.
pub(crate) fn push_escaped(ch: char, out: &mut String) {
    match ch {
        '"' => out.push_str("\\\""),
        '\\' => out.push_str("\\\\"),
        '\n' => out.push_str("\\n"),
        '\r' => out.push_str("\\r"),
        '\t' => out.push_str("\\t"),
        '\0'..'\x20' => {
            let digit = |value: u32| char::from_digit(value, 16).unwrap_or('0');
            out.push_str("\\u00");
            out.push(digit(ch as u32 >> 4));
            out.push(digit(ch as u32 & 15));
        }
        _ => out.push(ch),
    }
}

/// Returns a text as a JSON string, including the quotes.
pub(crate) fn quoted(text: &str) -> String {
    let mut out = String::with_capacity(text.len() + 2);
    out.push('"');
    text.chars().for_each(|ch| push_escaped(ch, &mut out));
    out.push('"');
    out
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests state what must hold")]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use serde_json::Value;

    /// Scans a text. Returns the appended text and the length of the value, bytes; `None` if the text does not begin
    /// with a complete JSON value.
    fn read(text: &str) -> Option<(String, usize)> {
        let (mut scanner, mut out) = (Scanner::new(), String::new());
        for (at, ch) in text.char_indices() {
            match scanner.feed(ch, &mut out) {
                Scan::More => (),
                Scan::End => return Some((out, at + ch.len_utf8())),
                Scan::Before => return Some((out, at)),
                Scan::Invalid => return None,
            }
        }
        None
    }

    #[test]
    fn values_end_where_they_end() {
        for value in [
            "{}",
            "[]",
            "\"a\\u00e9\\n\"",
            "true",
            "null",
            r#"{"a": [1, -2.5e+3, {"b": false}], "": 0}"#,
            r#""😀""#,
            "[ ]",
            "{ }",
            "\"\u{7f}é\"",
        ] {
            let text = format!("{value} }}rest");
            assert_eq!(read(&text), Some((value.to_owned(), value.len())));
            value.parse::<Value>().unwrap();
        }
        assert_eq!(read("-0.5]"), Some(("-0.5".to_owned(), 4)));
    }

    #[test]
    fn what_is_no_json_is_told() {
        for text in [
            "{a",
            "{\"a\" 1",
            "[1 2",
            "[1,]",
            "{\"a\":1,}",
            "[01]",
            "1. ",
            "-a",
            "tru ",
            "\"\\ud800a",
            "\"\\ud800\\n",
            "\"\\udc00",
            "\"\\ud800\\ud800",
            "[}",
            "'a'",
            "\"\\u12g",
        ] {
            assert_eq!(read(text), None, "{text}");
            assert!(text.parse::<Value>().is_err(), "{text}");
        }
        assert_eq!(read(&"[".repeat(DEPTH_MAX + 1)), None);
    }

    #[test]
    fn control_characters_in_strings_are_escaped() {
        let (out, _) = read("{\"a\nb\": \"c\t\u{1}\"\n}").unwrap();
        assert_eq!(out, "{\"a\\nb\": \"c\\t\\u0001\"\n}");
        assert_eq!(quoted("a\"b\\c\u{1f}\n").parse::<Value>().unwrap(), "a\"b\\c\u{1f}\n");
    }

    #[test]
    fn a_backslash_that_escapes_nothing_is_a_character() {
        let (out, _) = read("[\"\\d+\\.\", \"a\\\n\", \"\\\\d\"]").unwrap();
        assert_eq!(out.parse::<Value>().unwrap(), serde_json::json!(["\\d+\\.", "a\\\n", "\\d"]));
    }

    fn values() -> impl Strategy<Value = Value> {
        let leaf = prop_oneof![
            Just(Value::Null),
            any::<bool>().prop_map(Value::from),
            any::<i64>().prop_map(Value::from),
            (-1e9..1e9f64).prop_map(Value::from),
            any::<String>().prop_map(Value::from),
        ];
        leaf.prop_recursive(4, 32, 6, |inner| {
            prop_oneof![
                prop::collection::vec(inner.clone(), 0..5).prop_map(Value::from),
                prop::collection::hash_map(any::<String>(), inner, 0..5)
                    .prop_map(|map| Value::Object(map.into_iter().collect())),
            ]
        })
    }

    proptest! {
        #[test]
        fn any_value_is_read_to_its_end(value in values(), pretty in any::<bool>()) {
            let text = if pretty { serde_json::to_string_pretty(&value) } else { serde_json::to_string(&value) };
            let text = text.unwrap();
            prop_assert_eq!(read(&format!("{text} ")), Some((text.clone(), text.len())));
        }

        #[test]
        fn serde_json_reads_what_the_scanner_accepts(text in "[\\[\\]{}:,\"\\\\u0-9dDa-f.eE+\\-tr ls]{0,24}") {
            if let Some((out, end)) = read(&format!("{text} ")) {
                prop_assert!(out.parse::<Value>().is_ok() || out.contains(['e', 'E']), "{}", out);
                prop_assert!(end <= text.len());
            }
        }
    }
}
