//! What the OpenAPI document says of the bodies and headers of requests. The limits are the constants that the fields
//! are checked with. In every optional field, null counts as absent, and unknown fields are ignored.

use crate::document::schema::{
    ANY_NUMBER, Property, any_of, array, count, flag, header, number, object, text, text_of, whole,
    word,
};
use crate::openai::messages::MAX_MESSAGES;
use crate::openai::request::{
    BIAS, MAX_BIASES, MAX_CHOICES, MAX_STOP_BYTES, MAX_STOPS, MAX_TOP_LOGPROBS, PENALTY,
    PROBABILITY, REPETITION_PENALTY, SERVICE_TIERS, TEMPERATURE, TOP_K,
};
use crate::openai::{patience, returning, slo, structured_schemas, tools};
use utoipa::openapi::path::Parameter;
use utoipa::openapi::schema::{ObjectBuilder, Schema, Type};
use utoipa::openapi::{Ref, RefOr};
use utoipa::{PartialSchema, ToSchema};

/// Body of `POST /v1/chat/completions`.
pub(crate) enum ChatRequest {}

/// Body of `POST /v1/completions`.
pub(crate) enum TextRequest {}

/// Body of `POST /tokenize`.
pub(crate) enum TokenizeRequest {}

/// Body of `POST /detokenize`.
pub(crate) enum DetokenizeRequest {}

/// A message of a conversation.
enum Message {}

/// Returns the headers that requests for generation may have.
pub(crate) fn generation_headers() -> [Parameter; 4] {
    let target = |about| number(slo::RANGE_MS, about);
    let (least, most) = patience::RANGE_MS.into_inner();
    let patience = count(u64::from(least)..=u64::from(most), "Patience, ms, if the body has none.");
    let retries =
        text("Number of the retry, as the openai package sends it; above 0 after a refusal.");
    [
        header(slo::TTFT_HEADER, target("TTFT target, ms, if the body has none.")),
        header(slo::TPOT_HEADER, target("TPOT target, ms, if the body has none.")),
        header(patience::HEADER, patience),
        header(returning::RETRY_HEADER, retries),
    ]
}

fn token_id() -> RefOr<Schema> {
    count(0..=u64::from(u32::MAX), "Id of a token of the model.")
}

fn sampling() -> Vec<Property> {
    let keys = ObjectBuilder::new().schema_type(Type::String).pattern(Some("^[0-9]+$"));
    let biases = ObjectBuilder::new()
        .schema_type(Type::Object)
        .property_names(Some(Schema::Object(keys.build())))
        .additional_properties(Some(number(BIAS, "Added to the logit of the token.")))
        .max_properties(Some(MAX_BIASES))
        .description(Some("Token ids and what to add to their logits."));
    vec![
        ("temperature", number(TEMPERATURE, "Randomness; 0 takes the most likely token.")),
        ("top_p", number(PROBABILITY, "Share of probability of the tokens to choose from.")),
        ("top_k", whole(TOP_K, "Number of tokens to choose from; -1 and 0 are no limit.")),
        ("min_p", number(PROBABILITY, "Least probability, as a share of the most likely token's.")),
        (
            "repetition_penalty",
            number(REPETITION_PENALTY, "Divides the logits of tokens that have come."),
        ),
        ("presence_penalty", number(PENALTY, "Taken from the logits of tokens that have come.")),
        ("frequency_penalty", number(PENALTY, "The same, for each time that a token has come.")),
        ("logit_bias", biases.into()),
        ("seed", seed()),
    ]
}

fn max_tokens(about: &str) -> RefOr<Schema> {
    let most = count(1..=u64::from(u32::MAX), "Most tokens.");
    any_of([most, whole(-1..=-1, "No limit.")], about)
}

fn seed() -> RefOr<Schema> {
    ObjectBuilder::new()
        .schema_type(Type::Integer)
        .minimum(Some(i64::MIN))
        .maximum(Some(u64::MAX))
        .description(Some(
            "Seed of the random numbers; the server draws one if it is absent or -1.",
        ))
        .into()
}

fn stream_options() -> RefOr<Schema> {
    let usage = flag("Whether a chunk with token counts ends the stream.");
    let every = flag(
        "Whether the other chunks have the token counts of their choice so far; needs `include_usage`.",
    );
    object("Needs `stream`.", 0, vec![("include_usage", usage), ("continuous_usage_stats", every)])
}

/// Returns the fields that say where the output ends.
fn ends() -> Vec<Property> {
    let stop = text_of(
        1..=MAX_STOP_BYTES,
        "Text that ends the output; its UTF-8 has at most 1,024 bytes.",
    );
    let stops = array(stop.clone(), 0..=MAX_STOPS, "Texts that end the output: at most 2 KiB.");
    vec![
        ("max_tokens", max_tokens("Most output tokens of a choice.")),
        ("max_completion_tokens", max_tokens("The same; goes before `max_tokens`.")),
        ("stop", any_of([stop, stops], "One text or several that end the output.")),
        ("stop_token_ids", array(token_id(), 0..=MAX_STOPS, "Tokens that end the output.")),
        (
            "include_stop_str_in_output",
            flag("Whether the text includes the stop string that ended it."),
        ),
        (
            "min_tokens",
            count(
                0..=u64::from(u32::MAX),
                "Least output tokens of a choice; no stop ends it before.",
            ),
        ),
        ("ignore_eos", flag("Whether the model's own end tokens end nothing.")),
    ]
}

