//! Binary format of a trace file. No other module uses bincode.
//!
//! | bytes | |
//! |---|---|
//! | 8 | magic |
//! | 2 | version, little endian |
//! | 4 + n, repeated | a frame: its length n, little endian, and n bytes of bincode |
//!
//! The first frame is a section and the last frame is the end mark. Thus a file that was cut off between two frames is
//! recognized as incomplete.

use super::{Event, Section, TraceError};
use serde::{Deserialize, Serialize};
use std::borrow::Cow;
use tiercel_device::Timestamp;

pub(super) const MAGIC: [u8; 8] = *b"TIERCELT";
/// Version of the trace file format. It must be raised whenever events or frames change, because bincode data does not
/// describe its own structure.
pub(super) const VERSION: u16 = 2;
/// Maximum size of a frame of a trace file, bytes: ten times the event of a step with the largest possible number of
/// sequences.
pub(super) const MAX_FRAME_BYTES: usize = 1 << 20;

/// Frame (record with its length) of a trace file.
#[derive(Debug, Serialize, Deserialize)]
pub(super) enum Frame<'a> {
    /// Header of a simulation run, before the events of the run.
    Section(Cow<'a, Section>),
    /// Event of the simulation run and its time.
    Event(Timestamp, Cow<'a, Event>),
    /// End mark of a complete trace file (recorded events of simulation runs); holds the number of frames before the
    /// mark.
    End(u64),
}

/// Appends a frame of a trace file, preceded by its length, to the bytes.
pub(super) fn encode(frame: &Frame<'_>, into: &mut Vec<u8>) -> Result<(), TraceError> {
    let begin = into.len();
    into.extend_from_slice(&[0; 4]);
    bincode::serde::encode_into_std_write(frame, into, bincode::config::standard())
        .map_err(std::io::Error::other)?;
    let length = into.len() - begin - 4;
    if length > MAX_FRAME_BYTES {
        into.truncate(begin);
        return Err(TraceError::TooLarge);
    }
    into[begin..begin + 4].copy_from_slice(&(length as u32).to_le_bytes());
    Ok(())
}

/// Decodes a frame of a trace file; `None` if the bytes are not exactly one frame.
pub(super) fn decode(bytes: &[u8]) -> Option<Frame<'static>> {
    let limited = bincode::config::standard().with_limit::<MAX_FRAME_BYTES>();
    let (frame, read) = bincode::serde::decode_from_slice(bytes, limited).ok()?;
    (read == bytes.len()).then_some(frame)
}
