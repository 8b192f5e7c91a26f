//! Arrival traces: requests as they were recorded.

use crate::file::{MAX_DURATION_S, MAX_REQUESTS, WorkloadError, read_limited};
use crate::length::MAX_TOKENS;
use std::path::Path;

const HEADER: &str = "at_s,prompt_tokens,output_tokens";
const MAX_TRACE_BYTES: u64 = 64 << 20;

/// One request of a trace.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct TraceEntry {
    /// When, seconds after the class starts.
    pub at_s: f64,
    /// Length of its prompt.
    pub prompt_tokens: u32,
    /// Length of its output.
    pub output_tokens: u32,
}

/// Reads a trace file.
pub(crate) fn read(path: &Path) -> Result<Vec<TraceEntry>, WorkloadError> {
    let text = read_limited(path, MAX_TRACE_BYTES)?;
    parse(&text).map_err(|(line, problem)| WorkloadError::Invalid {
        path: path.to_owned(),
        field: format!("line {line}"),
        problem,
    })
}

/// The entries, or the number of the first bad line and what is wrong with it.
fn parse(text: &str) -> Result<Vec<TraceEntry>, (usize, String)> {
    let mut lines = text.lines().enumerate();
    if lines.next().is_none_or(|(_, header)| header.trim() != HEADER) {
        return Err((1, format!("must be the header {HEADER}")));
    }
    let mut entries: Vec<TraceEntry> = Vec::new();
    for (index, line) in lines.filter(|(_, line)| !line.trim().is_empty()) {
        let entry = parse_line(line).map_err(|problem| (index + 1, problem))?;
        if entries.last().is_some_and(|last| last.at_s > entry.at_s) {
            return Err((index + 1, "is earlier than the line before; sort by at_s".into()));
        }
        if entries.len() as u64 == MAX_REQUESTS {
            return Err((index + 1, format!("is one request more than {MAX_REQUESTS}")));
        }
        entries.push(entry);
    }
    Ok(entries)
}

fn parse_line(line: &str) -> Result<TraceEntry, String> {
    let fields: Vec<&str> = line.split(',').map(str::trim).collect();
    let [at_s, prompt, output] = fields[..] else {
        return Err(format!("must have the three fields {HEADER}"));
    };
    let tokens = |field: &str| {
        let tokens = field.parse::<u32>().ok().filter(|n| (1..=MAX_TOKENS).contains(n));
        tokens.ok_or_else(|| format!("has the length {field:?}; allowed: 1 to {MAX_TOKENS}"))
    };
    let at_s = at_s.parse::<f64>().ok().filter(|at| (0.0..=MAX_DURATION_S).contains(at));
    Ok(TraceEntry {
        at_s: at_s.ok_or_else(|| "has no time from 0 to 86400 in its first field".to_owned())?,
        prompt_tokens: tokens(prompt)?,
        output_tokens: tokens(output)?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_good_trace_is_read() {
        let entries = parse("at_s,prompt_tokens,output_tokens\n0,10,5\n\n1.25, 7,1\n").unwrap();
        assert_eq!(
            entries,
            [
                TraceEntry { at_s: 0.0, prompt_tokens: 10, output_tokens: 5 },
                TraceEntry { at_s: 1.25, prompt_tokens: 7, output_tokens: 1 },
            ]
        );
    }

    #[test]
    fn a_bad_line_is_named() {
        let bad = [
            ("", 1),
            ("0,1,1", 1),
            ("at_s,prompt_tokens,output_tokens\n1,1", 2),
            ("at_s,prompt_tokens,output_tokens\n1,1,1\nnan,1,1", 3),
            ("at_s,prompt_tokens,output_tokens\n1,0,1", 2),
            ("at_s,prompt_tokens,output_tokens\n1,1,-1", 2),
            ("at_s,prompt_tokens,output_tokens\n1,1,1\n0.5,1,1", 3),
            ("at_s,prompt_tokens,output_tokens\n90000,1,1", 2),
        ];
        for (text, line) in bad {
            assert_eq!(parse(text).map_err(|(line, _)| line), Err(line), "{text:?}");
        }
    }
}
