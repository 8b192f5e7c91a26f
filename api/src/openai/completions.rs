//! The endpoint `POST /v1/completions`, which continues texts.

use crate::boot::App;
use crate::http::{Answering, ApiError, JsonRequest, Record, RequestId, Rights};
use crate::openai::fields::{Fields, wrong};
use crate::openai::generate::{self, Job};
use crate::openai::patience;
use crate::openai::request::{Common, MAX_CHOICES, ModelFacts, text_logprobs, token_ids};
use crate::openai::response::Style;
use crate::openai::returning;
use crate::openai::slo;
use crate::replies::Question;
use actix_web::web::Data;
use actix_web::{HttpRequest, HttpResponse};
use serde_json::Value;
use tiercel_device::TokenId;

/// Default maximum of output tokens of a text completion, as in OpenAI's API.
const DEFAULT_MAX_TOKENS: u32 = 16;

/// Handler of `POST /v1/completions`: continues one or several texts.
pub(crate) async fn completions(
    app: Data<App>,
    request: HttpRequest,
    JsonRequest { caller, body }: JsonRequest,
) -> Result<HttpResponse, ApiError> {
    let serving = app.accepting()?;
    let mut text = TextRequest::read(&body, (&serving.facts, &caller.rights))?;
    let record = Record::of(&request);
    record.tier(text.common.tier);
    text.common.targets = slo::or_of_headers(text.common.targets, request.headers())?;
    text.common.max_wait_ms = patience::or_of_headers(text.common.max_wait_ms, request.headers())?;
    drop(body);
    let answering = Answering::begin(&request);
    let model = serving.check_model(text.common.model.as_deref())?.to_owned();
    record.model(&model, text.common.stream);
    let choices = text.prompts.len() * text.common.n as usize;
    let metered = match generate::enter(&app, &caller, choices) {
        Ok(metered) => metered,
        Err(refusal) => return Ok(*refusal),
    };
    let listener = match (&app.recorder, text.prompts.as_slice()) {
        (Some(recorder), [Prompt::Text(text)]) => Some(recorder.listen(Question::of_text(text))),
        _ => None,
    };
    let mut prompts = Vec::with_capacity(text.prompts.len());
    for prompt in text.prompts {
        prompts.push(match prompt {
            Prompt::Text(prompt) => {
                let of = app.text_of(text.common.tier, &caller);
                serving.tokenize(of, prompt, text.add_special_tokens).await?
            }
            Prompt::Tokens(tokens) => tokens.into(),
        });
    }
    let job = Job {
        style: Style::Text,
        model,
        common: text.common,
        prompts,
        prompt_param: "prompt",
        default_max_tokens: Some(DEFAULT_MAX_TOKENS),
        caller,
        request_id: RequestId::of(&request),
        returning: returning::says_so(request.headers()),
        listener,
        parsing: None,
        limit: None,
    };
    generate::answer(&app, serving, (job, metered), (answering, record)).await
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Prompt {
    Text(String),
    Tokens(Vec<TokenId>),
}

#[derive(Debug)]
struct TextRequest {
    common: Common,
    prompts: Vec<Prompt>,
    /// Whether the tokenizer adds the special tokens, such as the beginning-of-sequence token, that the model expects
    /// around a text.
    add_special_tokens: bool,
}

impl TextRequest {
    fn read(
        body: &Value,
        (model, rights): (&ModelFacts, &Rights),
    ) -> Result<TextRequest, ApiError> {
        let fields = Fields::root(body)?;
        let mut common = Common::read(&fields, (model, rights))?;
        refuse_unsupported(&fields, common.n)?;
        common.sampling.logprobs = text_logprobs(&fields)?;
        let prompt = fields
            .get("prompt")
            .ok_or_else(|| ApiError::param("prompt", "'prompt' is required").code("missing"))?;
        let add_special_tokens = fields.boolean_or("add_special_tokens", true)?;
        Ok(TextRequest { common, prompts: prompts(prompt, model.vocab_size)?, add_special_tokens })
    }
}

fn refuse_unsupported(fields: &Fields<'_>, n: u32) -> Result<(), ApiError> {
    if fields.boolean("echo")? {
        return Err(ApiError::unsupported("echo", "'echo' is not supported"));
    }
    if fields.string("suffix")?.is_some_and(|suffix| !suffix.is_empty()) {
        return Err(ApiError::unsupported("suffix", "'suffix' is not supported"));
    }
    match fields.count("best_of", 1..=MAX_CHOICES as u32)? {
        Some(best_of) if best_of != n => Err(ApiError::unsupported(
            "best_of",
            "'best_of' is not supported beyond 'n'; leave it out",
        )),
        _ => Ok(()),
    }
}

/// Reads the prompts of a text completion from the field `prompt`: a text, an array of texts, an array of tokens or an
/// array of arrays of tokens.
fn prompts(prompt: &Value, vocab_size: u32) -> Result<Vec<Prompt>, ApiError> {
    const FORMS: &str = "a string, an array of strings, of token ids, or of arrays of token ids";
    let items = match prompt {
        Value::String(text) => return Ok(vec![Prompt::Text(text.clone())]),
        Value::Array(items) => items,
        other => return Err(wrong("prompt", FORMS, other)),
    };
    if items.is_empty() {
        return Err(ApiError::param("prompt", "'prompt' is an empty array"));
    }
    if items[0].is_number() {
        return Ok(vec![Prompt::Tokens(token_ids(items, "prompt", vocab_size)?)]);
    }
    if items.len() > MAX_CHOICES {
        let message = format!("'prompt' holds {} prompts, more than {MAX_CHOICES}", items.len());
        return Err(ApiError::param("prompt", message));
    }
    let read = |(index, item): (usize, &Value)| match item {
        Value::String(text) if items[0].is_string() => Ok(Prompt::Text(text.clone())),
        Value::Array(ids) if items[0].is_array() => {
            token_ids(ids, &format!("prompt[{index}]"), vocab_size).map(Prompt::Tokens)
        }
        other => Err(wrong(&format!("prompt[{index}]"), "of the same form as the others", other)),
    };
    items.iter().enumerate().map(read).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn four_forms_of_prompt() {
        let read = |prompt: Value| prompts(&prompt, 10).unwrap();
        let text = |text: &str| Prompt::Text(text.into());
        assert_eq!(read(json!("a")), [text("a")]);
        assert_eq!(read(json!(["a", "b"])), [text("a"), text("b")]);
        assert_eq!(read(json!([1, 2])), [Prompt::Tokens(vec![1, 2])]);
        let two = [Prompt::Tokens(vec![1]), Prompt::Tokens(vec![2, 3])];
        assert_eq!(read(json!([[1], [2, 3]])), two);
    }

    #[test]
    fn every_other_form_is_refused() {
        for bad in [
            json!([]),
            json!(7),
            json!({}),
            json!(["a", 1]),
            json!([1, "a"]),
            json!([[1], "a"]),
            json!([[1], [10]]),
            json!([-1]),
            json!([1.5]),
            json!([[[1]]]),
            json!([null]),
            json!(vec!["x"; 129]),
        ] {
            assert!(prompts(&bad, 10).is_err(), "{bad}");
        }
    }

    #[test]
    fn unsupported_fields_are_refused() {
        for extra in [json!({"echo": true}), json!({"suffix": "x"}), json!({"best_of": 2})] {
            let mut body = json!({"prompt": "a"});
            body.as_object_mut().unwrap().extend(extra.as_object().unwrap().clone());
            assert!(
                TextRequest::read(&body, (&ModelFacts::default(), &Rights::ALL)).is_err(),
                "{body}"
            );
        }
        let body = json!({"prompt": "a", "add_special_tokens": false});
        let text = TextRequest::read(&body, (&ModelFacts::default(), &Rights::ALL));
        assert!(!text.unwrap().add_special_tokens);
        let body = json!({"prompt": "a", "best_of": 2, "n": 2, "echo": false, "suffix": ""});
        assert!(TextRequest::read(&body, (&ModelFacts::default(), &Rights::ALL)).is_ok());
    }
}
