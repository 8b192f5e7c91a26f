//! Stop strings found across token boundaries.

/// Watches a text that arrives in pieces for the first of several strings.
pub(crate) struct StopMatcher {
    stops: Vec<String>,
    /// The end of the text so far that may be the beginning of a stop string.
    held: String,
}

impl StopMatcher {
    pub(crate) fn new(stops: &[String]) -> StopMatcher {
        StopMatcher { stops: stops.to_vec(), held: String::new() }
    }

    /// Takes more text and appends to `out` what certainly comes before any stop string. True if one
    /// is complete; the text before it is then all in `out`.
    pub(crate) fn push(&mut self, text: &str, out: &mut String) -> bool {
        if self.stops.is_empty() {
            out.push_str(text);
            return false;
        }
        self.held.push_str(text);
        // The stop string that is complete first wins, not the one that begins first.
        let found = self.stops.iter().filter_map(|stop| {
            self.held.find(stop.as_str()).map(|start| (start + stop.len(), start))
        });
        if let Some((_, start)) = found.min() {
            out.push_str(&self.held[..start]);
            self.held.clear();
            return true;
        }
        let keep = self.stops.iter().map(|stop| overlap(&self.held, stop)).max().unwrap_or(0);
        out.extend(self.held.drain(..self.held.len() - keep));
        false
    }

    /// The text is over: what was held back is text.
    pub(crate) fn finish(&mut self, out: &mut String) {
        out.push_str(&self.held);
        self.held.clear();
    }
}

/// Bytes of the longest end of `text` that begins `stop`.
fn overlap(text: &str, stop: &str) -> usize {
    let longest = text.len().min(stop.len().saturating_sub(1));
    (1..=longest)
        .rev()
        .find(|len| {
            text.is_char_boundary(text.len() - len)
                && stop.as_bytes().starts_with(&text.as_bytes()[text.len() - len..])
        })
        .unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn feed(stops: &[&str], pieces: &[&str]) -> (String, bool) {
        let stops: Vec<String> = stops.iter().map(|stop| (*stop).to_owned()).collect();
        let mut matcher = StopMatcher::new(&stops);
        let mut out = String::new();
        for piece in pieces {
            if matcher.push(piece, &mut out) {
                return (out, true);
            }
        }
        matcher.finish(&mut out);
        (out, false)
    }

    #[test]
    fn stops_are_found_across_pieces() {
        assert_eq!(feed(&["END"], &["a E", "N", "Dx"]), ("a ".into(), true));
        assert_eq!(feed(&["aab"], &["aa", "ab"]), ("a".into(), true));
        assert_eq!(feed(&["END"], &["EN", "D"]), (String::new(), true));
        assert_eq!(feed(&["é!"], &["caf", "é", "!"]), ("caf".into(), true));
    }

    #[test]
    fn what_is_no_stop_comes_out_whole() {
        assert_eq!(feed(&["END"], &["a EN", "E", "x"]), ("a ENEx".into(), false));
        assert_eq!(feed(&["END"], &["ends in EN"]), ("ends in EN".into(), false));
        assert_eq!(feed(&[], &["a", "b"]), ("ab".into(), false));
    }

    #[test]
    fn the_first_to_be_complete_wins() {
        assert_eq!(feed(&["abcd", "bc"], &["xabcd"]), ("xa".into(), true));
    }

    #[test]
    fn at_most_one_stop_string_is_held_back() {
        let mut matcher = StopMatcher::new(&["abcabd".into()]);
        let mut out = String::new();
        matcher.push("xxabcab", &mut out);
        assert_eq!(out, "xx");
        matcher.push("c", &mut out);
        assert_eq!(out, "xxabc");
    }
}
