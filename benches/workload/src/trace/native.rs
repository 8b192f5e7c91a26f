//! Parser of Tiercel's own format of recorded traffic: CSV with times in seconds after the beginning of the recorded
//! traffic.

use super::format::{Row, fields, seconds_ns, tokens};
use crate::file::MAX_DURATION_S;

pub(super) const HEADER: &str = "at_s,prompt_tokens,output_tokens";

pub(super) fn row(line: &str) -> Result<Row, String> {
    let [at_s, prompt, output] = fields(line, HEADER)?;
    Ok(Row {
        at_ns: seconds_ns("at_s", at_s, MAX_DURATION_S)?,
        prompt_tokens: tokens("prompt_tokens", prompt)?,
        output_tokens: tokens("output_tokens", output)?,
        blocks: None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_as_written_to_the_last_digit() {
        for at_s in ["0", "6.472", "0.1", "1739.999999", "86400"] {
            let row = row(&format!("{at_s}, 7,1")).unwrap();
            assert_eq!((row.prompt_tokens, row.output_tokens), (7, 1));
            assert_eq!(row.at_ns as f64 / 1e9, at_s.parse::<f64>().unwrap(), "{at_s}");
        }
    }

    #[test]
    fn a_bad_field_is_named_with_what_is_allowed() {
        for (line, says) in [
            ("1,1", "has 2 fields; allowed: the 3 of at_s,prompt_tokens,output_tokens"),
            ("nan,1,1", "has the at_s \"nan\"; allowed: 0 to 86400 s"),
            ("90000,1,1", "has the at_s \"90000\""),
            ("-1,1,1", "has the at_s \"-1\""),
            ("1,1000001,1", "has the prompt_tokens \"1000001\"; allowed: 1 to 1000000"),
            ("1,1,-1", "has the output_tokens \"-1\""),
        ] {
            let problem = row(line).unwrap_err();
            assert!(problem.contains(says), "{line}: {problem}");
        }
    }
}
