//! Converts the text of an argument without JSON quotes to JSON, by the argument's schema.

use super::json::quoted;
use super::python;
use serde_json::Value;

/// Maximum number of schemas that are visited to find the type of one argument.
const SCHEMAS_MAX: usize = 64;

/// Type of an argument according to its schema.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Kind {
    shape: Shape,
    nullable: bool,
    /// Whether the schema has several types other than `null`.
    mixed: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Shape {
    Text,
    Whole,
    Number,
    Bool,
    List,
    Object,
    Null,
}

impl Kind {
    /// Returns the type of an argument according to its schema: the first type that is not `null`, as in vLLM. An
    /// argument without a schema, or with a schema that names no type, is a string. `root` is the schema of all
    /// arguments, in which references are resolved.
    pub(crate) fn of(schema: Option<&Value>, root: Option<&Value>) -> Kind {
        let (mut types, mut left) = (Vec::new(), SCHEMAS_MAX);
        if let Some(schema) = schema {
            collect(schema, root.unwrap_or(schema), &mut left, &mut types);
        }
        let nullable = types.contains(&Shape::Null);
        let first = types.iter().copied().find(|shape| *shape != Shape::Null);
        let shape = first.unwrap_or(if nullable { Shape::Null } else { Shape::Text });
        let mixed = types.iter().any(|other| *other != Shape::Null && *other != shape);
        Kind { shape, nullable, mixed }
    }

    /// Whether a grammar must allow any text, because the argument may be a string.
    pub(crate) fn is_free_text(self) -> bool {
        self.shape == Shape::Text || self.mixed
    }

    /// Maximum length of a text that can be a value other than a string, bytes; `None` for no limit. A longer text is a
    /// string, so that the parser need not buffer the rest of the text.
    pub(super) fn held_bytes_max(self) -> Option<usize> {
        match (self.shape, self.nullable) {
            (Shape::Text, false) => Some(0),
            (Shape::Text, true) => Some("null".len()),
            _ => None,
        }
    }

    /// Converts the text of an argument to JSON: to a value of the argument's type if the text is one, otherwise to a
    /// string.
    pub(crate) fn json(self, text: &str) -> String {
        let trimmed = text.trim();
        let word = trimmed.to_ascii_lowercase();
        let null = matches!(word.as_str(), "null" | "none");
        if null && (self.nullable || self.shape != Shape::Text) {
            return "null".to_owned();
        }
        let parsed = match self.shape {
            Shape::Text | Shape::Null => None,
            Shape::Bool => matches!(word.as_str(), "true" | "false").then_some(word),
            Shape::Whole => whole(trimmed),
            Shape::Number => trimmed
                .parse()
                .is_ok_and(|value: Value| value.is_number())
                .then(|| trimmed.to_owned()),
            Shape::List => container(trimmed, Value::is_array),
            Shape::Object => container(trimmed, Value::is_object),
        };
        parsed.unwrap_or_else(|| quoted(text))
    }
}

/// Collects the types that a schema names, including the types of its alternatives. `left` is the number of schemas
/// that may still be visited.
fn collect(schema: &Value, root: &Value, left: &mut usize, types: &mut Vec<Shape>) {
    if *left == 0 {
        return;
    }
    *left -= 1;
    match &schema["type"] {
        Value::String(name) => types.extend(shape(name)),
        Value::Array(names) => {
            types.extend(names.iter().filter_map(Value::as_str).filter_map(shape));
        }
        _ => {
            let unions = ["anyOf", "oneOf", "allOf"];
            let options = unions.iter().filter_map(|key| schema[*key].as_array()).flatten();
            options.for_each(|option| collect(option, root, left, types));
            let values = schema["enum"].as_array().into_iter().flatten();
            types.extend(values.chain(schema.get("const")).map(shape_of));
            let pointer = schema["$ref"].as_str().and_then(|text| text.strip_prefix('#'));
            if let Some(target) = pointer.and_then(|path| root.pointer(path)) {
                collect(target, root, left, types);
            }
        }
    }
}

fn shape(name: &str) -> Option<Shape> {
    Some(match name {
        "string" => Shape::Text,
        "integer" => Shape::Whole,
        "number" => Shape::Number,
        "boolean" => Shape::Bool,
        "array" => Shape::List,
        "object" => Shape::Object,
        "null" => Shape::Null,
        _ => return None,
    })
}

