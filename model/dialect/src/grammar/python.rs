//! Lark rules for calls of the pythonic dialect, whose arguments are Python literals.

use super::rules::{Rules, alternatives, literal};
use crate::{Tool, Tools};
use serde_json::{Map, Value};

/// Maximum depth to which nested schemas are followed; a deeper value may be any Python literal.
const DEPTH_MAX: usize = 6;

/// Returns the Lark alternatives `f(a=…)` of all functions.
pub(super) fn calls(rules: &mut Rules<'_>, tools: &Tools) -> String {
    rules.rule("PY_STRING", r#"/"([^"\\\x00-\x1f]|\\["\\nrt])*"/"#);
    rules.rule("PY_INTEGER", "/-?(0|[1-9][0-9]{0,17})/");
    rules.rule("PY_NUMBER", r"/-?(0|[1-9][0-9]{0,17})(\.[0-9]{1,17})?/");
    rules.rule("py_list", r#""[" (py_value (", " py_value)*)? "]""#);
    rules.rule("py_member", r#"PY_STRING ": " py_value"#);
    rules.rule("py_dict", r#""{" (py_member (", " py_member)*)? "}""#);
    let words = r#""True" | "False" | "None""#;
    rules.rule("py_value", &format!("PY_STRING | PY_NUMBER | {words} | py_list | py_dict"));
    alternatives(tools, |at, tool| {
        let body = arguments(rules, at, tool);
        format!("{} {body} \")\"", literal(&format!("{}(", tool.name)))
    })
}

fn arguments(rules: &mut Rules<'_>, at: usize, tool: &Tool) -> String {
    let schema = tool.object_schema();
    let root = Value::Object(schema.clone());
    let mut reader = Reader { rules, root: &root, prefix: format!("value_{at}"), made: 0 };
    reader.members(&schema, 0, |name| format!("{name}="))
}

/// Writer of the rules for one function.
struct Reader<'r, 'a> {
    rules: &'r mut Rules<'a>,
    root: &'r Value,
    prefix: String,
    made: usize,
}

impl Reader<'_, '_> {
    /// Adds a rule and returns the name of the rule.
    fn rule(&mut self, body: &str) -> String {
        let name = format!("{}_{}", self.prefix, self.made);
        self.made += 1;
        self.rules.rule(&name, body);
        name
    }

    /// Returns the Lark expression for the members of an object, separated by commas, with the required members first.
    fn members(
        &mut self,
        schema: &Map<String, Value>,
        depth: usize,
        head: fn(&str) -> String,
    ) -> String {
        let empty = Map::new();
        let properties = schema.get("properties").and_then(Value::as_object).unwrap_or(&empty);
        let required: Vec<&str> = match schema.get("required").and_then(Value::as_array) {
            Some(names) => names.iter().filter_map(Value::as_str).collect(),
            None => Vec::new(),
        };
        let (mut always, mut maybe) = (Vec::new(), Vec::new());
        for name in &required {
            let value = properties
                .get(*name)
                .map_or_else(|| "py_value".to_owned(), |one| self.value(one, depth));
            always.push(self.rule(&format!("{} {value}", literal(&head(name)))));
        }
        for (name, schema) in
            properties.iter().filter(|(name, _)| !required.contains(&name.as_str()))
        {
            let value = self.value(schema, depth);
            maybe.push(self.rule(&format!("{} {value}", literal(&head(name)))));
        }
        if always.is_empty() {
            return self.any_of(&maybe);
        }
        let rest: Vec<String> = maybe.iter().map(|member| format!("(\", \" {member})?")).collect();
        format!("{} {}", always.join(" \", \" "), rest.join(" "))
    }

    /// Returns the Lark expression for any subset of these members, in their order.
    fn any_of(&mut self, members: &[String]) -> String {
        let Some((first, rest)) = members.split_first() else { return String::new() };
        // `selection` matches every non-empty subset of the members from some member on.
        let mut selection = members[members.len() - 1].clone();
        for member in members[..members.len() - 1].iter().rev() {
            selection = self.rule(&format!("{member} (\", \" {selection})? | {selection}"));
        }
        if rest.is_empty() { format!("{first}?") } else { format!("{selection}?") }
    }

    /// Returns the Lark expression for a value that follows a schema.
    fn value(&mut self, schema: &Value, depth: usize) -> String {
        if depth == DEPTH_MAX {
            return "py_value".to_owned();
        }
        let listed = schema["enum"]
            .as_array()
            .cloned()
            .or_else(|| schema.get("const").map(|one| vec![one.clone()]));
        if let Some(values) = listed.filter(|values| !values.is_empty()) {
            let values: Vec<String> = values.iter().map(|value| literal(&python(value))).collect();
            return format!("({})", values.join(" | "));
        }
        let target =
            schema["$ref"].as_str().and_then(|path| self.root.pointer(path.strip_prefix('#')?));
        if let Some(target) = target {
            return self.value(target, depth + 1);
        }
        if let Some(options) = schema["anyOf"].as_array().or_else(|| schema["oneOf"].as_array()) {
            let options: Vec<String> =
                options.iter().map(|option| self.value(option, depth + 1)).collect();
            return format!("({})", options.join(" | "));
        }
        match &schema["type"] {
            Value::String(name) => self.typed(name, schema, depth),
            Value::Array(names) if !names.is_empty() => {
                let names = names.iter().filter_map(Value::as_str);
                let options: Vec<String> =
                    names.map(|name| self.typed(name, schema, depth)).collect();
                format!("({})", options.join(" | "))
            }
            _ => "py_value".to_owned(),
        }
    }

    fn typed(&mut self, name: &str, schema: &Value, depth: usize) -> String {
        match name {
            "string" => "PY_STRING".to_owned(),
            "integer" => "PY_INTEGER".to_owned(),
            "number" => "PY_NUMBER".to_owned(),
            "boolean" => "(\"True\" | \"False\")".to_owned(),
            "null" => "\"None\"".to_owned(),
            "array" => match schema.get("items").filter(|items| items.is_object()) {
                Some(items) => {
                    let item = self.value(items, depth + 1);
                    self.rule(&format!("\"[\" ({item} (\", \" {item})*)? \"]\""))
                }
                None => "py_list".to_owned(),
            },
            "object" => match schema.as_object().filter(|fields| fields.contains_key("properties"))
            {
                Some(fields) => {
                    let members = self
                        .members(fields, depth + 1, |name| format!("{}: ", python(&name.into())));
                    self.rule(&format!("\"{{\" {members} \"}}\""))
                }
                None => "py_dict".to_owned(),
            },
            _ => "py_value".to_owned(),
        }
    }
}

/// Returns a JSON value as a Python literal.
fn python(value: &Value) -> String {
    match value {
        Value::Null => "None".to_owned(),
        Value::Bool(true) => "True".to_owned(),
        Value::Bool(false) => "False".to_owned(),
        Value::Number(_) | Value::String(_) => value.to_string(),
        Value::Array(items) => {
            let items: Vec<String> = items.iter().map(python).collect();
            format!("[{}]", items.join(", "))
        }
        Value::Object(fields) => {
            let fields: Vec<String> = fields
                .iter()
                .map(|(name, value)| format!("{}: {}", Value::from(name.as_str()), python(value)))
                .collect();
            format!("{{{}}}", fields.join(", "))
        }
    }
}
