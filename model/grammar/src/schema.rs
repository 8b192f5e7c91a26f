//! Checks JSON schemas: schemas that llguidance would not follow are refused, and the others are prepared for
//! llguidance.
//!
//! llguidance ignores some keywords that it does not implement, and departs from JSON Schema in a few places. A schema
//! with such a keyword is refused, with the keyword and its place. The layout of the output is fixed too. The only
//! whitespace is one optional space after each comma and colon, so that a model cannot loop in whitespace. No `\u`
//! escapes are allowed, so that each property name has one spelling. Integers without bounds get bounds.

use crate::conjuncts::{CONJUNCTS_MAX, Conjuncts};
use crate::expansion::check_expansion;
use crate::integers::bound_integers;
use crate::keyword_values::{exact, kind, length, members, number, printable, strings, wrong};
use crate::{GrammarError, overlap};
use serde_json::{Map, Value, json};

/// Maximum number of schemas within a schema.
const SCHEMAS_MAX: usize = 20_000;
/// Maximum number of entries in one `patternProperties`, because llguidance compares every pair of entries.
const PATTERNS_MAX: usize = 16;

/// Keywords whose value is a schema.
const SCHEMA: [&str; 2] = ["additionalProperties", "additionalItems"];
/// Keywords whose value is an object of schemas.
const SCHEMA_MAP: [&str; 4] = ["properties", "patternProperties", "$defs", "definitions"];
/// Keywords whose value is an array of schemas.
const SCHEMA_LIST: [&str; 4] = ["anyOf", "oneOf", "allOf", "prefixItems"];
/// Keywords whose value is a length.
const LENGTH: [&str; 6] =
    ["minItems", "maxItems", "minLength", "maxLength", "minProperties", "maxProperties"];
/// Keywords whose value is a number. In old drafts, the value of `exclusiveMinimum` and `exclusiveMaximum` is a
/// boolean.
const NUMBER: [&str; 5] =
    ["minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"];
/// Unsupported keywords that restrict a value.
const UNSUPPORTED: [&str; 17] = [
    "not",
    "if",
    "then",
    "else",
    "contains",
    "minContains",
    "maxContains",
    "uniqueItems",
    "propertyNames",
    "dependencies",
    "dependentRequired",
    "dependentSchemas",
    "unevaluatedItems",
    "unevaluatedProperties",
    "$dynamicRef",
    "$recursiveRef",
    "x-guidance",
];
/// Values of `format` that say nothing about the text itself. Libraries write them into schemas: pydantic for secrets,
/// bytes and paths. In JSON Schema 2020-12, `format` is an annotation.
const ANNOTATIONS: [&str; 6] =
    ["password", "binary", "byte", "path", "file-path", "directory-path"];
/// Supported values of `format`.
const FORMATS: [&str; 10] =
    ["date-time", "time", "date", "duration", "email", "hostname", "ipv4", "ipv6", "uuid", "uri"];

/// Checks that outputs can follow a JSON schema, as far as the check is possible without compiling the schema.
///
/// # Errors
/// [`GrammarError`] with the place in the schema, as a JSON pointer.
pub fn check_schema(schema: &Value) -> Result<(), GrammarError> {
    prepare(schema).map(drop)
}

/// Returns a JSON schema as a Lark expression, for the body of a rule in [`Source::Lark`](crate::Source).
///
/// # Errors
/// The errors of [`check_schema`].
pub fn lark_of_schema(schema: &Value) -> Result<String, GrammarError> {
    check_schema(schema)?;
    Ok(format!("%json {schema}"))
}

/// Checks a JSON schema, and returns the schema in the form for llguidance, with the layout of the output.
pub(crate) fn prepare(schema: &Value) -> Result<Value, GrammarError> {
    let mut prepared = match schema {
        Value::Bool(true) => json!({}),
        Value::Bool(false) => {
            return Err(GrammarError::Unsatisfiable("the schema is false".to_owned()));
        }
        other => other.clone(),
    };
    let mut walk = Walk { root: schema, schemas: 0, refers: false, named: None };
    walk.schema(&mut prepared, "#")?;
    if let Some(at) = walk.named.filter(|_| walk.refers) {
        return Err(GrammarError::unsupported(&at, "a named schema beside references"));
    }
    check_conjuncts(schema)?;
    check_expansion(&prepared)?;
    if let Value::Object(fields) = &mut prepared {
        let form = json!({
            "item_separator": ", ?",
            "key_separator": ": ?",
            "whitespace_flexible": false,
            "json_allowed_escapes": "nrbtf\\\"",
        });
        fields.insert("x-guidance".to_owned(), form);
    }
    Ok(prepared)
}

