//! Streaming decoder: converts tokens to text, one at a time.

use super::{Utf8Decoder, Vocab};
use std::sync::Arc;
use tiercel_device::TokenId;

/// Turns the tokens of one sequence into text as they arrive. The texts that `push` and `finish` return are together
/// exactly the lossy UTF-8 of the tokens' bytes, without skipped special tokens and a removed first space. A character
/// is returned whole or not at all ([`Utf8Decoder`]).
#[derive(Debug)]
pub struct StreamDecoder {
    vocab: Arc<Vocab>,
    characters: Utf8Decoder,
    skip_special: bool,
    /// Special tokens that the decoder does not skip, although it skips other special tokens.
    shown: Arc<[TokenId]>,
    strip_space: bool,
}

impl StreamDecoder {
    /// Creates a streaming decoder for the tokens that a model writes after a prompt. With `skip_special`, special
    /// tokens are left out.
    pub fn continuing(vocab: Arc<Vocab>, skip_special: bool) -> StreamDecoder {
        StreamDecoder {
            vocab,
            characters: Utf8Decoder::default(),
            skip_special,
            shown: Arc::default(),
            strip_space: false,
        }
    }

    /// Returns this decoder with the change that it does not skip these special tokens.
    pub fn showing(self, shown: Arc<[TokenId]>) -> StreamDecoder {
        StreamDecoder { shown, ..self }
    }

    /// Creates a streaming decoder for a text from its beginning, which removes the space that SentencePiece puts
    /// there.
    pub fn from_start(vocab: Arc<Vocab>, skip_special: bool) -> StreamDecoder {
        let strip_space = vocab.strips_leading_space;
        let characters = Utf8Decoder::default();
        StreamDecoder { vocab, characters, skip_special, shown: Arc::default(), strip_space }
    }

    /// Decodes the next token and returns the text that it completes; often empty, never part of a character.
    pub fn push(&mut self, token: TokenId) -> String {
        let mut out = String::new();
        self.push_to(token, &mut out);
        out
    }

    /// Decodes the next token and appends the text that it completes to `out`; see [`StreamDecoder::push`].
    pub fn push_to(&mut self, token: TokenId, out: &mut String) {
        if self.skip_special && self.vocab.is_special(token) && !self.shown.contains(&token) {
            return;
        }
        let mut bytes = self.vocab.token_bytes(token);
        if self.strip_space && !bytes.is_empty() {
            self.strip_space = false;
            bytes = bytes.strip_prefix(b" ").unwrap_or(bytes);
        }
        self.characters.push_to(bytes, out);
    }

    /// Whether the decoder holds back the beginning of a character.
    pub fn is_within_character(&self) -> bool {
        self.characters.is_within_character()
    }

    /// Ends the decoded text. Returns U+FFFD if its last character is unfinished, otherwise an empty text.
    pub fn finish(&mut self) -> String {
        self.characters.finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn vocab(tokens: &[(Vec<u8>, bool)], strips_leading_space: bool) -> Arc<Vocab> {
        let mut vocab = Vocab::default();
        vocab.strips_leading_space = strips_leading_space;
        tokens.iter().for_each(|(bytes, special)| vocab.push(bytes, *special));
        Arc::new(vocab)
    }

    /// Generates tokens for tests whose bytes are characters, parts of characters, or garbage.
    fn token() -> impl Strategy<Value = Vec<u8>> {
        let parts = prop::collection::vec("[ aé€😀\u{2581}]{0,3}", 1..2);
        prop_oneof![
            parts.prop_map(|parts| parts.concat().into_bytes()),
            prop::collection::vec(any::<u8>(), 0..4),
            "[é€😀]".prop_flat_map(|text| {
                let bytes = text.into_bytes();
                (0..bytes.len()).prop_map(move |cut| bytes[cut..].to_vec())
            }),
            "[é€😀]".prop_flat_map(|text| {
                let bytes = text.into_bytes();
                (0..bytes.len()).prop_map(move |cut| bytes[..cut].to_vec())
            }),
        ]
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(3000))]

        #[test]
        fn pieces_put_together_are_the_whole(
            tokens in prop::collection::vec((token(), prop::bool::weighted(0.1)), 0..20),
            strips in any::<bool>(),
            skip in any::<bool>(),
        ) {
            let vocab = vocab(&tokens, strips);
            let shown = tokens.iter().filter(|(_, special)| !(skip && *special));
            let bytes: Vec<u8> = shown.flat_map(|(bytes, _)| bytes.clone()).collect();
            let stripped = bytes.strip_prefix(b" ").filter(|_| strips).unwrap_or(&bytes);
            for (mut decoder, whole) in [
                (StreamDecoder::continuing(vocab.clone(), skip), &bytes[..]),
                (StreamDecoder::from_start(vocab.clone(), skip), stripped),
            ] {
                let mut text = String::new();
                for id in 0..tokens.len() as u32 {
                    text += &decoder.push(id);
                }
                text += &decoder.finish();
                prop_assert_eq!(text, String::from_utf8_lossy(whole));
            }
        }
    }

    #[test]
    fn a_character_comes_out_with_its_last_byte() {
        let tokens: Vec<_> = "a😀b".bytes().map(|byte| (vec![byte], false)).collect();
        let mut decoder = StreamDecoder::continuing(vocab(&tokens, false), true);
        let pieces: Vec<String> = (0..6).map(|id| decoder.push(id)).collect();
        assert_eq!(pieces, ["a", "", "", "", "😀", "b"]);
        assert_eq!(decoder.finish(), "");
    }

    #[test]
    fn chosen_special_tokens_are_shown() {
        let tokens = [(b"a".to_vec(), false), (b"<b>".to_vec(), true), (b"<c>".to_vec(), true)];
        let mut decoder =
            StreamDecoder::continuing(vocab(&tokens, false), true).showing(Arc::new([2]));
        let pieces: Vec<String> = (0..3).map(|id| decoder.push(id)).collect();
        assert_eq!(pieces, ["a", "", "<c>"]);
    }

    #[test]
    fn a_stream_that_ends_inside_a_character_says_so_once() {
        let tokens = [(b"\xf0\x9f".to_vec(), false), (b"x".to_vec(), false)];
        let mut decoder = StreamDecoder::continuing(vocab(&tokens, false), true);
        assert_eq!(decoder.push(0), "");
        assert_eq!(decoder.finish(), "\u{fffd}");
        assert_eq!(decoder.push(0) + &decoder.push(1), "\u{fffd}x");
        assert_eq!(decoder.push(99), "", "an id beyond the vocabulary is no text");
    }
}
