//! Checks Lark grammars and regular expressions, and prepares the JSON schemas inside a Lark grammar. The checks refuse
//! features that llguidance would accept but not follow.

use crate::conjuncts::OPERATORS_MAX;
use crate::{GrammarError, schema};
use regex_syntax::ast::{self, Ast};
use serde_json::Value;

/// Attributes of a rule that concern sampling or the client's text. A token mask cannot implement such attributes.
const ATTRIBUTES: [&str; 4] = ["temperature", "stop", "stop_capture", "max_tokens"];
/// Maximum nesting of groups in a regular expression.
const NESTING_MAX: u32 = 100;

/// Checks a Lark grammar, and prepares each JSON schema in it (`%json {...}`) as a separate schema.
///
/// # Errors
/// [`GrammarError`] with the number of the line.
pub(crate) fn prepare(grammar: &str) -> Result<String, GrammarError> {
    for (number, line) in grammar.lines().enumerate() {
        if let Some(attribute) = refused_attribute(line) {
            let at = format!("line {}", number + 1);
            return Err(GrammarError::unsupported(&at, format!("the attribute '{attribute}'")));
        }
    }
    if operators(grammar) > OPERATORS_MAX {
        let why = format!("it has more than {OPERATORS_MAX} operators '&' and '~'");
        return Err(GrammarError::TooComplex(why));
    }
    let mut prepared = String::with_capacity(grammar.len());
    let mut copied = 0;
    let mut symbols = Symbols::of(grammar);
    while let Some((at, _)) = symbols.next() {
        let Some(rest) = grammar[at..].strip_prefix("%json") else { continue };
        let start = grammar.len() - rest.len();
        let mut values = serde_json::Deserializer::from_str(rest).into_iter::<Value>();
        // A value that is not JSON is left to llguidance, whose message shows the place.
        let Some(Ok(value)) = values.next() else { continue };
        let value = schema::prepare(&value).map_err(|error| {
            let line = 1 + grammar[..start].matches('\n').count();
            in_line(line, error)
        })?;
        prepared.push_str(&grammar[copied..start]);
        prepared.push_str(&format!(" {value}"));
        copied = start + values.byte_offset();
        symbols.at = copied;
    }
    prepared.push_str(&grammar[copied..]);
    Ok(prepared)
}

/// Returns the number of intersections (`&`) and negations (`~`) in a grammar. A `~` before a number is a repetition,
/// not a negation.
fn operators(grammar: &str) -> usize {
    let is_operator = |(at, c): &(usize, char)| match c {
        '&' => true,
        '~' => {
            let operand = grammar[at + 1..].trim_start_matches(' ');
            !operand.starts_with(|c: char| c.is_ascii_digit())
        }
        _ => false,
    };
    Symbols::of(grammar).filter(is_operator).count()
}

/// Characters of a Lark grammar outside of literals, regular expressions, special tokens (`<name>`) and comments, each
/// with its position in bytes. The lexer of llguidance (`lark/lexer.rs`) divides a grammar in the same way.
struct Symbols<'a> {
    grammar: &'a str,
    /// Position of the next character, bytes.
    at: usize,
}

impl Symbols<'_> {
    fn of(grammar: &str) -> Symbols<'_> {
        Symbols { grammar, at: 0 }
    }
}

impl Iterator for Symbols<'_> {
    type Item = (usize, char);

    fn next(&mut self) -> Option<(usize, char)> {
        loop {
            let rest = &self.grammar[self.at..];
            let first = rest.chars().next()?;
            let body = &rest[first.len_utf8()..];
            let skipped = match first {
                '"' => delimited(body, '"'),
                '#' => comment(body),
                '/' if body.starts_with('/') => comment(body),
                '/' => delimited(body, '/'),
                '<' => special_token(body),
                _ => 0,
            };
            let at = self.at;
            self.at += first.len_utf8() + skipped;
            if skipped == 0 && !matches!(first, '"' | '#' | '/') {
                return Some((at, first));
            }
        }
    }
}

