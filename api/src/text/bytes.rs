//! Vocabulary of the mock device, which has no model: tokens 0 to 255 are bytes, tokens 256 and 257 begin and end a
//! chat message. If the mock device has replies, token 258 cuts an answer off, and further tokens are the pieces of the
//! replies ([`pieces`]). All other tokens have made-up texts.

use super::pieces::{MARKS, pieces};
use std::borrow::Cow;
use std::collections::HashMap;
use tiercel_device::TokenId;
use tiercel_grammar::TokenText;

const BEGIN: TokenId = 256;
/// Token that ends a chat message; the mock device's end token.
pub(crate) const END: TokenId = 257;
const CUT: TokenId = 258;
const FIRST_PIECE: TokenId = 259;
/// Largest number of pieces in the vocabulary. Further pieces are encoded as bytes.
const MAX_PIECES: usize = 1 << 16;

/// Vocabulary of a mock device.
#[derive(Debug, Default)]
pub(crate) struct MockVocabulary {
    /// Texts of the tokens from [`FIRST_PIECE`] on; empty if the mock device has no replies.
    pieces: Vec<Box<str>>,
    tokens: HashMap<Box<str>, TokenId>,
}

/// A message in a prompt: its role and its text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Message {
    pub(crate) role: String,
    pub(crate) text: String,
}

