//! Types of the text in a field, and their parsers.

use super::delimiter::compiled;
use super::error::{ResponseTemplateError, form};
use super::lax_json::LaxJson;
use regex::Regex;
use serde_json::{Map, Value};

/// Maximum depth of parsers of values within parsers.
const DEPTH_MAX: usize = 4;

/// Type of the text in a field.
#[derive(Debug, Clone)]
pub(super) enum Content {
    /// Plain text. `strip` says whether the whitespace at its ends is left out.
    Text {
        strip: bool,
    },
    Int,
    Float,
    Bool,
    Json(LaxJson),
    /// Tags, each of which is a member of an object. The groups `key` and `value` of the regular expression match its
    /// name and its text.
    XmlInline {
        tag: Regex,
        value: Option<Box<Content>>,
        merge: bool,
    },
    /// Lines, each of which is a member of an object.
    KvLines {
        line: String,
        separator: String,
        strip: bool,
        value: Option<Box<Content>>,
    },
}

impl Content {
    /// Reads the type `name` with the arguments `args`.
    pub(super) fn read(
        place: &str,
        name: &Value,
        args: Option<&Value>,
        depth: usize,
    ) -> Result<Content, ResponseTemplateError> {
        let empty = Map::new();
        let args = match args {
            None => &empty,
            Some(Value::Object(args)) => args,
            Some(_) => return Err(form(place, "`content_args` must be an object")),
        };
        if depth > DEPTH_MAX {
            return Err(form(
                place,
                format!("`value_parser` is nested deeper than {DEPTH_MAX} levels"),
            ));
        }
        let args = Args { place, args };
        Ok(match name.as_str() {
            Some("text") => Content::Text { strip: args.flag("strip", true)? },
            Some("int") => Content::Int,
            Some("float") => Content::Float,
            Some("bool") => Content::Bool,
            Some("json") => Content::Json(LaxJson {
                unquoted_keys: args.flag("unquoted_keys", false)?,
                string_delimiters: args.pairs("string_delims")?,
                allow_non_json: args.flag("allow_non_json", false)?,
            }),
            Some("xml-inline") => {
                let tag = compiled(place, args.text("tag_pattern", None)?)?;
                if !["key", "value"]
                    .iter()
                    .all(|name| tag.capture_names().flatten().any(|group| group == *name))
                {
                    return Err(form(
                        place,
                        "`tag_pattern` must have the groups `key` and `value`",
                    ));
                }
                let merge = args.flag("merge_duplicates", false)?;
                Content::XmlInline { tag, value: args.value_parser(depth)?, merge }
            }
            Some("kv-lines") => Content::KvLines {
                line: args.text("line_sep", Some("\n"))?.to_owned(),
                separator: args.text("kv_sep", Some(":"))?.to_owned(),
                strip: args.flag("strip", true)?,
                value: args.value_parser(depth)?,
            },
            _ => return Err(form(place, format!("the content type {name} is not known"))),
        })
    }

    /// Whether the parser can tell a whole text from one that was cut off.
    pub(super) fn shows_its_end(&self) -> bool {
        matches!(self, Content::Json(lax) if !lax.allow_non_json)
    }

    /// Whether the delimiters within the text, as they are written in the template, contain a text.
    pub(super) fn contains(&self, text: &str) -> bool {
        match self {
            Content::Json(lax) => lax
                .string_delimiters
                .iter()
                .any(|(open, close)| open.contains(text) || close.contains(text)),
            Content::XmlInline { tag, value, .. } => {
                tag.as_str().replace('\\', "").contains(text)
                    || value.as_ref().is_some_and(|inner| inner.contains(text))
            }
            Content::KvLines { value, .. } => {
                value.as_ref().is_some_and(|inner| inner.contains(text))
            }
            Content::Text { .. } | Content::Int | Content::Float | Content::Bool => false,
        }
    }

    /// Parses the text in a field; `None` if the text is not of the type.
    pub(super) fn parse(&self, text: &str) -> Option<Value> {
        let trimmed = text.trim();
        match self {
            Content::Text { strip } => Some(Value::from(if *strip { trimmed } else { text })),
            Content::Int => trimmed.parse::<i64>().ok().map(Value::from),
            Content::Float => {
                trimmed.parse::<f64>().ok().filter(|number| number.is_finite()).map(Value::from)
            }
            Content::Bool => match trimmed.to_lowercase().as_str() {
                "true" | "1" => Some(Value::from(true)),
                "false" | "0" => Some(Value::from(false)),
                _ => None,
            },
            Content::Json(lax) => lax.parse(text),
            Content::XmlInline { tag, value, merge } => {
                let mut members = Map::new();
                // Text between the tags would be lost in transformers. Here, the text is not of the type.
                let mut end = 0;
                for found in tag.captures_iter(text) {
                    let whole = found.get_match();
                    let is_blank = text[end..whole.start()].trim().is_empty();
                    is_blank.then_some(())?;
                    end = whole.end();
                    let group = |name: &str| found.name(name).map_or("", |group| group.as_str());
                    let parsed = parse_value(value.as_deref(), group("value"))?;
                    add(&mut members, group("key"), parsed, *merge);
                }
                text[end..].trim().is_empty().then_some(Value::Object(members))
            }
            Content::KvLines { line, separator, strip, value } => {
                let stripped =
                    |text: &str| if *strip { text.trim().to_owned() } else { text.to_owned() };
                let mut members = Map::new();
                for line in text.split(line.as_str()) {
                    let Some((key, text)) = line.split_once(separator.as_str()) else {
                        line.trim().is_empty().then_some(())?;
                        continue;
                    };
                    let parsed = parse_value(value.as_deref(), &stripped(text))?;
                    add(&mut members, &stripped(key), parsed, false);
                }
                Some(Value::Object(members))
            }
        }
    }
}