/// Returns the length of the rest of a literal or of a regular expression, with its delimiter `end`, bytes. A backslash
/// escapes the next character.
fn delimited(body: &str, end: char) -> usize {
    let mut chars = body.char_indices();
    while let Some((at, c)) = chars.next() {
        match c {
            '\\' => _ = chars.next(),
            c if c == end => return at + c.len_utf8(),
            _ => {}
        }
    }
    body.len()
}

/// Returns the length of the rest of a comment, without the line break, bytes.
fn comment(body: &str) -> usize {
    body.find('\n').unwrap_or(body.len())
}

/// Returns the length of the rest of a special token, bytes; 0 if the text is no special token.
fn special_token(body: &str) -> usize {
    match body.find(['<', '>', ' ', '\t', '\r', '\n']) {
        Some(end) if body[end..].starts_with('>') => end + 1,
        _ => 0,
    }
}

/// Adds the number of a line of the grammar to an error about a schema on this line.
fn in_line(line: usize, error: GrammarError) -> GrammarError {
    match error {
        GrammarError::Unsupported { at, feature, instead } => {
            GrammarError::Unsupported { at: format!("line {line}, {at}"), feature, instead }
        }
        GrammarError::Invalid(why) => GrammarError::Invalid(format!("line {line}: {why}")),
        other => other,
    }
}

/// Returns the refused attribute in the head of a rule, `name[attribute=...]:`; `None` if the line has none.
fn refused_attribute(line: &str) -> Option<&'static str> {
    let name = line.trim_start().trim_start_matches(['?', '!']);
    let is_name = |c: char| c.is_alphanumeric() || matches!(c, '_' | '-' | '.');
    let head = name.trim_start_matches(is_name).trim_start().strip_prefix('[')?;
    if name.starts_with('[') {
        return None;
    }
    let (attributes, _) = head.split_once("]")?;
    let keys = attributes.split(',').map(|attribute| attribute.split('=').next().unwrap_or(""));
    let found = keys.map(str::trim).find_map(|key| ATTRIBUTES.iter().find(|name| **name == key));
    found.copied()
}

/// Checks a regular expression, which must match the whole output. Returns the expression without the anchors at its
/// beginning and end, which are redundant.
///
/// # Errors
/// [`GrammarError`] with the place.
pub(crate) fn check_regex(regex: &str) -> Result<String, GrammarError> {
    let body = regex.strip_prefix('^').unwrap_or(regex);
    let body = match body.strip_suffix('$') {
        Some(inner) if !ends_in_escape(inner) => inner,
        _ => body,
    };
    let parsed = ast::parse::ParserBuilder::new().nest_limit(NESTING_MAX).build().parse(body);
    let tree = parsed.map_err(|error| {
        let (kind, start) = (error.kind().to_string(), error.span().start);
        let at = format!("line {}, column {}", start.line, start.column);
        match error.kind() {
            ast::ErrorKind::UnsupportedLookAround => GrammarError::unsupported(&at, "look-around"),
            ast::ErrorKind::UnsupportedBackreference => {
                GrammarError::unsupported(&at, "a backreference")
            }
            ast::ErrorKind::NestLimitExceeded(_) => {
                GrammarError::TooComplex(format!("{at}: {kind}"))
            }
            _ => GrammarError::Invalid(format!("{at}: {kind}")),
        }
    })?;
    match ast::visit(&tree, Assertions) {
        Ok(()) => Ok(body.to_owned()),
        Err(at) => Err(GrammarError::Unsupported {
            at,
            feature: "an anchor or a word boundary within a regular expression".to_owned(),
            instead: "the whole output matches the expression without any",
        }),
    }
}

/// Returns whether a text ends with an odd number of backslashes, so that the last backslash begins an escape.
fn ends_in_escape(text: &str) -> bool {
    (text.len() - text.trim_end_matches('\\').len()) % 2 == 1
}

/// Visitor of a regular expression's syntax tree that fails at the first assertion and returns the place of the
/// assertion.
struct Assertions;

impl ast::Visitor for Assertions {
    type Output = ();
    type Err = String;

    fn finish(self) -> Result<(), String> {
        Ok(())
    }

