//! Grammars of model outputs with calls, in llguidance's Lark syntax. A model that follows such a grammar writes calls
//! that the parser of its dialect reads and whose arguments follow the schemas of the functions.
//!
//! In the JSON dialects, arguments follow the whole schema. In [`ToolDialect::QwenXml`], a string is free text unless
//! the schema lists its values, whatever the schema says about lengths, patterns and formats. In
//! [`ToolDialect::Pythonic`], arguments follow the types, required members and listed values of the schema, but not its
//! lengths, ranges and patterns.

mod output;
mod python;
mod rules;
mod xml;

pub use output::{Output, SpecialTokens};
pub use rules::{GRAMMAR_BYTES_MAX, GrammarTooLong};

use crate::{Tool, ToolDialect, Tools};
use rules::{Rules, alternatives};
use serde_json::Value;

/// Returns the grammar of an output that is one call of one of the functions, or one or more calls with `parallel`.
/// Reasoning comes before the calls, as `output` states. `tools` must not be empty.
///
/// # Errors
/// [`GrammarTooLong`].
pub fn required(
    output: &Output<'_>,
    tools: &Tools,
    parallel: bool,
) -> Result<String, GrammarTooLong> {
    let mut rules = Rules::new(output);
    let head = rules.head();
    let calls = calls(&mut rules, tools, parallel);
    rules.start(&format!("{head} {calls}"))
}

/// Returns the grammar of an output that follows `reply`, the body of a Lark rule, or is one call of one of the
/// functions (one or more calls with `parallel`). Reasoning comes first, as `output` states. Without functions, the
/// output follows `reply`.
///
/// # Errors
/// [`GrammarTooLong`].
pub fn reply(
    output: &Output<'_>,
    tools: &Tools,
    parallel: bool,
    reply: &str,
) -> Result<String, GrammarTooLong> {
    let mut rules = Rules::new(output);
    let head = rules.head();
    rules.rule("reply", reply);
    if tools.is_empty() {
        return rules.start(&format!("{head} reply"));
    }
    let calls = calls(&mut rules, tools, parallel);
    rules.start(&format!("{head} (reply | {calls})"))
}

/// Returns the Lark expression for one call of one of the functions, or for one or more calls with `parallel`.
fn calls(rules: &mut Rules<'_>, tools: &Tools, parallel: bool) -> String {
    let form = CallForm::new(rules, tools, parallel);
    let dialect = rules.dialect();
    let opening = match dialect.needs_trigger() {
        true => rules.element(dialect.trigger()),
        false => String::new(),
    };
    match form.separator.filter(|_| parallel) {
        Some(separator) => format!("{opening} after ({separator} {opening} after)*"),
        None => format!("{opening} after"),
    }
}

/// Returns the grammar of an output that is one call of the function `tool`. Reasoning comes before the call, as
/// `output` states.
///
/// # Errors
/// [`GrammarTooLong`].
pub fn named(output: &Output<'_>, tool: &Tool) -> Result<String, GrammarTooLong> {
    required(output, &Tools::new(vec![tool.clone()]), false)
}

/// Returns the grammar of an output that is any text with calls in it (at most one call without `parallel`): after a
/// trigger, the model must write a call of one of the functions. Returns `None` if calls of the dialect need no trigger
/// and the trigger is not a special token of the tokenizer, because such a grammar could not tell an answer in JSON
/// from a call. `tools` must not be empty.
///
/// # Errors
/// [`GrammarTooLong`].
pub fn auto(
    output: &Output<'_>,
    tools: &Tools,
    parallel: bool,
) -> Result<Option<String>, GrammarTooLong> {
    let trigger = output.dialect.trigger();
    let special = (output.special)(trigger).is_some();
    if !special && !output.dialect.needs_trigger() {
        return Ok(None);
    }
    let mut rules = Rules::new(output);
    let head = rules.head();
    let form = CallForm::new(&mut rules, tools, parallel);
    let many = parallel && form.separator.is_some();
    let start = if special {
        let opening = rules.element(trigger);
        if many {
            format!("TEXT ({opening} after TEXT)*")
        } else {
            format!("TEXT ({opening} after)?")
        }
    } else {
        rules.found("found", trigger);
        if many { "(found after)* TEXT".to_owned() } else { "(TEXT | found after)".to_owned() }
    };
    rules.start(&format!("{head} {start}")).map(Some)
}

/// Text after a trigger, which the rule `after` describes.
struct CallForm {
    /// Text between two calls that each have a trigger; `None` if all calls follow one trigger, so that `after` matches
    /// all calls.
    separator: Option<String>,
}

impl CallForm {
    fn new(rules: &mut Rules<'_>, tools: &Tools, parallel: bool) -> CallForm {
        match rules.dialect() {
            ToolDialect::Hermes => {
                let call = json_calls(rules, tools, "arguments");
                let close = rules.element("</tool_call>");
                rules.rule("after", &format!("\"\\n\" ({call}) \"\\n\" {close}"));
                CallForm { separator: Some("\"\\n\"".to_owned()) }
            }
            ToolDialect::QwenXml => {
                let call = xml::calls(rules, tools);
                let close = rules.element("</tool_call>");
                rules.rule("after", &format!("\"\\n\" ({call}) {close}"));
                CallForm { separator: Some("\"\\n\"".to_owned()) }
            }
            ToolDialect::Mistral if rules.is_special("[ARGS]") => {
                let arguments = rules.element("[ARGS]");
                let call = alternatives(tools, |at, tool| {
                    let value = json_arguments(rules, at, tool);
                    format!("{} {arguments} {value}", rules::literal(&tool.name))
                });
                rules.rule("after", &call);
                CallForm { separator: Some(String::new()) }
            }
            ToolDialect::Mistral => {
                let call = json_calls(rules, tools, "arguments");
                rules.rule(
                    "after",
                    &format!("/ ?/ \"[\" {} \"]\"", list(&call, "\", \"", parallel)),
                );
                CallForm { separator: None }
            }
            ToolDialect::Llama3Json => {
                let call = json_calls(rules, tools, "parameters");
                rules.rule("after", &list(&call, "\"; \"", parallel));
                CallForm { separator: None }
            }
            ToolDialect::Pythonic => {
                let call = python::calls(rules, tools);
                rules.rule("after", &format!("\"[\" {} \"]\"", list(&call, "\", \"", parallel)));
                CallForm { separator: None }
            }
        }
    }
}

fn list(call: &str, separator: &str, parallel: bool) -> String {
    if parallel { format!("({call}) ({separator} ({call}))*") } else { format!("({call})") }
}

/// Returns the Lark alternatives `{"name": …, "arguments": …}` of all functions; `key` is the key of the arguments.
fn json_calls(rules: &mut Rules<'_>, tools: &Tools, key: &str) -> String {
    alternatives(tools, |at, tool| {
        let value = json_arguments(rules, at, tool);
        let head = format!("{{\"name\": {}, \"{key}\": ", Value::from(tool.name.as_str()));
        format!("{} {value} \"}}\"", rules::literal(&head))
    })
}

/// Adds a rule for the arguments of a function, and returns the name of the rule.
fn json_arguments(rules: &mut Rules<'_>, at: usize, tool: &Tool) -> String {
    let name = format!("arguments_{at}");
    rules.rule(&name, &format!("%json {}", Value::Object(tool.object_schema())));
    name
}
