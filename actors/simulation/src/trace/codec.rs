//! The bytes of a trace file, and the only place that uses bincode.
//!
//! | bytes | |
//! |---|---|
//! | 8 | magic |
//! | 2 | version, little endian |
//! | 4 + n, repeated | a frame: its length, little endian, and as many bytes of bincode |
//!
//! The first frame is a section and the last one the end mark, so that a file that was cut between two frames
//! is told from a whole one.

use super::{Event, Section, TraceError};
use serde::{Deserialize, Serialize};
use std::borrow::Cow;
use tiercel_device::Timestamp;

pub(super) const MAGIC: [u8; 8] = *b"TIERCELT";
/// Raised whenever events or frames change: bincode does not describe itself.
pub(super) const VERSION: u16 = 2;
/// Largest frame, bytes: ten times a step of as many sequences as there can be.
pub(super) const MAX_FRAME_BYTES: usize = 1 << 20;

/// What stands in a file.
#[derive(Debug, Serialize, Deserialize)]
pub(super) enum Frame<'a> {
    /// A run begins.
    Section(Cow<'a, Section>),
    /// Something happened in it.
    Event(Timestamp, Cow<'a, Event>),
    /// The file is complete and has so many frames before this one.
    End(u64),
}

/// Appends a frame with its length.
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

/// Reads a frame's bytes, all of them; `None` if they are none.
pub(super) fn decode(bytes: &[u8]) -> Option<Frame<'static>> {
    let limited = bincode::config::standard().with_limit::<MAX_FRAME_BYTES>();
    let (frame, read) = bincode::serde::decode_from_slice(bytes, limited).ok()?;
    (read == bytes.len()).then_some(frame)
}
