//! The endpoints `POST /tokenize` and `POST /detokenize`, with the JSON form that vLLM uses.

use crate::boot::App;
use crate::http::{ApiError, JsonRequest};
use crate::openai::fields::Fields;
use crate::openai::request::token_ids;
use crate::openai::tools::{self, Offer};
use crate::openai::unsupported::refuse_fields_of_vllm;
use actix_web::HttpResponse;
use actix_web::web::Data;
use serde::Serialize;
use tiercel_device::Tier;
use utoipa::ToSchema;

/// Tokens of a text.
#[derive(Serialize, ToSchema)]
pub(crate) struct Tokens {
    /// Number of tokens.
    count: usize,
    /// Context length, tokens (prompt and output together).
    max_model_len: u32,
    tokens: Vec<u32>,
    /// Texts of the tokens, if the request asks for them.
    #[serde(skip_serializing_if = "Option::is_none")]
    token_strs: Option<Vec<String>>,
}

/// Text of some tokens.
#[derive(Serialize, ToSchema)]
pub(crate) struct Text {
    prompt: String,
}

/// Handler of `POST /tokenize`: returns the tokens of the field `prompt`, or of the conversation `messages`. No
/// generation waits for them, so the text is tokenized at background tier. Until then the request takes a place of its
/// tenant, but counts towards no limit of its key.
pub(crate) async fn tokenize(
    app: Data<App>,
    JsonRequest { caller, body }: JsonRequest,
) -> Result<HttpResponse, ApiError> {
    let serving = app.accepting()?;
    let fields = Fields::root(&body)?;
    serving.check_model(fields.string("model")?)?;
    let _place = app.meters.take_places(&caller.tenant, (1, app.keys.tenants() > 1))?;
    let of = app.text_of(Tier::Background, &caller);
    let wants_texts = fields.boolean("return_token_strs")?;
    let tokens = match fields.string("prompt")? {
        Some(prompt) => {
            let special = fields.boolean_or("add_special_tokens", true)?;
            serving.tokenize(of, prompt.to_owned(), special).await?
        }
        None if fields.get("messages").is_none() => {
            let message = "'prompt' or 'messages' is required";
            return Err(ApiError::param("prompt", message).code("missing"));
        }
        None => {
            refuse_unsupported(&fields)?;
            let conversation = tools::conversation(&fields, &Offer::read(&fields)?)?;
            serving.tokenize_chat(of, conversation).await?.tokens.into()
        }
    };
    let text = |id: &u32| String::from_utf8_lossy(&serving.text.token_bytes(*id)).into_owned();
    let texts = || tokens.iter().map(text).collect();
    Ok(HttpResponse::Ok().json(Tokens {
        count: tokens.len(),
        max_model_len: serving.context_tokens,
        token_strs: wants_texts.then(texts),
        tokens: tokens.to_vec(),
    }))
}

/// Refuses the fields that a chat request may not have either: some of vLLM's, and `add_special_tokens`.
fn refuse_unsupported(fields: &Fields<'_>) -> Result<(), ApiError> {
    refuse_fields_of_vllm(fields)?;
    if fields.boolean("add_special_tokens")? {
        let message = "'add_special_tokens' is not supported with 'messages'; leave it out";
        return Err(ApiError::unsupported("add_special_tokens", message));
    }
    Ok(())
}

/// Handler of `POST /detokenize`: returns the text of the token ids in the field `tokens`. Limited like
/// [`tokenize`].
pub(crate) async fn detokenize(
    app: Data<App>,
    JsonRequest { caller, body }: JsonRequest,
) -> Result<HttpResponse, ApiError> {
    let serving = app.accepting()?;
    let fields = Fields::root(&body)?;
    serving.check_model(fields.string("model")?)?;
    let _place = app.meters.take_places(&caller.tenant, (1, app.keys.tenants() > 1))?;
    let of = app.text_of(Tier::Background, &caller);
    let ids = fields
        .array("tokens")?
        .ok_or_else(|| ApiError::param("tokens", "'tokens' is required").code("missing"))?;
    let tokens = token_ids(ids, "tokens", serving.vocab_size())?;
    Ok(HttpResponse::Ok().json(Text { prompt: serving.decode(of, tokens).await? }))
}
