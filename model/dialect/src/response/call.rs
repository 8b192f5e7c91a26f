//! Reads calls from the parsed and shaped text of a field.

use super::lax_json::exact;
use crate::Tools;
use crate::parser::{Kind, NAME_BYTES_MAX};
use serde_json::{Map, Value};

/// Maximum number of calls in one field.
const CALLS_MAX: usize = 128;
/// Keys of a call, and of an object that has the call in its member `function`. Clients do not receive the other
/// values: the server itself gives calls their ids.
const KEYS: [&str; 4] = ["name", "arguments", "type", "id"];
const OUTER_KEYS: [&str; 3] = ["function", "type", "id"];

/// Call of a function: name, and JSON of the arguments.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Call {
    pub(super) name: String,
    pub(super) arguments: String,
}

/// Returns the calls in a value: one call, or a list of calls. A call is an object with `name` and `arguments`, which
/// may be the member `function` of another object. Returns `None` if the value is anything else, or has other members,
/// whose text would be lost. Arguments that are strings are converted to the types that the schemas of the functions
/// state.
pub(super) fn calls(value: Value, tools: &Tools) -> Option<Vec<Call>> {
    let values = match value {
        Value::Array(values) if values.len() <= CALLS_MAX => values,
        Value::Array(_) => return None,
        value => vec![value],
    };
    values.into_iter().map(|value| call(value, tools)).collect()
}

fn call(mut value: Value, tools: &Tools) -> Option<Call> {
    let has_only = |value: &Value, keys: &[&str]| {
        value.as_object().is_some_and(|value| value.keys().all(|key| keys.contains(&key.as_str())))
    };
    if value.get("function").is_some() && has_only(&value, &OUTER_KEYS) {
        value = value["function"].take();
    }
    if !has_only(&value, &KEYS) {
        return None;
    }
    let name = value.get("name")?.as_str()?.to_owned();
    if name.is_empty() || name.len() > NAME_BYTES_MAX {
        return None;
    }
    let arguments = match value.get_mut("arguments").map(Value::take) {
        None | Some(Value::Null) => Map::new(),
        Some(Value::Object(arguments)) => arguments,
        // Some models write the arguments as a JSON string that holds the object.
        Some(Value::String(text)) => match exact(&text)? {
            Value::Object(arguments) => arguments,
            _ => return None,
        },
        Some(_) => return None,
    };
    let arguments = Value::Object(typed(arguments, &name, tools)).to_string();
    Some(Call { name, arguments })
}

fn typed(mut arguments: Map<String, Value>, name: &str, tools: &Tools) -> Map<String, Value> {
    let Some(tool) = tools.get(name) else { return arguments };
    for (name, value) in &mut arguments {
        let (Value::String(text), Some(schema)) = (&*value, tool.argument(name)) else { continue };
        let json = Kind::of(Some(schema), tool.parameters.as_ref()).json(text);
        if let Some(typed) = exact(&json) {
            *value = typed;
        }
    }
    arguments
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests state what must hold")]
mod tests {
    use super::*;
    use crate::Tool;
    use serde_json::json;

    #[test]
    fn calls_are_read_and_their_strings_typed() {
        let properties = json!({"a": {"type": "integer"}, "b": {"type": "string"}, "c": {"anyOf": [{"type": "boolean"}]}});
        let parameters = Some(json!({"type": "object", "properties": properties}));
        let tools = Tools::new(vec![Tool { name: "f".into(), parameters }]);
        let read = |value: Value| calls(value, &tools);
        let one =
            |arguments: &str| Some(vec![Call { name: "f".into(), arguments: arguments.into() }]);
        let strings = json!({"a": "7", "b": "7", "c": "true", "d": "7"});
        assert_eq!(
            read(json!({"type": "function", "function": {"name": "f", "arguments": strings}})),
            one(r#"{"a":7,"b":"7","c":true,"d":"7"}"#)
        );
        assert_eq!(read(json!({"name": "f", "arguments": {"a": "x"}})), one(r#"{"a":"x"}"#));
        assert_eq!(read(json!({"name": "f"})), one("{}"));
        assert_eq!(read(json!([{"name": "f", "arguments": "{\"z\": 1}"}])), one(r#"{"z":1}"#));
        for wrong in [
            json!("f"),
            json!({"name": ""}),
            json!({"name": 1, "arguments": {}}),
            json!({"name": "f", "arguments": [1]}),
            json!({"name": "f", "arguments": "x"}),
            json!({"name": "f", "arguments": "[1]"}),
            json!({"name": "f", "arguments": "{\"a\": 99999999999999999999}"}),
            json!({"name": "f", "parameters": {}}),
            json!({"name": "f", "function": {"name": "g"}}),
            json!([{"name": "f"}, 1]),
        ] {
            assert_eq!(read(wrong.clone()), None, "{wrong}");
        }
    }
}
