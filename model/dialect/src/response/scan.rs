//! Search for the next delimiter of an answer.

use super::delimiter::{Delimiter, Found, Search};
use serde_json::{Map, Value};

/// Delimiter that the parser searches for.
pub(super) struct Watched<'d> {
    /// Number of the field.
    pub(super) field: usize,
    /// Whether the delimiter opens the field.
    pub(super) opens: bool,
    pub(super) delimiter: &'d Delimiter,
}

/// Delimiter that was found.
#[derive(Debug)]
pub(super) struct Hit {
    pub(super) field: usize,
    pub(super) opens: bool,
    pub(super) start: usize,
    pub(super) end: usize,
    /// Texts of the named groups of the delimiter.
    pub(super) captures: Map<String, Value>,
}

/// Text in which the parser searches for delimiters.
#[derive(Clone, Copy)]
pub(super) struct Unparsed<'t> {
    pub(super) text: &'t str,
    /// Position from which on the text is not parsed.
    pub(super) from: usize,
    /// Whether no more text follows.
    pub(super) is_whole: bool,
    /// Whether an empty delimiter at `from` counts.
    pub(super) may_be_empty: bool,
}

impl Unparsed<'_> {
    /// Searches for the first of the watched delimiters. Returns the delimiter if it is certain, and the position up to
    /// which the text has no delimiter.
    pub(super) fn scan(self, watched: &[Watched<'_>]) -> (Option<Hit>, usize) {
        let mut searches: Vec<Search<'_>> =
            watched.iter().map(|watched| watched.delimiter.search()).collect();
        let starts = self.text[self.from..].char_indices().map(|(at, _)| self.from + at);
        for start in starts.chain(self.is_whole.then_some(self.text.len())) {
            let mut best: Option<(usize, &Watched<'_>)> = None;
            for (watched, search) in watched.iter().zip(&mut searches) {
                match search.at(self.text, start, self.is_whole) {
                    Found::Nothing => (),
                    // Another delimiter at or after this position waits, because the text here may become an
                    // earlier or longer delimiter.
                    Found::Held => return (None, start),
                    Found::Match(end) if end == self.from && !self.may_be_empty => (),
                    Found::Match(end) => {
                        // The longest delimiter counts, then a delimiter that opens a field.
                        let is_better = best
                            .is_none_or(|(other, best)| (end, watched.opens) > (other, best.opens));
                        best = if is_better { Some((end, watched)) } else { best };
                    }
                }
            }
            if let Some((end, watched)) = best {
                let captures = watched.delimiter.captures(self.text, start, end);
                let (field, opens) = (watched.field, watched.opens);
                return (Some(Hit { field, opens, start, end, captures }), start);
            }
        }
        (None, self.text.len())
    }
}
