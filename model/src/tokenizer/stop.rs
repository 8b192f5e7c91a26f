//! Finds stop strings in a streamed text, which arrives in pieces.

use std::collections::VecDeque;
use std::sync::Arc;

/// Result of searching one more piece of a streamed text for stop strings.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StopOutcome {
    /// Text that may be sent to the client now, because no stop string can begin in it any more.
    pub text: String,
    /// Index of the stop string that ended the text, if this piece completed one; `text` is then the rest of the text
    /// before the stop string, or up to its end if the matcher shows stop strings.
    pub stopped: Option<usize>,
}

/// Searches a streamed text for the first of several stop strings: the string that is complete first and, of strings
/// complete at the same character, the longest. How the text is cut into pushed pieces makes no difference.
///
/// The end of the text is held back while a stop string may begin in it, so that no part of a found stop string is
/// returned; a matcher that shows stop strings returns the found one whole. The matcher is the automaton of Aho and
/// Corasick: each byte takes amortised constant time, however many strings there are. Clones share the automaton.
#[derive(Debug, Clone)]
pub struct StopMatcher {
    nodes: Arc<[Node]>,
    state: u32,
    /// End of the text so far that may begin a stop string and is held back: its last `depth(state)` bytes.
    held: String,
    stopped: bool,
    /// Whether the returned text includes the stop string that ends it.
    shows_stop: bool,
}

#[derive(Debug, Default)]
struct Node {
    /// Edges of a node of the Aho-Corasick automaton: the next node for each byte, sorted by byte.
    next: Vec<(u8, u32)>,
    /// Failure link of a node: the node of the longest proper suffix of its string that is also a prefix of a stop
    /// string.
    fail: u32,
    depth: u32,
    /// Longest stop string that ends at this node of the automaton: its index and its length in bytes.
    matched: Option<(u32, u32)>,
}

const ROOT: u32 = 0;

impl StopMatcher {
    /// Creates a matcher for the stop strings `stops`; empty strings are ignored.
    pub fn new<S: AsRef<str>>(stops: &[S]) -> StopMatcher {
        let mut nodes = vec![Node::default()];
        for (index, stop) in stops.iter().enumerate() {
            insert(&mut nodes, stop.as_ref().as_bytes(), index as u32);
        }
        link(&mut nodes);
        let nodes = nodes.into();
        StopMatcher { nodes, state: ROOT, held: String::new(), stopped: false, shows_stop: false }
    }

    /// Makes the returned text include the stop string that ends it, if `shown`.
    pub fn showing_stop(self, shown: bool) -> StopMatcher {
        StopMatcher { shows_stop: shown, ..self }
    }

    /// Adds the next piece of the text, in which no stop string may end. A stop string that begins in the piece may end
    /// in a later one. Returns the text that may be sent to the client now.
    pub fn pass(&mut self, piece: &str) -> String {
        self.search(piece, false).text
    }

    /// Searches the next piece of the text for stop strings. After a stop string has been found, no more text is
    /// returned.
    pub fn push(&mut self, piece: &str) -> StopOutcome {
        self.search(piece, true)
    }

    fn search(&mut self, piece: &str, may_stop: bool) -> StopOutcome {
        if self.stopped {
            return StopOutcome { text: String::new(), stopped: None };
        }
        if self.nodes.len() == 1 {
            return StopOutcome { text: piece.to_owned(), stopped: None };
        }
        let mut text = std::mem::take(&mut self.held);
        for (at, byte) in piece.bytes().enumerate() {
            self.state = step(&self.nodes, self.state, byte);
            let matched = self.nodes[self.state as usize].matched;
            if let Some((index, len)) = matched.filter(|_| may_stop) {
                text.push_str(&piece[..=at]);
                if !self.shows_stop {
                    text.truncate(text.len() - len as usize);
                }
                self.stopped = true;
                return StopOutcome { text, stopped: Some(index as usize) };
            }
        }
        text.push_str(piece);
        self.held = text.split_off(text.len() - self.nodes[self.state as usize].depth as usize);
        StopOutcome { text, stopped: None }
    }

    /// Records that the streamed text has ended. Returns the last characters, which were held back because a stop
    /// string could have begun with them.
    pub fn finish(&mut self) -> String {
        self.state = ROOT;
        std::mem::take(&mut self.held)
    }
}

fn insert(nodes: &mut Vec<Node>, stop: &[u8], index: u32) {
    let mut at = ROOT;
    for &byte in stop {
        at = match child(&nodes[at as usize], byte) {
            Ok(next) => next,
            Err(position) => {
                let new = nodes.len() as u32;
                let depth = nodes[at as usize].depth + 1;
                nodes.push(Node { depth, ..Node::default() });
                nodes[at as usize].next.insert(position, (byte, new));
                new
            }
        };
    }
    if at != ROOT && nodes[at as usize].matched.is_none() {
        nodes[at as usize].matched = Some((index, stop.len() as u32));
    }
}

