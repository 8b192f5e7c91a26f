//! Reads the messages of a chat request into the form that chat templates expect.

use crate::http::ApiError;
use crate::openai::fields::{Fields, wrong};
use crate::openai::tools::MAX_CALLS;
use serde_json::{Map, Value};
use tiercel_model::template::Message;

/// Maximum number of messages in one conversation.
pub(crate) const MAX_MESSAGES: usize = 4096;
/// Roles of messages.
pub(crate) const ROLES: [&str; 5] = ["system", "developer", "user", "assistant", "tool"];

/// Reads the field `messages` of a chat request. The parts of a text are joined, and the arguments of tool calls become
/// objects.
pub(crate) fn read(body: &Fields<'_>) -> Result<Vec<Message>, ApiError> {
    let messages = body.array("messages")?.ok_or_else(|| missing("messages"))?;
    if messages.is_empty() || messages.len() > MAX_MESSAGES {
        let message =
            format!("'messages' must hold 1 to {MAX_MESSAGES} messages, not {}", messages.len());
        return Err(ApiError::param("messages", message));
    }
    messages.iter().enumerate().map(|(index, value)| message(value, index)).collect()
}

fn message(value: &Value, index: usize) -> Result<Message, ApiError> {
    let fields = Fields::at(value, format!("messages[{index}]"))?;
    let role = fields.string("role")?.ok_or_else(|| missing(&fields.path("role")))?;
    if !ROLES.contains(&role) {
        return Err(ApiError::param(
            fields.path("role"),
            format!("'{}' must be one of {}", fields.path("role"), ROLES.join(", ")),
        ));
    }
    let content = match fields.get("content") {
        Some(content) => text(content, &fields.path("content"))?,
        // Accept an assistant message without content: a message that calls tools may have none.
        None if role == "assistant" => String::new(),
        None => return Err(missing(&fields.path("content"))),
    };
    let mut message = Message::new();
    message.insert("role".into(), role.into());
    message.insert("content".into(), content.into());
    if let Some(name) = fields.string("name")? {
        message.insert("name".into(), name.into());
    }
    match role {
        "assistant" => of_assistant(&fields, &mut message)?,
        "tool" => {
            if let Some(id) = fields.string("tool_call_id")? {
                message.insert("tool_call_id".into(), id.into());
            }
        }
        _ => {}
    }
    Ok(message)
}

/// Reads the fields that only messages of the assistant have: tool calls and reasoning.
fn of_assistant(fields: &Fields<'_>, message: &mut Message) -> Result<(), ApiError> {
    if fields.get("function_call").is_some() {
        let path = fields.path("function_call");
        let why = format!("'{path}' is not supported; use 'tool_calls'");
        return Err(ApiError::unsupported(path, why));
    }
    let calls = calls(fields)?;
    if !calls.is_empty() {
        message.insert("tool_calls".into(), calls.into());
    }
    let (older, newer) = (fields.string("reasoning_content")?, fields.string("reasoning")?);
    if let Some(reasoning) = newer.or(older) {
        for name in ["reasoning_content", "reasoning"] {
            message.insert(name.into(), reasoning.into());
        }
    }
    Ok(())
}

/// Reads the tool calls of an assistant's message.
fn calls(fields: &Fields<'_>) -> Result<Vec<Value>, ApiError> {
    let calls = fields.array("tool_calls")?.map_or(&[][..], Vec::as_slice);
    let path = fields.path("tool_calls");
    if calls.len() > MAX_CALLS {
        let message = format!("'{path}' has {} calls, more than {MAX_CALLS}", calls.len());
        return Err(ApiError::param(path, message));
    }
    let read = |(index, value)| {
        let call = Fields::at(value, format!("{path}[{index}]"))?;
        if let Some(other) = call.string("type")?.filter(|kind| *kind != "function") {
            let short: String = other.chars().take(40).collect();
            let message = format!("only calls of type \"function\" are supported, not {short:?}");
            return Err(ApiError::unsupported(call.path("type"), message));
        }
        let function = call.object("function")?.ok_or_else(|| missing(&call.path("function")))?;
        let name = function.string("name")?.ok_or_else(|| missing(&function.path("name")))?;
        let called = [("name", Value::from(name)), ("arguments", arguments(&function)?)];
        let id = call.string("id")?.map(|id| ("id", Value::from(id)));
        let whole = [("type", Value::from("function")), ("function", object(called))];
        Ok(object(id.into_iter().chain(whole)))
    };
    calls.iter().enumerate().map(read).collect()
}

/// Reads the arguments of a tool call: an object, or a text with the JSON of an object. The result is an object, as
/// chat templates expect. A text that is not the JSON of an object, for example the arguments of an answer that was cut
/// off, counts as an empty object: vLLM does the same with texts that are not JSON.
fn arguments(function: &Fields<'_>) -> Result<Value, ApiError> {
    match function.get("arguments") {
        None => Ok(Value::Object(Map::new())),
        Some(Value::String(text)) => {
            Ok(Value::Object(serde_json::from_str(text).unwrap_or_default()))
        }
        Some(object @ Value::Object(_)) => Ok(object.clone()),
        Some(other) => {
            Err(wrong(&function.path("arguments"), "the JSON of an object, as a string", other))
        }
    }
}

fn object<'a>(fields: impl IntoIterator<Item = (&'a str, Value)>) -> Value {
    fields.into_iter().map(|(name, value)| (name.to_owned(), value)).collect()
}

