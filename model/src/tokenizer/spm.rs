//! SentencePiece's byte-pair encoding, as GGUF files of the `llama` kind store it: tokens with scores.
//!
//! A text is cut into characters. Then the two adjacent pieces whose union is the token with the best score are merged,
//! again and again; of equal scores, the leftmost pair first. A character that is no token is encoded as one token per
//! byte, or as unknown tokens if the vocabulary lacks byte tokens.

use super::vocab::byte_token;
use aho_corasick::{AhoCorasick, MatchKind};
use std::cmp::Ordering;
use std::collections::{BinaryHeap, HashMap};
use tiercel_device::TokenId;

/// Character that SentencePiece writes in tokens for a space.
pub(super) const SPACE: char = '\u{2581}';

/// A token of a SentencePiece vocabulary in a GGUF file: text, merge score and type.
pub(super) struct Piece<'a> {
    pub(super) text: &'a str,
    pub(super) score: f32,
    pub(super) kind: PieceKind,
}

/// Types of tokens in a GGUF file, as far as encoding distinguishes them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum PieceKind {
    /// Normal token, which is merged from shorter tokens.
    Normal,
    /// User-defined token, which is matched as a whole in any text before other text is merged.
    UserDefined,
    /// Control token or the unknown token, which is matched as a whole in rendered chat templates, but not in plain
    /// text.
    Control,
    /// Byte token, by which one byte of a character is encoded that is no token itself.
    Byte,
    /// Unused token, which no text is encoded as.
    Unused,
}

pub(super) struct SpmEncoder {
    tokens: HashMap<Box<str>, TokenId>,
    scores: Vec<f32>,
    bytes: Vec<Option<TokenId>>,
    unknown: Option<TokenId>,
    /// Search automata for the tokens that are matched as a whole in a text and never merged from pieces. `markup`
    /// finds control tokens too, `plain` does not.
    markup: Whole,
    plain: Whole,
    add_space_prefix: bool,
}

/// Finds tokens that are matched as a whole in a text: the leftmost first, and of several there the longest.
struct Whole {
    finder: Option<AhoCorasick>,
    ids: Vec<TokenId>,
}

