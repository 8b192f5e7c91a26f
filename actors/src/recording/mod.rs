//! Recording of live traffic: when sequences arrive, how long their prompts and outputs are, what they ask for, and how
//! they end. A recording holds no tokens and no text.

mod prefixes;
mod recorder;
mod rows;
mod unanswered;

pub use recorder::{
    MAX_RECORDED_STEPS, Recorder, Recording, RecordingCut, RecordingLimits, RecordingState,
    RecordingStatus,
};
pub use rows::{Asked, Origin, Progress, RecordedEnd, RecordedSequence, SharedPrompt};
pub(crate) use unanswered::Unanswered;
