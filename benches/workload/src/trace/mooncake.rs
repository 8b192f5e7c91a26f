//! Parser of Mooncake's recorded traffic: a JSON object per line, with a time in milliseconds and a content hash for
//! each block of the prompt.

use super::format::Row;
use crate::length::MAX_TOKENS;
use serde::Deserialize;
use std::sync::Arc;

/// Size of a prompt block in Mooncake's recorded traffic, tokens. Blocks with equal hashes have equal text.
pub const BLOCK_TOKENS: u32 = 512;
/// Latest time that is accepted in Mooncake's recorded traffic, ms: about three years.
const MAX_TIME_MS: u64 = 100_000_000_000;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Line {
    timestamp: u64,
    input_length: u32,
    output_length: u32,
    hash_ids: Vec<u64>,
}

pub(super) fn row(line: &str) -> Result<Row, String> {
    let line: Line = serde_json::from_str(line).map_err(|error| {
        format!("is no object of timestamp (ms), input_length, output_length and hash_ids: {error}")
    })?;
    let Line { timestamp, input_length, output_length, hash_ids } = line;
    if timestamp > MAX_TIME_MS {
        return Err(format!("has the timestamp {timestamp}; allowed: 0 to {MAX_TIME_MS} ms"));
    }
    for (name, tokens) in [("input_length", input_length), ("output_length", output_length)] {
        if tokens > MAX_TOKENS {
            return Err(format!("has the {name} {tokens}; allowed: 1 to {MAX_TOKENS}"));
        }
    }
    let (count, blocks) = (hash_ids.len(), input_length.div_ceil(BLOCK_TOKENS));
    if count != blocks as usize {
        return Err(format!(
            "has {count} hash_ids; a prompt of {input_length} tokens has {blocks} blocks of {BLOCK_TOKENS}"
        ));
    }
    Ok(Row {
        at_ns: i128::from(timestamp) * 1_000_000,
        prompt_tokens: input_length,
        output_tokens: output_length,
        blocks: Some(Arc::from(hash_ids)),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_object_is_a_row_with_its_blocks() {
        let line = r#"{"timestamp": 27482, "input_length": 1025, "output_length": 52, "hash_ids": [46, 47, 2353]}"#;
        let row = row(line).unwrap();
        assert_eq!((row.at_ns, row.prompt_tokens, row.output_tokens), (27_482_000_000, 1025, 52));
        assert_eq!(row.blocks.as_deref(), Some(&[46, 47, 2353][..]));
    }

    #[test]
    fn a_bad_line_is_refused_with_what_is_allowed() {
        let good = r#"{"timestamp":1,"input_length":513,"output_length":5,"hash_ids":[1,2]}"#;
        row(good).unwrap();
        for (old, new, says) in [
            ("}", "", "is no object of timestamp (ms), input_length"),
            ("\"timestamp\":1,", "", "missing field `timestamp`"),
            ("5,", "5,\"type\":\"text\",", "unknown field `type`"),
            (":1,", ":-1,", "is no object"),
            (":1,", ":100000000001,", "has the timestamp 100000000001; allowed: 0 to"),
            ("513", "1000001", "has the input_length 1000001; allowed: 1 to 1000000"),
            (":5,", ":1000001,", "has the output_length 1000001"),
            ("[1,2]", "[1]", "has 1 hash_ids; a prompt of 513 tokens has 2 blocks of 512"),
            ("[1,2]", "[1,2,3]", "has 3 hash_ids"),
        ] {
            assert!(good.contains(old), "{old}");
            let problem = row(&good.replacen(old, new, 1)).unwrap_err();
            assert!(problem.contains(says), "{new}: {problem}");
        }
    }
}
