//! Refuses fields of vLLM that this server does not support but that would change the answer.

use crate::http::ApiError;
use crate::openai::fields::Fields;
use serde_json::Value;

/// vLLM's fields that would change the answer. A request may hold them with a value that changes nothing in vLLM:
/// `null`, `false`, an empty text, array or object, or 0. For `prompt_logprobs`, 0 is a request too.
const FIELDS: [&str; 6] = [
    "allowed_token_ids",
    "bad_words",
    "chat_template",
    "prompt_logprobs",
    "truncate_prompt_tokens",
    "use_beam_search",
];

/// Refuses a request with a field of vLLM that would change the answer if this server supported it.
///
/// # Errors
/// 400 with the code `unsupported`.
pub(crate) fn refuse_fields_of_vllm(body: &Fields<'_>) -> Result<(), ApiError> {
    for field in FIELDS {
        let asks =
            |value: &Value| !is_neutral(value) || (field == "prompt_logprobs" && value.is_number());
        if body.get(field).is_some_and(asks) {
            let message = format!("'{field}' is not supported; leave it out");
            return Err(ApiError::unsupported(field, message));
        }
    }
    Ok(())
}

fn is_neutral(value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::Bool(set) => !set,
        Value::Number(number) => number.as_f64() == Some(0.0),
        Value::String(text) => text.is_empty(),
        Value::Array(items) => items.is_empty(),
        Value::Object(fields) => fields.is_empty(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_field_that_would_change_the_answer_is_refused_by_name() {
        let refused = |body: Value| {
            let fields = Fields::root(&body).expect("the body is an object");
            let error = refuse_fields_of_vllm(&fields).err()?;
            Some(error.body()["error"]["message"].clone())
        };
        for (body, field) in [
            (json!({"bad_words": ["damn"]}), "bad_words"),
            (json!({"allowed_token_ids": [1]}), "allowed_token_ids"),
            (json!({"chat_template": "{{ x }}"}), "chat_template"),
            (json!({"truncate_prompt_tokens": -1}), "truncate_prompt_tokens"),
            (json!({"prompt_logprobs": 0}), "prompt_logprobs"),
        ] {
            let message = format!("'{field}' is not supported; leave it out");
            assert_eq!(refused(body), Some(json!(message)));
        }
        for body in
            [json!({}), json!({"bad_words": [], "chat_template": null, "use_beam_search": false})]
        {
            assert_eq!(refused(body.clone()), None, "{body}");
        }
    }
}
