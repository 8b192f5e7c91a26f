//! Detects the format of a file of recorded traffic and parses its lines into requests.

use super::{azure, burstgpt, mooncake, native};
use crate::length::MAX_TOKENS;
use std::sync::Arc;

/// File format of recorded traffic (a trace file).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Format {
    /// Tiercel's own CSV with the columns `at_s,prompt_tokens,output_tokens`.
    Native,
    /// CSV of the Azure Public Dataset's LLM inference trace of 2023 or 2024.
    Azure,
    /// CSV of the `BurstGPT` data set.
    BurstGpt(burstgpt::Columns),
    /// Mooncake's format: a JSON object per line, without a header.
    Mooncake,
}

/// One request of recorded traffic, parsed from one line of a trace file.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Row {
    /// Arrival time of the recorded request, ns since a moment that is the same for all lines of the file.
    pub(super) at_ns: i128,
    pub(super) prompt_tokens: u32,
    pub(super) output_tokens: u32,
    pub(super) blocks: Option<Arc<[u64]>>,
}

impl Format {
    /// Detects the format of a file of recorded traffic from its first line. The error lists the allowed first lines.
    pub(super) fn of(first_line: &str) -> Result<Format, String> {
        let line = first_line.trim();
        let found = match line {
            native::HEADER => Some(Format::Native),
            azure::HEADER => Some(Format::Azure),
            _ if line.starts_with('{') => Some(Format::Mooncake),
            _ => burstgpt::Columns::of(line).map(Format::BurstGpt),
        };
        found.ok_or_else(|| {
            format!(
                "begins no trace; allowed: {} | {} (Azure) | {} (BurstGPT) | a JSON object (Mooncake)",
                native::HEADER,
                azure::HEADER,
                burstgpt::HEADER,
            )
        })
    }

    /// Whether the first line of a file of recorded traffic in this format is a header.
    pub(super) fn has_header(self) -> bool {
        self != Format::Mooncake
    }

    /// Whether recorded traffic in this format begins at time 0. In the other formats it begins at the time of the
    /// first request.
    pub(super) fn begins_at_zero(self) -> bool {
        self == Format::Native
    }

    /// Parses a line of a file of recorded traffic into a request. The error says what is wrong with the line.
    pub(super) fn row(self, line: &str) -> Result<Row, String> {
        match self {
            Format::Native => native::row(line),
            Format::Azure => azure::row(line),
            Format::BurstGpt(columns) => columns.row(line),
            Format::Mooncake => mooncake::row(line),
        }
    }
}

/// Splits a line of a CSV file into its fields. No public data set of traffic puts a field in quotation marks, so a
/// quotation mark is treated as an ordinary character.
pub(super) fn fields<'a, const N: usize>(
    line: &'a str,
    header: &str,
) -> Result<[&'a str; N], String> {
    let fields: Vec<&str> = line.split(',').map(str::trim).collect();
    let count = fields.len();
    fields.try_into().map_err(|_| format!("has {count} fields; allowed: the {N} of {header}"))
}

/// Parses a number of tokens from a CSV field. Accepts 0, because failed requests are recorded with 0 tokens; whether
/// they are skipped or an error is decided later.
pub(super) fn tokens(name: &str, field: &str) -> Result<u32, String> {
    let tokens = field.parse().ok().filter(|tokens| *tokens <= MAX_TOKENS);
    tokens.ok_or_else(|| format!("has the {name} {field:?}; allowed: 1 to {MAX_TOKENS}"))
}

/// Parses a time from 0 to `most` seconds and returns it in nanoseconds.
pub(super) fn seconds_ns(name: &str, field: &str, most: f64) -> Result<i128, String> {
    let at_s = field.parse::<f64>().ok().filter(|at_s| (0.0..=most).contains(at_s));
    let at_s = at_s.ok_or_else(|| format!("has the {name} {field:?}; allowed: 0 to {most} s"))?;
    Ok((at_s * 1e9).round() as i128)
}
