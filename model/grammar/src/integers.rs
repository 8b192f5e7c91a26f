//! Bounds of integers whose schema states none, so that an output is not an endless run of digits.

use serde_json::{Map, Value, json};

/// Largest magnitude of an integer without a bound: the largest integer that both a 64-bit float, which holds
/// llguidance's bounds, and a signed 64-bit integer hold. Every integer within it has at most 19 digits.
const INTEGER_MAX: i64 = 9_223_372_036_854_774_784;

/// Adds the missing bounds to a schema that allows integers and no other numbers.
pub(crate) fn bound_integers(fields: &mut Map<String, Value>) {
    let kinds = match fields.get("type") {
        Some(Value::Array(kinds)) => kinds.as_slice(),
        Some(kind) => std::slice::from_ref(kind),
        None => return,
    };
    let allows = |name: &str| kinds.iter().any(|kind| kind == name);
    if !allows("integer") || allows("number") {
        return;
    }
    for (keyword, exclusive, bound) in [
        ("minimum", "exclusiveMinimum", -INTEGER_MAX),
        ("maximum", "exclusiveMaximum", INTEGER_MAX),
    ] {
        if !fields.contains_key(keyword) && !fields.get(exclusive).is_some_and(Value::is_number) {
            fields.insert(keyword.to_owned(), json!(bound));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bounded(schema: Value) -> Value {
        let Value::Object(mut fields) = schema else { panic!("a schema is an object") };
        bound_integers(&mut fields);
        Value::Object(fields)
    }

    #[test]
    fn only_missing_bounds_of_integers_are_added() {
        let (low, high) = (-INTEGER_MAX, INTEGER_MAX);
        for (schema, expected) in [
            (
                json!({"type": "integer"}),
                json!({"type": "integer", "minimum": low, "maximum": high}),
            ),
            (
                json!({"type": ["integer", "null"], "exclusiveMinimum": 3}),
                json!({"type": ["integer", "null"], "exclusiveMinimum": 3, "maximum": high}),
            ),
            (
                json!({"type": "integer", "maximum": 5, "exclusiveMaximum": true}),
                json!({"type": "integer", "maximum": 5, "exclusiveMaximum": true, "minimum": low}),
            ),
        ] {
            assert_eq!(bounded(schema), expected);
        }
        for other in [json!({"type": "number"}), json!({"type": ["integer", "number"]}), json!({})]
        {
            assert_eq!(bounded(other.clone()), other);
        }
    }
}
