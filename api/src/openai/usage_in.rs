//! Reads the field `stream_options`, which says which chunks of a response stream have token counts.

use crate::http::ApiError;
use crate::openai::fields::Fields;

/// Chunks of a response stream that have token counts, as `stream_options` asks for them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum UsageIn {
    /// No chunk has token counts.
    Nothing,
    /// The last chunk has the token counts of the request. All other chunks have `"usage": null`.
    Last,
    /// The last chunk has the token counts of the request, and every other chunk has the token counts of its choice so
    /// far.
    Every,
}

impl UsageIn {
    /// Reads the field `stream_options`. As in vLLM, `continuous_usage_stats` has an effect only with `include_usage`.
    pub(crate) fn of_body(body: &Fields<'_>, stream: bool) -> Result<UsageIn, ApiError> {
        let Some(options) = body.object("stream_options")? else { return Ok(UsageIn::Nothing) };
        if !stream {
            return Err(ApiError::param(
                "stream_options",
                "'stream_options' needs 'stream' to be true",
            ));
        }
        let (include, continuous) =
            (options.boolean("include_usage")?, options.boolean("continuous_usage_stats")?);
        Ok(match (include, continuous) {
            (false, _) => UsageIn::Nothing,
            (true, false) => UsageIn::Last,
            (true, true) => UsageIn::Every,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    #[test]
    fn continuous_usage_needs_include_usage() {
        let usage_in = |options: Value| {
            UsageIn::of_body(&Fields::root(&json!({"stream_options": options})).unwrap(), true)
        };
        assert_eq!(usage_in(json!(null)).unwrap(), UsageIn::Nothing);
        assert_eq!(usage_in(json!({"continuous_usage_stats": true})).unwrap(), UsageIn::Nothing);
        assert_eq!(usage_in(json!({"include_usage": true})).unwrap(), UsageIn::Last);
        let both = json!({"include_usage": true, "continuous_usage_stats": true});
        assert_eq!(usage_in(both).unwrap(), UsageIn::Every);
        let wrong = json!({"include_usage": true, "continuous_usage_stats": "yes"});
        let error = usage_in(wrong).unwrap_err().body();
        assert_eq!(error["error"]["param"], "stream_options.continuous_usage_stats");
        let body = json!({"stream_options": {"include_usage": true}});
        assert!(UsageIn::of_body(&Fields::root(&body).unwrap(), false).is_err(), "no stream");
    }
}
