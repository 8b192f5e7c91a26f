//! Converts GBNF, the grammar format of llama.cpp, to Lark.
//!
//! Supported features are rules (`name ::= ...`), literals (`"..."`), character classes (`[a-z]`, `[^"\\]`), any
//! character (`.`), groups, alternatives, `*`, `+`, `?`, `{m}`, `{m,}`, `{m,n}`, comments, and the escapes `\n`, `\r`,
//! `\t`, `\\`, `\"`, `\[`, `\]`, `\xHH`, `\uHHHH` and `\UHHHHHHHH`. Tokens (`<...>`, `!<...>`) are refused with a
//! message.
//!
//! | file | content |
//! |---|---|
//! | `parse.rs` | parser from text to rules |
//! | `write.rs` | writer from rules to Lark |

mod parse;
mod write;

use crate::GrammarError;

/// Maximum number of repetitions that one item may state.
const REPETITIONS_MAX: u32 = 10_000;
/// Maximum nesting of groups. llguidance's parser of Lark grammars allows a little more.
const NESTING_MAX: usize = 24;

/// Rule of a GBNF grammar.
#[derive(Debug, Clone, PartialEq)]
struct Rule {
    name: String,
    alternatives: Vec<Vec<Item>>,
    /// Line of the grammar on which the rule begins, from 1.
    line: usize,
}

/// Item of a sequence: an element and its number of repetitions.
#[derive(Debug, Clone, PartialEq)]
struct Item {
    element: Element,
    repeat: Option<Repeat>,
}

/// Range of the number of repetitions; `most` is `None` for an unlimited number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Repeat {
    least: u32,
    most: Option<u32>,
}

#[derive(Debug, Clone, PartialEq)]
enum Element {
    /// Literal text.
    Text(String),
    /// One character of a character class, or one character outside of the class if `negated`.
    Class { negated: bool, ranges: Vec<(char, char)> },
    /// Any character.
    Any,
    /// Reference to a rule, with the number of the line that has the reference.
    Reference(String, usize),
    /// Group of alternatives.
    Group(Vec<Vec<Item>>),
}

/// Returns whether a text is a GBNF grammar, which has a line that defines a rule by `::=`.
pub fn is_gbnf(text: &str) -> bool {
    text.lines().any(|line| {
        let rest = line.trim_start().trim_start_matches(parse::is_name_char);
        rest.trim_start().starts_with("::=")
    })
}

/// Converts a GBNF grammar to a Lark grammar.
///
/// # Errors
/// [`GrammarError`] with the number of the line.
pub fn to_lark(grammar: &str) -> Result<String, GrammarError> {
    let rules = parse::rules(grammar)?;
    write::lark(&rules)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_two_formats_are_told_apart() {
        assert!(is_gbnf("# a list\nroot ::= \"a\""));
        assert!(is_gbnf("  my-rule\t::= [a-z]"));
        assert!(!is_gbnf("start: \"a ::= b\""));
        assert!(!is_gbnf("start: /a/\n| \"::=\""));
    }

    #[test]
    fn a_grammar_becomes_rules_and_terminals() {
        let lark = to_lark("root ::= \"(\" root \")\" | word\nword ::= [a-z]+ \"-\"?\n").unwrap();
        let lines: Vec<&str> = lark.lines().collect();
        assert_eq!(
            lines,
            [
                r"start: r0_root",
                r"r0_root: /\x{28}/ r0_root /\x{29}/ | T1_WORD",
                r"T1_WORD: /[a-z]/+ /\x{2d}/?",
            ]
        );
    }

    #[test]
    fn every_form_of_element_is_converted() {
        let lark = to_lark(
            r#"root ::= ("a" | [^"\\\x41-\u0043\U0001F600]){2,3} # comment
                 | . "\n\"" "" sub{2} sub{1,} sub*
               sub ::= "A"
                 "B"
            "#,
        );
        assert!(lark.is_err(), "a sequence ends at the end of its line");
        let lark = to_lark(
            "root ::= (\"a\" |\n [^\"\\\\\\x41-\\u0043\\U0001F600]){2,3} # comment\n\
             sub-Rule ::= . \"\\n\\\"\" \"\" (root){2} root{1,} root{0,3}",
        )
        .unwrap();
        assert!(lark.contains(r"/[^\x{22}\x{5c}A-C\x{1f600}]/"), "{lark}");
        assert!(lark.contains("(/a/ | ") && lark.contains("){2,3}"), "{lark}");
        assert!(lark.contains(r#"/(?s:.)/ /\x{a}\x{22}/ "" "#), "{lark}");
        assert!(lark.contains("(T0_ROOT){2,2} T0_ROOT+ T0_ROOT{0,3}"), "{lark}");
        assert!(lark.starts_with("start: T0_ROOT\n"), "{lark}");
    }

    #[test]
    fn mistakes_are_refused_with_their_line() {
        for (grammar, part) in [
            ("", "no rule 'root'"),
            ("a ::= \"b\"", "no rule 'root'"),
            ("root ::= \"a\"\nb ::= c", "line 2: there is no rule 'c'"),
            ("root ::= \"a\"\nroot ::= \"b\"", "line 2: the rule 'root' is defined twice"),
            ("root ::= \"a", "line 1: the text has no end"),
            ("root ::= [a", "line 1: the class of characters has no end"),
            ("root ::= [z-a]", "line 1: the range"),
            ("root ::= (\"a\"", "line 1: a group has no ')'"),
            ("root ::= \"\\q\"", "line 1: the escape"),
            ("root ::= \"\\xZZ\"", "line 1: the escape"),
            ("root ::= \"\\ud800\"", "line 1: the escape"),
            ("root ::= \"a\"{2,1}", "line 1: the repetition"),
            ("root ::= \"a\"{99999}", "line 1: the repetition"),
            ("root ::= *", "line 1: "),
            ("root = \"a\"", "line 1: '::=' is expected"),
            ("root ::= <think>", "line 1: a token ('<...>') is not supported"),
            ("root ::= !<[1000]>", "line 1: a token"),
            (&format!("root ::= {}", "(".repeat(100)), "nested"),
        ] {
            let error = to_lark(grammar).expect_err(grammar).to_string();
            assert!(error.contains(part), "{grammar}: {error}");
        }
    }
}
