//! Vocabulary of a model in the form that llguidance needs: the bytes of every token.

use llguidance::toktrie::{ApproximateTokEnv, INVALID_TOKEN, TokEnv, TokRxInfo, TokTrie};
use std::sync::Arc;
use tiercel_device::TokenId;

/// Length from which on a token cannot be used under a grammar, bytes, because llguidance's trie has no room for the
/// token.
const TOKEN_BYTES_MAX: usize = 512;

/// Meaning of a token.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TokenText {
    /// The token stands for bytes of the output, which may begin or end within a character.
    Bytes(Vec<u8>),
    /// The token is a control token of this name (for example `<|im_end|>`) and stands for no text.
    Special(Vec<u8>),
    /// The token has no meaning, and no mask allows it.
    Unused,
}

impl TokenText {
    /// Returns the meaning of a token with this text. The text of a control token is its name.
    pub fn of(text: &[u8], is_control: bool) -> TokenText {
        match is_control {
            true => TokenText::Special(text.to_vec()),
            false => TokenText::Bytes(text.to_vec()),
        }
    }
}

/// Vocabulary of a model: the bytes of every token, and the tokens that end an output.
#[derive(Clone)]
pub struct Vocabulary {
    pub(crate) tokens: TokEnv,
    size: usize,
}

impl std::fmt::Debug for Vocabulary {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Vocabulary").field("size", &self.size).finish()
    }
}

impl Vocabulary {
    /// Creates the vocabulary of a model with `size` tokens; `text` returns the meaning of each token. `ends` are the
    /// tokens that end an output. Without such tokens, an output ends when its grammar allows no further token.
    pub fn new(size: usize, ends: &[TokenId], text: impl Fn(TokenId) -> TokenText) -> Vocabulary {
        let ends: Vec<TokenId> =
            ends.iter().copied().filter(|end| (*end as usize) < size).collect();
        let words: Vec<Vec<u8>> =
            (0..size as TokenId).map(|id| word(text(id), ends.contains(&id))).collect();
        let first = ends.first().copied().unwrap_or(INVALID_TOKEN);
        let trie = TokTrie::from(&TokRxInfo::new(size as u32, first), &words);
        let trie = if ends.is_empty() { trie } else { trie.with_eos_tokens(&ends) };
        Vocabulary { tokens: Arc::new(ApproximateTokEnv::new(trie)), size }
    }

    /// Returns the number of tokens of the vocabulary.
    pub fn size(&self) -> usize {
        self.size
    }
}

/// Returns the bytes of a token in llguidance's trie. Control tokens and end tokens begin with the marker byte, which
/// occurs in no UTF-8 text. A token that cannot be used has no bytes.
fn word(text: TokenText, ends: bool) -> Vec<u8> {
    let marker = TokTrie::SPECIAL_TOKEN_MARKER;
    let (bytes, special) = match text {
        TokenText::Bytes(bytes) => (bytes, ends),
        TokenText::Special(name) => (name, true),
        TokenText::Unused => (Vec::new(), false),
    };
    let usable = !bytes.is_empty() && bytes.len() < TOKEN_BYTES_MAX && bytes[0] != marker;
    match (usable, special) {
        (false, _) => Vec::new(),
        (true, false) => bytes,
        (true, true) => [&[marker][..], &bytes].concat(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn control_tokens_are_marked_and_unusable_tokens_are_empty() {
        let marked = |name: &[u8]| [&[0xff][..], name].concat();
        assert_eq!(word(TokenText::Bytes(b"ab".to_vec()), false), b"ab");
        assert_eq!(word(TokenText::Bytes(b"</s>".to_vec()), true), marked(b"</s>"));
        assert_eq!(word(TokenText::Special(b"<a>".to_vec()), false), marked(b"<a>"));
        for unusable in [
            TokenText::Unused,
            TokenText::Bytes(vec![]),
            TokenText::Bytes(vec![0xff]),
            TokenText::Bytes(vec![b'a'; TOKEN_BYTES_MAX]),
        ] {
            assert_eq!(word(unusable, false), b"");
        }
    }
}
