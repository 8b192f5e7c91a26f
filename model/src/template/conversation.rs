//! Conversations that chat templates render: messages, tools and variables, all of them JSON.

use super::{functions, spelled_out};
use serde_json::{Map, Value};

/// One message of a conversation: a JSON object with the fields that chat templates written for transformers read.
///
/// | field | value |
/// |---|---|
/// | `role` | `system`, `developer`, `user`, `assistant` or `tool` |
/// | `content` | text of the message |
/// | `tool_calls` | calls of an assistant: objects with `id`, `type` and `function`, whose `arguments` are an object |
/// | `tool_call_id`, `name` | of a tool's message: id of the answered call, and name of the tool |
/// | `reasoning_content`, `reasoning` | reasoning of an assistant |
pub type Message = Map<String, Value>;

/// End of a rendered conversation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Ending {
    /// The rendered conversation ends with the beginning of the assistant's answer.
    #[default]
    Open,
    /// The rendered conversation ends with the end of the last message.
    Closed,
    /// The rendered conversation ends within the last message, after its text, so that the model continues the message.
    Continued,
}

/// A conversation to be rendered by a chat template.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Conversation {
    /// Messages, the oldest first.
    pub messages: Vec<Message>,
    /// Tools that the model may call: objects with `type` and `function`, in the form of OpenAI's API.
    pub tools: Vec<Value>,
    /// Further variables of the chat template, such as `enable_thinking`.
    pub variables: Map<String, Value>,
    /// End of the rendered conversation.
    pub ending: Ending,
}

impl Conversation {
    /// Creates a conversation of texts without tools, from pairs of role and text.
    pub fn of_texts(texts: &[(&str, &str)], ending: Ending) -> Conversation {
        let message = |(role, content): &(&str, &str)| text_message(role, (*content).to_owned());
        Conversation {
            messages: texts.iter().map(message).collect(),
            ending,
            ..Conversation::default()
        }
    }

    /// Returns an equivalent conversation of texts: tools, calls and results are written as text, in the form of the
    /// Hermes models. Results become messages of the role `result_role`; consecutive results share one message if the
    /// role is `user`.
    pub fn spelled_out(self, result_role: &str) -> Conversation {
        spelled_out::spelled_out(self, result_role, &functions::json)
    }

    /// Returns the role and the content of each message.
    pub fn texts(&self) -> impl Iterator<Item = (&str, &str)> {
        self.messages.iter().map(|message| (text(message, "role"), text(message, "content")))
    }

    /// Returns the number of bytes of the texts that nearly all chat templates write: contents of messages, tool calls
    /// and tools.
    pub fn text_bytes(&self) -> usize {
        let of_message = |message: &Message| {
            ["content", "tool_calls"]
                .into_iter()
                .filter_map(|field| message.get(field))
                .map(bytes)
                .sum::<usize>()
        };
        let messages: usize = self.messages.iter().map(of_message).sum();
        messages + self.tools.iter().map(bytes).sum::<usize>()
    }

    /// Returns the number of bytes of all texts that a chat template could write: all fields of messages, tools and
    /// variables, with the names of the fields. Some templates leave out the reasoning of earlier answers, for example.
    pub fn bytes(&self) -> usize {
        let of_fields = |fields: &Map<String, Value>| -> usize {
            fields.iter().map(|(name, value)| name.len() + bytes(value)).sum()
        };
        let messages: usize = self.messages.iter().map(of_fields).sum();
        messages + self.tools.iter().map(bytes).sum::<usize>() + of_fields(&self.variables)
    }

    /// Returns the conversation with every text changed by `change`. Names of JSON fields are changed too, because
    /// clients choose the names of parameters.
    pub(super) fn map_texts(&self, change: &impl Fn(&str) -> String) -> Conversation {
        let of_object = |object: &Map<String, Value>| {
            object.iter().map(|(name, value)| (change(name), map(value, change))).collect()
        };
        Conversation {
            messages: self.messages.iter().map(of_object).collect(),
            tools: self.tools.iter().map(|tool| map(tool, change)).collect(),
            variables: of_object(&self.variables),
            ending: self.ending,
        }
    }
}

/// Returns a message that has only a role and a text.
pub(super) fn text_message(role: &str, content: String) -> Message {
    let fields = [("role", Value::from(role)), ("content", Value::from(content))];
    fields.into_iter().map(|(name, value)| (name.to_owned(), value)).collect()
}

/// Returns the text in a field of a message; an empty text if the field is absent.
pub(super) fn text<'a>(message: &'a Message, field: &str) -> &'a str {
    message.get(field).and_then(Value::as_str).unwrap_or_default()
}

/// Returns the number of bytes of all texts in a JSON value, including the names of fields. Any other value counts as
/// one byte.
fn bytes(value: &Value) -> usize {
    match value {
        Value::String(text) => text.len(),
        Value::Array(items) => items.iter().map(bytes).sum(),
        Value::Object(fields) => fields.iter().map(|(name, value)| name.len() + bytes(value)).sum(),
        Value::Null | Value::Bool(_) | Value::Number(_) => 1,
    }
}

fn map(value: &Value, change: &impl Fn(&str) -> String) -> Value {
    match value {
        Value::String(text) => Value::String(change(text)),
        Value::Array(items) => items.iter().map(|item| map(item, change)).collect(),
        Value::Object(fields) => {
            let change_field =
                |(name, value): (&String, &Value)| (change(name), map(value, change));
            Value::Object(fields.iter().map(change_field).collect())
        }
        other => other.clone(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn every_text_of_a_client_is_changed() {
        let conversation = Conversation {
            messages: vec![
                json!({"role": "r", "tool_calls": [{"a": {"b": ["c", 1]}}]})
                    .as_object()
                    .unwrap()
                    .clone(),
            ],
            tools: vec![json!({"d": "e"})],
            variables: json!({"f": "g"}).as_object().unwrap().clone(),
            ending: Ending::Closed,
        };
        let changed = conversation.map_texts(&|text| text.to_uppercase());
        let whole = json!([changed.messages, changed.tools, changed.variables]).to_string();
        assert_eq!(
            whole,
            r#"[[{"ROLE":"R","TOOL_CALLS":[{"A":{"B":["C",1]}}]}],[{"D":"E"}],{"F":"G"}]"#
        );
        assert_eq!(changed.ending, Ending::Closed);
        assert_eq!(conversation.text_bytes(), 6, "the names a and b, c and 1, d and e");
        assert_eq!(conversation.bytes(), 23, "also role and r, tool_calls, f and g");
    }
}
