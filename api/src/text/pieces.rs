//! Splits texts into pieces that resemble the tokens of language models: words with the space before them, up to three
//! digits, runs of punctuation, runs of whitespace, and the marks of tool calls and reasoning.

/// Marks of tool calls and reasoning, each of which is a single token in most models with tools or reasoning. Each mark
/// is a piece. In the mock device's vocabulary, marks are plain text and not special tokens.
pub(super) const MARKS: [&str; 14] = [
    "<think>",
    "</think>",
    "<tool_call>",
    "</tool_call>",
    "<tool_response>",
    "</tool_response>",
    "[TOOL_CALLS]",
    "[ARGS]",
    "[CALL_ID]",
    "[THINK]",
    "[/THINK]",
    "<|python_tag|>",
    "<|eom_id|>",
    "<|im_end|>",
];

/// Longest piece that is no mark, bytes. A longer word is split into several pieces, as tokenizers split rare words.
const MAX_BYTES: usize = 12;

/// Kind of a character. A piece has characters of one kind, with at most one space before the characters.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Class {
    Letter,
    Digit,
    Space,
    Other,
    /// A character of four bytes, such as an emoji, which is a piece of its own.
    Wide,
}

impl Class {
    fn of(character: char) -> Class {
        match character {
            _ if character.len_utf8() == 4 => Class::Wide,
            _ if character.is_alphabetic() => Class::Letter,
            _ if character.is_numeric() => Class::Digit,
            _ if character.is_whitespace() => Class::Space,
            _ => Class::Other,
        }
    }

    /// Most characters of the class in one piece.
    fn most(self) -> usize {
        match self {
            Class::Wide => 1,
            Class::Digit => 3,
            Class::Letter | Class::Space | Class::Other => MAX_BYTES,
        }
    }
}

/// Splits a text into pieces. The pieces, joined in order, are the text.
pub(super) fn pieces(text: &str) -> impl Iterator<Item = &str> {
    let mut rest = text;
    std::iter::from_fn(move || {
        if rest.is_empty() {
            return None;
        }
        let (piece, after) = rest.split_at(first_piece_len(rest));
        rest = after;
        Some(piece)
    })
}

fn mark_at(text: &str) -> Option<usize> {
    MARKS.iter().find(|mark| text.starts_with(**mark)).map(|mark| mark.len())
}

/// Returns the length of the first piece of a text that is not empty, bytes.
fn first_piece_len(text: &str) -> usize {
    if let Some(len) = mark_at(text) {
        return len;
    }
    let mut characters = text.char_indices().peekable();
    let mut class = None;
    let mut count = 0;
    while let Some((at, character)) = characters.next() {
        let of = Class::of(character);
        let next = characters.peek().map(|(_, next)| Class::of(*next));
        let is_lead = at == 0 && character == ' ' && next.is_some_and(|next| next.leads());
        if is_lead {
            continue;
        }
        let class = *class.get_or_insert(of);
        let too_long = at + character.len_utf8() > MAX_BYTES && count > 0;
        if of != class
            || count == class.most()
            || too_long
            || (at > 0 && mark_at(&text[at..]).is_some())
        {
            return at;
        }
        // The last space before a word belongs to the piece of the word.
        if class == Class::Space && count > 0 && character == ' ' && next.is_some_and(Class::leads)
        {
            return at;
        }
        count += 1;
    }
    text.len()
}

impl Class {
    /// Returns whether a piece of the class may begin with a space.
    fn leads(self) -> bool {
        matches!(self, Class::Letter | Class::Other)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_look_like_those_of_models() {
        for (text, expected) in [
            ("Hello there, Anna!", vec!["Hello", " there", ",", " Anna", "!"]),
            ("21345 °C", vec!["213", "45", " °", "C"]),
            ("a  b\n\n    c", vec!["a", " ", " b", "\n\n   ", " c"]),
            ("<think>So</think>", vec!["<think>", "So", "</think>"]),
            ("x: [TOOL_CALLS][{", vec!["x", ":", " ", "[TOOL_CALLS]", "[{"]),
            ("🌦🌦", vec!["🌦", "🌦"]),
            ("internationalisation", vec!["internationa", "lisation"]),
            ("", vec![]),
        ] {
            assert_eq!(pieces(text).collect::<Vec<_>>(), expected, "{text:?}");
        }
    }

    #[test]
    fn any_text_is_the_sum_of_its_short_pieces() {
        let text: String = ('\u{0}'..'\u{2fff}').chain('\u{1f300}'..'\u{1f400}').collect();
        let cut: Vec<&str> = pieces(&text).collect();
        assert_eq!(cut.concat(), text);
        assert!(cut.iter().all(|piece| !piece.is_empty() && piece.len() <= MAX_BYTES + 3));
    }
}
