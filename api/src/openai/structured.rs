//! Reads the grammar that the output must follow, from OpenAI's field `response_format`, from vLLM's fields
//! `structured_outputs` and `guided_*`, or from llama.cpp's fields `json_schema` and `grammar`. A request has at most
//! one grammar.

use crate::http::ApiError;
use crate::openai::fields::{Fields, wrong};
use serde_json::Value;
use tiercel_grammar::Source;

/// Fields of `structured_outputs` that hold a grammar.
pub(crate) const KINDS: [&str; 5] = ["json", "regex", "choice", "grammar", "json_object"];
/// Types of `response_format`.
pub(crate) const FORMATS: [&str; 3] = ["text", "json_object", "json_schema"];
/// Fields of the request's body that hold a grammar, each with the field of `structured_outputs` that has the same
/// meaning.
pub(crate) const GUIDED: [(&str, &str); 6] = [
    ("guided_json", "json"),
    ("guided_regex", "regex"),
    ("guided_choice", "choice"),
    ("guided_grammar", "grammar"),
    ("json_schema", "json"),
    ("grammar", "grammar"),
];
/// vLLM's options for the form of the output. This server does not support these options.
const OPTIONS: [&str; 4] = [
    "structural_tag",
    "whitespace_pattern",
    "disable_any_whitespace",
    "disable_additional_properties",
];

/// Grammar that the output of a request follows.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Rule {
    /// Source of the grammar.
    pub(crate) source: Source,
    /// Path of the field in the request's body that states the grammar, for error messages.
    pub(crate) param: String,
}

/// Reads the grammar of a request, if the request has a grammar.
///
/// # Errors
/// 400 for a field of the wrong form, for a feature that is not supported, and for more than one grammar.
pub(crate) fn rule(body: &Fields<'_>) -> Result<Option<Rule>, ApiError> {
    let mut rules = Vec::new();
    rules.extend(response_format(body)?);
    rules.extend(structured_outputs(body)?);
    for (field, kind) in GUIDED {
        // Clients of llama.cpp send an empty text if they have no grammar.
        let of_llama = matches!(field, "json_schema" | "grammar");
        if of_llama && body.get(field).is_some_and(|value| value == "") {
            continue;
        }
        rules.extend(of_kind(body, field, kind)?);
    }
    if body.get("guided_whitespace_pattern").is_some() {
        return Err(not_supported("guided_whitespace_pattern"));
    }
    match rules.as_slice() {
        [first, second, ..] => {
            let message = format!(
                "'{}' and '{}' both state what the output follows; send one of them",
                first.param, second.param
            );
            Err(ApiError::param(second.param.clone(), message))
        }
        _ => Ok(rules.pop()),
    }
}

fn not_supported(param: &str) -> ApiError {
    ApiError::unsupported(param, format!("'{param}' is not supported; leave it out"))
}

fn response_format(body: &Fields<'_>) -> Result<Option<Rule>, ApiError> {
    let Some(format) = body.object("response_format")? else { return Ok(None) };
    match format.string("type")? {
        None | Some("text") => Ok(None),
        // llama.cpp reads a schema beside this type too.
        Some("json_object") => {
            let any = |source: &Source| {
                let Source::JsonSchema(schema) = source else { return false };
                *schema == Value::Bool(true) || schema.as_object().is_some_and(|of| of.is_empty())
            };
            let rule = of_kind(&format, "schema", "json")?.filter(|rule| !any(&rule.source));
            let object =
                || Rule { source: Source::JsonObject, param: "response_format".to_owned() };
            Ok(Some(rule.unwrap_or_else(object)))
        }
        Some("json_schema") => {
            let param = "response_format.json_schema";
            let missing =
                || ApiError::param(param, format!("'{param}' is required")).code("missing");
            let stated = format.object("json_schema")?.ok_or_else(missing)?;
            // The output follows the schema whether `strict` is true or not.
            stated.boolean("strict")?;
            stated.string("name")?;
            let rule = of_kind(&stated, "schema", "json")?;
            let param = stated.path("schema");
            let missing =
                || ApiError::param(&*param, format!("'{param}' is required")).code("missing");
            rule.ok_or_else(missing).map(Some)
        }
        Some(other) => {
            let short: String = other.chars().take(40).collect();
            let message = format!(
                "'response_format.type' must be one of {}, not {short:?}",
                FORMATS.join(", ")
            );
            Err(ApiError::unsupported("response_format", message))
        }
    }
}

