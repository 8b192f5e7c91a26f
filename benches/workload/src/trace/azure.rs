//! Parser of the Azure Public Dataset's LLM inference traces. Times of 2023 look like `2023-11-16 18:15:46.6805900`,
//! without a time zone.
//! Times of 2024 look like `2024-05-10 00:00:00.009930+00:00`, or on whole seconds `2024-05-12 00:00:00+00:00`.

use super::format::{Row, fields, tokens};
use jiff::Timestamp;
use jiff::civil::DateTime;
use jiff::tz::TimeZone;

pub(super) const HEADER: &str = "TIMESTAMP,ContextTokens,GeneratedTokens";

pub(super) fn row(line: &str) -> Result<Row, String> {
    let [time, context, generated] = fields(line, HEADER)?;
    let at = timestamp(time).ok_or_else(|| {
        format!(
            "has the TIMESTAMP {time:?}; allowed: as 2023-11-16 18:15:46.6805900 or \
             2024-05-10 00:00:00.009930+00:00"
        )
    })?;
    Ok(Row {
        at_ns: at.as_nanosecond(),
        prompt_tokens: tokens("ContextTokens", context)?,
        output_tokens: tokens("GeneratedTokens", generated)?,
        blocks: None,
    })
}

/// Parses the time of a request in Azure's recorded traffic. A time without a zone is taken as UTC; any zone would do,
/// because only differences of times are used.
fn timestamp(text: &str) -> Option<Timestamp> {
    if let Ok(at) = text.parse() {
        return Some(at);
    }
    let civil: DateTime = text.parse().ok()?;
    civil.to_zoned(TimeZone::UTC).ok().map(|zoned| zoned.timestamp())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_of_both_years_are_read_to_the_last_digit() {
        let ns = |time: &str| row(&format!("{time},374,44")).unwrap().at_ns;
        assert_eq!(
            ns("2023-11-16 18:15:50.9951690") - ns("2023-11-16 18:15:46.6805900"),
            4_314_579_000
        );
        assert_eq!(
            ns("2024-05-12 00:00:01+00:00") - ns("2024-05-12 00:00:00.001163+00:00"),
            998_837_000
        );
        assert_eq!(ns("2024-05-12 02:00:00+02:00"), ns("2024-05-12 00:00:00"));
        let row = row("2024-05-10 00:00:00.009930+00:00,2162,5").unwrap();
        assert_eq!((row.prompt_tokens, row.output_tokens, row.blocks), (2162, 5, None));
    }

    #[test]
    fn a_bad_field_is_named_with_what_is_allowed() {
        for (line, says) in [
            ("2023-11-16 18:15:46,374", "has 2 fields; allowed: the 3 of TIMESTAMP"),
            ("18:15:46,374,44", "has the TIMESTAMP \"18:15:46\"; allowed: as 2023"),
            ("2023-13-16 18:15:46,374,44", "has the TIMESTAMP"),
            ("2023-11-16 18:15:46,x,44", "has the ContextTokens \"x\"; allowed: 1 to"),
            ("2023-11-16 18:15:46,374,1.5", "has the GeneratedTokens \"1.5\""),
        ] {
            let problem = row(line).unwrap_err();
            assert!(problem.contains(says), "{line}: {problem}");
        }
    }
}
