//! Tests that outputs under a JSON schema are valid, according to a validator that shares no code with the grammar
//! compiler.
#![allow(clippy::unwrap_used, reason = "tests state what must hold")]

mod common;

use common::{Ending, grammars, random_output, schemas, with_stack};
use serde_json::Value;
use tiercel_grammar::{GrammarError, Source};

/// Number of random outputs of each schema.
const OUTPUTS: u64 = 6;
/// Maximum number of tokens of a random output.
const TOKENS: usize = 400;

/// Counts of the results of all schemas.
#[derive(Debug, Default)]
struct Counts {
    supported: usize,
    refused: usize,
    complete: usize,
    cut: usize,
}

/// Checks one output against its schema. An output with a number beyond the range of floats passes unchecked, because
/// such a number is valid JSON but the validator cannot read it.
fn check(name: &str, schema: &Value, text: &[u8]) -> Result<(), String> {
    let text = std::str::from_utf8(text).map_err(|error| format!("{name}: {error}"))?;
    let output: Value = match serde_json::from_str(text) {
        Ok(output) => output,
        Err(error) if error.to_string().contains("number out of range") => return Ok(()),
        Err(error) => return Err(format!("{name}: {error}: {text}")),
    };
    let validator =
        jsonschema::validator_for(schema).map_err(|error| format!("{name}: {error}"))?;
    let wrong = |error: &dyn std::fmt::Display| format!("{name}: {schema}: {text}: {error}");
    validator.validate(&output).map_err(|error| wrong(&error))
}

#[test]
fn every_complete_output_is_valid_and_every_other_schema_is_refused_by_name() {
    let (counts, mistakes) = with_stack(|| {
        let grammars = grammars();
        let (mut counts, mut mistakes) = (Counts::default(), Vec::new());
        for (name, schema) in schemas() {
            let constraint = match grammars.compile(&Source::JsonSchema(schema.clone())) {
                Ok(compiled) => compiled.constraint,
                Err(
                    error @ (GrammarError::Unsupported { .. }
                    | GrammarError::NotSupported(_)
                    | GrammarError::TooComplex(_)
                    | GrammarError::Unsatisfiable(_)),
                ) => {
                    if std::env::var_os("SHOW_REFUSALS").is_some() {
                        eprintln!("{name}: {error}");
                    }
                    counts.refused += 1;
                    continue;
                }
                Err(error) => {
                    mistakes.push(format!("{name}: {schema}: {error:?}"));
                    continue;
                }
            };
            counts.supported += 1;
            for seed in 0..OUTPUTS {
                match random_output(&*constraint, seed, TOKENS) {
                    (text, Ending::Complete) => {
                        counts.complete += 1;
                        mistakes.extend(check(&name, &schema, &text).err());
                    }
                    (_, Ending::Cut) => counts.cut += 1,
                    (text, Ending::Stuck(why)) => {
                        let text = String::from_utf8_lossy(&text).into_owned();
                        mistakes.push(format!("{name}: {schema}: stuck after {text}: {why}"));
                    }
                }
            }
        }
        (counts, mistakes)
    });
    println!("{counts:?}");
    assert!(mistakes.is_empty(), "{} mistakes:\n{}", mistakes.len(), mistakes.join("\n"));
    assert!(counts.supported >= 200, "{counts:?}");
    assert!(counts.complete >= 9 * counts.cut, "{counts:?}");
}
