//! Writer of the rules of a Lark grammar.

use super::output::Output;
use crate::{Tool, ToolDialect, Tools};
use serde_json::{Map, Value};
use std::collections::HashSet;
use std::fmt::Write;

/// Maximum length of a grammar, bytes. Compilers of grammars accept no longer grammars.
pub const GRAMMAR_BYTES_MAX: usize = 64 << 10;

/// The grammar of the calls of some functions is too long, because their schemas are too large.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the grammar has more than {GRAMMAR_BYTES_MAX} bytes")]
pub struct GrammarTooLong;

/// Rules written so far, and the output that the rules describe.
pub(super) struct Rules<'a> {
    output: &'a Output<'a>,
    text: String,
}

impl<'a> Rules<'a> {
    pub(super) fn new(output: &'a Output<'a>) -> Rules<'a> {
        Rules { output, text: String::new() }
    }

    pub(super) fn dialect(&self) -> ToolDialect {
        self.output.dialect
    }

    /// Adds a rule, unless the grammar is too long already.
    pub(super) fn rule(&mut self, name: &str, body: &str) {
        if !self.is_too_long() {
            // Writing to a string cannot fail.
            let _ = writeln!(self.text, "{name}: {body}");
        }
    }

    /// Whether the grammar is too long, so that [`Rules::start`] will fail. A writer of many rules need not go on.
    pub(super) fn is_too_long(&self) -> bool {
        self.text.len() > GRAMMAR_BYTES_MAX
    }

    /// Adds a rule that matches any text up to and including the first occurrence of `end`.
    pub(super) fn found(&mut self, name: &str, end: &str) {
        self.rule(&format!("{name}[suffix={}]", literal(end)), "TEXT");
    }

    pub(super) fn is_special(&self, text: &str) -> bool {
        (self.output.special)(text).is_some()
    }

    /// Returns the Lark expression for a text: a special token if the tokenizer has a special token with this text,
    /// otherwise a literal.
    pub(super) fn element(&self, text: &str) -> String {
        (self.output.special)(text).map_or_else(|| literal(text), |id| format!("<[{id}]>"))
    }

    /// Returns the Lark expression for the reasoning before the answer; empty for an output without reasoning.
    pub(super) fn head(&mut self) -> String {
        let Some(tags) = self.output.reasoning else { return String::new() };
        if self.is_special(tags.close_tag()) {
            let close = self.element(tags.close_tag());
            self.rule("thought", &format!("TEXT {close} /\\n*/"));
        } else {
            self.found("thought_text", tags.close_tag());
            self.rule("thought", "thought_text /\\n*/");
        }
        if self.output.reasoning_open {
            return "thought".to_owned();
        }
        format!("({} thought)?", self.element(tags.open_tag()))
    }

    /// Adds the rule `start` with this body, and returns the grammar.
    pub(super) fn start(mut self, body: &str) -> Result<String, GrammarTooLong> {
        self.rule("TEXT", "/(?s:.*)/");
        let grammar = format!("start: {}\n{}", body.trim(), self.text);
        if grammar.len() > GRAMMAR_BYTES_MAX { Err(GrammarTooLong) } else { Ok(grammar) }
    }
}

/// Returns the Lark literal for a fixed text.
pub(super) fn literal(text: &str) -> String {
    Value::from(text).to_string()
}

/// Returns the Lark alternatives of all functions. `one` returns the alternative of one function, given its number.
pub(super) fn alternatives(tools: &Tools, mut one: impl FnMut(usize, &Tool) -> String) -> String {
    let all: Vec<String> = tools.iter().enumerate().map(|(at, tool)| one(at, tool)).collect();
    all.join(" | ")
}

/// Whether a schema states that an object may have members of any value, and describes and requires none.
pub(super) fn allows_any(schema: &Map<String, Value>) -> bool {
    let members = Members::of(schema);
    let described = members.described().next().is_some() || !members.required.is_empty();
    let any = |value: &Value| *value == Value::Bool(true) || *value == Value::Object(Map::new());
    !described && schema.get("additionalProperties").is_some_and(any)
}

/// Returns the values that a schema lists, but not `null` if the schema's `type` excludes `null`. Returns `None` if the
/// schema lists no values.
pub(super) fn listed(schema: &Value) -> Option<Vec<&Value>> {
    let listed = match (schema["enum"].as_array(), schema.get("const")) {
        (Some(values), _) => values,
        (None, Some(value)) => std::slice::from_ref(value),
        (None, None) => return None,
    };
    let typed = schema["type"].as_str().is_some_and(|name| name != "null");
    let allowed = listed.iter().filter(|value| !(typed && value.is_null()));
    Some(allowed.collect()).filter(|values: &Vec<&Value>| !values.is_empty())
}

/// Members that the schema of an object describes or requires.
pub(super) struct Members<'s> {
    /// Names of the required members, each once, in the order of the schema.
    pub(super) required: Vec<&'s str>,
    /// Schemas of the described members.
    properties: Option<&'s Map<String, Value>>,
    names: HashSet<&'s str>,
}

impl<'s> Members<'s> {
    pub(super) fn of(schema: &'s Map<String, Value>) -> Members<'s> {
        let listed = schema.get("required").and_then(Value::as_array);
        let listed = listed.into_iter().flatten().filter_map(Value::as_str);
        let mut names = HashSet::new();
        let required = listed.filter(|name| names.insert(*name)).collect();
        let properties = schema.get("properties").and_then(Value::as_object);
        Members { required, properties, names }
    }

    /// Whether the object must have the member `name`.
    pub(super) fn requires(&self, name: &str) -> bool {
        self.names.contains(name)
    }

    /// Returns the described members with their schemas.
    pub(super) fn described(&self) -> impl Iterator<Item = (&'s str, &'s Value)> + use<'s> {
        self.properties.into_iter().flatten().map(|(name, schema)| (name.as_str(), schema))
    }

    /// Returns the schema of a member; `None` if the schema of the object does not describe the member.
    pub(super) fn schema(&self, name: &str) -> Option<&'s Value> {
        self.properties?.get(name)
    }
}