/// Sets the failure links of the Aho-Corasick automaton, breadth first, because a node's link depends on those of
/// shorter prefixes.
fn link(nodes: &mut [Node]) {
    let mut queue: VecDeque<u32> = nodes[0].next.iter().map(|&(_, child)| child).collect();
    while let Some(at) = queue.pop_front() {
        for (byte, next) in nodes[at as usize].next.clone() {
            let fail = step(nodes, nodes[at as usize].fail, byte);
            nodes[next as usize].fail = fail;
            queue.push_back(next);
        }
        let inherited = nodes[nodes[at as usize].fail as usize].matched;
        let own = &mut nodes[at as usize].matched;
        *own = own.or(inherited);
    }
}

fn child(node: &Node, byte: u8) -> Result<u32, usize> {
    node.next.binary_search_by_key(&byte, |&(byte, _)| byte).map(|at| node.next[at].1)
}

fn step(nodes: &[Node], mut state: u32, byte: u8) -> u32 {
    loop {
        match child(&nodes[state as usize], byte) {
            Ok(next) => return next,
            Err(_) if state == ROOT => return ROOT,
            Err(_) => state = nodes[state as usize].fail,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Straightforward reference implementation of the search for stop strings: tries every end of the text, shortest
    /// first, and there every stop string, longest first.
    fn naive(text: &str, stops: &[String]) -> (String, Option<usize>) {
        for (end, _) in text.char_indices().map(|(at, c)| (at + c.len_utf8(), c)) {
            let ending = stops.iter().enumerate();
            let ending =
                ending.filter(|(_, stop)| !stop.is_empty() && text[..end].ends_with(*stop));
            // If two stop strings are equal, report the one that comes first in the list.
            if let Some((index, stop)) =
                ending.max_by_key(|(index, stop)| (stop.len(), usize::MAX - index))
            {
                return (text[..end - stop.len()].to_owned(), Some(index));
            }
        }
        (text.to_owned(), None)
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(4000))]

        #[test]
        fn matches_naive_search_however_the_text_is_cut(
            stops in prop::collection::vec("[abé😀]{0,4}", 0..5),
            pieces in prop::collection::vec("[abcé😀]{0,5}", 0..10),
            shown: bool,
        ) {
            let (mut expected, expected_stop) = naive(&pieces.concat(), &stops);
            if let Some(stop) = expected_stop.filter(|_| shown) {
                expected += &stops[stop];
            }
            let mut matcher = StopMatcher::new(&stops).showing_stop(shown);
            let (mut text, mut stopped) = (String::new(), None);
            for piece in &pieces {
                let outcome = matcher.push(piece);
                text += &outcome.text;
                prop_assert!(expected.starts_with(&text), "{text:?} was shown too early");
                stopped = stopped.or(outcome.stopped);
                // Check that the text that is held back is shorter than the longest stop string.
                let longest = stops.iter().map(String::len).max().unwrap_or(0);
                prop_assert!(matcher.held.len() < longest.max(1));
            }
            text += &matcher.finish();
            prop_assert_eq!((text, stopped), (expected, expected_stop));
        }
    }

    #[test]
    fn a_stop_string_may_begin_but_not_end_in_a_piece_that_is_passed() {
        let mut matcher = StopMatcher::new(&["stop", "op!"]);
        assert_eq!(matcher.pass("stop here, st"), "stop here, ");
        let outcome = matcher.push("op here");
        assert_eq!(outcome, StopOutcome { text: String::new(), stopped: Some(0) });
        let mut matcher = StopMatcher::new(&["stop", "op!"]);
        assert_eq!(matcher.pass("a stop") + &matcher.finish(), "a stop");
        let mut matcher = StopMatcher::new(&["stop", "op!"]);
        let passed = matcher.pass("a stop");
        let outcome = matcher.push("! and more");
        assert_eq!((passed + &outcome.text, outcome.stopped), ("a st".to_owned(), Some(1)));
    }

    #[test]
    fn text_is_held_only_while_a_stop_may_begin() {
        let mut matcher = StopMatcher::new(&["\n\nUser:"]);
        let mut shown = |piece| matcher.push(piece).text;
        assert_eq!(shown("Hi\n"), "Hi");
        assert_eq!(shown("there\n\nUse"), "\nthere");
        assert_eq!(shown("d"), "\n\nUsed");
        assert_eq!(shown("\n\nUser"), "");
        let outcome = matcher.push(": more");
        assert_eq!(outcome, StopOutcome { text: String::new(), stopped: Some(0) });
        assert_eq!(matcher.push("after").text, "");
    }
}
