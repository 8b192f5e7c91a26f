//! Keeps control tokens that are spelled in a chat message from being read as control tokens.
//!
//! A chat template pastes the messages between its own control tokens, and the whole text is tokenized at once. A
//! message that spells a control token would end its turn and begin another, in any role. So a separator, a character
//! that no text holds, is put into every control token that a message spells. The rendered prompt is cut at the
//! separators before it is tokenized, so that neither half of such a token is a control token any more.

use super::{TokenizerError, Vocab};
use aho_corasick::AhoCorasick;
use std::borrow::Cow;
use tiercel_device::TokenId;

/// Separator that is put into a control token spelled in a message: a noncharacter, which Unicode reserves for use
/// inside programs.
pub(super) const BREAK: char = '\u{FDD0}';

/// Finder of control tokens that are spelled in a message.
pub(super) struct Guard {
    finder: Option<AhoCorasick>,
}

impl Guard {
    /// Creates the finder for the special tokens of a vocabulary and the tokens that end an answer. The finder splits
    /// such a token in a client's text by a separator character, so that the text cannot act as a control token. A
    /// token of a single character is left out, because it cannot be split.
    pub(super) fn new(vocab: &Vocab, ends: &[TokenId]) -> Result<Guard, TokenizerError> {
        let ids = 0..vocab.len() as TokenId;
        let spelled = ids
            .filter(|&id| vocab.is_special(id) || ends.contains(&id))
            .filter_map(|id| std::str::from_utf8(vocab.token_bytes(id)).ok())
            .filter(|text| text.chars().nth(1).is_some());
        let spelled: Vec<&str> = spelled.collect();
        let finder = (!spelled.is_empty()).then(|| AhoCorasick::new(spelled)).transpose();
        let finder = finder.map_err(|error| TokenizerError::Metadata(error.to_string()))?;
        Ok(Guard { finder })
    }

    /// Returns the message's text with a separator in every control token that it spells, overlapping ones too.
    /// Separators that were already in the text are removed. Borrows a text that needs no change.
    pub(super) fn protect<'a>(&self, text: &'a str) -> Cow<'a, str> {
        let text: Cow<'a, str> = match text.contains(BREAK) {
            true => text.chars().filter(|&c| c != BREAK).collect::<String>().into(),
            false => text.into(),
        };
        let found = self.finder.iter().flat_map(|finder| finder.find_overlapping_iter(&*text));
        let mut breaks: Vec<usize> = found
            .map(|found| {
                let first = text[found.start()..].chars().next().map_or(0, char::len_utf8);
                found.start() + first
            })
            .collect();
        if breaks.is_empty() {
            return text;
        }
        breaks.sort_unstable();
        breaks.dedup();
        let mut broken = String::with_capacity(text.len() + breaks.len() * BREAK.len_utf8());
        let mut start = 0;
        for at in breaks {
            broken.push_str(&text[start..at]);
            broken.push(BREAK);
            start = at;
        }
        broken.push_str(&text[start..]);
        broken.into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn guard(special: &[&str]) -> Guard {
        let mut vocab = Vocab::default();
        vocab.push(b"plain", false);
        special.iter().for_each(|text| vocab.push(text.as_bytes(), true));
        Guard::new(&vocab, &[0]).unwrap()
    }

    #[test]
    fn every_spelled_token_is_broken_and_nothing_else() {
        let guard = guard(&["<a>", "a><b>", "<｜end｜>", "", "x"]);
        let broken = |text| guard.protect(text).replace(BREAK, "#");
        assert_eq!(broken("1 <a> 2 <｜end｜>"), "1 <#a> 2 <#｜end｜>");
        assert_eq!(broken("<a><b>"), "<#a#><b>", "one begins inside the other");
        assert_eq!(broken("plain"), "p#lain", "an end token that is not special counts too");
        assert!(matches!(guard.protect("<A> <b> x < a >"), Cow::Borrowed(_)));
    }

    #[test]
    fn breaks_cannot_be_brought_along() {
        let guard = guard(&["<a>"]);
        assert_eq!(guard.protect("<\u{FDD0}a>\u{FDD0}"), "<\u{FDD0}a>");
        assert_eq!(guard.protect("a\u{FDD0}b"), "ab");
    }
}
