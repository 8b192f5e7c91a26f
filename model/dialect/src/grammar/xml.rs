//! Lark rules for calls of Qwen3-Coder's dialect, whose arguments are texts between tags.

use super::rules::{Rules, alternatives, literal};
use crate::parser::Kind;
use crate::{Tool, Tools};
use serde_json::{Map, Value, json};

const CLOSE: &str = "\n</parameter>\n";

/// Returns the Lark alternatives of all functions. Each alternative has the tags with the function's name and
/// arguments.
pub(super) fn calls(rules: &mut Rules<'_>, tools: &Tools) -> String {
    rules.found("text_value", CLOSE);
    alternatives(tools, |at, tool| {
        let body = parameters(rules, at, tool);
        let open = literal(&format!("<function={}>\n", tool.name));
        format!("{open} {body} {}", literal("</function>\n"))
    })
}

/// Returns the Lark expression for the arguments of a function, in the order of the function's schema.
fn parameters(rules: &mut Rules<'_>, at: usize, tool: &Tool) -> String {
    let schema = tool.object_schema();
    let empty = Map::new();
    let properties = schema.get("properties").and_then(Value::as_object).unwrap_or(&empty);
    let required: Vec<&str> = match schema.get("required").and_then(Value::as_array) {
        Some(names) => names.iter().filter_map(Value::as_str).collect(),
        None => Vec::new(),
    };
    let free = json!({});
    let undescribed =
        required.iter().filter(|name| !properties.contains_key(**name)).map(|name| (*name, &free));
    let all = properties.iter().map(|(name, value)| (name.as_str(), value)).chain(undescribed);
    let parts: Vec<String> = all
        .enumerate()
        .map(|(number, (name, value))| {
            let rule = format!("parameter_{at}_{number}");
            let value = parameter(rules, &rule, value, &schema);
            rules.rule(&rule, &format!("{} {value}", literal(&format!("<parameter={name}>\n"))));
            if required.contains(&name) { rule } else { format!("{rule}?") }
        })
        .collect();
    parts.join(" ")
}

/// Returns the Lark expression for the text of one argument and the closing tag of the argument.
fn parameter(
    rules: &mut Rules<'_>,
    rule: &str,
    schema: &Value,
    root: &Map<String, Value>,
) -> String {
    let choices =
        schema["enum"].as_array().map(|values| values.iter().map(Value::as_str).collect());
    let choices: Option<Option<Vec<&str>>> = choices;
    if let Some(Some(choices)) =
        choices.filter(|choices| choices.as_ref().is_some_and(|all| !all.is_empty()))
    {
        let choices: Vec<String> = choices.into_iter().map(literal).collect();
        return format!("({}) {}", choices.join(" | "), literal(CLOSE));
    }
    let whole = Value::Object(root.clone());
    if Kind::of(Some(schema), Some(&whole)).is_free_text() {
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
