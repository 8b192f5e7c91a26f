//! Parser of `BurstGPT`'s recorded traffic. File 3 of the data set has two more columns: the name of the conversation
//! and the time that the answer took. Failed requests have 0 response tokens.

use super::format::{Row, fields, seconds_ns, tokens};

pub(super) const HEADER: &str =
    "Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type";
const HEADER_3: &str =
    "Timestamp,Session ID,Elapsed time,Model,Request tokens,Response tokens,Total tokens,Log Type";
/// Latest time that is accepted in `BurstGPT`'s recorded traffic, seconds; the published files end at 29 million
/// seconds.
const MAX_TIME_S: f64 = 1e9;

/// Set of columns in a CSV file of the `BurstGPT` data set.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Columns {
    /// The six columns of files 1 and 2 of the `BurstGPT` data set.
    Six,
    /// The eight columns of file 3 of the `BurstGPT` data set.
    Eight,
}

impl Columns {
    pub(super) fn of(header: &str) -> Option<Columns> {
        match header {
            HEADER => Some(Columns::Six),
            HEADER_3 => Some(Columns::Eight),
            _ => None,
        }
    }

    pub(super) fn row(self, line: &str) -> Result<Row, String> {
        let (time, request, response) = match self {
            Columns::Six => {
                let [time, _, request, response, _, _] = fields(line, HEADER)?;
                (time, request, response)
            }
            Columns::Eight => {
                let [time, _, _, _, request, response, _, _] = fields(line, HEADER_3)?;
                (time, request, response)
            }
        };
        Ok(Row {
            at_ns: seconds_ns("Timestamp", time, MAX_TIME_S)?,
            prompt_tokens: tokens("Request tokens", request)?,
            output_tokens: tokens("Response tokens", response)?,
            blocks: None,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_sets_of_columns_are_read() {
        let of = |row: Row| (row.at_ns, row.prompt_tokens, row.output_tokens);
        let six = Columns::of(HEADER).unwrap().row("45,ChatGPT,1087,230,1317,Conversation log");
        assert_eq!(of(six.unwrap()), (45_000_000_000, 1087, 230));
        let line = "19440110.5,1722ac82-0a46,43,GPT-4,906,0,906,API log";
        let eight = Columns::of(HEADER_3).unwrap().row(line);
        assert_eq!(of(eight.unwrap()), (19_440_110_500_000_000, 906, 0));
    }

    #[test]
    fn a_bad_field_is_named_with_what_is_allowed() {
        for (line, says) in [
            ("45,ChatGPT,1087,230,1317", "has 5 fields; allowed: the 6 of Timestamp,Model"),
            ("-1,ChatGPT,1087,230,1317,API log", "has the Timestamp \"-1\"; allowed: 0 to"),
            ("inf,ChatGPT,1087,230,1317,API log", "has the Timestamp \"inf\""),
            ("45,ChatGPT,,230,1317,API log", "has the Request tokens \"\"; allowed: 1 to"),
            ("45,ChatGPT,1087,2e3,1317,API log", "has the Response tokens \"2e3\""),
        ] {
            let problem = Columns::Six.row(line).unwrap_err();
            assert!(problem.contains(says), "{line}: {problem}");
        }
    }
}
