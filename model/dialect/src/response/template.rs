//! Response templates as a whole.

use super::delimiter::Delimiter;
use super::error::{ResponseTemplateError, form};
use super::field::{Field, Role};
use serde_json::Value;

/// Maximum number of fields.
const FIELDS_MAX: usize = 16;
/// Keys of a template. The parser does not need `defaults`, which are values of the parsed message.
const KEYS: [&str; 5] = ["version", "defaults", "fields", "start_anchor", "start_anchor_pattern"];
/// Part of the template that errors name.
const WHOLE: &str = "the template";

/// Form of a model's answers, which comes with the model.
#[derive(Debug, Clone)]
pub struct ResponseTemplate {
    pub(super) fields: Vec<Field>,
    /// Number of the implicit field in `fields`, if there is one.
    pub(super) implicit: Option<usize>,
    /// Text of the prompt after which the answer begins.
    anchor: Delimiter,
}

impl ResponseTemplate {
    /// Reads a template, in the JSON form that transformers documents. A template without a field `content` and without
    /// an implicit field gets an implicit field `content`, so that no text of an answer is lost.
    ///
    /// # Errors
    /// [`ResponseTemplateError`] for a template that does not have this form, that has other fields than content,
    /// reasoning and tool calls, or whose regular expressions have look-around or back-references.
    pub fn read(template: &Value) -> Result<ResponseTemplate, ResponseTemplateError> {
        let Value::Object(whole) = template else { return Err(form(WHOLE, "must be an object")) };
        if let Some(key) = whole.keys().find(|key| !KEYS.contains(&key.as_str())) {
            return Err(form(WHOLE, format!("`{key}` is not known")));
        }
        if whole.get("version").is_some_and(|version| *version != 1) {
            return Err(form(WHOLE, "only version 1 is known"));
        }
        let anchor = Delimiter::read(WHOLE, whole, ("start_anchor", "start_anchor_pattern"))?;
        let anchor = anchor.ok_or_else(|| form(WHOLE, "`start_anchor` is missing"))?;
        let fields = whole.get("fields").and_then(Value::as_object);
        let fields = fields.filter(|fields| (1..=FIELDS_MAX).contains(&fields.len()));
        let fields = fields
            .ok_or_else(|| form(WHOLE, format!("`fields` must be 1 to {FIELDS_MAX} fields")))?;
        let mut fields: Vec<Field> = fields
            .iter()
            .map(|(name, field)| Field::read(name, field))
            .collect::<Result<_, _>>()?;
        let is_implicit = |field: &Field| field.open.is_none();
        if fields.iter().filter(|field| is_implicit(field)).count() > 1 {
            return Err(form(WHOLE, "several fields have no opening delimiter"));
        }
        let has_content = fields.iter().any(|field| field.role == Role::Content);
        if !has_content && !fields.iter().any(is_implicit) {
            fields.push(Field::implicit_content());
        }
        let implicit = fields.iter().position(is_implicit);
        Ok(ResponseTemplate { fields, implicit, anchor })
    }

    /// Whether the template has a field for calls.
    pub fn has_calls(&self) -> bool {
        self.fields.iter().any(|field| field.role == Role::Calls)
    }

    /// Whether the template has a field for reasoning.
    pub fn has_reasoning(&self) -> bool {
        self.fields.iter().any(|field| field.role == Role::Reasoning)
    }

    /// Whether a special token with this text is part of a delimiter, so that the decoder must not skip the token.
    /// `with_calls` says whether the delimiters of calls count.
    pub fn marks(&self, text: &str, with_calls: bool) -> bool {
        let mut fields = self.fields.iter().filter(|field| with_calls || field.role != Role::Calls);
        fields.any(|field| field.contains(text))
    }

    /// Returns the beginning of the answer in the end of a prompt: the text after the last anchor. The beginning is
    /// empty if the text has no anchor.
    pub(super) fn begun<'t>(&self, prompt: &'t str) -> &'t str {
        self.anchor.last_end(prompt).map_or("", |end| &prompt[end..])
    }
}