fn shape_of(value: &Value) -> Shape {
    match value {
        Value::Null => Shape::Null,
        Value::Bool(_) => Shape::Bool,
        Value::Number(number) if number.is_f64() => Shape::Number,
        Value::Number(_) => Shape::Whole,
        Value::String(_) => Shape::Text,
        Value::Array(_) => Shape::List,
        Value::Object(_) => Shape::Object,
    }
}

fn whole(text: &str) -> Option<String> {
    let digits = text.strip_prefix('-').unwrap_or(text);
    let plain = digits.len() < 2 || !digits.starts_with('0');
    let whole = plain && !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit());
    whole.then(|| text.to_owned())
}

/// Converts an array or object, written as JSON or as a Python literal, to JSON; `None` for any other text.
fn container(text: &str, wanted: fn(&Value) -> bool) -> Option<String> {
    let json = match text.parse::<Value>() {
        Ok(Value::String(inner)) => python::literal(&inner)?,
        Ok(_) => text.to_owned(),
        Err(_) => python::literal(text)?,
    };
    json.parse().is_ok_and(|value: Value| wanted(&value)).then_some(json)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn read(schema: Value, text: &str) -> String {
        Kind::of(Some(&schema), None).json(text)
    }

    #[test]
    fn the_schema_decides_what_a_text_is() {
        assert_eq!(read(json!({"type": "string"}), "42"), "\"42\"");
        assert_eq!(read(json!({"type": "integer"}), "42"), "42");
        assert_eq!(read(json!({"type": "integer"}), "007"), "\"007\"");
        assert_eq!(read(json!({"type": "number"}), "-4.5e3"), "-4.5e3");
        assert_eq!(read(json!({"type": "boolean"}), "True"), "true");
        assert_eq!(read(json!({"type": "array"}), "[1, \"a\"]"), "[1, \"a\"]");
        assert_eq!(read(json!({"type": "array"}), "['a', None]"), "[\"a\", null]");
        assert_eq!(read(json!({"type": "object"}), "{\"a\": 1}"), "{\"a\": 1}");
        assert_eq!(read(json!({"type": "object"}), "\"{'a': 1}\""), "{\"a\": 1}");
        assert_eq!(read(json!({}), "42"), "\"42\"");
        assert_eq!(Kind::of(None, None).json("x\ny"), "\"x\\ny\"");
    }

    #[test]
    fn a_text_of_another_type_is_a_string() {
        for name in ["integer", "number", "boolean", "array", "object"] {
            assert_eq!(read(json!({"type": name}), "a \"b\""), "\"a \\\"b\\\"\"");
        }
        assert_eq!(read(json!({"type": "object"}), "[1]"), "\"[1]\"");
    }

    #[test]
    fn null_is_null_where_it_may_be() {
        let nullable = json!({"anyOf": [{"type": "null"}, {"type": "string"}]});
        assert_eq!(read(nullable.clone(), "None"), "null");
        assert_eq!(read(nullable, "nothing"), "\"nothing\"");
        assert_eq!(read(json!({"type": "string"}), "null"), "\"null\"");
        assert_eq!(read(json!({"type": ["integer", "null"]}), "null"), "null");
    }

    #[test]
    fn types_are_found_behind_unions_enums_and_references() {
        assert_eq!(read(json!({"oneOf": [{"type": "integer"}, {"type": "string"}]}), "1"), "1");
        assert_eq!(read(json!({"enum": [1, 2]}), "2"), "2");
        assert_eq!(read(json!({"enum": ["1"]}), "1"), "\"1\"");
        let root = json!({
            "properties": {"a": {"$ref": "#/$defs/A"}}, "$defs": {"A": {"type": "object"}, "B": {"$ref": "#/$defs/B"}},
        });
        let schema = &root["properties"]["a"];
        assert_eq!(Kind::of(Some(schema), Some(&root)).json("{}"), "{}");
        let endless = &root["$defs"]["B"];
        assert_eq!(Kind::of(Some(endless), Some(&root)).json("{}"), "\"{}\"");
    }
}
