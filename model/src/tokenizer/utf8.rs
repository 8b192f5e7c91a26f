//! Decodes UTF-8 bytes that arrive in pieces.

/// Decoder that holds back the first bytes of a UTF-8 character until the rest of the character arrives. The texts that
/// it returns are together exactly the lossy UTF-8 of all bytes. The cost of a piece depends only on the piece's own
/// length.
///
/// Bytes that can no longer become a character are replaced by U+FFFD at once. An unfinished character is replaced at
/// [`Utf8Decoder::finish`].
#[derive(Debug, Default)]
pub struct Utf8Decoder {
    /// Beginning of a character whose last bytes have not arrived: at most three bytes between calls.
    pending: Vec<u8>,
}

impl Utf8Decoder {
    /// Appends the characters that `bytes` completes to `out`.
    pub fn push_to(&mut self, bytes: &[u8], out: &mut String) {
        if self.pending.is_empty() {
            self.pending.extend_from_slice(complete(bytes, out));
        } else {
            self.pending.extend_from_slice(bytes);
            let rest = complete(&self.pending, out).len();
            self.pending.drain(..self.pending.len() - rest);
        }
    }

    /// Whether the decoder holds back the beginning of a character.
    pub fn is_within_character(&self) -> bool {
        !self.pending.is_empty()
    }

    /// Ends the text. Returns U+FFFD for an unfinished character, otherwise an empty text.
    pub fn finish(&mut self) -> String {
        let unfinished = !std::mem::take(&mut self.pending).is_empty();
        if unfinished { char::REPLACEMENT_CHARACTER.to_string() } else { String::new() }
    }
}

/// Appends the complete characters of `bytes` to `out` and returns the unfinished character at the end of `bytes`.
fn complete<'a>(bytes: &'a [u8], out: &mut String) -> &'a [u8] {
    let mut chunks = bytes.utf8_chunks().peekable();
    while let Some(chunk) = chunks.next() {
        out.push_str(chunk.valid());
        let broken = chunk.invalid();
        // The beginning of a character may still be completed at the very end; anywhere else it is broken.
        let may_continue = chunks.peek().is_none()
            && std::str::from_utf8(broken).is_err_and(|error| error.error_len().is_none());
        if may_continue {
            return broken;
        }
        if !broken.is_empty() {
            out.push(char::REPLACEMENT_CHARACTER);
        }
    }
    &[]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn push(decoder: &mut Utf8Decoder, bytes: &[u8]) -> String {
        let mut out = String::new();
        decoder.push_to(bytes, &mut out);
        assert!(decoder.pending.len() < 4, "{:?}", decoder.pending);
        out
    }

    #[test]
    fn characters_come_out_whole() {
        let mut decoder = Utf8Decoder::default();
        let pieces: Vec<String> = "aé€😀".bytes().map(|byte| push(&mut decoder, &[byte])).collect();
        assert_eq!(pieces, ["a", "", "é", "", "", "€", "", "", "", "😀"]);
        assert_eq!(decoder.finish(), "");
    }

    #[test]
    fn broken_bytes_are_replaced_and_nothing_after_them_is_lost() {
        let mut decoder = Utf8Decoder::default();
        assert_eq!(push(&mut decoder, b"\xff\xc3"), "\u{fffd}");
        assert_eq!(push(&mut decoder, b"a\xf0"), "\u{fffd}a");
        assert_eq!(decoder.finish(), "\u{fffd}");
    }
}
