//! Writer of the rules of a Lark grammar.

use super::output::Output;
use crate::{Tool, ToolDialect, Tools};
use std::fmt::Write;

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

    /// Adds a rule.
    pub(super) fn rule(&mut self, name: &str, body: &str) {
        // Writing to a string cannot fail.
        let _ = writeln!(self.text, "{name}: {body}");
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
    pub(super) fn start(mut self, body: &str) -> String {
        self.rule("TEXT", "/(?s:.*)/");
        format!("start: {}\n{}", body.trim(), self.text)
    }
}

/// Returns the Lark literal for a fixed text.
pub(super) fn literal(text: &str) -> String {
    serde_json::Value::from(text).to_string()
}

/// Returns the Lark alternatives of all functions. `one` returns the alternative of one function, given its number.
pub(super) fn alternatives(tools: &Tools, mut one: impl FnMut(usize, &Tool) -> String) -> String {
    let all: Vec<String> = tools.iter().enumerate().map(|(at, tool)| one(at, tool)).collect();
    all.join(" | ")
}
