//! Sources: the forms in which a client writes a grammar, and the limits on their size.

use crate::GrammarError;
use serde_json::Value;

/// Maximum size of a regular expression, of a Lark grammar, of a GBNF grammar, and of all choices together, bytes.
pub const SOURCE_BYTES_MAX: usize = 64 << 10;
/// Maximum size of a JSON schema as compact text, bytes.
pub const SCHEMA_BYTES_MAX: usize = 256 << 10;
/// Maximum nesting of objects and arrays in a JSON schema.
pub const SCHEMA_DEPTH_MAX: usize = 64;
/// Maximum number of choices in a list of choices.
pub const CHOICES_MAX: usize = 1024;

/// Maximum size of a small source, bytes.
const SMALL_BYTES: usize = 8 << 10;

/// A grammar as a client writes it.
#[derive(Debug, Clone, PartialEq)]
pub enum Source {
    /// The output is a JSON object of any form.
    JsonObject,
    /// The output is a JSON value that follows a JSON schema.
    JsonSchema(Value),
    /// The whole output matches a regular expression.
    Regex(String),
    /// The output is one of the listed texts.
    Choice(Vec<String>),
    /// The output follows a Lark grammar, from its rule `start`.
    Lark(String),
    /// The output follows a GBNF grammar (llama.cpp's), from its rule `root`.
    Gbnf(String),
}

impl Source {
    /// Returns a GBNF source if the text defines rules by `::=`, otherwise a Lark source.
    pub fn of_grammar(text: String) -> Source {
        if crate::is_gbnf(&text) { Source::Gbnf(text) } else { Source::Lark(text) }
    }

    /// Returns the name of the source's form in metrics, logs and messages.
    pub fn form(&self) -> &'static str {
        match self {
            Source::JsonObject => "json_object",
            Source::JsonSchema(_) => "json_schema",
            Source::Regex(_) => "regex",
            Source::Choice(_) => "choice",
            Source::Lark(_) => "lark",
            Source::Gbnf(_) => "gbnf",
        }
    }

    /// Returns a hash of the source and its form, and the size of the source, bytes.
    pub(crate) fn digest(&self) -> ([u8; 32], usize) {
        let mut hasher = blake3::Hasher::new();
        hasher.update(self.form().as_bytes());
        let mut bytes = 0;
        let mut add = |part: &str| {
            bytes += part.len();
            hasher.update(&(part.len() as u64).to_le_bytes());
            hasher.update(part.as_bytes());
        };
        match self {
            Source::JsonObject => {}
            Source::JsonSchema(schema) => add(&schema.to_string()),
            Source::Regex(text) | Source::Lark(text) | Source::Gbnf(text) => add(text),
            Source::Choice(choices) => choices.iter().for_each(|choice| add(choice)),
        }
        (*hasher.finalize().as_bytes(), bytes)
    }

    /// Whether the source is small: at most 8 KiB. Most sources of clients are.
    pub fn is_small(&self) -> bool {
        self.digest().1 <= SMALL_BYTES
    }

    /// Checks the size of the source.
    ///
    /// # Errors
    /// [`GrammarError::TooLarge`], or [`GrammarError::Invalid`] for an empty list of choices.
    pub fn check_size(&self) -> Result<(), GrammarError> {
        let within = |what, size, unit, limit| match size > limit {
            true => Err(GrammarError::TooLarge { what, size, unit, limit }),
            false => Ok(()),
        };
        let text = |what, text: &str| within(what, text.len(), "bytes", SOURCE_BYTES_MAX);
        match self {
            Source::JsonObject => Ok(()),
            Source::JsonSchema(schema) => {
                let depth = depth(schema);
                within("the JSON schema", depth, "levels", SCHEMA_DEPTH_MAX)?;
                within("the JSON schema", schema.to_string().len(), "bytes", SCHEMA_BYTES_MAX)
            }
            Source::Regex(regex) => text("the regular expression", regex),
            Source::Lark(grammar) | Source::Gbnf(grammar) => text("the grammar", grammar),
            Source::Choice(choices) => {
                if choices.is_empty() {
                    return Err(GrammarError::Invalid("the list of choices is empty".to_owned()));
                }
                within("the list of choices", choices.len(), "choices", CHOICES_MAX)?;
                let bytes = choices.iter().map(String::len).sum();
                within("the list of choices", bytes, "bytes", SOURCE_BYTES_MAX)
            }
        }
    }
}

/// Returns the maximum nesting of objects and arrays in a JSON value. The recursion of this function is bounded for a
/// value that was read from JSON text, because the reader of the text limits the nesting.
fn depth(value: &Value) -> usize {
    match value {
        Value::Array(items) => 1 + items.iter().map(depth).max().unwrap_or(0),
        Value::Object(fields) => 1 + fields.values().map(depth).max().unwrap_or(0),
        _ => 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn sizes_are_limited_and_the_message_says_what_is_too_large() {
        let mut deep = json!({});
        for _ in 0..SCHEMA_DEPTH_MAX {
            deep = json!([deep]);
        }
        for (source, part) in [
            (Source::Regex("a".repeat(SOURCE_BYTES_MAX + 1)), "regular expression has 65537 bytes"),
            (Source::Lark(" ".repeat(SOURCE_BYTES_MAX + 1)), "grammar has"),
            (Source::Choice(vec![]), "empty"),
            (Source::Choice(vec!["a".to_owned(); CHOICES_MAX + 1]), "1025 choices"),
            (Source::Choice(vec!["a".repeat(SOURCE_BYTES_MAX + 1)]), "bytes"),
            (Source::JsonSchema(deep), "65 levels, more than 64"),
            (Source::JsonSchema(json!({"const": "a".repeat(SCHEMA_BYTES_MAX)})), "bytes"),
        ] {
            let error = source.check_size().expect_err("too large").to_string();
            assert!(error.contains(part), "{error}");
        }
        assert_eq!(Source::Regex("a".repeat(SOURCE_BYTES_MAX)).check_size(), Ok(()));
    }

    #[test]
    fn digests_tell_forms_and_contents_apart() {
        let sources = [
            Source::JsonObject,
            Source::JsonSchema(json!({"type": "object"})),
            Source::Regex("ab".into()),
            Source::Lark("ab".into()),
            Source::Choice(vec!["ab".into()]),
            Source::Choice(vec!["a".into(), "b".into()]),
        ];
        for (at, one) in sources.iter().enumerate() {
            for other in &sources[at + 1..] {
                assert_ne!(one.digest().0, other.digest().0, "{one:?} {other:?}");
            }
        }
    }
}
