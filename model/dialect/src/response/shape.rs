//! Shapes: JSON values with placeholders, into which a template puts the parsed text of a field.

use super::error::{ResponseTemplateError, form};
use serde_json::{Map, Value};

/// Maximum depth of a shape.
const DEPTH_MAX: usize = 16;

/// JSON value in which some texts are placeholders. `{name}` stands for a value, and `{name.key}` for a member of it.
#[derive(Debug, Clone)]
pub(super) struct Shape(Value);

impl Shape {
    /// Reads a shape. A text with a placeholder and other characters is refused.
    pub(super) fn read(place: &str, value: &Value) -> Result<Shape, ResponseTemplateError> {
        check(place, value, 0)?;
        Ok(Shape(value.clone()))
    }

    /// Returns the shape with values in place of its placeholders; `None` if a value is missing.
    pub(super) fn fill(&self, values: &Map<String, Value>) -> Option<Value> {
        fill(&self.0, values)
    }
}

fn check(place: &str, value: &Value, depth: usize) -> Result<(), ResponseTemplateError> {
    if depth > DEPTH_MAX {
        return Err(form(place, format!("`transform` is nested deeper than {DEPTH_MAX} levels")));
    }
    match value {
        Value::Object(members) => {
            members.values().try_for_each(|value| check(place, value, depth + 1))
        }
        Value::Array(items) => items.iter().try_for_each(|value| check(place, value, depth + 1)),
        Value::String(text) if path(text).is_none() && has_placeholder(text) => {
            Err(form(place, format!("`transform` mixes a placeholder with other text in {text:?}")))
        }
        _ => Ok(()),
    }
}

fn fill(shape: &Value, values: &Map<String, Value>) -> Option<Value> {
    Some(match shape {
        Value::Object(members) => {
            let member =
                |(key, value): (&String, &Value)| Some((key.clone(), fill(value, values)?));
            Value::Object(members.iter().map(member).collect::<Option<_>>()?)
        }
        Value::Array(items) => {
            Value::Array(items.iter().map(|item| fill(item, values)).collect::<Option<_>>()?)
        }
        Value::String(text) => match path(text) {
            Some(path) => {
                let mut keys = path.split('.');
                let first = values.get(keys.next()?)?;
                keys.try_fold(first, |value, key| value.as_object()?.get(key))?.clone()
            }
            None => shape.clone(),
        },
        _ => shape.clone(),
    })
}

/// Returns the path in a text that is a placeholder.
fn path(text: &str) -> Option<&str> {
    let path = text.strip_prefix('{')?.strip_suffix('}')?;
    is_path(path).then_some(path)
}

fn is_path(text: &str) -> bool {
    let is_word = |ch: char| ch.is_alphanumeric() || ch == '_';
    text.split('.').all(|key| !key.is_empty() && key.chars().all(is_word))
}

fn has_placeholder(text: &str) -> bool {
    let parts = text.split('{').skip(1);
    parts.filter_map(|part| part.split_once('}')).any(|(path, _)| is_path(path))
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests state what must hold")]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn placeholders_become_values() {
        let values = json!({"name": "f", "content": {"args": {"a": 1}}});
        let values = values.as_object().unwrap();
        let fill = |shape: Value| Shape::read("x", &shape).unwrap().fill(values);
        let shape = json!({"type": "function", "function": {"name": "{name}", "arguments": "{content.args}"}});
        let filled = json!({"type": "function", "function": {"name": "f", "arguments": {"a": 1}}});
        assert_eq!(fill(shape), Some(filled));
        assert_eq!(fill(json!(["{content}", 1, "{}"])), Some(json!([{"args": {"a": 1}}, 1, "{}"])));
        for missing in ["{other}", "{content.x}", "{name.x}"] {
            assert_eq!(fill(json!(missing)), None, "{missing}");
        }
        for mixed in ["a {name}", "{name} {name}"] {
            assert!(Shape::read("x", &json!([mixed])).is_err(), "{mixed}");
        }
    }
}
