//! Reads the requests of a file of recorded traffic that lie in the time window that the workload replays.

use super::format::{Format, Row};
use super::lines::{self, Fault, Lines};
use super::{Trace, TraceEntry};
use crate::file::{MAX_REQUESTS, WorkloadError};
use crate::length::MAX_TOKENS;
use std::io::{self, Read};
use std::path::Path;
use std::sync::Arc;

/// Maximum number of content hashes of prompt blocks in the replayed time window, all requests together.
const MAX_BLOCKS: usize = 16 << 20;

/// Recorded requests that lie in the time window that is replayed.
#[derive(Debug, Default, PartialEq)]
pub(super) struct Rows {
    pub(super) entries: Arc<[TraceEntry]>,
    /// Number of recorded requests that were skipped because they had no prompt or no output tokens.
    pub(super) skipped: u64,
}

/// Reads a file of recorded traffic up to the end of the time window that is replayed; later lines are not read.
pub(super) fn read(trace: &Trace, path: &Path) -> Result<Rows, WorkloadError> {
    let failed = |source: io::Error| WorkloadError::Read { path: path.to_owned(), source };
    let lines = lines::open(path).map_err(failed)?;
    Window::of(trace).fill(lines).map_err(|fault| match fault {
        Fault::Read(source) => failed(source),
        Fault::Line(line, problem) => {
            WorkloadError::Invalid { path: path.to_owned(), field: format!("line {line}"), problem }
        }
    })
}

/// State while reading a file of recorded traffic: the requests kept so far, and which later ones to keep.
struct Window {
    from_ns: i128,
    length_ns: Option<i128>,
    skip_empty: bool,
    /// Time at which the recorded traffic begins, and time of the last request read, ns; `None` before the first
    /// request.
    seen_ns: Option<(i128, i128)>,
    entries: Vec<TraceEntry>,
    blocks: usize,
    skipped: u64,
}

impl Window {
    fn of(trace: &Trace) -> Window {
        let ns = |s: f64| (s * 1e9).round() as i128;
        Window {
            from_ns: ns(trace.from_s),
            length_ns: trace.length_s.map(ns),
            skip_empty: trace.skip_empty,
            seen_ns: None,
            entries: Vec::new(),
            blocks: 0,
            skipped: 0,
        }
    }

    fn fill<R: Read>(mut self, mut lines: Lines<R>) -> Result<Rows, Fault> {
        let mut format = None;
        let mut last = 1;
        while let Some((number, line)) = lines.next()? {
            last = number;
            let problem = |problem| Fault::Line(number, problem);
            let (of, is_header) = match format {
                Some(of) => (of, false),
                None => {
                    let of = Format::of(line).map_err(problem)?;
                    (*format.insert(of), of.has_header())
                }
            };
            if is_header || line.trim().is_empty() {
                continue;
            }
            let row = of.row(line).map_err(problem)?;
            if self.is_over(of, number, row).map_err(problem)? {
                break;
            }
        }
        if format.is_none() {
            return Err(Fault::Line(1, Format::of("").err().unwrap_or_default()));
        }
        match self.seen_ns {
            Some(_) if !self.entries.is_empty() => {}
            seen => return Err(Fault::Line(last, self.nothing(seen))),
        }
        Ok(Rows { entries: self.entries.into(), skipped: self.skipped })
    }

    /// Keeps a recorded request if it lies in the replayed time window; one without prompt or output tokens is an error
    /// there, or skipped if the workload says so. Returns true if the request comes after the window, so that reading
    /// can end.
    fn is_over(&mut self, format: Format, line: u32, row: Row) -> Result<bool, String> {
        let Row { at_ns, prompt_tokens, output_tokens, blocks } = row;
        let zero_ns = if format.begins_at_zero() { 0 } else { at_ns };
        let (begin_ns, last_ns) = self.seen_ns.unwrap_or((zero_ns, at_ns));
        if at_ns < last_ns {
            return Err("is earlier than the row before; sort the file by time".into());
        }
        self.seen_ns = Some((begin_ns, at_ns));
        let within_ns = at_ns - begin_ns - self.from_ns;
        if within_ns < 0 {
            return Ok(false);
        }
        if self.length_ns.is_some_and(|length_ns| within_ns >= length_ns) {
            return Ok(true);
        }
        if prompt_tokens == 0 || output_tokens == 0 {
            if !self.skip_empty {
                return Err(format!(
                    "has {prompt_tokens} prompt and {output_tokens} output tokens; allowed: 1 to \
                     {MAX_TOKENS}, or skip_empty = true in the workload, which leaves such rows out"
                ));
            }
            self.skipped += 1;
            return Ok(false);
        }
        self.blocks += blocks.as_ref().map_or(0, |blocks| blocks.len());
        if self.entries.len() as u64 == MAX_REQUESTS || self.blocks > MAX_BLOCKS {
            return Err(format!(
                "is more than the window may hold, {MAX_REQUESTS} rows with {MAX_BLOCKS} hash_ids; \
                 set a smaller length_s"
            ));
        }
        let at_s = within_ns as f64 / 1e9;
        let recorded = None;
        let entry = TraceEntry { line, at_s, prompt_tokens, output_tokens, blocks, recorded };
        self.entries.push(entry);
        Ok(false)
    }

    /// Returns the error text for a file of recorded traffic that has no request in the replayed time window.
    fn nothing(&self, seen_ns: Option<(i128, i128)>) -> String {
        match seen_ns {
            None => "is followed by no row".into(),
            Some((begin_ns, last_ns)) => format!(
                "is the last that was read, at {:.3} s of the trace, and the window (from_s, length_s) \
                 has no row to send",
                (last_ns - begin_ns) as f64 / 1e9
            ),
        }
    }
}