impl MockVocabulary {
    /// Returns the vocabulary of a mock device with the replies `replies`: the bytes, the marks of calls and reasoning,
    /// and the pieces of the replies.
    pub(crate) fn of_replies<'a>(replies: impl Iterator<Item = &'a str>) -> MockVocabulary {
        let mut vocabulary = MockVocabulary::default();
        for piece in MARKS.into_iter().chain(replies.flat_map(pieces)) {
            if vocabulary.pieces.len() == MAX_PIECES {
                break;
            }
            let next = FIRST_PIECE + vocabulary.pieces.len() as TokenId;
            if piece.len() > 1 && !vocabulary.tokens.contains_key(piece) {
                vocabulary.tokens.insert(piece.into(), next);
                vocabulary.pieces.push(piece.into());
            }
        }
        vocabulary
    }

    /// Returns the number of tokens of the vocabulary, without the tokens that have made-up texts.
    pub(crate) fn len(&self) -> u32 {
        FIRST_PIECE + self.pieces.len() as u32
    }

    /// Returns the token that ends an answer with the finish reason `length`; `None` if the mock device has no replies.
    pub(crate) fn cut(&self) -> Option<TokenId> {
        (!self.pieces.is_empty()).then_some(CUT)
    }

    /// Returns the bytes of text that a token of the mock device stands for.
    pub(crate) fn token_bytes(&self, token: TokenId) -> Cow<'_, [u8]> {
        let piece = token.checked_sub(FIRST_PIECE).and_then(|i| self.pieces.get(i as usize));
        match (token, piece) {
            (_, Some(piece)) => Cow::Borrowed(piece.as_bytes()),
            (0..256, None) => vec![token as u8].into(),
            (BEGIN | END, None) => Cow::Borrowed(b""),
            (CUT, None) if self.cut().is_some() => Cow::Borrowed(b""),
            (_, None) => format!(" t{token}").into_bytes().into(),
        }
    }

    /// Returns the text of a token for grammars. No grammar allows the token that cuts an answer off.
    pub(crate) fn token_text(&self, token: TokenId) -> TokenText {
        match token {
            BEGIN => TokenText::Special(b"<|begin|>".to_vec()),
            END => TokenText::Special(b"<|end|>".to_vec()),
            CUT if self.cut().is_some() => TokenText::Unused,
            _ => TokenText::Bytes(self.token_bytes(token).into_owned()),
        }
    }

    /// Returns the length of the longest text that one token of an encoded text can stand for, bytes.
    pub(crate) fn longest_token_bytes(&self) -> usize {
        self.pieces.iter().map(|piece| piece.len()).max().unwrap_or(1)
    }

    /// Encodes a text: one token for each piece that the vocabulary has, and one token for each byte of other pieces.
    pub(crate) fn encode(&self, text: &str) -> Vec<TokenId> {
        if self.pieces.is_empty() {
            return text.bytes().map(TokenId::from).collect();
        }
        let mut tokens = Vec::new();
        for piece in pieces(text) {
            match self.tokens.get(piece) {
                Some(token) => tokens.push(*token),
                None => tokens.extend(piece.bytes().map(TokenId::from)),
            }
        }
        tokens
    }

    /// Encodes an answer of the mock device. The last token is the end token, or the token that cuts the answer off.
    pub(crate) fn encode_answer(&self, text: &str, is_cut: bool) -> Vec<TokenId> {
        let mut tokens = self.encode(text);
        tokens.push(if is_cut { CUT } else { END });
        tokens
    }

    /// Encodes a conversation; `open` appends the beginning of the assistant's answer.
    pub(crate) fn encode_chat<'a>(
        &self,
        messages: impl Iterator<Item = (&'a str, &'a str)>,
        open: bool,
    ) -> Vec<TokenId> {
        let mut tokens = Vec::new();
        for (role, content) in messages {
            tokens.push(BEGIN);
            tokens.extend(self.encode(&format!("{role}\n")));
            tokens.extend(self.encode(content));
            tokens.push(END);
        }
        if open {
            tokens.push(BEGIN);
            tokens.extend(self.encode("assistant\n"));
        }
        tokens
    }

    /// Decodes the messages of a prompt that [`MockVocabulary::encode_chat`] encoded. A prompt without begin tokens of
    /// messages is one message of the user.
    pub(crate) fn messages(&self, prompt: &[TokenId]) -> Vec<Message> {
        if !prompt.contains(&BEGIN) {
            return vec![Message { role: "user".into(), text: self.text(prompt) }];
        }
        let parts = prompt.split(|token| *token == BEGIN).skip(1);
        let message = |part: &[TokenId]| {
            let text = self.text(part);
            let (role, text) = text.split_once('\n').unwrap_or((&text, ""));
            Message { role: role.to_owned(), text: text.to_owned() }
        };
        parts.map(message).collect()
    }

    fn text(&self, tokens: &[TokenId]) -> String {
        let bytes: Vec<u8> =
            tokens.iter().flat_map(|token| self.token_bytes(*token).into_owned()).collect();
        String::from_utf8_lossy(&bytes).into_owned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reply_has_one_token_a_piece_and_its_prompt_has_the_same_tokens() {
        let reply = "<tool_call>\n{\"name\": \"get_weather\"}\n</tool_call> 🌦";
        let vocabulary = MockVocabulary::of_replies([reply].into_iter());
        let tokens = vocabulary.encode_answer(reply, false);
        let texts: Vec<_> = tokens.iter().map(|token| vocabulary.token_bytes(*token)).collect();
        assert_eq!(texts[0].as_ref(), b"<tool_call>");
        assert_eq!(texts.concat(), reply.as_bytes());
        assert_eq!(*tokens.last().unwrap(), END);
        assert!(tokens.len() < reply.len() / 2, "{tokens:?}");
        let prompt = vocabulary.encode_chat([("assistant", reply)].into_iter(), true);
        let head = 1 + "assistant\n".len();
        assert_eq!(prompt[head..head + tokens.len()], tokens, "the prefix cache finds it again");
    }

    #[test]
    fn a_prompt_is_read_back_as_messages() {
        let vocabulary = MockVocabulary::of_replies(["Hello there"].into_iter());
        let conversation = [("user", "Hello\nthere ü"), ("tool", ""), ("assistant", "no")];
        let prompt = vocabulary.encode_chat(conversation.into_iter(), true);
        let messages = vocabulary.messages(&prompt);
        let read: Vec<_> = messages.iter().map(|m| (m.role.as_str(), m.text.as_str())).collect();
        assert_eq!(read[..3], conversation);
        assert_eq!(read[3..], [("assistant", "")]);
        let plain = vocabulary.messages(&vocabulary.encode("Once upon"));
        assert_eq!(plain, [Message { role: "user".into(), text: "Once upon".into() }]);
    }

    #[test]
    fn without_replies_tokens_are_bytes_and_made_up_texts() {
        let vocabulary = MockVocabulary::default();
        assert_eq!(vocabulary.encode("<think>"), b"<think>".map(TokenId::from));
        assert_eq!(vocabulary.token_bytes(258).as_ref(), b" t258");
        assert_eq!((vocabulary.cut(), vocabulary.longest_token_bytes()), (None, 1));
        let scripted = MockVocabulary::of_replies(["a"].into_iter());
        assert_eq!(scripted.token_bytes(CUT).as_ref(), b"");
        assert_eq!(
            scripted.token_bytes(scripted.len()).as_ref(),
            format!(" t{}", scripted.len()).as_bytes()
        );
    }
}
