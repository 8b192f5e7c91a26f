//! Pieces of the prompts of a recording: prompts that begin alike have pieces of the same text.

use crate::recording::form::RecordedRequest;
use std::sync::Arc;

/// Most pieces of all prompts of a recording together.
const MAX_PIECES: usize = 4 << 20;

/// Piece of a prompt: tokens of the own text of a recorded sequence, from one position to another.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TextPiece {
    /// Number of the sequence whose text the piece is from.
    pub of: u32,
    /// First position of the piece in the prompt.
    pub from: u32,
    /// Position after the last of the piece.
    pub to: u32,
    /// Output length of the sequence `of`, if the piece ends with the last token of its prompt. In a simulation that
    /// token tells the length of the output.
    pub closing: Option<u32>,
}

/// Fills in the pieces of all prompts. `lengths` are the output lengths of the sequences. A prompt that begins like an
/// earlier prompt gets pieces of the same text. A prompt with which the recording would have more than `MAX_PIECES`
/// pieces has a text of its own instead. Returns whether every prompt got its pieces.
pub(super) fn fill(requests: &mut [RecordedRequest], lengths: &[u32]) -> bool {
    let (mut count, mut all) = (0, true);
    for number in 0..requests.len() {
        let request = &requests[number];
        let length = request.sent_prompt_tokens();
        let (like, shared) = request.begins_like.unwrap_or((0, 0));
        // A sequence whose prompt is not sent whole shares nothing.
        let shared = if length < request.prompt_tokens { 0 } else { shared };
        let earlier = requests.get(like as usize).map(|like| like.text.clone());
        let mut pieces: Vec<TextPiece> = Vec::new();
        for piece in earlier.iter().flat_map(|text| text.iter()).filter(|p| p.from < shared) {
            let whole = piece.to <= shared;
            let closing = piece.closing.filter(|_| whole);
            pieces.push(TextPiece { to: piece.to.min(shared), closing, ..*piece });
        }
        let from = pieces.last().map_or(0, |piece| piece.to);
        if from < length {
            let closing = lengths.get(number).copied();
            pieces.push(TextPiece { of: number as u32, from, to: length, closing });
        }
        if count + pieces.len() > MAX_PIECES {
            let closing = lengths.get(number).copied();
            pieces = vec![TextPiece { of: number as u32, from: 0, to: length, closing }];
            all = false;
        }
        count += pieces.len();
        requests[number].text = Arc::from(pieces);
    }
    all
}