fn structured_outputs(body: &Fields<'_>) -> Result<Option<Rule>, ApiError> {
    let Some(stated) = body.object("structured_outputs")? else { return Ok(None) };
    for option in OPTIONS {
        if !matches!(stated.get(option), None | Some(Value::Bool(false))) {
            return Err(not_supported(&stated.path(option)));
        }
    }
    let mut rules = Vec::new();
    for kind in KINDS {
        rules.extend(of_kind(&stated, kind, kind)?);
    }
    match rules.len() {
        1 => Ok(rules.pop()),
        _ => {
            let message =
                format!("'structured_outputs' must have exactly one of {}", KINDS.join(", "));
            Err(ApiError::param("structured_outputs", message))
        }
    }
}

/// Reads a grammar of the kind `kind` from the field `name`, if the field is present.
fn of_kind(fields: &Fields<'_>, name: &str, kind: &str) -> Result<Option<Rule>, ApiError> {
    let param = fields.path(name);
    let Some(value) = fields.get(name) else { return Ok(None) };
    let source = match kind {
        "json" => Source::JsonSchema(schema(value, &param)?),
        "json_object" => match fields.boolean(name)? {
            true => Source::JsonObject,
            false => return Ok(None),
        },
        "choice" => Source::Choice(choices(value, &param)?),
        "regex" => Source::Regex(text(value, &param)?),
        _ => Source::of_grammar(text(value, &param)?),
    };
    Ok(Some(Rule { source, param }))
}

/// Reads a JSON schema: an object, `true`, `false`, or a text with the JSON of a schema.
fn schema(value: &Value, param: &str) -> Result<Value, ApiError> {
    let schema = match value {
        Value::String(json) => serde_json::from_str(json).map_err(|error| {
            ApiError::param(param, format!("'{param}' is not the JSON text of a schema: {error}"))
        })?,
        other => other.clone(),
    };
    match schema {
        Value::Object(_) | Value::Bool(_) => Ok(schema),
        other => Err(wrong(param, "a JSON schema: an object", &other)),
    }
}

fn choices(value: &Value, param: &str) -> Result<Vec<String>, ApiError> {
    let strings = value.as_array().and_then(|items| {
        items.iter().map(|item| item.as_str().map(str::to_owned)).collect::<Option<Vec<String>>>()
    });
    strings.ok_or_else(|| wrong(param, "an array of strings", value))
}

