//! Reads the variables that a chat request gives to the chat template: `chat_template_kwargs`, and the fields that turn
//! reasoning on and off.

use crate::http::ApiError;
use crate::openai::fields::Fields;
use serde_json::{Map, Value};

/// Most variables in `chat_template_kwargs`.
const MAX_VARIABLES: usize = 64;
/// Most bytes of JSON in `chat_template_kwargs`.
const MAX_BYTES: usize = 64 << 10;
/// Values of the field `reasoning_effort`.
pub(crate) const EFFORTS: [&str; 7] = ["none", "minimal", "low", "medium", "high", "xhigh", "max"];
/// Variables that the server sets itself, from fields of the request and from the model.
const RESERVED: [&str; 6] =
    ["messages", "tools", "documents", "add_generation_prompt", "bos_token", "eos_token"];

/// Reads the variables of the chat template. The fields `reasoning_effort` and `enable_thinking` become variables of
/// these names; an effort also sets `enable_thinking`, to false for the effort `none`. A variable in
/// `chat_template_kwargs` overrides the variable of a field.
pub(crate) fn variables(body: &Fields<'_>) -> Result<Map<String, Value>, ApiError> {
    let mut variables = Map::new();
    if let Some(effort) = body.string("reasoning_effort")? {
        if !EFFORTS.contains(&effort) {
            let message = format!("'reasoning_effort' must be one of {}", EFFORTS.join(", "));
            return Err(ApiError::param("reasoning_effort", message));
        }
        variables.insert("reasoning_effort".into(), effort.into());
        variables.insert("enable_thinking".into(), (effort != "none").into());
    }
    if body.get("enable_thinking").is_some() {
        variables.insert("enable_thinking".into(), body.boolean("enable_thinking")?.into());
    }
    let Some(given) = body.object("chat_template_kwargs")? else { return Ok(variables) };
    if given.all().count() > MAX_VARIABLES {
        let message = format!("'chat_template_kwargs' has more than {MAX_VARIABLES} variables");
        return Err(ApiError::param("chat_template_kwargs", message));
    }
    let mut bytes = 0;
    for (name, value) in given.all() {
        if RESERVED.contains(&name.as_str()) {
            let path = given.path(name);
            let message = format!("'{path}' is set by the server; leave it out");
            return Err(ApiError::param(path, message));
        }
        bytes += name.len() + value.to_string().len();
        if bytes > MAX_BYTES {
            let message = format!("'chat_template_kwargs' has more than {MAX_BYTES} bytes of JSON");
            return Err(ApiError::param("chat_template_kwargs", message));
        }
        variables.insert(name.clone(), value.clone());
    }
    Ok(variables)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn read(body: Value) -> Result<Value, ApiError> {
        variables(&Fields::root(&body).unwrap()).map(Value::Object)
    }

    #[test]
    fn fields_and_kwargs_become_variables() {
        assert_eq!(read(json!({})).unwrap(), json!({}));
        let effort = |effort: &str| read(json!({"reasoning_effort": effort})).unwrap();
        let both =
            |effort: &str, on: bool| json!({"reasoning_effort": effort, "enable_thinking": on});
        assert_eq!(effort("low"), both("low", true));
        assert_eq!(effort("none"), both("none", false));
        let body = json!({"enable_thinking": false});
        assert_eq!(read(body.clone()).unwrap(), body);
        let given = json!({
            "enable_thinking": false,
            "chat_template_kwargs": {"enable_thinking": true, "thinking": {"a": [1]}},
        });
        assert_eq!(read(given).unwrap(), json!({"enable_thinking": true, "thinking": {"a": [1]}}));
    }

    #[test]
    fn errors_name_the_field() {
        let many: Map<String, Value> =
            (0..=MAX_VARIABLES).map(|n| (n.to_string(), n.into())).collect();
        for (body, param) in [
            (json!({"reasoning_effort": "huge"}), "reasoning_effort"),
            (json!({"reasoning_effort": 1}), "reasoning_effort"),
            (json!({"enable_thinking": "yes"}), "enable_thinking"),
            (json!({"chat_template_kwargs": []}), "chat_template_kwargs"),
            (json!({"chat_template_kwargs": many}), "chat_template_kwargs"),
            (json!({"chat_template_kwargs": {"x": "y".repeat(MAX_BYTES)}}), "chat_template_kwargs"),
            (json!({"chat_template_kwargs": {"tools": []}}), "chat_template_kwargs.tools"),
        ] {
            let error = read(body).unwrap_err();
            assert_eq!(error.body()["error"]["param"], param, "{error}");
        }
    }
}
