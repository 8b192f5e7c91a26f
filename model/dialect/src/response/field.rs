//! Fields of a response template.

use super::content::Content;
use super::delimiter::Delimiter;
use super::error::{ResponseTemplateError, form};
use super::shape::Shape;
use serde_json::{Map, Value};

const KEYS: [&str; 11] = [
    "open",
    "open_pattern",
    "close",
    "close_pattern",
    "content",
    "content_args",
    "repeats",
    "join",
    "optional",
    "transform",
    "transform_each",
];

/// Part of an answer that a field holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Role {
    Content,
    Reasoning,
    Calls,
}

/// Field of a response template: how a part of an answer is delimited, and how its text is parsed.
#[derive(Debug, Clone)]
pub(super) struct Field {
    pub(super) role: Role,
    /// Delimiter before the text; `None` for the implicit field, which has the text outside of other fields.
    pub(super) open: Option<Delimiter>,
    /// Delimiter after the text; `None` if the text ends with the answer.
    pub(super) close: Option<Delimiter>,
    pub(super) content: Content,
    /// Text between the parts of a field that occurs several times.
    pub(super) join: String,
    /// Shape of the parsed text, and whether the parsed text is a list of values that each have the shape.
    pub(super) shape: Option<(Shape, bool)>,
}

impl Field {
    /// Returns the field that has the whole text of the answer outside of other fields.
    pub(super) fn implicit_content() -> Field {
        let content = Content::Text { strip: true };
        Field {
            role: Role::Content,
            open: None,
            close: None,
            content,
            join: String::new(),
            shape: None,
        }
    }

    /// Reads the field `name`.
    pub(super) fn read(name: &str, value: &Value) -> Result<Field, ResponseTemplateError> {
        let place = format!("field `{name}`");
        let role = match name {
            "content" => Role::Content,
            "thinking" | "reasoning_content" | "reasoning" => Role::Reasoning,
            "tool_calls" => Role::Calls,
            _ => {
                return Err(form(
                    &place,
                    "is none of content, thinking, reasoning_content, reasoning and tool_calls",
                ));
            }
        };
        let Value::Object(field) = value else { return Err(form(&place, "must be an object")) };
        if let Some(key) = field.keys().find(|key| !KEYS.contains(&key.as_str())) {
            return Err(form(&place, format!("`{key}` is not known")));
        }
        let text = Value::from("text");
        let kind = field.get("content").unwrap_or(&text);
        let field = Field {
            role,
            open: Delimiter::read(&place, field, ("open", "open_pattern"))?,
            close: Delimiter::read(&place, field, ("close", "close_pattern"))?,
            content: Content::read(&place, kind, field.get("content_args"), 0)?,
            join: join(&place, field)?,
            shape: shape(&place, field)?,
        };
        let is_text = matches!(field.content, Content::Text { .. }) && field.shape.is_none();
        if is_text == (role == Role::Calls) {
            let problem = match role {
                Role::Calls => "must have another content than `text`, or a `transform`",
                Role::Content | Role::Reasoning => {
                    "must have the content `text` and no `transform`"
                }
            };
            return Err(form(&place, problem));
        }
        Ok(field)
    }

    /// Whether the delimiters of the field, as they are written in the template, contain a text.
    pub(super) fn contains(&self, text: &str) -> bool {
        let mut delimiters = self.open.iter().chain(&self.close);
        delimiters.any(|delimiter| delimiter.contains(text)) || self.content.contains(text)
    }

    /// Returns the value of the field. `captures` are the values of the groups of the delimiters. Returns `None` if the
    /// text is not of the field's type.
    pub(super) fn value(&self, text: &str, captures: &Map<String, Value>) -> Option<Value> {
        let parsed = self.content.parse(text)?;
        let Some((shape, each)) = &self.shape else { return Some(parsed) };
        let fill = |members: &Map<String, Value>| {
            let mut values = captures.clone();
            values.extend(members.clone());
            shape.fill(&values)
        };
        if !*each {
            return fill(&Map::from_iter([("content".to_owned(), parsed)]));
        }
        let items = parsed.as_array()?.iter();
        Some(Value::Array(items.map(|item| fill(item.as_object()?)).collect::<Option<_>>()?))
    }
}

fn join(place: &str, field: &Map<String, Value>) -> Result<String, ResponseTemplateError> {
    match field.get("join") {
        None | Some(Value::Null) => Ok(String::new()),
        Some(Value::String(text)) => Ok(text.clone()),
        Some(_) => Err(form(place, "`join` must be a text")),
    }
}

fn shape(
    place: &str,
    field: &Map<String, Value>,
) -> Result<Option<(Shape, bool)>, ResponseTemplateError> {
    let each = match field.get("transform_each") {
        None => false,
        Some(Value::Bool(each)) => *each,
        Some(_) => return Err(form(place, "`transform_each` must be true or false")),
    };
    match field.get("transform").filter(|shape| !shape.is_null()) {
        Some(shape) => Ok(Some((Shape::read(place, shape)?, each))),
        None if each => Err(form(place, "`transform_each` needs `transform`")),
        None => Ok(None),
    }
}