fn parse_value(parser: Option<&Content>, text: &str) -> Option<Value> {
    parser.map_or_else(|| Some(Value::from(text)), |parser| parser.parse(text))
}

/// Adds a member to an object. A later member replaces an earlier one of the same key, or joins it in a list.
fn add(members: &mut Map<String, Value>, key: &str, value: Value, merge: bool) {
    match members.get_mut(key) {
        Some(Value::Array(values)) if merge => values.push(value),
        Some(first) if merge => *first = Value::Array(vec![first.take(), value]),
        _ => _ = members.insert(key.to_owned(), value),
    }
}

/// Arguments of a parser.
struct Args<'a> {
    place: &'a str,
    args: &'a Map<String, Value>,
}

impl<'a> Args<'a> {
    fn flag(&self, name: &str, default: bool) -> Result<bool, ResponseTemplateError> {
        match self.args.get(name) {
            None => Ok(default),
            Some(Value::Bool(value)) => Ok(*value),
            Some(_) => Err(form(self.place, format!("`{name}` must be true or false"))),
        }
    }

    fn text(&self, name: &str, default: Option<&'a str>) -> Result<&'a str, ResponseTemplateError> {
        let given = self.args.get(name).map_or(default, Value::as_str);
        let problem = || form(self.place, format!("`{name}` must be a text that is not empty"));
        given.filter(|text| !text.is_empty()).ok_or_else(problem)
    }

    fn pairs(&self, name: &str) -> Result<Vec<(String, String)>, ResponseTemplateError> {
        let Some(value) = self.args.get(name) else { return Ok(Vec::new()) };
        let pair = |pair: &Value| match pair.as_array()?.as_slice() {
            [Value::String(open), Value::String(close)]
                if !open.is_empty() && !close.is_empty() =>
            {
                Some((open.clone(), close.clone()))
            }
            _ => None,
        };
        let pairs = value.as_array().and_then(|pairs| pairs.iter().map(pair).collect());
        pairs.ok_or_else(|| form(self.place, format!("`{name}` must be a list of pairs of texts")))
    }

    fn value_parser(&self, depth: usize) -> Result<Option<Box<Content>>, ResponseTemplateError> {
        let Some(parser) = self.args.get("value_parser").filter(|parser| !parser.is_null()) else {
            return Ok(None);
        };
        let text = Value::from("text");
        let name = parser.get("name").unwrap_or(&text);
        Content::read(self.place, name, parser.get("args"), depth + 1)
            .map(|content| Some(Box::new(content)))
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests state what must hold")]
mod tests {
    use super::*;
    use serde_json::json;

    fn content(name: &str, args: Value) -> Result<Content, ResponseTemplateError> {
        Content::read("field `x`", &json!(name), Some(&args), 0)
    }

    #[test]
    fn texts_are_parsed_by_their_type() {
        let tag = r"<p=(?P<key>\w+)>\s*(?P<value>.*?)\s*</p>";
        let typed = json!({"tag_pattern": tag, "value_parser": {"name": "json", "args": {"allow_non_json": true}}});
        let merged = json!({"tag_pattern": tag, "merge_duplicates": true});
        for (name, args, text, value) in [
            ("text", json!({}), " a ", json!("a")),
            ("text", json!({"strip": false}), " a ", json!(" a ")),
            ("int", json!({}), " 12 ", json!(12)),
            ("int", json!({}), "1.5", Value::Null),
            ("float", json!({}), "1.5", json!(1.5)),
            ("bool", json!({}), "True", json!(true)),
            ("bool", json!({}), "no", Value::Null),
            ("json", json!({}), "[1]", json!([1])),
            ("xml-inline", typed, "<p=a>\n1\n</p> <p=b>x\ny</p>", json!({"a": 1, "b": "x\ny"})),
            ("xml-inline", json!({"tag_pattern": tag}), "<p=a>1</p><p=a>2</p>", json!({"a": "2"})),
            ("xml-inline", merged, "<p=a>1</p><p=a>2</p><p=a>3</p>", json!({"a": ["1", "2", "3"]})),
            ("xml-inline", json!({"tag_pattern": tag}), "<p=a>1</p>.<p=b>2</p>", Value::Null),
            ("xml-inline", json!({"tag_pattern": tag}), "<p=a>1</p> .", Value::Null),
            ("kv-lines", json!({}), "a: 1:2\n \nb :x", json!({"a": "1:2", "b": "x"})),
            ("kv-lines", json!({}), "a: 1\nno", Value::Null),
        ] {
            let parsed = content(name, args).unwrap().parse(text).unwrap_or_default();
            assert_eq!(parsed, value, "{name} {text}");
        }
    }

    #[test]
    fn wrong_arguments_are_refused() {
        let nested = (0..=DEPTH_MAX).fold(
            json!({"name": "int"}),
            |inner, _| json!({"name": "kv-lines", "args": {"value_parser": inner}}),
        );
        for (name, args) in [
            ("yaml", json!({})),
            ("text", json!([])),
            ("text", json!({"strip": 1})),
            ("json", json!({"string_delims": [["a"]]})),
            ("json", json!({"string_delims": [["", "a"]]})),
            ("xml-inline", json!({})),
            ("xml-inline", json!({"tag_pattern": "<(?P<key>a)>"})),
            ("kv-lines", json!({"kv_sep": ""})),
            ("kv-lines", json!({"value_parser": nested})),
        ] {
            assert!(content(name, args.clone()).is_err(), "{name} {args}");
        }
    }
}
