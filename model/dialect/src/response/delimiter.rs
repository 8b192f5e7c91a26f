//! Delimiters: fixed texts or regular expressions that open or close a field.

use super::error::{ResponseTemplateError, form};
use regex::{Captures, Regex, RegexBuilder};
use regex_automata::hybrid::dfa::{Cache, DFA};
use regex_automata::nfa::thompson;
use regex_automata::util::pool::Pool;
use regex_automata::util::syntax;
use regex_automata::{Anchored, Input};
use serde_json::{Map, Value};
use std::panic::{RefUnwindSafe, UnwindSafe};
use std::sync::Arc;

/// Maximum length of a regular expression, bytes.
const PATTERN_BYTES_MAX: usize = 4096;
/// Maximum memory of a compiled regular expression, bytes.
const COMPILED_BYTES_MAX: usize = 1 << 20;
/// Memory of the states that an automaton keeps, bytes. The automaton builds other states again when it needs them.
const STATES_BYTES: usize = 1 << 18;
/// Maximum number of fixed texts of one delimiter.
const TEXTS_MAX: usize = 16;

type Caches = Pool<Cache, Box<dyn Fn() -> Cache + Send + Sync + UnwindSafe + RefUnwindSafe>>;

/// Delimiter of a field.
#[derive(Debug, Clone)]
pub(super) struct Delimiter {
    regex: Regex,
    /// Automaton of the same regular expression. It tells whether a text may be the beginning of a delimiter.
    automaton: Arc<(DFA, Caches)>,
    /// Whether more text can make a match longer: always assumed of a regular expression, and true of fixed texts of
    /// which one begins with another.
    grows: bool,
    /// Fixed texts, or the regular expression, without backslashes.
    plain: String,
}

/// Result of a search for a delimiter.
#[derive(Debug)]
pub(super) enum Found<'t> {
    Nothing,
    /// The text from this position on may become a delimiter, or a longer one.
    Held(usize),
    Match(Captures<'t>),
}

impl Delimiter {
    /// Reads a delimiter from a part of a template: fixed texts from the member `texts`, or a regular expression from
    /// the member `pattern`. Returns `None` if the part has neither.
    pub(super) fn read(
        place: &str,
        part: &Map<String, Value>,
        (texts, pattern): (&str, &str),
    ) -> Result<Option<Delimiter>, ResponseTemplateError> {
        match (part.get(texts), part.get(pattern)) {
            (Some(_), Some(_)) => {
                Err(form(place, format!("`{texts}` and `{pattern}` exclude each other")))
            }
            (Some(value), None) => {
                let wrong = || {
                    form(
                        place,
                        format!("`{texts}` must be 1 to {TEXTS_MAX} texts that are not empty"),
                    )
                };
                Delimiter::of_texts(place, strings(value).ok_or_else(wrong)?).map(Some)
            }
            (None, Some(Value::String(source))) => {
                Delimiter::new(place, source, true, source.replace('\\', "")).map(Some)
            }
            (None, Some(_)) => Err(form(place, format!("`{pattern}` must be a text"))),
            (None, None) => Ok(None),
        }
    }

    fn of_texts(place: &str, mut texts: Vec<&str>) -> Result<Delimiter, ResponseTemplateError> {
        // The longest text comes first, because the first alternative of a regular expression that matches counts.
        texts.sort_by_key(|text| std::cmp::Reverse(text.len()));
        texts.dedup();
        let begins =
            |text: &str| texts.iter().any(|other| *other != text && other.starts_with(text));
        let grows = texts.iter().any(|text| begins(text));
        let source: Vec<String> = texts.iter().map(|text| regex::escape(text)).collect();
        Delimiter::new(place, &source.join("|"), grows, texts.join("\n"))
    }

    fn new(
        place: &str,
        source: &str,
        grows: bool,
        plain: String,
    ) -> Result<Delimiter, ResponseTemplateError> {
        let regex = compiled(place, source)?;
        let automaton = DFA::builder()
            .configure(DFA::config().cache_capacity(STATES_BYTES).skip_cache_capacity_check(true))
            .syntax(syntax::Config::new().dot_matches_new_line(true))
            .thompson(thompson::Config::new().nfa_size_limit(Some(COMPILED_BYTES_MAX)))
            .build(source)
            .map_err(|error| unsupported(place, source, &error))?;
        let of_pool = automaton.clone();
        let caches: Caches = Pool::new(Box::new(move || of_pool.create_cache()));
        Ok(Delimiter { regex, automaton: Arc::new((automaton, caches)), grows, plain })
    }

    /// Names of the groups of the regular expression.
    pub(super) fn groups(&self) -> impl Iterator<Item = &str> {
        self.regex.capture_names().flatten()
    }

    /// Whether the delimiter, as it is written in the template, contains a text.
    pub(super) fn contains(&self, text: &str) -> bool {
        self.plain.contains(text)
    }

    /// Searches `text` from the position `from` on. `is_whole` says that no more text follows.
    pub(super) fn search<'t>(&self, text: &'t str, from: usize, is_whole: bool) -> Found<'t> {
        let found = self.regex.captures_at(text, from);
        if is_whole {
            return found.map_or(Found::Nothing, Found::Match);
        }
        let whole = found.as_ref().map(|captures| captures.get_match());
        // A text before the match that may become a match counts before the match.
        let end = whole.map_or(text.len(), |whole| whole.start());
        let (automaton, caches) = &*self.automaton;
        let mut cache = caches.get();
        let starts = text[from..end].char_indices().map(|(at, _)| from + at);
        let begins = |start: &usize| may_begin(automaton, &mut cache, text, *start);
        if let Some(start) = starts.into_iter().find(begins) {
            return Found::Held(start);
        }
        let may_grow = |end: usize, is_empty: bool| end == text.len() && (self.grows || is_empty);
        match (found, whole) {
            (_, Some(whole)) if may_grow(whole.end(), whole.is_empty()) => {
                Found::Held(whole.start())
            }
            (Some(captures), _) => Found::Match(captures),
            (None, _) => Found::Nothing,
        }
    }

    /// Returns the end of the last match in a text.
    pub(super) fn last_end(&self, text: &str) -> Option<usize> {
        self.regex.find_iter(text).last().map(|found| found.end())
    }
}

