//! Lark rules for calls of Qwen3-Coder's dialect, whose arguments are texts between tags.

use super::rules::{Members, Rules, allows_any, alternatives, listed, literal};
use crate::parser::Kind;
use crate::{Tool, Tools};
use serde_json::{Value, json};
use std::collections::BTreeSet;

const CLOSE: &str = "\n</parameter>\n";
/// Maximum number of references that are followed to find the listed values of one argument.
const REFERENCES_MAX: usize = 64;

/// Returns the Lark alternatives of all functions. Each alternative has the tags with the function's name and
/// arguments.
pub(super) fn calls(rules: &mut Rules<'_>, tools: &Tools) -> String {
    rules.found("text_value", CLOSE);
    let close = literal(">\n");
    rules.rule(
        "any_parameter",
        &format!(r#""<parameter=" /[^<>\t\r\n]{{1,64}}/ {close} text_value"#),
    );
    alternatives(tools, |at, tool| {
        let body = parameters(rules, at, tool);
        let open = literal(&format!("<function={}>\n", tool.name));
        format!("{open} {body} {}", literal("</function>\n"))
    })
}

/// Returns the Lark expression for the arguments of a function, in the order of the function's schema. The expression
/// is incomplete if the grammar is too long.
fn parameters(rules: &mut Rules<'_>, at: usize, tool: &Tool) -> String {
    let root = Value::Object(tool.object_schema());
    let Some(fields) = root.as_object() else { return String::new() };
    if allows_any(fields) {
        return "any_parameter*".to_owned();
    }
    let members = Members::of(fields);
    let free = json!({});
    let undescribed = members.required.iter().filter(|name| members.schema(name).is_none());
    let all = members.described().chain(undescribed.map(|name| (*name, &free)));
    let mut parts = Vec::new();
    for (number, (name, schema)) in all.enumerate() {
        if rules.is_too_long() {
            break;
        }
        let rule = format!("parameter_{at}_{number}");
        let value = parameter(rules, &rule, schema, &root);
        rules.rule(&rule, &format!("{} {value}", literal(&format!("<parameter={name}>\n"))));
        parts.push(if members.requires(name) { rule } else { format!("{rule}?") });
    }
    parts.join(" ")
}

/// Returns the Lark expression for the text of one argument and the closing tag of the argument. `root` is the schema
/// of all arguments.
fn parameter(rules: &mut Rules<'_>, rule: &str, schema: &Value, root: &Value) -> String {
    let choices = texts(schema, root, &mut BTreeSet::new());
    if let Some(choices) = choices.filter(|choices| !choices.is_empty()) {
        let choices: Vec<String> = choices.into_iter().map(literal).collect();
        return format!("({}) {}", choices.join(" | "), literal(CLOSE));
    }
    if Kind::of(Some(schema), Some(root)).is_free_text() {
        return "text_value".to_owned();
    }
    let mut schema = schema.as_object().cloned().unwrap_or_default();
    // References in the argument's schema point to definitions of the function's schema, so the definitions are copied.
    if Value::Object(schema.clone()).to_string().contains("\"$ref\"") {
        for key in ["$defs", "definitions"] {
            if let Some(definitions) = root.get(key) {
                schema.entry(key).or_insert_with(|| definitions.clone());
            }
        }
    }
    rules.rule(&format!("{rule}_json"), &format!("%json {}", Value::Object(schema)));
    format!("{rule}_json {}", literal(CLOSE))
}

/// Returns the texts of the values of a schema that lists only strings and `null`: by itself, in its alternatives, or
/// through references, which are resolved in `root`. Returns `None` if the schema allows other values, or if more than
/// [`REFERENCES_MAX`] references would be followed. A reference in `followed` has been followed before, so its texts
/// are not returned again.
fn texts<'s>(
    schema: &'s Value,
    root: &'s Value,
    followed: &mut BTreeSet<&'s str>,
) -> Option<Vec<&'s str>> {
    if let Some(values) = listed(schema) {
        let text = |value: &'s Value| if value.is_null() { Some("null") } else { value.as_str() };
        return values.into_iter().map(text).collect();
    }
    if let Some(reference) = schema["$ref"].as_str() {
        let target = root.pointer(reference.strip_prefix('#')?)?;
        return match followed.insert(reference) {
            true if followed.len() > REFERENCES_MAX => None,
            true => texts(target, root, followed),
            false => Some(Vec::new()),
        };
    }
    if let Some(options) = schema["anyOf"].as_array().or_else(|| schema["oneOf"].as_array()) {
        let mut all = Vec::new();
        for option in options {
            all.extend(texts(option, root, followed)?);
        }
        return Some(all);
    }
    (schema["type"].as_str() == Some("null")).then(|| vec!["null"])
}
