//! Writes the rules of a grammar.

use super::Output;
use crate::ToolDialect;
use std::fmt::Write;

/// The rules that have been written, for one kind of output.
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
        // Writing to a string does not fail.
        let _ = writeln!(self.text, "{name}: {body}");
    }

    /// Adds a rule for any text up to and with the first occurrence of `end`.
    pub(super) fn found(&mut self, name: &str, end: &str) {
        self.rule(&format!("{name}[suffix={}]", literal(end)), "TEXT");
    }

    pub(super) fn is_special(&self, text: &str) -> bool {
        (self.output.special)(text).is_some()
    }

    /// Returns the expression for a text that is a special token in some tokenizers.
    pub(super) fn element(&self, text: &str) -> String {
        (self.output.special)(text).map_or_else(|| literal(text), |id| format!("<[{id}]>"))
    }

    /// Returns the expression for the reasoning before the answer.
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

    /// Ends the grammar with its start.
    pub(super) fn start(mut self, body: &str) -> String {
        self.rule("TEXT", "/(?s:.*)/");
        format!("start: {}\n{}", body.trim(), self.text)
    }
}

/// Returns the expression for a fixed text.
pub(super) fn literal(text: &str) -> String {
    serde_json::Value::from(text).to_string()
}