/// Whether the end of `text`, from the position `start` on, may be the beginning of a match.
fn may_begin(automaton: &DFA, cache: &mut Cache, text: &str, start: usize) -> bool {
    let input = Input::new(text).range(start..).anchored(Anchored::Yes);
    let Ok(mut state) = automaton.start_state_forward(cache, &input) else { return false };
    for byte in text[start..].bytes() {
        match automaton.next_state(cache, state, byte) {
            Ok(next) if !next.is_dead() && !next.is_quit() => state = next,
            _ => return false,
        }
    }
    true
}

/// Compiles a regular expression as transformers does: `.` matches line breaks too.
pub(super) fn compiled(place: &str, source: &str) -> Result<Regex, ResponseTemplateError> {
    if source.len() > PATTERN_BYTES_MAX {
        return Err(form(
            place,
            format!("a regular expression has more than {PATTERN_BYTES_MAX} bytes"),
        ));
    }
    let mut builder = RegexBuilder::new(source);
    builder.dot_matches_new_line(true).size_limit(COMPILED_BYTES_MAX);
    builder.build().map_err(|error| unsupported(place, source, &error))
}

fn unsupported(place: &str, pattern: &str, error: &dyn std::fmt::Display) -> ResponseTemplateError {
    let lines = error.to_string();
    let problem = lines.lines().last().unwrap_or_default().trim().to_owned();
    ResponseTemplateError::Regex { place: place.to_owned(), pattern: pattern.to_owned(), problem }
}

/// Returns the texts of a value that is a text or a list of texts; `None` for any other value.
fn strings(value: &Value) -> Option<Vec<&str>> {
    let texts: Vec<&str> = match value {
        Value::String(text) => vec![text],
        Value::Array(items) => items.iter().map(Value::as_str).collect::<Option<_>>()?,
        _ => return None,
    };
    let fits = (1..=TEXTS_MAX).contains(&texts.len()) && texts.iter().all(|text| !text.is_empty());
    fits.then_some(texts)
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests state what must hold")]
mod tests {
    use super::*;
    use serde_json::json;

    fn delimiter(part: Value) -> Result<Delimiter, ResponseTemplateError> {
        let part = part.as_object().unwrap();
        Delimiter::read("field `x`", part, ("open", "open_pattern")).map(Option::unwrap)
    }

    fn found(delimiter: &Delimiter, text: &str, is_whole: bool) -> String {
        match delimiter.search(text, 0, is_whole) {
            Found::Nothing => "nothing".to_owned(),
            Found::Held(at) => format!("held {at}"),
            Found::Match(captures) => format!("match {:?}", captures.get_match().range()),
        }
    }

    #[test]
    fn the_beginning_of_a_delimiter_is_held_back() {
        let one = delimiter(json!({"open": "<think>"})).unwrap();
        assert_eq!(found(&one, "a<thi", false), "held 1");
        assert_eq!(found(&one, "a<thi", true), "nothing");
        assert_eq!(found(&one, "a<thin ", false), "nothing");
        assert_eq!(found(&one, "a<think>", false), "match 1..8");
        let two = delimiter(json!({"open": ["</a", "</a>"]})).unwrap();
        assert_eq!(found(&two, "</a", false), "held 0");
        assert_eq!(found(&two, "</a", true), "match 0..3");
        assert_eq!(found(&two, "</a>", false), "held 0");
        assert_eq!(found(&two, "</a> ", false), "match 0..4");
        let name = delimiter(json!({"open_pattern": r"<call>\s*f=(?P<name>\w+)>"})).unwrap();
        assert_eq!(found(&name, "x <call> \n f=ä", false), "held 2");
        assert_eq!(found(&name, "x <call> \n g", false), "nothing");
        assert_eq!(found(&name, "<call>f=ä>.", false), "match 0..11");
        let last = delimiter(json!({"open_pattern": r"\s*(?:<e>|$)"})).unwrap();
        assert_eq!(found(&last, "a <e", false), "held 1");
        assert_eq!(found(&last, "a <e", true), "match 4..4");
    }

    #[test]
    fn unsupported_delimiters_are_refused_by_name() {
        let refused = |part: Value| delimiter(part).unwrap_err().to_string();
        let text = refused(json!({"open_pattern": "a(?!b)"}));
        assert!(
            text.contains("field `x`") && text.contains("`a(?!b)`") && text.contains("look-around"),
            "{text}"
        );
        let text = refused(json!({"open_pattern": r"(a)\1"}));
        assert!(text.contains("backreferences"), "{text}");
        for part in [
            json!({"open": ""}),
            json!({"open": []}),
            json!({"open": [1]}),
            json!({"open": "a", "open_pattern": "a"}),
            json!({"open_pattern": 1}),
            json!({"open_pattern": "a".repeat(PATTERN_BYTES_MAX + 1)}),
        ] {
            assert!(delimiter(part.clone()).is_err(), "{part}");
        }
    }
}
