//! Checks answers of a model under JSON schemas. Each line of standard input is an object with `name`, `schema`, `text`
//! and `complete`:
//!
//!     cargo run -p tiercel-grammar --example check_answers < answers.jsonl
//!
//! A complete answer must be valid by crate `jsonschema`. Any other answer must be a prefix that the schema's grammar
//! accepts, byte by byte. The example prints each wrong answer and exits with status 1 if there is one.
#![allow(clippy::unwrap_used, reason = "an example fails by panicking")]

#[path = "../tests/common/mod.rs"]
mod common;

use common::{grammars, with_stack};
use serde_json::Value;
use tiercel_device::TokenId;
use tiercel_grammar::{Grammars, Source};

/// Checks that a complete answer is valid JSON and follows the schema.
fn check_complete(schema: &Value, text: &str) -> Result<(), String> {
    let value: Value = serde_json::from_str(text).map_err(|error| error.to_string())?;
    let validator = jsonschema::validator_for(schema).map_err(|error| error.to_string())?;
    validator.validate(&value).map_err(|error| error.to_string())
}

/// Checks that the schema's grammar accepts each byte of an answer that was cut.
fn check_prefix(grammars: &Grammars, schema: &Value, text: &str) -> Result<(), String> {
    let compiled = grammars.compile(&Source::JsonSchema(schema.clone()));
    let constraint = compiled.map_err(|error| error.to_string())?.constraint;
    let mut state = constraint.start();
    for (place, byte) in text.bytes().enumerate() {
        let token = TokenId::from(byte);
        let mask = state.mask().map_err(|error| format!("byte {place}: {error:?}"))?;
        if !mask.tokens().any(|allowed| allowed == token) {
            return Err(format!("byte {place} is not allowed"));
        }
        state.advance(token).map_err(|error| format!("byte {place}: {error}"))?;
    }
    Ok(())
}

fn main() {
    let (complete, cut, wrong) = with_stack(|| {
        let grammars = grammars();
        let (mut complete, mut cut, mut wrong) = (0, 0, 0);
        for line in std::io::stdin().lines() {
            let answer: Value = serde_json::from_str(&line.unwrap()).unwrap();
            let (schema, text) = (&answer["schema"], answer["text"].as_str().unwrap());
            let checked = if answer["complete"] == true {
                complete += 1;
                check_complete(schema, text)
            } else {
                cut += 1;
                check_prefix(&grammars, schema, text)
            };
            if let Err(why) = checked {
                wrong += 1;
                println!("{}: {why}: {schema}: {text}", answer["name"]);
            }
        }
        (complete, cut, wrong)
    });
    println!("{complete} complete answers, {cut} cut answers, {wrong} wrong");
    if wrong > 0 {
        std::process::exit(1);
    }
}
