//! Collects the pieces that a parser has found, and joins adjacent pieces of the same kind.

use crate::Piece;

/// Pieces that were found since the last `take`, and the number of calls.
#[derive(Debug, Default)]
pub(crate) struct Sink {
    pieces: Vec<Piece>,
    /// Number of calls that have begun in the answer so far.
    calls: u32,
}

impl Sink {
    /// Returns the pieces that were found since the last `take`.
    pub(crate) fn take(&mut self) -> Vec<Piece> {
        std::mem::take(&mut self.pieces)
    }

    /// Returns the number of calls that have begun.
    pub(crate) fn calls(&self) -> u32 {
        self.calls
    }

    pub(crate) fn content(&mut self, text: &str) {
        match self.pieces.last_mut() {
            Some(Piece::Content(last)) => last.push_str(text),
            _ if text.is_empty() => (),
            _ => self.pieces.push(Piece::Content(text.to_owned())),
        }
    }

    pub(crate) fn reasoning(&mut self, text: &str) {
        match self.pieces.last_mut() {
            Some(Piece::Reasoning(last)) => last.push_str(text),
            _ if text.is_empty() => (),
            _ => self.pieces.push(Piece::Reasoning(text.to_owned())),
        }
    }

    pub(crate) fn begin(&mut self, name: &str) {
        self.pieces.push(Piece::CallBegin { index: self.calls, name: name.to_owned() });
        self.calls += 1;
    }

    /// Adds to the arguments of the call that began last.
    pub(crate) fn arguments(&mut self, text: &str) {
        match self.pieces.last_mut() {
            Some(Piece::CallArguments { json, .. }) => json.push_str(text),
            _ if text.is_empty() => (),
            _ => {
                let index = self.calls.saturating_sub(1);
                self.pieces.push(Piece::CallArguments { index, json: text.to_owned() });
            }
        }
    }

    /// Ends the call that began last.
    pub(crate) fn end(&mut self) {
        self.pieces.push(Piece::CallEnd { index: self.calls.saturating_sub(1) });
    }
}