impl Whole {
    fn new(pieces: &[Piece<'_>], kinds: &[PieceKind]) -> Result<Whole, String> {
        let found = pieces.iter().enumerate();
        let found =
            found.filter(|(_, piece)| kinds.contains(&piece.kind) && !piece.text.is_empty());
        let (ids, texts): (Vec<TokenId>, Vec<&str>) =
            found.map(|(id, piece)| (id as TokenId, piece.text)).unzip();
        let finder = (!ids.is_empty())
            .then(|| AhoCorasick::builder().match_kind(MatchKind::LeftmostLongest).build(texts))
            .transpose()
            .map_err(|error| error.to_string())?;
        Ok(Whole { finder, ids })
    }
}

impl SpmEncoder {
    pub(super) fn new(
        pieces: &[Piece<'_>],
        unknown: Option<TokenId>,
        add_space_prefix: bool,
    ) -> Result<SpmEncoder, String> {
        let mut tokens = HashMap::new();
        let mut bytes = vec![None; 256];
        for (id, piece) in pieces.iter().enumerate() {
            let id = id as TokenId;
            match piece.kind {
                PieceKind::Normal | PieceKind::UserDefined => {
                    tokens.entry(piece.text.into()).or_insert(id);
                }
                PieceKind::Byte => {
                    if let Some(byte) = byte_token(piece.text) {
                        bytes[usize::from(byte)] = Some(id);
                    }
                }
                PieceKind::Control | PieceKind::Unused => {}
            }
        }
        Ok(SpmEncoder {
            tokens,
            scores: pieces.iter().map(|piece| piece.score).collect(),
            bytes,
            unknown,
            markup: Whole::new(pieces, &[PieceKind::UserDefined, PieceKind::Control])?,
            plain: Whole::new(pieces, &[PieceKind::UserDefined])?,
            add_space_prefix,
        })
    }

    /// Encodes a text as tokens. If `begins` is false, the text continues one that is already encoded, so no space is
    /// put before it.
    pub(super) fn encode(&self, text: &str, parse_special: bool, begins: bool) -> Vec<TokenId> {
        let whole = if parse_special { &self.markup } else { &self.plain };
        let mut out = Vec::new();
        let mut start = 0;
        let mut spaced = begins;
        for found in whole.finder.iter().flat_map(|finder| finder.find_iter(text)) {
            if start < found.start() {
                self.encode_text(&text[start..found.start()], spaced, &mut out);
            }
            out.push(whole.ids[found.pattern().as_usize()]);
            start = found.end();
            spaced = true;
        }
        if start < text.len() {
            self.encode_text(&text[start..], spaced, &mut out);
        }
        out
    }

    /// Encodes a text without tokens that are matched as a whole. With `spaced`, the text is at the beginning or
    /// follows such a token, and a space is put before it if the vocabulary asks for that.
    fn encode_text(&self, text: &str, spaced: bool, out: &mut Vec<TokenId>) {
        let prefix = if self.add_space_prefix && spaced { " " } else { "" };
        let text: String =
            prefix.chars().chain(text.chars()).map(|c| if c == ' ' { SPACE } else { c }).collect();
        Merger::new(self, &text).merge(out);
    }

    /// Appends the token of a merged piece of text to `out`, or one token per byte if the piece is no token.
    fn emit(&self, symbol: &str, out: &mut Vec<TokenId>) {
        if let Some(&id) = self.tokens.get(symbol) {
            return out.push(id);
        }
        for byte in symbol.bytes() {
            out.extend(self.bytes[usize::from(byte)].or(self.unknown));
        }
    }
}

/// A piece of text in the linked list of pieces that are merged; empty once it is merged into the piece before it.
struct Symbol {
    start: usize,
    len: usize,
    before: Option<usize>,
    after: Option<usize>,
}

/// Candidate merge: two adjacent pieces of text whose union is a token, with the token's score.
#[derive(PartialEq)]
struct Pair {
    score: f32,
    left: usize,
    right: usize,
    /// Length of the two pieces of text together when they became a candidate for a merge, bytes. If their length has
    /// changed since, one of them was merged already and the candidate is stale.
    len: usize,
}

impl Eq for Pair {}

impl Ord for Pair {
    fn cmp(&self, other: &Pair) -> Ordering {
        self.score.total_cmp(&other.score).then(other.left.cmp(&self.left))
    }
}

impl PartialOrd for Pair {
    fn partial_cmp(&self, other: &Pair) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

struct Merger<'a> {
    encoder: &'a SpmEncoder,
    text: &'a str,
    symbols: Vec<Symbol>,
    pairs: BinaryHeap<Pair>,
}

impl<'a> Merger<'a> {
    fn new(encoder: &'a SpmEncoder, text: &'a str) -> Merger<'a> {
        let count = text.chars().count();
        let symbols = text.char_indices().enumerate().map(|(at, (start, c))| Symbol {
            start,
            len: c.len_utf8(),
            before: at.checked_sub(1),
            after: (at + 1 < count).then_some(at + 1),
        });
        let symbols = symbols.collect();
        let mut merger = Merger { encoder, text, symbols, pairs: BinaryHeap::new() };
        for right in 1..count {
            merger.consider(right - 1, right);
        }
        merger
    }

    fn consider(&mut self, left: usize, right: usize) {
        let (start, len) =
            (self.symbols[left].start, self.symbols[left].len + self.symbols[right].len);
        if let Some(&id) = self.encoder.tokens.get(&self.text[start..start + len]) {
            self.pairs.push(Pair { score: self.encoder.scores[id as usize], left, right, len });
        }
    }

    fn merge(mut self, out: &mut Vec<TokenId>) {
        while let Some(Pair { left, right, len, .. }) = self.pairs.pop() {
            let (left_len, right_len) = (self.symbols[left].len, self.symbols[right].len);
            let is_stale = left_len == 0 || right_len == 0 || left_len + right_len != len;
            if is_stale {
                continue;
            }
            let after = self.symbols[right].after;
            self.symbols[right].len = 0;
            self.symbols[left].len = len;
            self.symbols[left].after = after;
            if let Some(after) = after {
                self.symbols[after].before = Some(left);
                self.consider(left, after);
            }
            if let Some(before) = self.symbols[left].before {
                self.consider(before, left);
            }
        }
        for symbol in self.symbols.iter().filter(|symbol| symbol.len > 0) {
            self.encoder.emit(&self.text[symbol.start..symbol.start + symbol.len], out);
        }
    }
}
