//! Vocabulary of the mock device, which has no model: tokens 0 to 255 are bytes, tokens 256 and 257 begin and end a
//! chat message, and all other tokens have made-up texts.

use std::borrow::Cow;
use tiercel_device::TokenId;
use tiercel_grammar::TokenText;

const BEGIN: TokenId = 256;
/// Token that ends a chat message; the mock device's end token.
pub(crate) const END: TokenId = 257;

/// Returns the bytes of text that a token of the mock device stands for.
pub(crate) fn token_bytes(token: TokenId) -> Cow<'static, [u8]> {
    match token {
        0..256 => vec![token as u8].into(),
        BEGIN | END => Cow::Borrowed(b""),
        _ => format!(" t{token}").into_bytes().into(),
    }
}

/// Returns what a token of the mock device stands for in a grammar.
pub(crate) fn token_text(token: TokenId) -> TokenText {
    match token {
        BEGIN => TokenText::Special(b"<|begin|>".to_vec()),
        END => TokenText::Special(b"<|end|>".to_vec()),
        _ => TokenText::Bytes(token_bytes(token).into_owned()),
    }
}

/// Encodes a text with the mock device's vocabulary: one token per byte.
pub(crate) fn encode(text: &str) -> Vec<TokenId> {
    text.bytes().map(TokenId::from).collect()
}

/// Encodes a conversation with the mock device's vocabulary; `open` appends the beginning of the assistant's answer.
pub(crate) fn encode_chat<'a>(
    messages: impl Iterator<Item = (&'a str, &'a str)>,
    open: bool,
) -> Vec<TokenId> {
    let mut tokens = Vec::new();
    for (role, content) in messages {
        tokens.push(BEGIN);
        tokens.extend(encode(&format!("{role}\n{content}")));
        tokens.push(END);
    }
    if open {
        tokens.push(BEGIN);
        tokens.extend(encode("assistant\n"));
    }
    tokens
}