fn text(value: &Value, param: &str) -> Result<String, ApiError> {
    value.as_str().map(str::to_owned).ok_or_else(|| wrong(param, "a string", value))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn read(body: Value) -> Result<Option<Rule>, ApiError> {
        rule(&Fields::root(&body).unwrap())
    }

    #[test]
    fn every_form_is_read_with_its_field() {
        let schema = json!({"type": "object", "properties": {"b": {}, "a": {}}});
        let of_schema = || Source::JsonSchema(schema.clone());
        let choice = || Source::Choice(vec!["a".into(), "b".into()]);
        let lark = || Source::Lark("start: \"a\"".into());
        for (body, source, param) in [
            (
                json!({"response_format": {"type": "json_object"}}),
                Source::JsonObject,
                "response_format",
            ),
            (
                json!({"response_format": {"type": "json_schema", "json_schema": {
                    "name": "x", "strict": true, "schema": schema.clone()}}}),
                of_schema(),
                "response_format.json_schema.schema",
            ),
            (
                json!({"structured_outputs": {"json": schema.clone()}}),
                of_schema(),
                "structured_outputs.json",
            ),
            (
                json!({"structured_outputs": {"json": schema.to_string()}}),
                of_schema(),
                "structured_outputs.json",
            ),
            (
                json!({"structured_outputs": {"json_object": true}}),
                Source::JsonObject,
                "structured_outputs.json_object",
            ),
            (
                json!({"structured_outputs": {"regex": "a+", "json_object": false, "disable_any_whitespace": false}}),
                Source::Regex("a+".into()),
                "structured_outputs.regex",
            ),
            (
                json!({"structured_outputs": {"choice": ["a", "b"]}}),
                choice(),
                "structured_outputs.choice",
            ),
            (
                json!({"structured_outputs": {"grammar": "start: \"a\""}}),
                lark(),
                "structured_outputs.grammar",
            ),
            (
                json!({"response_format": {"type": "json_object", "schema": schema.clone()}}),
                of_schema(),
                "response_format.schema",
            ),
            (
                json!({"response_format": {"type": "json_object", "schema": {}}}),
                Source::JsonObject,
                "response_format",
            ),
            (json!({"json_schema": schema.clone()}), of_schema(), "json_schema"),
            (json!({"grammar": "start: \"a\""}), lark(), "grammar"),
            (json!({"guided_json": schema.clone()}), of_schema(), "guided_json"),
            (json!({"guided_regex": "a+"}), Source::Regex("a+".into()), "guided_regex"),
            (json!({"guided_choice": ["a", "b"]}), choice(), "guided_choice"),
            (
                json!({"guided_grammar": "root ::= \"a\""}),
                Source::Gbnf("root ::= \"a\"".into()),
                "guided_grammar",
            ),
        ] {
            let rule = read(body.clone()).unwrap().expect("a grammar");
            assert_eq!((rule.source, rule.param.as_str()), (source, param), "{body}");
        }
        for none in [
            json!({}),
            json!({"response_format": {"type": "text"}}),
            json!({"response_format": {}, "structured_outputs": null, "guided_json": null}),
            json!({"grammar": "", "json_schema": null}),
        ] {
            assert_eq!(read(none.clone()).unwrap(), None, "{none}");
        }
    }

    #[test]
    fn wrong_forms_are_refused_and_name_the_field() {
        for (body, param) in [
            (json!({"response_format": 7}), "response_format"),
            (json!({"response_format": {"type": "grammar"}}), "response_format"),
            (json!({"response_format": {"type": "json_schema"}}), "response_format.json_schema"),
            (
                json!({"response_format": {"type": "json_schema", "json_schema": {}}}),
                "response_format.json_schema.schema",
            ),
            (
                json!({"response_format": {"type": "json_schema", "json_schema": {"schema": 1}}}),
                "response_format.json_schema.schema",
            ),
            (
                json!({"response_format": {"type": "json_schema", "json_schema": {"schema": {}, "strict": "yes"}}}),
                "response_format.json_schema.strict",
            ),
            (json!({"structured_outputs": {}}), "structured_outputs"),
            (json!({"structured_outputs": {"json": {}, "regex": "a"}}), "structured_outputs"),
            (json!({"structured_outputs": {"choice": "a"}}), "structured_outputs.choice"),
            (json!({"structured_outputs": {"choice": [1]}}), "structured_outputs.choice"),
            (json!({"structured_outputs": {"json": "{"}}), "structured_outputs.json"),
            (json!({"structured_outputs": {"regex": 1}}), "structured_outputs.regex"),
            (
                json!({"structured_outputs": {"json": {}, "structural_tag": "x"}}),
                "structured_outputs.structural_tag",
            ),
            (
                json!({"structured_outputs": {"json": {}, "whitespace_pattern": " "}}),
                "structured_outputs.whitespace_pattern",
            ),
            (
                json!({"guided_json": {}, "guided_whitespace_pattern": " "}),
                "guided_whitespace_pattern",
            ),
            (json!({"guided_json": {}, "guided_regex": "a"}), "guided_regex"),
            (
                json!({"response_format": {"type": "json_object", "schema": 7}}),
                "response_format.schema",
            ),
            (json!({"guided_choice": ""}), "guided_choice"),
            (json!({"guided_json": {}, "grammar": "root ::= \"a\""}), "grammar"),
            (
                json!({"response_format": {"type": "json_object"}, "guided_choice": ["a"]}),
                "guided_choice",
            ),
        ] {
            let error = read(body.clone()).expect_err("refused");
            assert_eq!(error.body()["error"]["param"], param, "{body}");
        }
    }
}