/// Returns the fields that both kinds of requests for generation share.
fn common() -> Vec<Property> {
    let target = |about| number(slo::RANGE_MS, about);
    let (least, most) = patience::RANGE_MS.into_inner();
    let mut fields = vec![
        ("model", text("Name of the served model.")),
        ("stream", flag("Whether the answer comes as server-sent events.")),
        ("stream_options", stream_options()),
        (
            "n",
            count(
                1..=MAX_CHOICES as u64,
                "Choices of each prompt; all prompts together have at most 128.",
            ),
        ),
        (
            "cache_salt",
            text(
                "Namespace in the prefix cache; requests share blocks within it only. Empty counts as absent.",
            ),
        ),
        (
            "service_tier",
            word(
                &SERVICE_TIERS,
                "Tier: `priority` is premium, `default` standard, `flex` background.",
            ),
        ),
        (
            "priority",
            whole(i64::MIN..=i64::MAX, "Priority within the tier; the lower number goes first."),
        ),
        ("slo_ttft_ms", target("TTFT target of this request, ms.")),
        ("slo_tpot_ms", target("TPOT target of this request, ms.")),
        ("slo_e2e_ms", target("E2E target of this request, ms.")),
        (
            "max_wait_ms",
            count(
                u64::from(least)..=u64::from(most),
                "Patience: longest wait for the first token, ms.",
            ),
        ),
    ];
    let skip = flag("Whether the text leaves out control tokens; true by default.");
    fields.push(("skip_special_tokens", skip));
    fields.extend(ends());
    fields.extend(sampling());
    fields.extend(structured_schemas::fields());
    fields
}

fn messages() -> RefOr<Schema> {
    let message = RefOr::Ref(Ref::from_schema_name(Message::name()));
    array(message, 1..=MAX_MESSAGES, "The conversation.")
}

impl PartialSchema for Message {
    fn schema() -> RefOr<Schema> {
        tools::schemas::message()
    }
}

impl ToSchema for Message {}

impl PartialSchema for ChatRequest {
    fn schema() -> RefOr<Schema> {
        let text_only = || word(&["text"], "Only text is supported.");
        let mut fields = vec![
            ("messages", messages()),
            ("logprobs", flag("Whether the answer has log-probabilities.")),
            (
                "top_logprobs",
                count(
                    0..=u64::from(MAX_TOP_LOGPROBS),
                    "Alternative tokens of each token; needs `logprobs`.",
                ),
            ),
            ("modalities", array(text_only(), 0..=ANY_NUMBER, "Kinds of answer.")),
        ];
        fields.extend(tools::schemas::of_conversation());
        let budget =
            "Most tokens of reasoning; after this number, the model must end the reasoning.";
        fields.push(("thinking_token_budget", count(0..=u64::from(u32::MAX), budget)));
        fields.extend(common());
        object(
            "Conversation to answer. Null counts as absent, and unknown fields are ignored.",
            1,
            fields,
        )
    }
}

impl ToSchema for ChatRequest {
    fn schemas(schemas: &mut Vec<(String, RefOr<Schema>)>) {
        schemas.push((Message::name().into_owned(), Message::schema()));
    }
}

impl PartialSchema for TextRequest {
    fn schema() -> RefOr<Schema> {
        let tokens = || array(token_id(), 1..=ANY_NUMBER, "A prompt as tokens.");
        let texts = array(text("A prompt."), 1..=MAX_CHOICES, "Several prompts.");
        let several = array(tokens(), 1..=MAX_CHOICES, "Several prompts as tokens.");
        let prompt = any_of([text("A prompt."), texts, tokens(), several], "Texts to continue.");
        let choices = 0..=u64::from(MAX_TOP_LOGPROBS);
        let echo = ObjectBuilder::new()
            .schema_type(Type::Boolean)
            .enum_values(Some([false]))
            .description(Some("Not supported."));
        let mut fields = vec![
            ("prompt", prompt),
            (
                "logprobs",
                count(choices, "Alternative tokens of each token, with log-probabilities."),
            ),
            ("echo", echo.into()),
            ("suffix", text_of(0..=0, "Not supported.")),
            ("best_of", count(1..=MAX_CHOICES as u64, "Not supported beyond `n`.")),
        ];
        fields.extend(common());
        object(
            "Texts to continue. Null counts as absent, and unknown fields are ignored.",
            1,
            fields,
        )
    }
}

impl ToSchema for TextRequest {}

impl PartialSchema for TokenizeRequest {
    fn schema() -> RefOr<Schema> {
        let shared = || {
            vec![
                ("model", text("Name of the served model.")),
                ("return_token_strs", flag("Whether the answer has the texts of the tokens.")),
            ]
        };
        let special = flag("Whether the tokens that begin a text come first; true by default.");
        let mut of_text = vec![("prompt", text("Text."))];
        of_text.extend(shared());
        of_text.push(("add_special_tokens", special));
        let mut of_chat = vec![("messages", messages())];
        of_chat.extend(shared());
        of_chat.extend(tools::schemas::of_conversation());
        any_of(
            [object("A text.", 1, of_text), object("A conversation.", 1, of_chat)],
            "Text or conversation to turn into tokens.",
        )
    }
}

impl ToSchema for TokenizeRequest {
    fn schemas(schemas: &mut Vec<(String, RefOr<Schema>)>) {
        ChatRequest::schemas(schemas);
    }
}

impl PartialSchema for DetokenizeRequest {
    fn schema() -> RefOr<Schema> {
        let fields = vec![
            ("tokens", array(token_id(), 0..=ANY_NUMBER, "Ids of tokens.")),
            ("model", text("Name of the served model.")),
        ];
        object("Tokens to turn into a text.", 1, fields)
    }
}

impl ToSchema for DetokenizeRequest {}
