//! Puts the parts of an answer into a message, or into the pieces of a streamed message.

use crate::openai::bodies::{
    Call, CallPiece, CalledFunction, ChatAnswer, ChatDelta, FunctionPiece, Reasoning,
};
use crate::openai::tools::Part;

/// Returns the message that consists of `parts`.
pub(crate) fn message(parts: Vec<Part>) -> ChatAnswer {
    let (mut content, mut thought, mut tool_calls) = (String::new(), String::new(), Vec::new());
    for part in parts {
        match part {
            Part::Content(text) => content.push_str(&text),
            Part::Reasoning(text) => thought.push_str(&text),
            Part::Call { id, name, .. } => {
                let function = CalledFunction { name, arguments: String::new() };
                tool_calls.push(Call { id, kind: "function", function });
            }
            Part::Arguments { index, json } => {
                if let Some(call) = tool_calls.get_mut(index as usize) {
                    call.function.arguments.push_str(&json);
                }
            }
        }
    }
    let only_others = content.is_empty() && !(thought.is_empty() && tool_calls.is_empty());
    ChatAnswer {
        role: "assistant",
        content: (!only_others).then_some(content),
        refusal: (),
        reasoning: reasoning((!thought.is_empty()).then_some(thought)),
        tool_calls,
    }
}

/// Returns the piece of a streamed message that adds `part`.
pub(crate) fn delta(part: Part) -> ChatDelta {
    let none = ChatDelta::default();
    match part {
        Part::Content(text) => ChatDelta { content: Some(text), ..none },
        Part::Reasoning(text) => ChatDelta { reasoning: reasoning(Some(text)), ..none },
        Part::Call { index, id, name } => {
            let function = FunctionPiece { name: Some(name), arguments: String::new() };
            let piece = CallPiece { index, id: Some(id), kind: Some("function"), function };
            ChatDelta { tool_calls: Some([piece]), ..none }
        }
        Part::Arguments { index, json } => {
            let function = FunctionPiece { name: None, arguments: json };
            let piece = CallPiece { index, id: None, kind: None, function };
            ChatDelta { tool_calls: Some([piece]), ..none }
        }
    }
}

fn reasoning(text: Option<String>) -> Reasoning {
    Reasoning { reasoning_content: text.clone(), reasoning: text }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn parts() -> Vec<Part> {
        let call = |index: u32, name: &str| Part::Call {
            index,
            id: format!("c{index}"),
            name: name.into(),
        };
        let arguments = |index, json: &str| Part::Arguments { index, json: json.into() };
        vec![
            Part::Reasoning("Hm".into()),
            Part::Reasoning(".".into()),
            Part::Content("Wait".into()),
            call(0, "f"),
            arguments(0, "{\"a\":"),
            arguments(0, "1}"),
            call(1, "g"),
            arguments(1, "{}"),
            Part::Content(".".into()),
        ]
    }

    #[test]
    fn a_message_has_its_parts() {
        let call = |id: &str, name: &str, arguments: &str| json!({"id": id, "type": "function", "function": {"name": name, "arguments": arguments}});
        let expected = json!({
            "role": "assistant", "content": "Wait.", "refusal": null,
            "reasoning_content": "Hm.", "reasoning": "Hm.",
            "tool_calls": [call("c0", "f", "{\"a\":1}"), call("c1", "g", "{}")],
        });
        assert_eq!(json!(message(parts())), expected);
    }

    #[test]
    fn content_is_null_beside_calls_and_reasoning_only() {
        let content = |parts: Vec<Part>| message(parts).content;
        assert_eq!(content(vec![]), Some(String::new()));
        assert_eq!(content(vec![Part::Reasoning("x".into())]), None);
        assert_eq!(content(vec![Part::Call { index: 0, id: "1".into(), name: "f".into() }]), None);
    }

    #[test]
    fn pieces_name_a_call_once() {
        let pieces: Vec<_> =
            parts().into_iter().skip(2).take(3).map(|part| json!(delta(part))).collect();
        let begin = json!({"tool_calls": [
            {"index": 0, "id": "c0", "type": "function", "function": {"name": "f", "arguments": ""}},
        ]});
        let more = json!({"tool_calls": [{"index": 0, "function": {"arguments": "{\"a\":"}}]});
        assert_eq!(pieces, [json!({"content": "Wait"}), begin, more]);
        let thought = json!({"reasoning_content": "Hm", "reasoning": "Hm"});
        assert_eq!(json!(delta(parts().remove(0))), thought);
    }
}
