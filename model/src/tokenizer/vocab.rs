//! Vocabulary of a tokenizer: maps token ids to bytes.

use tiercel_device::TokenId;

/// Vocabulary: the bytes of every token, and whether the token is special.
///
/// A token may begin or end within a character. All tokens of a vocabulary lie in one buffer.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Vocab {
    bytes: Vec<u8>,
    /// End offset of each token in the buffer `bytes`; a token starts where the token before it ends.
    ends: Vec<usize>,
    special: Vec<bool>,
    /// Whether a leading space is removed when a text is decoded from its beginning, because SentencePiece put it
    /// there.
    pub(super) strips_leading_space: bool,
}

impl Vocab {
    /// Appends a token to the vocabulary, which gives it the next id.
    pub(super) fn push(&mut self, bytes: &[u8], special: bool) {
        self.bytes.extend_from_slice(bytes);
        self.ends.push(self.bytes.len());
        self.special.push(special);
    }

    /// Returns the number of token ids of the vocabulary, unused ones included.
    pub fn len(&self) -> usize {
        self.ends.len()
    }

    /// Returns whether the vocabulary has no tokens; never true for a tokenizer that was loaded.
    pub fn is_empty(&self) -> bool {
        self.ends.is_empty()
    }

    /// Returns the bytes of a token; empty for token ids that do not exist.
    pub fn token_bytes(&self, token: TokenId) -> &[u8] {
        let token = token as usize;
        let Some(&end) = self.ends.get(token) else { return &[] };
        let start = token.checked_sub(1).map_or(0, |before| self.ends[before]);
        &self.bytes[start..end]
    }

    /// Returns whether a token is a special token (beginning of text, end of turn) instead of text.
    pub fn is_special(&self, token: TokenId) -> bool {
        self.special.get(token as usize).copied().unwrap_or(false)
    }
}

/// Table of the characters that stand for bytes in byte-level vocabularies (GPT-2's table). Printable characters of
/// Latin-1 stand for themselves. The other bytes are moved to U+0100 and up.
pub(super) struct ByteChars {
    bytes: Vec<Option<u8>>,
}

impl ByteChars {
    pub(super) fn new() -> ByteChars {
        let mut bytes = vec![None; 0x200];
        let mut moved = 0x100;
        for byte in 0..=u8::MAX {
            let code = match byte {
                0x21..=0x7e | 0xa1..=0xac | 0xae..=0xff => usize::from(byte),
                _ => {
                    moved += 1;
                    moved - 1
                }
            };
            bytes[code] = Some(byte);
        }
        ByteChars { bytes }
    }

    /// Returns the bytes that a token of a byte-level vocabulary stands for. A token with a character outside the table
    /// stands for its own UTF-8.
    pub(super) fn decode(&self, token: &str) -> Vec<u8> {
        let decoded: Option<Vec<u8>> =
            token.chars().map(|c| *self.bytes.get(c as usize)?).collect();
        decoded.unwrap_or_else(|| token.as_bytes().to_vec())
    }
}

/// Returns the byte of a SentencePiece byte token such as `<0x0A>`.
pub(super) fn byte_token(token: &str) -> Option<u8> {
    let digits = token.strip_prefix("<0x")?.strip_suffix('>')?;
    let hex = digits.len() == 2 && digits.bytes().all(|byte| byte.is_ascii_hexdigit());
    hex.then(|| u8::from_str_radix(digits, 16).ok()).flatten()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn byte_characters_cover_every_byte_once() {
        let chars = ByteChars::new();
        let mut bytes: Vec<u8> = chars.bytes.iter().flatten().copied().collect();
        bytes.sort();
        assert_eq!(bytes, (0..=255).collect::<Vec<u8>>());
        assert_eq!(chars.decode("Ġhello"), b" hello");
        assert_eq!(chars.decode("ĊâĤ¬"), "\n€".as_bytes());
        assert_eq!(chars.decode("<｜end｜>"), "<｜end｜>".as_bytes());
    }

    #[test]
    fn byte_tokens_are_recognised_exactly() {
        assert_eq!(byte_token("<0x0A>"), Some(10));
        assert_eq!(byte_token("<0xff>"), Some(255));
        for other in ["<0x0A", "0x0A>", "<0xA>", "<0x0AA>", "<0x+A>", "<0xGG>", ""] {
            assert_eq!(byte_token(other), None, "{other}");
        }
    }

    #[test]
    fn tokens_are_slices_of_one_buffer() {
        let mut vocab = Vocab::default();
        vocab.push(b"ab", false);
        vocab.push(b"", true);
        vocab.push(b"c", false);
        assert_eq!([0, 1, 2, 3].map(|id| vocab.token_bytes(id)), [&b"ab"[..], b"", b"c", b""]);
        assert_eq!([0, 1, 2, 3].map(|id| vocab.is_special(id)), [false, true, false, false]);
    }
}
