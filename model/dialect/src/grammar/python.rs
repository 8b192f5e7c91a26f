//! Lark rules for calls of the pythonic dialect, whose arguments are Python literals.

use super::rules::{Members, Rules, allows_any, alternatives, listed, literal};
use crate::{Tool, Tools};
use serde_json::{Map, Value};
use std::collections::{BTreeSet, HashMap};

/// Number of references, each of which leads to the next, from which on a value may be any Python literal.
const REFERENCES_MAX: usize = 8;

/// Returns the Lark alternatives `f(a=…)` of all functions.
pub(super) fn calls(rules: &mut Rules<'_>, tools: &Tools) -> String {
    rules.rule("PY_STRING", r#"/"([^"\\\x00-\x1f]|\\["\\nrt])*"/"#);
    rules.rule("PY_INTEGER", "/-?(0|[1-9][0-9]{0,17})/");
    rules.rule("PY_NUMBER", r"/-?(0|[1-9][0-9]{0,17})(\.[0-9]{1,17})?/");
    rules.rule("py_list", r#""[" (py_value (", " py_value)*)? "]""#);
    rules.rule("py_argument", r#"/[A-Za-z_][A-Za-z0-9_]{0,63}/ "=" py_value"#);
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
    let root = Value::Object(tool.object_schema());
    let Some(fields) = root.as_object() else { return String::new() };
    if allows_any(fields) {
        return "(py_argument (\", \" py_argument)*)?".to_owned();
    }
    let mut reader = Reader {
        rules,
        root: &root,
        prefix: format!("value_{at}"),
        made: 0,
        referred: HashMap::new(),
        waiting: Vec::new(),
    };
    let body = reader.members(fields, |name| format!("{name}="));
    while let Some((name, schema)) = reader.waiting.pop() {
        let value = reader.value(schema);
        reader.rules.rule(&name, &value);
    }
    body
}

/// Writer of the rules for one function. Each schema that a reference points to is written once, as a rule, so that the
/// rules of recursive schemas are recursive too. The recursion of the writer is bounded by the nesting of the
/// function's schema.
struct Reader<'r, 'a> {
    rules: &'r mut Rules<'a>,
    root: &'r Value,
    prefix: String,
    made: usize,
    /// Names of the rules of the schemas that references point to, by the references.
    referred: HashMap<&'r str, String>,
    /// Rules that have a name and are not written yet, each with its schema.
    waiting: Vec<(String, &'r Value)>,
}

impl<'r> Reader<'r, '_> {
    /// Returns the name of the next rule.
    fn name(&mut self) -> String {
        self.made += 1;
        format!("{}_{}", self.prefix, self.made - 1)
    }

    /// Adds a rule and returns the name of the rule.
    fn rule(&mut self, body: &str) -> String {
        let name = self.name();
        self.rules.rule(&name, body);
        name
    }

    /// Returns the Lark expression for the members of an object, separated by commas, with the required members first.
    fn members(&mut self, schema: &'r Map<String, Value>, head: fn(&str) -> String) -> String {
        let members = Members::of(schema);
        let (mut always, mut maybe) = (Vec::new(), Vec::new());
        for name in &members.required {
            let value = members.schema(name).map_or_else(any, |schema| self.value(schema));
            always.push(self.rule(&format!("{} {value}", literal(&head(name)))));
        }
        for (name, schema) in members.described().filter(|(name, _)| !members.requires(name)) {
            let value = self.value(schema);
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
    fn value(&mut self, schema: &'r Value) -> String {
        if self.rules.is_too_long() {
            return any();
        }
        if let Some(values) = listed(schema) {
            let values: Vec<String> = values.iter().map(|value| literal(&python(value))).collect();
            return format!("({})", values.join(" | "));
        }
        if let Some(reference) = schema["$ref"].as_str() {
            return self.referred(reference);
        }
        if let Some(options) = schema["anyOf"].as_array().or_else(|| schema["oneOf"].as_array()) {
            let options: Vec<String> = options.iter().map(|option| self.value(option)).collect();
            return if options.is_empty() { any() } else { format!("({})", options.join(" | ")) };
        }
        match &schema["type"] {
            Value::String(name) => self.typed(name, schema),
            Value::Array(names) if !names.is_empty() => {
                let names: BTreeSet<&str> = names.iter().filter_map(Value::as_str).collect();
                let options: Vec<String> =
                    names.into_iter().map(|name| self.typed(name, schema)).collect();
                format!("({})", options.join(" | "))
            }
            _ => any(),
        }
    }

    /// Returns the name of the rule for the schema that a reference points to. A reference that leads to no schema, or
    /// that leads through [`REFERENCES_MAX`] or more references, itself included, stands for any value.
    fn referred(&mut self, reference: &'r str) -> String {
        if let Some(name) = self.referred.get(reference) {
            return name.clone();
        }
        let Some(target) = self.target(reference) else { return any() };
        let name = self.name();
        self.referred.insert(reference, name.clone());
        self.waiting.push((name.clone(), target));
        name
    }

    /// Returns the schema that a reference points to, through fewer than [`REFERENCES_MAX`] references, the given
    /// reference included; otherwise `None`.
    fn target(&self, reference: &str) -> Option<&'r Value> {
        let mut target = self.root.pointer(reference.strip_prefix('#')?)?;
        for _ in 1..REFERENCES_MAX {
            match target["$ref"].as_str().filter(|_| listed(target).is_none()) {
                Some(next) => target = self.root.pointer(next.strip_prefix('#')?)?,
                None => return Some(target),
            }
        }
        None
    }

    fn typed(&mut self, name: &str, schema: &'r Value) -> String {
        match name {
            "string" => "PY_STRING".to_owned(),
            "integer" => "PY_INTEGER".to_owned(),
            "number" => "PY_NUMBER".to_owned(),
            "boolean" => "(\"True\" | \"False\")".to_owned(),
            "null" => "\"None\"".to_owned(),
            "array" => match schema.get("items").filter(|items| items.is_object()) {
                Some(items) => {
                    let item = self.value(items);
                    self.rule(&format!("\"[\" ({item} (\", \" {item})*)? \"]\""))
                }
                None => "py_list".to_owned(),
            },
            "object" => match schema.as_object().filter(|fields| fields.contains_key("properties"))
            {
                Some(fields) => {
                    let members =
                        self.members(fields, |name| format!("{}: ", python(&name.into())));
                    self.rule(&format!("\"{{\" {members} \"}}\""))
                }
                None => "py_dict".to_owned(),
            },
            _ => any(),
        }
    }
}

/// Returns the Lark expression for any Python literal.
fn any() -> String {
    "py_value".to_owned()
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
