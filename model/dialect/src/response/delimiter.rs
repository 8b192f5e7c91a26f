//! Delimiters: fixed texts or regular expressions that open or close a field.

use super::error::{ResponseTemplateError, form};
use regex::{Regex, RegexBuilder};
use regex_automata::hybrid::LazyStateID;
use regex_automata::hybrid::dfa::{Cache, DFA};
use regex_automata::nfa::thompson;
use regex_automata::util::pool::{Pool, PoolGuard};
use regex_automata::util::{primitives::PatternID, syntax};
use regex_automata::{Anchored, Input, meta};
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
/// Maximum length of text that is searched for one delimiter, bytes. A longer delimiter is not found, so that the text
/// that is held back, and the work for each character, have a limit.
const MATCH_BYTES_MAX: usize = 1024;

type NewCache = Box<dyn Fn() -> Cache + Send + Sync + UnwindSafe + RefUnwindSafe>;

/// Delimiter of a field.
#[derive(Debug, Clone)]
pub(super) struct Delimiter {
    regex: meta::Regex,
    /// Automaton of the same regular expression. It tells whether a text may be the beginning of a delimiter.
    automaton: Arc<(DFA, Pool<Cache, NewCache>)>,
    /// Whether more text can make a match longer. True for every regular expression, and for fixed texts of which one
    /// text begins with another.
    grows: bool,
    /// Fixed texts, or the regular expression, without backslashes.
    plain: String,
}

/// Result of a search for a delimiter at one position.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Found {
    Nothing,
    /// The text may become a delimiter, or another one.
    Held,
    /// A delimiter, which ends at this position.
    Match(usize),
}

/// Search for a delimiter, with the memory of its automaton.
pub(super) struct Search<'d> {
    delimiter: &'d Delimiter,
    cache: PoolGuard<'d, Cache, NewCache>,
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
        check_length(place, source)?;
        let syntax = syntax::Config::new().dot_matches_new_line(true);
        let regex = meta::Regex::builder()
            .configure(meta::Config::new().nfa_size_limit(Some(COMPILED_BYTES_MAX)))
            .syntax(syntax)
            .build(source)
            .map_err(|error| match error.syntax_error() {
                Some(error) => unsupported(place, source, error),
                None => unsupported(place, source, &error),
            })?;
        let config = DFA::config().cache_capacity(STATES_BYTES).skip_cache_capacity_check(true);
        let automaton = DFA::builder()
            .configure(config.unicode_word_boundary(true))
            .syntax(syntax)
            .thompson(thompson::Config::new().nfa_size_limit(Some(COMPILED_BYTES_MAX)))
            .build(source)
            .map_err(|error| unsupported(place, source, &error))?;
        let of_pool = automaton.clone();
        let caches: Pool<Cache, NewCache> = Pool::new(Box::new(move || of_pool.create_cache()));
        Ok(Delimiter { regex, automaton: Arc::new((automaton, caches)), grows, plain })
    }

    /// Whether the delimiter, as it is written in the template, contains a text.
    pub(super) fn contains(&self, text: &str) -> bool {
        self.plain.contains(text)
    }

    /// Begins a search for the delimiter.
    pub(super) fn search(&self) -> Search<'_> {
        Search { delimiter: self, cache: self.automaton.1.get() }
    }

    /// Returns the texts of the named groups of the delimiter that has the range `start..end` of `text`.
    pub(super) fn captures(&self, text: &str, start: usize, end: usize) -> Map<String, Value> {
        let names = self.regex.group_info().pattern_names(PatternID::ZERO);
        let mut names = names.enumerate().filter_map(|(group, name)| Some((group, name?)));
        let Some(first) = names.next() else { return Map::new() };
        let mut captures = self.regex.create_captures();
        let input = Input::new(text).range(start..end).anchored(Anchored::Yes);
        self.regex.search_captures(&input, &mut captures);
        let group = |(group, name): (usize, &str)| {
            Some((name.to_owned(), Value::from(&text[captures.get_group(group)?.range()])))
        };
        std::iter::once(first).chain(names).filter_map(group).collect()
    }

    /// Returns the end of the last match in a text.
    pub(super) fn last_end(&self, text: &str) -> Option<usize> {
        self.regex.find_iter(text).last().map(|found| found.end())
    }
}

