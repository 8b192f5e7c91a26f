//! Reads a trace file record by record. The file is not trusted: any content gives a record or an error.

use super::codec::{Frame, MAGIC, MAX_FRAME_BYTES, VERSION, decode};
use super::{Entry, MAX_TRACE_BYTES, Section, TraceError};
use std::io::{BufReader, ErrorKind, Read};

/// Record of a trace file: the header of a simulation run, or an event.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Item {
    /// Header of a simulation run; the events of the run follow it.
    Section(Section),
    /// Event of the simulation run whose header came last.
    Entry(Entry),
}

/// Reader of a trace file. It holds at most one record in memory.
#[derive(Debug)]
pub struct TraceReader<R: Read> {
    input: BufReader<R>,
    frame: Vec<u8>,
    /// Number of bytes of the trace file that were read so far.
    at: u64,
    frames: u64,
    ended: bool,
}

impl<R: Read> TraceReader<R> {
    /// Opens a trace file and checks its first bytes and its version.
    ///
    /// # Errors
    /// [`TraceError`] if the input is no trace file or one of another version.
    pub fn new(input: R) -> Result<TraceReader<R>, TraceError> {
        let mut reader = TraceReader {
            input: BufReader::new(input),
            frame: Vec::new(),
            at: 0,
            frames: 0,
            ended: false,
        };
        let mut magic = [0; MAGIC.len()];
        match reader.fill(&mut magic) {
            Ok(()) if magic == MAGIC => {}
            Ok(()) | Err(TraceError::Truncated { .. }) => return Err(TraceError::NotATrace),
            Err(error) => return Err(error),
        }
        let mut version = [0; 2];
        reader.fill(&mut version)?;
        match u16::from_le_bytes(version) {
            VERSION => Ok(reader),
            found => Err(TraceError::Version { found }),
        }
    }

    /// Returns the next record of the trace file; `None` at the end of a complete file.
    ///
    /// # Errors
    /// [`TraceError`] if the file cannot be read or is damaged. What further calls return then means nothing.
    pub fn next_item(&mut self) -> Result<Option<Item>, TraceError> {
        if self.ended {
            return Ok(None);
        }
        let begin = self.at;
        let damaged = |problem| TraceError::Damaged { at: begin, problem };
        self.read_frame()?;
        let frame = decode(&self.frame).ok_or_else(|| damaged("it holds no record"))?;
        let first = self.frames == 0;
        self.frames += 1;
        match frame {
            Frame::Section(section) => Ok(Some(Item::Section(section.into_owned()))),
            Frame::Event(..) if first => Err(damaged("an event before any run")),
            Frame::Event(at, event) => {
                Ok(Some(Item::Entry(Entry { at, event: event.into_owned() })))
            }
            Frame::End(frames) if frames + 1 == self.frames => {
                self.ended = true;
                match self.input.read(&mut [0])? {
                    0 => Ok(None),
                    _ => Err(TraceError::Damaged { at: self.at, problem: "bytes after its end" }),
                }
            }
            Frame::End(_) => Err(damaged("records are missing or repeated")),
        }
    }

    fn read_frame(&mut self) -> Result<(), TraceError> {
        let begin = self.at;
        let mut length = [0; 4];
        self.fill(&mut length)?;
        let length = u32::from_le_bytes(length) as usize;
        if length > MAX_FRAME_BYTES {
            return Err(TraceError::Damaged { at: begin, problem: "a record of absurd length" });
        }
        if self.at + length as u64 > MAX_TRACE_BYTES {
            return Err(TraceError::TooLarge);
        }
        let mut frame = std::mem::take(&mut self.frame);
        frame.resize(length, 0);
        let filled = self.fill(&mut frame);
        self.frame = frame;
        filled
    }

    fn fill(&mut self, bytes: &mut [u8]) -> Result<(), TraceError> {
        match self.input.read_exact(bytes) {
            Ok(()) => {
                self.at += bytes.len() as u64;
                Ok(())
            }
            Err(error) if error.kind() == ErrorKind::UnexpectedEof => {
                Err(TraceError::Truncated { at: self.at })
            }
            Err(error) => Err(error.into()),
        }
    }
}