/// Walk over all schemas within a schema.
struct Walk<'a> {
    /// Schema as the client wrote it, in which references are resolved.
    root: &'a Value,
    /// Number of visited schemas.
    schemas: usize,
    /// Whether the schema has references.
    refers: bool,
    /// Place of a name of a schema within the schema, which changes the meaning of the references there.
    named: Option<String>,
}

impl Walk<'_> {
    fn schema(&mut self, schema: &mut Value, at: &str) -> Result<(), GrammarError> {
        self.schemas += 1;
        if self.schemas > SCHEMAS_MAX {
            let (what, unit) = ("the JSON schema", "schemas");
            return Err(GrammarError::TooLarge {
                what,
                size: self.schemas,
                unit,
                limit: SCHEMAS_MAX,
            });
        }
        let fields = match schema {
            Value::Bool(_) => return Ok(()),
            Value::Object(fields) => fields,
            _ => return Err(wrong(at, "a schema: an object, true or false")),
        };
        if fields.get("uniqueItems") == Some(&Value::Bool(false)) {
            fields.shift_remove("uniqueItems");
        }
        if fields.get("propertyNames").is_some_and(allows_all_names) {
            fields.shift_remove("propertyNames");
        }
        let format = fields.get("format").and_then(Value::as_str);
        if format.is_some_and(|format| ANNOTATIONS.contains(&format)) {
            fields.shift_remove("format");
        }
        for (keyword, value) in fields.iter_mut() {
            self.keyword(keyword, value, &format!("{at}/{}", escaped(keyword)))?;
        }
        check_together(fields, at)?;
        bound_integers(fields);
        self.rewrite_one_of(fields);
        Ok(())
    }

    /// Checks and prepares the value of one keyword.
    fn keyword(&mut self, keyword: &str, value: &mut Value, at: &str) -> Result<(), GrammarError> {
        if UNSUPPORTED.contains(&keyword) {
            return Err(GrammarError::unsupported(at, format!("the keyword '{keyword}'")));
        }
        match (keyword, value) {
            ("items", Value::Array(items)) => self.list(items, at),
            ("items", value) => self.schema(value, at),
            (keyword, value) if SCHEMA.contains(&keyword) => self.schema(value, at),
            (keyword, Value::Object(map)) if SCHEMA_MAP.contains(&keyword) => self.map(map, at),
            (keyword, _) if SCHEMA_MAP.contains(&keyword) => Err(wrong(at, "an object of schemas")),
            (keyword, Value::Array(items)) if SCHEMA_LIST.contains(&keyword) => {
                match items.is_empty() && keyword != "prefixItems" {
                    true => Err(wrong(at, "an array with at least one schema")),
                    false => self.list(items, at),
                }
            }
            (keyword, _) if SCHEMA_LIST.contains(&keyword) => Err(wrong(at, "an array of schemas")),
            (keyword, value) if LENGTH.contains(&keyword) => length(value, at),
            (keyword, value) if NUMBER.contains(&keyword) => number(keyword, value, at),
            ("const", value) => exact(value, at),
            ("enum", Value::Array(values)) => members(values, at),
            ("enum", _) => Err(wrong(at, "an array of values")),
            ("type", value) => kind(value, at),
            ("required", value) => strings(value, at),
            ("$ref", Value::String(to)) if !points_into(self.root, to) => {
                let to = crate::constraint::short(to);
                let feature = format!("the reference {to:?}, no JSON pointer into the schema,");
                Err(GrammarError::unsupported(at, feature))
            }
            ("$ref", Value::String(_)) => {
                self.refers = true;
                Ok(())
            }
            ("$id" | "id", Value::String(name)) => {
                if !name.starts_with('#') && at != "#/$id" && at != "#/id" {
                    self.named = Some(at.to_owned());
                }
                Ok(())
            }
            ("$ref" | "pattern" | "format", value) if !value.is_string() => {
                Err(wrong(at, "a string"))
            }
            _ => Ok(()),
        }
    }

    fn map(&mut self, map: &mut Map<String, Value>, at: &str) -> Result<(), GrammarError> {
        map.iter_mut().try_for_each(|(name, schema)| {
            printable(name, at)?;
            self.schema(schema, &format!("{at}/{}", escaped(name)))
        })
    }

    fn list(&mut self, list: &mut [Value], at: &str) -> Result<(), GrammarError> {
        list.iter_mut()
            .enumerate()
            .try_for_each(|(index, schema)| self.schema(schema, &format!("{at}/{index}")))
    }

    /// Replaces a `oneOf` whose options exclude each other by an `anyOf`, at the same place among the keywords.
    fn rewrite_one_of(&self, fields: &mut Map<String, Value>) {
        let Some(Value::Array(options)) = fields.get("oneOf") else { return };
        if fields.contains_key("anyOf") || !overlap::exclude_each_other(options, self.root) {
            return;
        }
        let renamed = std::mem::take(fields).into_iter().map(|(keyword, value)| {
            let keyword = if keyword == "oneOf" { "anyOf".to_owned() } else { keyword };
            (keyword, value)
        });
        *fields = renamed.collect();
    }
}

