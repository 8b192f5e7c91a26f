//! Writes a trace file while simulated engines run.

use super::codec::{Frame, MAGIC, VERSION, encode};
use super::{Event, MAX_TRACE_BYTES, Record, Section, TraceError};
use std::borrow::Cow;
use std::cell::RefCell;
use std::io::Write;
use tiercel_device::Timestamp;

/// Size of the buffer in which events are collected before they are written to the trace file, bytes.
const BUFFER_BYTES: usize = 256 << 10;

/// Writer of a trace file. It holds at most one buffer of bytes and one record in memory.
pub struct TraceWriter<W: Write> {
    state: RefCell<State<W>>,
}

struct State<W: Write> {
    out: W,
    buffer: Vec<u8>,
    frames: u64,
    bytes: u64,
    most_bytes: u64,
    /// Whether an error has stopped the writer of the trace file; nothing is written after the first error.
    stopped: bool,
    /// First error of the writer, kept until `section` or `finish` returns it.
    failed: Option<TraceError>,
}

impl<W: Write> TraceWriter<W> {
    /// Begins a trace file that is written to `out`.
    pub fn new(out: W) -> TraceWriter<W> {
        TraceWriter::limited(out, MAX_TRACE_BYTES)
    }

    pub(super) fn limited(out: W, most_bytes: u64) -> TraceWriter<W> {
        let mut buffer = Vec::with_capacity(BUFFER_BYTES);
        buffer.extend_from_slice(&MAGIC);
        buffer.extend_from_slice(&VERSION.to_le_bytes());
        let state =
            State { out, buffer, frames: 0, bytes: 0, most_bytes, stopped: false, failed: None };
        TraceWriter { state: RefCell::new(state) }
    }

    /// Writes the header of a simulation run: the events that follow belong to this run.
    ///
    /// # Errors
    /// [`TraceError`] of the first failed write since the trace began, unless an earlier call has returned it.
    pub fn section(&self, section: &Section) -> Result<(), TraceError> {
        let mut state = self.state.borrow_mut();
        state.push(&Frame::Section(Cow::Borrowed(section)));
        state.failed.take().map_or(Ok(()), Err)
    }

    /// Ends the trace file: writes the end mark and all events that are still in the buffer.
    ///
    /// # Errors
    /// [`TraceError`] of the first failed write since the trace began, unless an earlier call has returned it.
    pub fn finish(&self) -> Result<(), TraceError> {
        let mut state = self.state.borrow_mut();
        let frames = state.frames;
        state.push(&Frame::End(frames));
        state.write_out();
        match state.failed.take() {
            Some(error) => Err(error),
            None => Ok(state.out.flush()?),
        }
    }
}

impl<W: Write> State<W> {
    fn push(&mut self, frame: &Frame<'_>) {
        if self.stopped {
            return;
        }
        let before = self.buffer.len();
        if let Err(error) = encode(frame, &mut self.buffer) {
            return self.stop(error);
        }
        self.frames += 1;
        self.bytes += (self.buffer.len() - before) as u64;
        if self.bytes > self.most_bytes {
            self.stop(TraceError::TooLarge);
        } else if self.buffer.len() >= BUFFER_BYTES {
            self.write_out();
        }
    }

    fn write_out(&mut self) {
        if !self.stopped
            && let Err(error) = self.out.write_all(&self.buffer)
        {
            self.stop(error.into());
        }
        self.buffer.clear();
    }

    fn stop(&mut self, error: TraceError) {
        self.stopped = true;
        self.failed = Some(error);
    }
}

impl<W: Write> Record for TraceWriter<W> {
    /// Appends an event to the trace file. An error is kept until [`TraceWriter::section`] or [`TraceWriter::finish`]
    /// returns it.
    fn record(&self, at: Timestamp, event: &Event) {
        self.state.borrow_mut().push(&Frame::Event(at, Cow::Borrowed(event)));
    }
}
