//! Proves that the options of a `oneOf` exclude each other, so that `oneOf` means the same as `anyOf`.
//!
//! Two options exclude each other if they allow different types, or if both require a property for which they allow
//! different values, such as the tag of a discriminated union.

use serde_json::{Map, Value};

/// Length of a chain of references, in references, from which on the chain is not followed.
const HOPS_MAX: usize = 8;
/// Maximum number of options. Every pair of options is compared.
const OPTIONS_MAX: usize = 64;

/// Returns whether the options provably exclude each other: no value follows two of them. `false` if there is no proof.
pub(crate) fn exclude_each_other(options: &[Value], root: &Value) -> bool {
    if options.len() > OPTIONS_MAX {
        return false;
    }
    let resolved: Option<Vec<&Map<String, Value>>> =
        options.iter().map(|option| resolve(option, root)).collect();
    let Some(resolved) = resolved else { return false };
    resolved
        .iter()
        .enumerate()
        .all(|(at, one)| resolved[at + 1..].iter().all(|other| are_disjoint(one, other, root)))
}

/// Returns the schema at the end of a schema's chain of references, or the schema itself if it is no reference; `None`
/// if the chain cannot be followed.
fn resolve<'a>(schema: &'a Value, root: &'a Value) -> Option<&'a Map<String, Value>> {
    let mut schema = schema.as_object()?;
    for _ in 0..HOPS_MAX {
        let Some(reference) = schema.get("$ref") else { return Some(schema) };
        let pointer = reference.as_str()?.strip_prefix('#')?;
        schema = root.pointer(pointer)?.as_object()?;
    }
    None
}

fn are_disjoint(one: &Map<String, Value>, other: &Map<String, Value>, root: &Value) -> bool {
    if let (Some(types), Some(others)) = (types(one), types(other)) {
        if !types.iter().any(|kind| others.iter().any(|other| overlap(kind, other))) {
            return true;
        }
        // Properties distinguish two options only if both options allow objects and no other type.
        if types != ["object"] || others != ["object"] {
            return values_differ(one, other);
        }
        let required = |schema: &Map<String, Value>, name: &str| {
            let names = schema.get("required").and_then(Value::as_array);
            names.is_some_and(|names| names.iter().any(|required| required == name))
        };
        let tags = one.get("properties").and_then(Value::as_object);
        return tags.is_some_and(|tags| {
            tags.iter().filter(|(name, _)| required(one, name) && required(other, name)).any(
                |(name, tag)| {
                    let tags = (resolve(tag, root), property(other, name, root));
                    matches!(tags, (Some(tag), Some(other)) if values_differ(tag, other))
                },
            )
        });
    }
    values_differ(one, other)
}

fn property<'a>(
    schema: &'a Map<String, Value>,
    name: &str,
    root: &'a Value,
) -> Option<&'a Map<String, Value>> {
    resolve(schema.get("properties")?.get(name)?, root)
}

/// Returns the types that a schema states; `None` if the schema states no types.
fn types(schema: &Map<String, Value>) -> Option<Vec<&str>> {
    match schema.get("type")? {
        Value::String(kind) => Some(vec![kind]),
        Value::Array(kinds) => kinds.iter().map(Value::as_str).collect(),
        _ => None,
    }
}

fn overlap(one: &str, other: &str) -> bool {
    let number = |kind| matches!(kind, "integer" | "number");
    one == other || number(one) && number(other)
}

/// Returns whether both schemas list their allowed values and have no value in common. Lists with numbers, arrays or
/// objects are not compared, and the result is then `false`.
fn values_differ(one: &Map<String, Value>, other: &Map<String, Value>) -> bool {
    match (values(one), values(other)) {
        (Some(one), Some(other)) => {
            let simple =
                |value: &&Value| !value.is_object() && !value.is_array() && !value.is_number();
            one.iter().chain(&other).all(simple) && !one.iter().any(|value| other.contains(value))
        }
        _ => false,
    }
}

fn values(schema: &Map<String, Value>) -> Option<Vec<&Value>> {
    match (schema.get("const"), schema.get("enum")) {
        (Some(value), _) => Some(vec![value]),
        (None, Some(Value::Array(values))) => Some(values.iter().collect()),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn options_with_different_tags_or_types_exclude_each_other() {
        let root = json!({"$defs": {
            "cat": {"type": "object", "properties": {"kind": {"const": "cat"}}, "required": ["kind"]},
            "dog": {"type": "object", "properties": {"kind": {"enum": ["dog", "wolf"]}}, "required": ["kind"]},
            "pet": {"$ref": "#/$defs/cat"},
            "loop": {"$ref": "#/$defs/loop"},
        }});
        let (cat, dog) = (json!({"$ref": "#/$defs/cat"}), json!({"$ref": "#/$defs/dog"}));
        let exclude = |options: &[Value]| exclude_each_other(options, &root);
        assert!(exclude(&[cat.clone(), dog.clone()]));
        assert!(exclude(&[json!({"type": "string"}), json!({"type": ["null", "integer"]})]));
        assert!(exclude(&[json!({"const": "a"}), json!({"enum": ["b", null]})]));
        assert!(exclude(std::slice::from_ref(&cat)));
        for doubtful in [
            json!([cat, {"$ref": "#/$defs/pet"}]),
            json!([dog, {"type": "object", "properties": {"kind": {"const": "wolf"}}, "required": ["kind"]}]),
            json!([cat, {"type": "object", "properties": {"kind": {"const": "x"}}}]),
            json!([{"type": "integer"}, {"type": "number"}]),
            json!([{"const": 1}, {"const": 1.0}]),
            json!([cat, {"$ref": "#/$defs/loop"}]),
            json!([cat, {"$ref": "https://example.com"}]),
            json!([cat, true]),
        ] {
            assert!(!exclude(doubtful.as_array().unwrap()), "{doubtful}");
        }
    }
}