impl Search<'_> {
    /// Searches for the delimiter at the position `start` of a text. `is_whole` says that no more text follows.
    ///
    /// The result depends only on the text, and not on how much of it has arrived: the automaton holds the text back
    /// while more text may lead to another match, up to `MATCH_BYTES_MAX` bytes.
    pub(super) fn at(&mut self, text: &str, start: usize, is_whole: bool) -> Found {
        let is_full = text.len() - start >= MATCH_BYTES_MAX;
        let end = text.floor_char_boundary(start + MATCH_BYTES_MAX);
        let (automaton, cache) = (&self.delimiter.automaton.0, &mut *self.cache);
        let result = |found: Option<usize>| found.map_or(Found::Nothing, Found::Match);
        let input = Input::new(text).range(start..).anchored(Anchored::Yes);
        let Ok(mut state) = automaton.start_state_forward(cache, &input) else {
            return self.without_automaton(text, start, end, is_whole);
        };
        let mut found = None;
        for (at, byte) in (start..).zip(text[start..end].bytes()) {
            match automaton.next_state(cache, state, byte) {
                Ok(next) if next.is_dead() => return result(found),
                Ok(next) if !next.is_quit() => state = next,
                _ => return self.without_automaton(text, start, end, is_whole),
            }
            // The automaton tells a match one byte after the end of the match.
            if state.is_match() {
                found = Some(at);
            }
        }
        if is_full {
            return result(found);
        }
        // With a full cache, the automaton may clear the cache here, and `state` is then not valid any more.
        let clears = cache.clear_count();
        let last = automaton.next_eoi_state(cache, state);
        if cache.clear_count() != clears {
            return self.without_automaton(text, start, end, is_whole);
        }
        match last {
            Ok(last) if last.is_match() && (is_whole || !self.delimiter.grows) => Found::Match(end),
            Ok(_) if is_whole || state.is_match() && is_last(automaton, cache, state) => {
                result(found)
            }
            Ok(_) => Found::Held,
            Err(_) => self.without_automaton(text, start, end, is_whole),
        }
    }

    /// Searches in the range `start..end` of a text that the automaton cannot follow: the automaton knows word
    /// boundaries only between ASCII characters. The text is held back up to its maximum length.
    fn without_automaton(&self, text: &str, start: usize, end: usize, is_whole: bool) -> Found {
        let is_full = text.len() - start >= MATCH_BYTES_MAX;
        if !is_full && !is_whole {
            return Found::Held;
        }
        let input = Input::new(&text[..end]).range(start..).anchored(Anchored::Yes);
        let found = self.delimiter.regex.find(input).map(|found| found.end());
        let certain = found.filter(|found| !is_full || *found < end);
        certain.map_or(Found::Nothing, Found::Match)
    }
}

/// Returns whether every further byte leads the automaton from `state` to a dead state. The match that the automaton
/// found before the last byte is then final: no further text can change the match.
fn is_last(automaton: &DFA, cache: &mut Cache, state: LazyStateID) -> bool {
    let mut bytes =
        automaton.byte_classes().representatives(0..=255).filter_map(|unit| unit.as_u8());
    bytes.all(|byte| automaton.next_state(cache, state, byte).is_ok_and(|next| next.is_dead()))
}

/// Compiles a regular expression as transformers does: `.` matches line breaks too.
pub(super) fn compiled(place: &str, source: &str) -> Result<Regex, ResponseTemplateError> {
    check_length(place, source)?;
    let mut builder = RegexBuilder::new(source);
    builder.dot_matches_new_line(true).size_limit(COMPILED_BYTES_MAX);
    builder.build().map_err(|error| unsupported(place, source, &error))
}