fn missing(path: &str) -> ApiError {
    ApiError::param(path, format!("'{path}' is required")).code("missing")
}

fn text(content: &Value, path: &str) -> Result<String, ApiError> {
    let parts = match content {
        Value::String(text) => return Ok(text.clone()),
        Value::Array(parts) => parts,
        other => return Err(wrong(path, "a string or an array of text parts", other)),
    };
    let mut texts = Vec::with_capacity(parts.len());
    for (index, part) in parts.iter().enumerate() {
        let part = Fields::at(part, format!("{path}[{index}]"))?;
        // A part of type `refusal` is the text with which an assistant refused.
        let field = match part.string("type")? {
            Some("text") => "text",
            Some("refusal") => "refusal",
            other => {
                let message = format!(
                    "only parts of type \"text\" are supported, not {:?}",
                    other.unwrap_or("").chars().take(40).collect::<String>()
                );
                return Err(ApiError::unsupported(part.path("type"), message));
            }
        };
        texts.push(part.string(field)?.ok_or_else(|| missing(&part.path(field)))?);
    }
    Ok(texts.join("\n"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn messages(value: Value) -> Result<Value, ApiError> {
        let body = json!({"messages": value});
        read(&Fields::root(&body).unwrap()).map(|messages| json!(messages))
    }

    #[test]
    fn strings_and_text_parts_are_text() {
        let read = messages(json!([
            {"role": "developer", "content": "Be brief.", "tool_calls": 7},
            {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}], "name": "Ann"},
            {"role": "assistant", "content": null, "tool_calls": [], "function_call": null},
            {"role": "assistant", "content": [{"type": "refusal", "refusal": "No."}], "reasoning_content": "Hm."},
        ]));
        let expected = json!([
            {"role": "developer", "content": "Be brief."},
            {"role": "user", "content": "a\nb", "name": "Ann"},
            {"role": "assistant", "content": ""},
            {"role": "assistant", "content": "No.", "reasoning_content": "Hm.", "reasoning": "Hm."},
        ]);
        assert_eq!(read.unwrap(), expected);
    }

    #[test]
    fn calls_and_results_reach_the_template() {
        let call = |arguments: Value| {
            json!([{"role": "assistant", "content": null, "tool_calls": [
                {"id": "c1", "type": "function", "function": {"name": "f", "arguments": arguments}},
            ]}])
        };
        let arguments = |given: Value| {
            let read = messages(call(given)).unwrap();
            assert_eq!(read[0]["tool_calls"][0]["id"], "c1");
            assert_eq!(read[0]["content"], "");
            read[0]["tool_calls"][0]["function"]["arguments"].clone()
        };
        assert_eq!(arguments(json!(r#"{"b": 1, "a": 2}"#)).to_string(), r#"{"b":1,"a":2}"#);
        assert_eq!(arguments(json!({"a": 1})), json!({"a": 1}));
        assert_eq!(arguments(Value::Null), json!({}));
        for text in ["", " ", "null", "[1]", "text", r#"{"a": "#] {
            assert_eq!(arguments(json!(text)), json!({}), "{text}");
        }
        let answered =
            json!([{"role": "tool", "content": "12", "tool_call_id": "c1", "name": "f"}]);
        let expected =
            json!([{"role": "tool", "content": "12", "name": "f", "tool_call_id": "c1"}]);
        assert_eq!(messages(answered).unwrap(), expected);
    }

    #[test]
    fn errors_name_message_and_part() {
        let param = |value| messages(value).unwrap_err().body()["error"]["param"].clone();
        assert_eq!(param(json!([])), "messages");
        assert_eq!(param(json!("hi")), "messages");
        assert_eq!(param(json!(["hi"])), "messages[0]");
        assert_eq!(param(json!([{"content": "x"}])), "messages[0].role");
        assert_eq!(param(json!([{"role": "king", "content": "x"}])), "messages[0].role");
        assert_eq!(param(json!([{"role": "user"}])), "messages[0].content");
        assert_eq!(param(json!([{"role": "tool"}])), "messages[0].content");
        assert_eq!(param(json!([{"role": "user", "content": 7}])), "messages[0].content");
        let image = json!([{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}]);
        assert_eq!(param(image), "messages[0].content[0].type");
        let part = json!([{"role": "user", "content": [{"type": "text"}]}]);
        assert_eq!(param(part), "messages[0].content[0].text");
        let assistant = |field: &str, value: Value| json!([{"role": "assistant", field: value}]);
        let call = |call: Value| param(assistant("tool_calls", json!([call])));
        assert_eq!(call(json!(1)), "messages[0].tool_calls[0]");
        assert_eq!(call(json!({"type": "custom"})), "messages[0].tool_calls[0].type");
        assert_eq!(call(json!({})), "messages[0].tool_calls[0].function");
        assert_eq!(call(json!({"function": {}})), "messages[0].tool_calls[0].function.name");
        let arguments = json!({"function": {"name": "f", "arguments": [1]}});
        assert_eq!(call(arguments), "messages[0].tool_calls[0].function.arguments");
        let many = assistant("tool_calls", json!(vec![1; MAX_CALLS + 1]));
        assert_eq!(param(many), "messages[0].tool_calls");
        assert_eq!(param(assistant("function_call", json!({}))), "messages[0].function_call");
        assert_eq!(param(assistant("reasoning", json!(1))), "messages[0].reasoning");
    }
}
