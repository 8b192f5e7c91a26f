//! Paths of OpenAI's API that this server does not serve, and likely mistakes in the paths that it does serve.

const TEXT_ONLY: &str = "this server generates text only";
const OTHER_MODEL: &str =
    "this server only generates text; use a server whose model is made for this task";
const CHAT: &str = "use POST /v1/chat/completions with the whole conversation in `messages`";
const NOTHING_STORED: &str = "this server stores nothing";
const NOW: &str = "send the requests themselves to POST /v1/chat/completions; `\"service_tier\": \"flex\"` is \
                   for work that can wait";
const NO_TRAINING: &str =
    "this server does not train models; start it with a trained model (--model)";

/// Paths of OpenAI's API, and of its extensions by other servers, that this server does not serve: the first part of
/// the path after `/v1/`, and advice what to use instead.
const UNSERVED: [(&str, &str); 29] = [
    ("assistants", CHAT),
    ("audio", TEXT_ONLY),
    ("batches", NOW),
    ("classify", OTHER_MODEL),
    ("containers", NOTHING_STORED),
    ("conversations", CHAT),
    ("edits", CHAT),
    ("embeddings", OTHER_MODEL),
    ("engines", CHAT),
    ("evals", NO_TRAINING),
    ("files", NOW),
    ("fine-tunes", NO_TRAINING),
    ("fine_tuning", NO_TRAINING),
    ("images", TEXT_ONLY),
    ("messages", CHAT),
    ("moderations", OTHER_MODEL),
    ("organization", NOTHING_STORED),
    ("pooling", OTHER_MODEL),
    ("realtime", TEXT_ONLY),
    ("rerank", OTHER_MODEL),
    ("responses", CHAT),
    ("score", OTHER_MODEL),
    ("skills", NOTHING_STORED),
    ("threads", CHAT),
    ("uploads", NOW),
    ("vector_stores", NOTHING_STORED),
    ("videos", TEXT_ONLY),
    ("chatkit", CHAT),
    ("answers", CHAT),
];
/// Path prefix under which OpenAI serves stored answers; this server stores none.
const STORED_ANSWERS: &str = "/v1/chat/completions/";

/// Paths of OpenAI's API that this server serves below `/v1`, without that prefix.
const SERVED: [&str; 3] = ["/chat/completions", "/completions", "/models"];

/// Returns advice what to use instead of `path`, if OpenAI's API, or an extension of it by other servers, has the path
/// and this server does not.
pub(super) fn instead(path: &str) -> Option<&'static str> {
    let stored = path.strip_prefix(STORED_ANSWERS).map(|rest| rest.trim_start_matches('/'));
    if stored.is_some_and(|rest| !rest.is_empty()) {
        return Some(NOTHING_STORED);
    }
    let rest = path.strip_prefix("/v1/")?;
    let first = rest.split('/').next()?;
    UNSERVED.iter().find(|(name, _)| *name == first).map(|(_, instead)| *instead)
}

/// Returns a hint which path a client probably meant by an unknown `path`.
pub(super) fn meant(path: &str) -> Option<String> {
    let path = path.trim_end_matches('/');
    if path.is_empty() || path == "/v1" {
        return Some("the API is below /v1, such as /v1/models".into());
    }
    let rest = path.strip_prefix("/v1/v1").unwrap_or(path);
    let served = SERVED.iter().find(|served| rest == **served || path.ends_with(*served))?;
    let advice = match path.strip_prefix("/v1") == Some(*served) {
        true => "Leave out the last slash",
        false => "The base URL of clients ends with /v1",
    };
    Some(format!("did you mean /v1{served}? {advice}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn routes_of_openai_are_known_and_others_are_not() {
        for path in ["/v1/embeddings", "/v1/audio/speech", "/v1/responses/r1/cancel"] {
            assert!(instead(path).is_some(), "{path}");
        }
        assert_eq!(instead("/v1/chat/completions/chatcmpl-1"), Some(NOTHING_STORED));
        let slash = "/v1/chat/completions/";
        for path in ["/v1/nonsense", "/embeddings", "/v1", "/", "/v1/embeddingsx", slash] {
            assert_eq!(instead(path), None, "{path}");
        }
    }

    #[test]
    fn a_base_url_that_is_wrong_is_recognised() {
        for path in ["/chat/completions", "/v1/v1/chat/completions", "/api/v1/chat/completions/"]
            .into_iter()
            .chain(["/v1/chat/completions/"])
        {
            let meant = meant(path).unwrap();
            assert!(meant.starts_with("did you mean /v1/chat/completions?"), "{path}: {meant}");
        }
        let slash = meant("/v1/models/").unwrap();
        assert_eq!(slash, "did you mean /v1/models? Leave out the last slash");
        assert_eq!(meant("/").unwrap(), "the API is below /v1, such as /v1/models");
        assert_eq!(meant("/nowhere"), None);
    }
}