/// Whether a schema of property names allows every name: `true`, `{}`, or texts of any form, as zod writes it for
/// records.
fn allows_all_names(names: &Value) -> bool {
    match names {
        Value::Bool(all) => *all,
        Value::Object(fields) => {
            fields.iter().all(|(keyword, value)| keyword == "type" && value == "string")
        }
        _ => false,
    }
}

/// Whether a reference is a JSON pointer to a place in the root schema. llguidance also follows anchors, names and
/// escaped pointers, which the checks of this crate do not see.
fn points_into(root: &Value, reference: &str) -> bool {
    reference.strip_prefix('#').is_some_and(|pointer| root.pointer(pointer).is_some())
}

/// Limits the number of regular expressions whose intersection llguidance must compute for one string.
fn check_conjuncts(root: &Value) -> Result<(), GrammarError> {
    let mut conjuncts = Conjuncts::new(root);
    let mut open = vec![root];
    while let Some(value) = open.pop() {
        if conjuncts.count(value) > CONJUNCTS_MAX {
            let why = format!(
                "a text must match more than {CONJUNCTS_MAX} patterns, formats and lengths at once"
            );
            return Err(GrammarError::TooComplex(why));
        }
        match value {
            Value::Object(fields) => open.extend(fields.values()),
            Value::Array(items) => open.extend(items),
            _ => {}
        }
    }
    Ok(())
}

/// Checks keywords of one schema against each other.
fn check_together(fields: &Map<String, Value>, at: &str) -> Result<(), GrammarError> {
    let count = |keyword: &str| fields.get(keyword).and_then(Value::as_u64).unwrap_or(0);
    let required = fields.get("required").and_then(Value::as_array).map_or(0, Vec::len);
    if count("minProperties") > required as u64 + 1 {
        return Err(GrammarError::Unsupported {
            at: format!("{at}/minProperties"),
            feature: "a 'minProperties' above the number of required properties plus one"
                .to_owned(),
            instead: "list the properties in 'required'",
        });
    }
    if let Some(Value::Object(patterns)) = fields.get("patternProperties")
        && patterns.len() > PATTERNS_MAX
    {
        let what = "'patternProperties' of the JSON schema";
        let (size, unit, limit) = (patterns.len(), "patterns", PATTERNS_MAX);
        return Err(GrammarError::TooLarge { what, size, unit, limit });
    }
    if fields.contains_key("prefixItems") && fields.contains_key("additionalItems") {
        let at = format!("{at}/additionalItems");
        return Err(GrammarError::unsupported(&at, "'additionalItems' beside 'prefixItems'"));
    }
    let Some(Value::String(format)) = fields.get("format") else { return Ok(()) };
    let allows_strings = match fields.get("type") {
        None => true,
        Some(Value::Array(kinds)) => kinds.iter().any(|kind| kind == "string"),
        Some(kind) => kind == "string",
    };
    match allows_strings && !FORMATS.contains(&format.as_str()) {
        true => Err(GrammarError::Unsupported {
            at: format!("{at}/format"),
            feature: format!("the format {:?}", crate::constraint::short(format)),
            instead: "leave it out, or use 'pattern'",
        }),
        false => Ok(()),
    }
}