    fn visit_pre(&mut self, tree: &Ast) -> Result<(), String> {
        match tree {
            Ast::Assertion(found) => {
                let start = found.span.start;
                Err(format!("line {}, column {}", start.line, start.column))
            }
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn attributes_that_a_mask_cannot_follow_are_refused() {
        for attribute in ATTRIBUTES {
            let grammar = format!("start: a\n  ?a.2 [lazy, {attribute}=1]: /x/");
            let error = prepare(&grammar).expect_err("refused").to_string();
            assert_eq!(error, format!("line 2: the attribute '{attribute}' is not supported"));
        }
        for fine in ["a[lazy]: /x/", "[stop=\"x\"]", "A: /[stop=1]:/", "a: b[x]", "a[capture]: b"] {
            assert_eq!(prepare(fine).as_deref(), Ok(fine));
        }
    }

    #[test]
    fn operators_are_counted_outside_of_literals() {
        for (grammar, count) in [
            ("T: /a/ & ~/b/ & ~ (C)", 4),
            ("T: \"a & ~\\\" &\" /&\\/~/ // & ~\n# &\nb: c~3 d ~ 2..4", 0),
            ("a: \"unfinished & ", 0),
            ("# no escape \\\nT: /a/ & /b/ // \\\nU: &", 2),
            ("a: <a\"&b> & <b & \"c\"", 2),
        ] {
            assert_eq!(operators(grammar), count, "{grammar}");
        }
    }

    #[test]
    fn schemas_in_a_grammar_are_prepared_and_checked() {
        let grammar = "start: \"x\" a\na: %json {\"type\": \"object\"}\nb: %json{\"enum\":[1]} | c";
        let prepared = prepare(grammar).unwrap();
        assert_eq!(prepared.matches("x-guidance").count(), 2);
        assert!(prepared.ends_with(" | c"), "{prepared}");
        let grammar = "start: a\na: %json {\n\"properties\": {\"b\": {\"not\": {}}}}";
        let error = prepare(grammar).expect_err("refused").to_string();
        assert!(error.starts_with("line 2, #/properties/b/not: the keyword 'not'"), "{error}");
        assert_eq!(prepare("start: %json {oops}").as_deref(), Ok("start: %json {oops}"));
        let lark = schema::lark_of_schema(&json!({"type": "null"})).unwrap();
        assert!(prepare(&format!("start: {lark}")).unwrap().contains("x-guidance"));
    }

    #[test]
    fn schemas_are_found_outside_of_literals() {
        for text in [
            "start: \"%json true\" | \"\\\"%json 5\"",
            "start: /%json 5/ // %json 5\n# %json 5",
            "start: <%json>",
        ] {
            assert_eq!(prepare(text).as_deref(), Ok(text));
        }
        for before in [
            "\"a\" ",
            "/\"/ ",
            "<\"> ",
            "# \"\n",
            "// \\\n",
            "# \\\n",
            "%json {\"enum\": [\"\\\"/\"]} ",
        ] {
            let prepared = prepare(&format!("start: {before}%json {{\"not\": {{}}}}"));
            assert!(prepared.is_err_and(|error| error.to_string().contains("'not'")), "{before}");
        }
    }

    #[test]
    fn regular_expressions_match_the_whole_output() {
        assert_eq!(check_regex("^a+$").as_deref(), Ok("a+"));
        assert_eq!(check_regex(r"a\$").as_deref(), Ok(r"a\$"));
        assert_eq!(check_regex(r"a\\$").as_deref(), Ok(r"a\\"));
        for (regex, part) in [
            ("a^b", "line 1, column 2: an anchor"),
            (r"\bword", "word boundary"),
            ("(?=a)", "look-around"),
            (r"(a)\1", "backreference"),
            ("a(", "line 1, column 2"),
            ("[z-a]", "line 1"),
            (&format!("{}{}", "(".repeat(200), ")".repeat(200)), "complex"),
        ] {
            let error = check_regex(regex).expect_err(regex).to_string();
            assert!(error.contains(part), "{error}");
        }
    }
}
