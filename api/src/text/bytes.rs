//! A vocabulary without a model: tokens 0 to 255 are bytes, 256 and 257 begin and end a message, the
//! rest have made-up names.

use std::borrow::Cow;
use tiercel_device::TokenId;

const BEGIN: TokenId = 256;
/// Ends a message; the end token of the mock.
pub(crate) const END: TokenId = 257;

/// Bytes of a token.
pub(crate) fn token_bytes(token: TokenId) -> Cow<'static, [u8]> {
    match token {
        0..256 => vec![token as u8].into(),
        BEGIN | END => Cow::Borrowed(b""),
        _ => format!(" t{token}").into_bytes().into(),
    }
}

/// A text as tokens: its bytes.
pub(crate) fn encode(text: &str) -> Vec<TokenId> {
    text.bytes().map(TokenId::from).collect()
}

/// A conversation as tokens; `open` begins the assistant's answer.
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
