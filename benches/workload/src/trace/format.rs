//! Which format a file has, and a line of it into a row.

use super::{azure, burstgpt, mooncake, native};
use crate::length::MAX_TOKENS;
use std::sync::Arc;

/// What files of recorded traffic look like.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Format {
    /// `at_s,prompt_tokens,output_tokens`.
    Native,
    /// Azure Public Dataset, LLM inference trace of 2023 or 2024.
    Azure,
    /// `BurstGPT`.
    BurstGpt(burstgpt::Columns),
    /// Mooncake: an object a line, without a header.
    Mooncake,
}

/// A line of a file.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Row {
    /// Nanoseconds since a moment that is the same for all lines of the file.
    pub(super) at_ns: i128,
    pub(super) prompt_tokens: u32,
    pub(super) output_tokens: u32,
    pub(super) blocks: Option<Arc<[u64]>>,
}

impl Format {
    /// The format whose files begin with this line, or what a first line may be.
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

    /// Whether the first line is a header.
    pub(super) fn has_header(self) -> bool {
        self != Format::Mooncake
    }

    /// Whether the trace begins at 0 whenever its first row comes.
    pub(super) fn begins_at_zero(self) -> bool {
        self == Format::Native
    }

    /// A line's row, or what is wrong with the line.
    pub(super) fn row(self, line: &str) -> Result<Row, String> {
        match self {
            Format::Native => native::row(line),
            Format::Azure => azure::row(line),
            Format::BurstGpt(columns) => columns.row(line),
            Format::Mooncake => mooncake::row(line),
        }
    }
}

/// The fields of a CSV line. No public trace quotes a field, so a quote is part of one.
pub(super) fn fields<'a, const N: usize>(
    line: &'a str,
    header: &str,
) -> Result<[&'a str; N], String> {
    let fields: Vec<&str> = line.split(',').map(str::trim).collect();
    let count = fields.len();
    fields.try_into().map_err(|_| format!("has {count} fields; allowed: the {N} of {header}"))
}

/// A number of tokens; 0 is for the reader of the rows to judge.
pub(super) fn tokens(name: &str, field: &str) -> Result<u32, String> {
    let tokens = field.parse().ok().filter(|tokens| *tokens <= MAX_TOKENS);
    tokens.ok_or_else(|| format!("has the {name} {field:?}; allowed: 1 to {MAX_TOKENS}"))
}

/// Seconds from 0 to `most`, as nanoseconds.
pub(super) fn seconds_ns(name: &str, field: &str, most: f64) -> Result<i128, String> {
    let at_s = field.parse::<f64>().ok().filter(|at_s| (0.0..=most).contains(at_s));
    let at_s = at_s.ok_or_else(|| format!("has the {name} {field:?}; allowed: 0 to {most} s"))?;
    Ok((at_s * 1e9).round() as i128)
}
