//! The endpoint `POST /v1/chat/completions`, which answers conversations.

use crate::boot::App;
use crate::http::{Answering, ApiError, JsonRequest, Record, RequestId, Rights};
use crate::openai::fields::Fields;
use crate::openai::generate::{self, Job};
use crate::openai::patience;
use crate::openai::request::{Common, ModelFacts, chat_logprobs};
use crate::openai::response::Style;
use crate::openai::returning;
use crate::openai::slo;
use crate::openai::tools::{self, Offer, Parsing, ThinkingBudget};
use crate::replies::Question;
use actix_web::web::Data;
use actix_web::{HttpRequest, HttpResponse};
use serde_json::Value;
use tiercel_model::template::Conversation;

/// Handler of `POST /v1/chat/completions`: answers a conversation.
pub(crate) async fn chat(
    app: Data<App>,
    request: HttpRequest,
    JsonRequest { caller, body }: JsonRequest,
) -> Result<HttpResponse, ApiError> {
    let serving = app.accepting()?;
    let mut chat = ChatRequest::read(&body, (&serving.facts, &caller.rights))?;
    let record = Record::of(&request);
    record.tier(chat.common.tier);
    chat.common.targets = slo::or_of_headers(chat.common.targets, request.headers())?;
    chat.common.max_wait_ms = patience::or_of_headers(chat.common.max_wait_ms, request.headers())?;
    drop(body);
    let answering = Answering::begin(&request);
    let model = serving.check_model(chat.common.model.as_deref())?.to_owned();
    record.model(&model, chat.common.stream);
    let metered = match generate::enter(&app, &caller, chat.common.n as usize) {
        Ok(metered) => metered,
        Err(refusal) => return Ok(*refusal),
    };
    let listener = app.recorder.as_ref().map(|recorder| {
        let texts: Vec<_> = chat.conversation.texts().collect();
        recorder.listen(Question::of(&texts))
    });
    let prompt =
        serving.tokenize_chat(app.text_of(chat.common.tier, &caller), chat.conversation).await?;
    let forms = &serving.facts.forms;
    let parsing = Parsing::new(forms, chat.offer, &prompt.tail);
    if let Some(parsing) = &parsing {
        chat.common.rule = parsing.rule(chat.common.rule.take(), forms)?;
    }
    let limited = chat.budget.zip(parsing.clone());
    let limit = limited.map(|(budget, parsing)| budget.of_answers(serving.text.clone(), parsing));
    let job = Job {
        style: Style::Chat,
        model,
        common: chat.common,
        prompts: vec![prompt.tokens.into()],
        prompt_param: "messages",
        default_max_tokens: None,
        caller,
        request_id: RequestId::of(&request),
        returning: returning::says_so(request.headers()),
        listener,
        parsing,
        limit,
    };
    generate::answer(&app, serving, (job, metered), (answering, record)).await
}

#[derive(Debug)]
struct ChatRequest {
    common: Common,
    conversation: Conversation,
    offer: Offer,
    budget: Option<ThinkingBudget>,
}

impl ChatRequest {
    fn read(
        body: &Value,
        (model, rights): (&ModelFacts, &Rights),
    ) -> Result<ChatRequest, ApiError> {
        let fields = Fields::root(body)?;
        refuse_unsupported(&fields)?;
        let mut common = Common::read(&fields, (model, rights))?;
        common.sampling.logprobs = chat_logprobs(&fields)?;
        let offer = Offer::read(&fields)?;
        if offer.is_open() && !model.forms.has_calls() {
            let why = "this server knows no form of tool calls for its model; leave 'tools' out, send \
                       tool_choice \"none\", or have model.tool_parser set";
            return Err(ApiError::unsupported("tools", why));
        }
        let conversation = tools::conversation(&fields, &offer)?;
        let budget = ThinkingBudget::read(&fields, (&model.forms, model.vocab_size))?;
        Ok(ChatRequest { common, conversation, offer, budget })
    }
}

/// Refuses a chat request with fields that this server does not support but that would change the answer, such as
/// `audio`.
fn refuse_unsupported(fields: &Fields<'_>) -> Result<(), ApiError> {
    let wants_audio = fields
        .array("modalities")?
        .is_some_and(|kinds| kinds.iter().any(|kind| kind.as_str() != Some("text")));
    if wants_audio {
        return Err(ApiError::unsupported("modalities", "only the modality \"text\" is supported"));
    }
    if fields.get("audio").is_some_and(|audio| audio.as_object().is_none_or(|of| !of.is_empty())) {
        return Err(ApiError::unsupported("audio", "'audio' is not supported; leave it out"));
    }
    for flag in ["echo", "add_special_tokens"] {
        if fields.boolean(flag)? {
            let message = format!("'{flag}' is not supported in chats; leave it out");
            return Err(ApiError::unsupported(flag, message));
        }
    }
    if fields.array("documents")?.is_some_and(|documents| !documents.is_empty()) {
        let message = "'documents' is not supported; write their texts into a message";
        return Err(ApiError::unsupported("documents", message));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn read(extra: Value) -> Result<ChatRequest, ApiError> {
        let mut body = json!({"messages": [{"role": "user", "content": "Hi"}]});
        for (key, value) in extra.as_object().unwrap() {
            body[key] = value.clone();
        }
        let model = ModelFacts { vocab_size: 100, ..ModelFacts::default() };
        ChatRequest::read(&body, (&model, &Rights::ALL))
    }

    #[test]
    fn what_would_be_silently_wrong_is_refused() {
        for (extra, param) in [
            (json!({"response_format": {"type": "xml"}}), "response_format"),
            (json!({"tools": [{"type": "function", "function": {"name": "f"}}]}), "tools"),
            (json!({"functions": [{}], "function_call": "auto"}), "functions"),
            (json!({"modalities": ["text", "audio"]}), "modalities"),
            (json!({"top_logprobs": 2}), "top_logprobs"),
            (json!({"echo": true}), "echo"),
            (json!({"add_special_tokens": true}), "add_special_tokens"),
            (json!({"documents": [{"text": "Paris is in France."}]}), "documents"),
        ] {
            let error = read(extra.clone()).expect_err("unsupported");
            assert_eq!(error.body()["error"]["param"], param, "{extra}");
        }
    }

    #[test]
    fn what_changes_nothing_is_accepted() {
        for extra in [
            json!({"response_format": {"type": "text"}}),
            json!({"tools": []}),
            json!({"tools": [{"type": "function", "function": {"name": "f"}}], "tool_choice": "none"}),
            json!({"modalities": ["text"]}),
            json!({"echo": false, "add_special_tokens": false, "documents": []}),
            json!({"parallel_tool_calls": true, "store": false, "metadata": {}}),
        ] {
            assert!(read(extra.clone()).is_ok(), "{extra}");
        }
        let logprobs = |extra| read(extra).unwrap().common.sampling.logprobs;
        assert_eq!(logprobs(json!({"logprobs": true, "top_logprobs": 3})), Some(3));
        assert_eq!(logprobs(json!({"logprobs": true})), Some(0));
        assert_eq!(logprobs(json!({"logprobs": false})), None);
    }
}
