//! Pieces into which a parser splits the text of a model.

/// Piece of a model's text, as clients receive it. The calls of one answer are numbered from 0 in the order in which
/// they begin. The other pieces of a call follow its `CallBegin`, before the next call begins.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Piece {
    /// Content: text that is neither reasoning nor part of a call.
    Content(String),
    /// Text of the model's reasoning, without the tags around it.
    Reasoning(String),
    /// Beginning of a call.
    CallBegin {
        /// Number of the call in the answer, from 0.
        index: u32,
        /// Name of the function as the model wrote it. The request may offer no function of this name.
        name: String,
    },
    /// Part of a call's arguments. The parts of a call with a `CallEnd` form one JSON object. The parts of a call
    /// without a `CallEnd` form the beginning of a JSON object: the text ended too early, or went on with text that is
    /// no JSON, which is then content.
    CallArguments {
        /// Number of the call in the answer, from 0.
        index: u32,
        /// Next part of the arguments, as JSON text; never empty.
        json: String,
    },
    /// End of a complete call.
    CallEnd {
        /// Number of the call in the answer, from 0.
        index: u32,
    },
}
