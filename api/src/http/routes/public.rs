//! The routes of the public listener: OpenAI's API, and the requests of the caller's tenant.

use crate::control::query::Listing;
use crate::control::requests;
use crate::document::Endpoint;
use crate::document::schema::path;
use crate::http::pages;
use crate::openai;

/// Returns the routes that only the public listener has.
pub(super) fn endpoints() -> Vec<Endpoint> {
    generation().into_iter().chain(texts()).chain(own()).collect()
}

/// Routes that generate text.
fn generation() -> [Endpoint; 2] {
    let failures = [403, 404, 409, 429, 500, 503, 504];
    [
        Endpoint::post("/v1/chat/completions", openai::chat)
            .named("create_chat_completion", "Answers a conversation.")
            .with(openai::generation_headers())
            .takes::<openai::ChatRequest>()
            .answers::<openai::ChatCompletion>(200, "The answer, or its event stream.")
            .streams::<openai::ChatCompletionChunk>(
                "The stream has pieces of the answer, then `[DONE]`.",
            )
            .fails(failures),
        Endpoint::post("/v1/completions", openai::completions)
            .named("create_completion", "Continues one or several texts.")
            .with(openai::generation_headers())
            .takes::<openai::TextRequest>()
            .answers::<openai::TextCompletion>(200, "The continuations, or their event stream.")
            .streams::<openai::TextCompletionChunk>(
                "The stream has pieces of the texts, then `[DONE]`.",
            )
            .fails(failures),
    ]
}

/// Routes about the model and its tokens.
fn texts() -> [Endpoint; 4] {
    [
        Endpoint::post("/tokenize", openai::tokenize)
            .named("tokenize", "Turns a text or a conversation into tokens.")
            .takes::<openai::TokenizeRequest>()
            .answers::<openai::Tokens>(200, "The tokens.")
            .fails([403, 404, 429, 500, 503]),
        Endpoint::post("/detokenize", openai::detokenize)
            .named("detokenize", "Turns tokens into a text.")
            .takes::<openai::DetokenizeRequest>()
            .answers::<openai::Text>(200, "The text.")
            .fails([403, 404, 429, 500, 503]),
        Endpoint::get("/v1/models", pages::models)
            .named("list_models", "Lists the served model under each of its names.")
            .answers::<pages::ModelList>(200, "The names.")
            .fails([403, 503]),
        Endpoint::get("/v1/models/{id:.+}", pages::model)
            .named("retrieve_model", "Describes the served model under one of its names.")
            .with([path("id", "Name of the model, which may contain slashes.")])
            .answers::<pages::ModelCard>(200, "The model.")
            .fails([403, 404, 503]),
    ]
}

/// Routes about the requests of the caller's tenant, and about steps.
fn own() -> [Endpoint; 3] {
    [
        Endpoint::get("/v1/requests", requests::own)
            .named("list_own_requests", "Lists the live requests of the caller's tenant.")
            .with(Listing::parameters())
            .answers::<requests::RequestList<'_>>(200, "The requests.")
            .fails([400, 403, 503]),
        Endpoint::post("/v1/requests/{id}/cancel", requests::cancel_own)
            .named("cancel_own_request", "Cancels a request of the caller's tenant.")
            .with([path("id", requests::ID)])
            .answers::<requests::RequestChanges>(200, "The request before the change.")
            .fails([403, 404, 409, 503]),
        Endpoint::get("/debug/steps", pages::steps)
            .named("latest_steps", "Shows contents and times of the latest steps.")
            .with(pages::StepsQuery::parameters())
            .answers::<pages::LatestSteps<'_>>(200, "The steps.")
            .fails([400, 403, 503]),
    ]
}
