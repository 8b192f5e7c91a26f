//! Prints requests with grammars, one JSON object a line, for benchmarks of a server:
//!
//!     cargo run -p tiercel-grammar --example requests -- schemas
//!     cargo run -p tiercel-grammar --example requests -- hostile
//!
//! `schemas` prints the name and the schema of each vendored JSON schema that can be compiled. `hostile` prints the
//! name of each hostile source and the fields of a request that state the source.
#![allow(clippy::unwrap_used, reason = "an example fails by panicking")]

#[path = "../tests/common/mod.rs"]
mod common;

use common::hostile::hostile_sources;
use common::{grammars, schemas, with_stack};
use serde_json::{Value, json};
use tiercel_grammar::Source;

/// Returns the fields of a request that state a source.
fn fields(source: Source) -> Value {
    match source {
        Source::JsonObject => json!({"structured_outputs": {"json_object": true}}),
        Source::JsonSchema(schema) => json!({"structured_outputs": {"json": schema}}),
        Source::Regex(regex) => json!({"structured_outputs": {"regex": regex}}),
        Source::Choice(choices) => json!({"structured_outputs": {"choice": choices}}),
        Source::Lark(text) | Source::Gbnf(text) => json!({"structured_outputs": {"grammar": text}}),
    }
}

fn main() {
    let which = std::env::args().nth(1);
    match which.as_deref() {
        Some("schemas") => with_stack(|| {
            let grammars = grammars();
            for (name, schema) in schemas() {
                if grammars.compile(&Source::JsonSchema(schema.clone())).is_ok() {
                    println!("{}", json!({"name": name, "schema": schema}));
                }
            }
        }),
        Some("hostile") => {
            for (name, source) in hostile_sources() {
                println!("{}", json!({"name": name, "fields": fields(source)}));
            }
        }
        _ => {
            eprintln!("usage: requests schemas | hostile");
            std::process::exit(2);
        }
    }
}
