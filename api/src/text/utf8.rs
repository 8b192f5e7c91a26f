//! Decodes UTF-8 text whose bytes arrive in pieces.

/// UTF-8 decoder that holds back the first bytes of a character until the rest of the character arrives.
#[derive(Debug, Default)]
pub(crate) struct Utf8Buffer {
    pending: Vec<u8>,
}

impl Utf8Buffer {
    /// Adds bytes and returns the characters that they complete; invalid bytes are replaced by U+FFFD.
    pub(crate) fn push(&mut self, bytes: &[u8]) -> String {
        self.pending.extend_from_slice(bytes);
        let mut out = String::new();
        let mut rest = self.pending.as_slice();
        loop {
            match std::str::from_utf8(rest) {
                Ok(text) => {
                    out.push_str(text);
                    rest = &[];
                    break;
                }
                Err(error) => {
                    let (valid, after) = rest.split_at(error.valid_up_to());
                    out.push_str(&String::from_utf8_lossy(valid));
                    rest = after;
                    let Some(broken) = error.error_len() else { break };
                    out.push(char::REPLACEMENT_CHARACTER);
                    rest = &rest[broken..];
                }
            }
        }
        self.pending = rest.to_vec();
        out
    }

    /// Ends the decoded text. Returns U+FFFD if it ends within a character, otherwise an empty text.
    pub(crate) fn finish(&mut self) -> String {
        let unfinished = !std::mem::take(&mut self.pending).is_empty();
        if unfinished { char::REPLACEMENT_CHARACTER.into() } else { String::new() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn characters_come_out_whole() {
        let mut buffer = Utf8Buffer::default();
        let pieces: Vec<String> = "aé€😀".bytes().map(|byte| buffer.push(&[byte])).collect();
        assert_eq!(pieces, ["a", "", "é", "", "", "€", "", "", "", "😀"]);
        assert_eq!(buffer.finish(), "");
    }

    #[test]
    fn broken_bytes_are_replaced_and_nothing_after_them_is_lost() {
        let mut buffer = Utf8Buffer::default();
        assert_eq!(buffer.push(b"\xff\xc3"), "\u{fffd}");
        assert_eq!(buffer.push(b"a\xf0"), "\u{fffd}a");
        assert_eq!(buffer.finish(), "\u{fffd}");
    }
}
