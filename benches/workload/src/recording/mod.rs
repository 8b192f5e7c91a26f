//! Recordings of a server's live traffic: a file of JSON lines. The first line is the header, which describes
//! the server; each further line is a sequence. A recording holds no text and no tokens.
//!
//! | file | one job |
//! |---|---|
//! | `form` | the lines |
//! | `read` | reads and checks a file |
//! | `lengths` | output lengths for sequences that did not complete |
//! | `texts` | which prompts begin alike |

mod form;
mod lengths;
mod read;
mod texts;

pub use form::{MAX_RECORDED, Outcome, RECORDING_FORMAT, RecordedRequest, RecordingHeader, Seen};
pub use read::Recording;
pub(crate) use read::is_recording;
pub use texts::TextPiece;
