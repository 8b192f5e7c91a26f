//! Reads the messages of a chat request: roles and texts.

use crate::http::ApiError;
use crate::openai::fields::{Fields, wrong};
use serde_json::Value;
use tiercel_model::template::ChatMessage;

/// Maximum number of messages in one conversation.
pub(crate) const MAX_MESSAGES: usize = 4096;
/// Roles of messages.
pub(crate) const ROLES: [&str; 5] = ["system", "developer", "user", "assistant", "tool"];

/// Reads the field `messages` of a chat request. The role `developer` becomes `system`; a text in several parts is
/// joined.
pub(crate) fn read(body: &Fields<'_>) -> Result<Vec<ChatMessage>, ApiError> {
    let messages = body
        .array("messages")?
        .ok_or_else(|| ApiError::param("messages", "'messages' is required").code("missing"))?;
    if messages.is_empty() || messages.len() > MAX_MESSAGES {
        let message =
            format!("'messages' must hold 1 to {MAX_MESSAGES} messages, not {}", messages.len());
        return Err(ApiError::param("messages", message));
    }
    messages.iter().enumerate().map(|(index, value)| message(value, index)).collect()
}

fn message(value: &Value, index: usize) -> Result<ChatMessage, ApiError> {
    let fields = Fields::at(value, format!("messages[{index}]"))?;
    let role = fields.string("role")?.ok_or_else(|| {
        let path = fields.path("role");
        ApiError::param(path.clone(), format!("'{path}' is required")).code("missing")
    })?;
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
        None => {
            let path = fields.path("content");
            return Err(
                ApiError::param(path.clone(), format!("'{path}' is required")).code("missing")
            );
        }
    };
    let role = if role == "developer" { "system" } else { role };
    Ok(ChatMessage { role: role.to_owned(), content })
}

fn text(content: &Value, path: &str) -> Result<String, ApiError> {
    let parts = match content {
        Value::String(text) => return Ok(text.clone()),
        Value::Array(parts) => parts,
        other => return Err(wrong(path, "a string or an array of text parts", other)),
    };
    let mut joined = String::new();
    for (index, part) in parts.iter().enumerate() {
        let part = Fields::at(part, format!("{path}[{index}]"))?;
        match part.string("type")? {
            Some("text") => {}
            other => {
                let message = format!(
                    "only parts of type \"text\" are supported, not {:?}",
                    other.unwrap_or("").chars().take(40).collect::<String>()
                );
                return Err(ApiError::unsupported(part.path("type"), message));
            }
        }
        let text = part.string("text")?.ok_or_else(|| {
            let path = part.path("text");
            ApiError::param(path.clone(), format!("'{path}' is required")).code("missing")
        })?;
        joined.push_str(text);
    }
    Ok(joined)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn messages(value: Value) -> Result<Vec<ChatMessage>, ApiError> {
        let body = json!({"messages": value});
        read(&Fields::root(&body).unwrap())
    }

    #[test]
    fn strings_and_text_parts_are_text() {
        let read = messages(json!([
            {"role": "developer", "content": "Be brief."},
            {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]},
            {"role": "assistant", "content": null},
        ]))
        .unwrap();
        let pairs: Vec<_> = read.iter().map(|m| (m.role.as_str(), m.content.as_str())).collect();
        assert_eq!(pairs, [("system", "Be brief."), ("user", "ab"), ("assistant", "")]);
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
        assert_eq!(param(json!([{"role": "user", "content": 7}])), "messages[0].content");
        let image = json!([{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}]);
        assert_eq!(param(image), "messages[0].content[0].type");
        let part = json!([{"role": "user", "content": [{"type": "text"}]}]);
        assert_eq!(param(part), "messages[0].content[0].text");
    }
}