/// Escapes a key for a JSON pointer, and truncates a long key.
fn escaped(key: &str) -> String {
    let short: String = key.chars().take(60).collect();
    short.replace('~', "~0").replace('/', "~1")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::keyword_values::ENUM_MAX;

    fn refusal(schema: Value) -> String {
        check_schema(&schema).expect_err(&schema.to_string()).to_string()
    }

    #[test]
    fn unsupported_keywords_are_refused_with_their_place() {
        for keyword in UNSUPPORTED {
            let schema = json!({"properties": {"a/b": {"items": [{keyword: {"type": "null"}}]}}});
            let message = refusal(schema);
            let place = format!("#/properties/a~1b/items/0/{keyword}:");
            assert!(message.starts_with(&place) && message.contains(keyword), "{message}");
        }
        let literal = json!({"const": {"not": 1}, "enum": [{"if": 2}], "default": {"not": 3}});
        assert_eq!(check_schema(&literal), Ok(()), "keywords in values are no keywords");
        assert_eq!(check_schema(&json!({"uniqueItems": false, "x-other": 1})), Ok(()));
    }

    #[test]
    fn what_the_parser_would_get_wrong_is_refused() {
        for (schema, part) in [
            (json!({"format": "regex"}), "#/format: the format \"regex\""),
            (json!({"type": ["null", "string"], "format": "int64"}), "the format \"int64\""),
            (json!({"minProperties": 2}), "#/minProperties"),
            (json!({"prefixItems": [{}], "additionalItems": false}), "additionalItems"),
            (json!({"enum": [1, {"a": 9007199254740993_u64}]}), "#/enum/1: a number beyond 2^53"),
            (json!({"minimum": -1e300}), "#/minimum"),
            (json!({"anyOf": []}), "#/anyOf"),
            (json!({"enum": []}), "#/enum has no value"),
            (json!({"const": {"a": ["\u{1}"]}}), "#/const: a control character"),
            (json!({"properties": {"\u{7f}": {}}}), "#/properties: a control character"),
            (json!({"required": ["\0"]}), "#/required: a control character"),
            (json!({"type": "any"}), "#/type must be one of"),
            (json!({"required": true}), "#/required must be an array of strings"),
            (json!({"maxLength": 1.5}), "#/maxLength"),
            (json!({"maxLength": "1"}), "#/maxLength"),
            (json!({"multipleOf": 0}), "#/multipleOf"),
            (json!({"properties": []}), "#/properties must be an object"),
            (json!({"properties": {"a": 1}}), "#/properties/a must be a schema"),
            (json!({"$defs": {"x": {"$anchor": "x"}}, "$ref": "#x"}), "#/$ref: the reference"),
            (json!({"$defs": {"x": {}}, "$ref": "#/%24defs/x"}), "#/$ref: the reference"),
            (json!({"items": {"$id": "x"}, "$ref": "#/items"}), "#/items/$id"),
            (json!(false), "false"),
            (json!(7), "# must be a schema"),
        ] {
            let message = refusal(schema);
            assert!(message.contains(part), "{message}");
        }
        for fine in [
            json!({"type": "integer", "format": "int64"}),
            json!({"type": "string", "format": "password"}),
            json!({"type": "object", "propertyNames": {"type": "string"}, "additionalProperties": {"type": "number"}}),
            json!({"minProperties": 2, "required": ["a"]}),
            json!({"maxLength": 2.0}),
            json!({"items": {"$id": "x"}}),
            json!({"items": {"$id": "#/items"}, "properties": {"a": {"$ref": "#"}}}),
            json!({"minimum": 0, "exclusiveMinimum": true}),
            json!(true),
        ] {
            assert_eq!(check_schema(&fine), Ok(()), "{fine}");
        }
    }

    #[test]
    fn sizes_within_a_schema_are_limited() {
        let many = |n: usize| (0..n).map(|i| (i.to_string(), json!({}))).collect::<Map<_, _>>();
        for schema in [
            json!({"patternProperties": many(PATTERNS_MAX + 1)}),
            json!({"enum": vec![1; ENUM_MAX + 1]}),
            json!({"$defs": many(SCHEMAS_MAX)}),
        ] {
            assert!(matches!(check_schema(&schema), Err(GrammarError::TooLarge { .. })));
        }
    }

    #[test]
    fn discriminated_unions_become_any_of_at_the_same_place() {
        let tag =
            |tag| json!({"type": "object", "properties": {"t": {"const": tag}}, "required": ["t"]});
        let schema = json!({"title": "x", "oneOf": [tag("a"), tag("b")], "description": "y"});
        let prepared = prepare(&schema).unwrap();
        let keywords: Vec<&String> = prepared.as_object().unwrap().keys().collect();
        assert_eq!(keywords, ["title", "anyOf", "description", "x-guidance"]);
        let doubtful = json!({"oneOf": [tag("a"), tag("a")]});
        assert!(prepare(&doubtful).unwrap().get("oneOf").is_some());
    }
}
