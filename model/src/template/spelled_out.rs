//! Spells out tools for chat templates that know no tools: tools, calls and results become text of ordinary messages,
//! in the form of the Hermes models, which the Qwen models use too.

use super::conversation::{Conversation, Message, text, text_message};
use serde_json::{Map, Value};

/// Converts `conversation` to an equivalent conversation of texts, for a chat template that reads only `role` and
/// `content`. Tools go to the end of the system message, calls to the end of the assistant's text, and results of tools
/// to messages of the role `result_role`.
pub(super) fn spelled_out(
    conversation: Conversation,
    result_role: &str,
    json: &dyn Fn(&Value) -> String,
) -> Conversation {
    let Conversation { messages, tools, variables, ending } = conversation;
    let mut out: Vec<Message> = Vec::with_capacity(messages.len() + 1);
    let mut last_is_result = false;
    for message in messages {
        let is_result = text(&message, "role") == "tool";
        match out.last_mut() {
            Some(last) if is_result && last_is_result && result_role == "user" => {
                append(last, "\n", &result(text(&message, "content")));
            }
            _ if is_result => {
                out.push(text_message(result_role, result(text(&message, "content"))));
            }
            _ => out.push(with_calls(message, json)),
        }
        last_is_result = is_result;
    }
    if !tools.is_empty() {
        let about_tools = instructions(&tools, json);
        match out.first_mut().filter(|first| text(first, "role") == "system") {
            Some(system) => append(system, "\n\n", &about_tools),
            None => out.insert(0, text_message("system", about_tools)),
        }
    }
    Conversation { messages: out, tools: Vec::new(), variables, ending }
}

/// Returns a message with its tool calls appended to its text.
fn with_calls(mut message: Message, json: &dyn Fn(&Value) -> String) -> Message {
    if let Some(Value::Array(calls)) = message.remove("tool_calls") {
        for call in &calls {
            append(&mut message, "\n", &spelled_call(call, json));
        }
    }
    message
}

/// Appends a text to the content of a message. If the content is not empty, `separator` comes before the text.
fn append(message: &mut Message, separator: &str, more: &str) {
    let content = text(message, "content");
    let whole =
        if content.is_empty() { more.to_owned() } else { format!("{content}{separator}{more}") };
    message.insert("content".into(), Value::from(whole));
}

fn spelled_call(call: &Value, json: &dyn Fn(&Value) -> String) -> String {
    let function = &call["function"];
    let fields = ["name", "arguments"].map(|name| (name.to_owned(), function[name].clone()));
    let call = Value::Object(Map::from_iter(fields));
    format!("<tool_call>\n{}\n</tool_call>", json(&call))
}

fn result(content: &str) -> String {
    format!("<tool_response>\n{content}\n</tool_response>")
}

fn instructions(tools: &[Value], json: &dyn Fn(&Value) -> String) -> String {
    let tools: Vec<String> = tools.iter().map(json).collect();
    format!(
        "# Tools\n\nYou may call functions to help the user. Their signatures are within <tools></tools>:\n\
         <tools>\n{}\n</tools>\n\nFor each call, return a JSON object with the function's name and arguments within \
         <tool_call></tool_call>:\n<tool_call>\n{{\"name\": <function-name>, \"arguments\": \
         <arguments-object>}}\n</tool_call>",
        tools.join("\n")
    )
}

#[cfg(test)]
mod tests {
    use super::super::conversation::Ending;
    use super::*;
    use serde_json::json;

    fn messages(value: Value) -> Vec<Message> {
        serde_json::from_value(value).unwrap()
    }

    #[test]
    fn calls_and_results_become_texts() {
        let call = |name: &str| json!({"id": "1", "type": "function", "function": {"name": name, "arguments": {"x": 1}}});
        let conversation = Conversation {
            messages: messages(json!([
                {"role": "user", "content": "go"},
                {"role": "assistant", "content": "", "tool_calls": [call("f"), call("g")]},
                {"role": "tool", "content": "1", "tool_call_id": "1"},
                {"role": "tool", "content": "2", "tool_call_id": "2"},
                {"role": "assistant", "content": "Done."},
            ])),
            ..Conversation::default()
        };
        let plain = spelled_out(conversation, "user", &|value| value.to_string());
        let expected = messages(json!([
            {"role": "user", "content": "go"},
            {"role": "assistant", "content": "<tool_call>\n{\"name\":\"f\",\"arguments\":{\"x\":1}}\n</tool_call>\n\
                                              <tool_call>\n{\"name\":\"g\",\"arguments\":{\"x\":1}}\n</tool_call>"},
            {"role": "user", "content": "<tool_response>\n1\n</tool_response>\n<tool_response>\n2\n</tool_response>"},
            {"role": "assistant", "content": "Done."},
        ]));
        assert_eq!(plain.messages, expected);
    }

    #[test]
    fn tools_stand_in_the_system_message() {
        let tools = vec![json!({"type": "function"})];
        let told = |texts: &[(&str, &str)]| {
            let conversation = Conversation {
                tools: tools.clone(),
                ..Conversation::of_texts(texts, Ending::Open)
            };
            let plain = spelled_out(conversation, "user", &|value| value.to_string());
            assert!(plain.tools.is_empty());
            plain.messages
        };
        let added = told(&[("user", "go")]);
        assert_eq!(added.len(), 2);
        assert!(text(&added[0], "content").contains("<tools>\n{\"type\":\"function\"}\n</tools>"));
        let extended = told(&[("system", "Be brief."), ("user", "go")]);
        assert_eq!(extended.len(), 2);
        assert!(text(&extended[0], "content").starts_with("Be brief.\n\n# Tools"));
    }
}
