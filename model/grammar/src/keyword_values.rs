//! Checks of the values that keywords of a JSON schema have: numbers, lengths, texts, types and lists.

use crate::GrammarError;
use serde_json::{Number, Value};

/// Largest integer that llguidance's numbers, which are floats, hold exactly.
const EXACT_MAX: u64 = 1 << 53;
/// Maximum number of members of one `enum`.
pub(crate) const ENUM_MAX: usize = 5_000;

/// Returns the error for a place in the schema that must hold something else.
pub(crate) fn wrong(at: &str, expected: &str) -> GrammarError {
    GrammarError::Invalid(format!("{at} must be {expected}"))
}

/// Checks a length and converts it to an integer, because JSON Schema allows `2.0`.
pub(crate) fn length(value: &mut Value, at: &str) -> Result<(), GrammarError> {
    if let Some(whole) = value.as_f64().filter(|x| x.fract() == 0.0 && (0.0..1e9).contains(x)) {
        *value = Value::Number(Number::from(whole as u64));
        return Ok(());
    }
    Err(wrong(at, "a whole number from 0 to 999999999"))
}

/// Checks the value of a keyword whose value is a number.
pub(crate) fn number(keyword: &str, value: &Value, at: &str) -> Result<(), GrammarError> {
    match value {
        Value::Bool(_) if keyword.starts_with("exclusive") => Ok(()),
        Value::Number(number) if keyword == "multipleOf" => match number.as_f64() {
            Some(divisor) if divisor > 0.0 => Ok(()),
            _ => Err(wrong(at, "a number above 0")),
        },
        Value::Number(_) => exact(value, at),
        _ => Err(wrong(at, "a number")),
    }
}

/// Checks that every control character in a text has a short escape, because outputs have no `\u` escapes.
pub(crate) fn printable(text: &str, at: &str) -> Result<(), GrammarError> {
    let short = |c: char| matches!(c, '\n' | '\r' | '\t' | '\u{8}' | '\u{c}');
    match text.chars().any(|c| c.is_ascii_control() && !short(c)) {
        true => Err(GrammarError::unsupported(at, "a control character")),
        false => Ok(()),
    }
}

/// Checks that llguidance can hold every number and text of a value exactly.
pub(crate) fn exact(value: &Value, at: &str) -> Result<(), GrammarError> {
    match value {
        Value::String(text) => printable(text, at),
        Value::Number(number) => {
            let magnitude = number.as_u64().or(number.as_i64().map(i64::unsigned_abs));
            let large = magnitude.is_some_and(|magnitude| magnitude > EXACT_MAX)
                || number.as_f64().is_none_or(|x| x.abs() > EXACT_MAX as f64);
            match large {
                true => Err(GrammarError::unsupported(at, "a number beyond 2^53")),
                false => Ok(()),
            }
        }
        Value::Array(items) => items.iter().try_for_each(|item| exact(item, at)),
        Value::Object(fields) => fields
            .iter()
            .try_for_each(|(name, field)| printable(name, at).and_then(|()| exact(field, at))),
        _ => Ok(()),
    }
}

/// Checks the members of an `enum`.
pub(crate) fn members(values: &[Value], at: &str) -> Result<(), GrammarError> {
    if values.is_empty() {
        return Err(GrammarError::Unsatisfiable(format!("{at} has no value")));
    }
    if values.len() > ENUM_MAX {
        let (what, unit) = ("an 'enum' of the JSON schema", "members");
        return Err(GrammarError::TooLarge { what, size: values.len(), unit, limit: ENUM_MAX });
    }
    values.iter().enumerate().try_for_each(|(index, value)| exact(value, &format!("{at}/{index}")))
}

/// Checks the value of `type`.
pub(crate) fn kind(value: &Value, at: &str) -> Result<(), GrammarError> {
    const KINDS: [&str; 7] = ["null", "boolean", "number", "integer", "string", "array", "object"];
    let known = |value: &Value| value.as_str().is_some_and(|kind| KINDS.contains(&kind));
    let valid = match value {
        Value::Array(kinds) => !kinds.is_empty() && kinds.iter().all(known),
        kind => known(kind),
    };
    if valid {
        Ok(())
    } else {
        Err(wrong(at, &format!("one of {}, or an array of them", KINDS.join(", "))))
    }
}

/// Checks the value of `required`.
pub(crate) fn strings(value: &Value, at: &str) -> Result<(), GrammarError> {
    match value {
        Value::Array(items) if items.iter().all(Value::is_string) => exact(value, at),
        // In draft 3 of JSON Schema, which is obsolete, `required` is a boolean.
        _ => Err(wrong(at, "an array of strings")),
    }
}
