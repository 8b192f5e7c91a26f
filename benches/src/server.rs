//! Questions that the load client asks a server before a run: which model it serves, and which token ids common words
//! have.

use crate::http::{Endpoint, HttpError};
use crate::prompt::{Vocabulary, WORDS};
use hyper::body::Bytes;
use serde::Deserialize;
use serde_json::json;

/// Minimum number of distinct token ids to draw prompts from. If the server's tokenizer returns fewer, prompts are sent
/// as words.
const MIN_IDS: usize = 64;

/// What a server told the load client before a run: model, `Server` header, and vocabulary for prompts.
#[derive(Debug)]
pub(crate) struct Discovered {
    pub(crate) model: String,
    pub(crate) server: Option<String>,
    pub(crate) vocabulary: Vocabulary,
}

#[derive(Deserialize)]
struct Models {
    data: Vec<Model>,
}

#[derive(Deserialize)]
struct Model {
    id: String,
}

#[derive(Deserialize)]
struct Tokens {
    tokens: Vec<u32>,
}

/// Asks the server which model it serves and for the token ids of common words. A `model` that is given is used instead
/// of the server's.
pub(crate) async fn discover(
    endpoint: &Endpoint,
    model: Option<&str>,
) -> Result<Discovered, HttpError> {
    let (status, server, body) = endpoint.exchange("/v1/models", None).await?;
    let listed = serde_json::from_slice::<Models>(&body).ok().filter(|_| status.is_success());
    let first = listed.and_then(|models| models.data.into_iter().next()).map(|model| model.id);
    let model = model.map(str::to_owned).or(first).ok_or_else(|| {
        HttpError::Answer(format!("/v1/models answered {status} and names no model; give one"))
    })?;
    let vocabulary = match tokenize(endpoint, &model).await? {
        Some(ids) => Vocabulary::Ids(ids),
        None => Vocabulary::Words,
    };
    Ok(Discovered { model, server, vocabulary })
}

/// Returns the token ids of common English words, or `None` if the server cannot tokenize or returns too few distinct
/// ids.
async fn tokenize(endpoint: &Endpoint, model: &str) -> Result<Option<Vec<u32>>, HttpError> {
    // Begin the text with a space, so that its first word becomes the same kind of token as the words after it.
    let text = format!(" {WORDS}");
    let body = json!({"model": model, "prompt": text, "add_special_tokens": false}).to_string();
    let (status, _, answer) = endpoint.exchange("/tokenize", Some(body.into_bytes())).await?;
    Ok(if status.is_success() { word_ids(&answer) } else { None })
}

fn word_ids(answer: &Bytes) -> Option<Vec<u32>> {
    let mut ids = serde_json::from_slice::<Tokens>(answer).ok()?.tokens;
    ids.sort_unstable();
    ids.dedup();
    (ids.len() >= MIN_IDS).then_some(ids)
}