fn check_length(place: &str, source: &str) -> Result<(), ResponseTemplateError> {
    if source.len() <= PATTERN_BYTES_MAX {
        return Ok(());
    }
    Err(form(place, format!("a regular expression has more than {PATTERN_BYTES_MAX} bytes")))
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

    /// Returns the first position of a text at which a delimiter is or may be, and the result there.
    fn found(delimiter: &Delimiter, text: &str, is_whole: bool) -> String {
        let mut search = delimiter.search();
        let ends = is_whole.then_some(text.len());
        let starts = text.char_indices().map(|(start, _)| start).chain(ends);
        let mut found = starts.map(|start| (start, search.at(text, start, is_whole)));
        match found.find(|(_, found)| *found != Found::Nothing) {
            None => "nothing".to_owned(),
            Some((start, Found::Match(end))) => format!("match {start}..{end}"),
            Some((start, _)) => format!("held {start}"),
        }
    }

    #[test]
    fn the_beginning_of_a_delimiter_is_held_back() {
        let text = |texts: Value| delimiter(json!({"open": texts})).unwrap();
        let pattern = |source: &str| delimiter(json!({"open_pattern": source})).unwrap();
        let (one, two) = (text(json!("<think>")), text(json!(["</a", "</a>"])));
        let name = pattern(r"<call>\s*f=(?P<name>\w+)>");
        let (last, rest) = (pattern(r"\s*(?:<e>|$)"), pattern(r"</t>(?:\s*<a>)?"));
        let (greedy, word) = (pattern("a.*b"), pattern(r"\bx\b"));
        for (delimiter, text, is_whole, expected) in [
            (&one, "a<thi", false, "held 1"),
            (&one, "a<thi", true, "nothing"),
            (&one, "a<thin ", false, "nothing"),
            (&one, "a<think>", false, "match 1..8"),
            (&two, "</a", false, "held 0"),
            (&two, "</a", true, "match 0..3"),
            (&two, "</a>", false, "held 0"),
            (&two, "</a> ", false, "match 0..4"),
            (&name, "x <call> \n f=ä", false, "held 2"),
            (&name, "x <call> \n g", false, "nothing"),
            (&name, "<call>f=ä>.", false, "match 0..11"),
            (&last, "a <e", false, "held 1"),
            (&last, "a <e", true, "match 4..4"),
            (&rest, "</t> <", false, "held 0"),
            (&rest, "</t> <", true, "match 0..4"),
            (&rest, "</t> <a>.", false, "match 0..8"),
            (&greedy, "ab.", false, "held 0"),
            (&greedy, "ab.", true, "match 0..2"),
            (&word, "yx x. ", false, "match 3..4"),
            (&word, "ä", false, "held 0"),
            (&word, "ä x ä", true, "match 3..4"),
        ] {
            assert_eq!(found(delimiter, text, is_whole), expected, "{text:?}");
        }
        let names = name.captures("<call>f=ä>.", 0, 11);
        assert_eq!(Value::from(names), json!({"name": "ä"}));
    }

    #[test]
    fn a_delimiter_has_a_maximum_length() {
        let last = delimiter(json!({"open_pattern": r"\s*(?:<e>|$)"})).unwrap();
        let text = |spaces: usize| format!("{}<e>.", " ".repeat(spaces));
        let longest = MATCH_BYTES_MAX - 4;
        assert_eq!(found(&last, &text(longest), false), format!("match 0..{}", longest + 3));
        assert_eq!(found(&last, &text(longest + 1), false), format!("match 1..{}", longest + 4));
        assert_eq!(found(&last, &" ".repeat(MATCH_BYTES_MAX), false), "held 1");
        let word = delimiter(json!({"open_pattern": r"\bä.*b"})).unwrap();
        assert_eq!(found(&word, &format!("äb{}", "c".repeat(2000)), false), "match 0..3");
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
