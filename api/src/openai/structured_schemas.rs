//! OpenAPI schemas of the fields that state a grammar for the output.

use crate::document::schema::{Property, any, any_of, array, flag, object, text, text_of, word};
use crate::openai::structured::FORMATS;
use tiercel_grammar::{CHOICES_MAX, SOURCE_BYTES_MAX};
use utoipa::openapi::RefOr;
use utoipa::openapi::schema::Schema;

fn json_schema() -> RefOr<Schema> {
    any("A JSON schema: an object, true, false, or a text with the JSON of a schema.")
}

fn choices() -> RefOr<Schema> {
    array(text("A text."), 1..=CHOICES_MAX, "The output is one of these texts.")
}

fn regex() -> RefOr<Schema> {
    text_of(0..=SOURCE_BYTES_MAX, "Regular expression that the whole output matches.")
}

fn grammar() -> RefOr<Schema> {
    text_of(0..=SOURCE_BYTES_MAX, "Lark grammar (rule `start`) or GBNF grammar (rule `root`).")
}

/// Returns the fields that state a grammar, with their schemas. A request has at most one of these fields.
pub(super) fn fields() -> Vec<Property> {
    let stated = object(
        "JSON schema that the output follows.",
        1,
        vec![
            ("schema", json_schema()),
            ("name", text("Name of the schema; ignored.")),
            ("strict", flag("Ignored: the output follows the schema in any case.")),
        ],
    );
    let kinds = || word(&FORMATS, "The type `json_schema` needs the field `json_schema`.");
    let format = object(
        "Form of the output. The type `json_object` may have the field `schema`.",
        0,
        vec![("type", kinds()), ("json_schema", stated), ("schema", json_schema())],
    );
    let outputs = object(
        "Grammar that the output follows; exactly one of the fields.",
        0,
        vec![
            ("json", json_schema()),
            ("regex", regex()),
            ("choice", choices()),
            ("grammar", grammar()),
            ("json_object", flag("Whether the output is a JSON object.")),
        ],
    );
    vec![
        ("response_format", format),
        ("structured_outputs", outputs),
        ("guided_json", any_of([json_schema()], "The same as `structured_outputs.json`.")),
        ("guided_regex", regex()),
        ("guided_choice", choices()),
        ("guided_grammar", grammar()),
        ("json_schema", any_of([json_schema()], "The same as `structured_outputs.json`.")),
        ("grammar", grammar()),
    ]
}
