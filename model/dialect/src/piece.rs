//! The pieces into which a parser splits the text of a model.

/// Part of a model's text, as clients get it. The calls of one answer are numbered from 0 in the order in which they
/// begin; a call's pieces follow its `CallBegin`, and no other call begins between them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Piece {
    /// Text of the answer.
    Content(String),
    /// Text of the model's reasoning, without the tags around it.
    Reasoning(String),
    /// A call of a function begins.
    CallBegin {
        /// Number of the call in the answer, from 0.
        index: u32,
        /// Name of the function, as the model wrote it; it may be none of the request's tools.
        name: String,
    },
    /// A part of the call's arguments. The parts of a call that has a `CallEnd` make up one JSON object. The parts of
    /// a call without a `CallEnd` (the text ended too early, or went on with text that is no JSON, which is then
    /// content) make up the beginning of one.
    CallArguments {
        /// Number of the call in the answer, from 0.
        index: u32,
        /// The next part of the arguments' JSON; never empty.
        json: String,
    },
    /// The call is complete.
    CallEnd {
        /// Number of the call in the answer, from 0.
        index: u32,
    },
}
