//! Reads fields of a request's JSON object one by one, so that every error names the field by its path. A `null` counts
//! as an absent field; unknown fields are ignored.

use crate::http::ApiError;
use actix_web::http::StatusCode;
use serde_json::{Map, Value};
use std::ops::RangeInclusive;

/// A JSON object of a request's body, with its path in the body.
#[derive(Debug, Clone)]
pub(crate) struct Fields<'a> {
    map: &'a Map<String, Value>,
    path: String,
}

impl<'a> Fields<'a> {
    /// Reads the whole body of a request as a JSON object; fails if it is none.
    pub(crate) fn root(body: &'a Value) -> Result<Fields<'a>, ApiError> {
        match body {
            Value::Object(map) => Ok(Fields { map, path: String::new() }),
            other => Err(ApiError::new(
                StatusCode::BAD_REQUEST,
                format!("the body must be a JSON object, not {}", describe(other)),
            )
            .code("invalid_type")),
        }
    }

    /// Reads a value inside a request's body, at `path`, as a JSON object; fails if it is none.
    pub(crate) fn at(value: &'a Value, path: String) -> Result<Fields<'a>, ApiError> {
        match value {
            Value::Object(map) => Ok(Fields { map, path }),
            other => Err(wrong(&path, "an object", other)),
        }
    }

    /// Returns the full path in the request's body of a field of this JSON object.
    pub(crate) fn path(&self, name: &str) -> String {
        if self.path.is_empty() { name.to_owned() } else { format!("{}.{name}", self.path) }
    }

    /// Returns the value of a field of the JSON object, if the field is present and not null.
    pub(crate) fn get(&self, name: &str) -> Option<&'a Value> {
        self.map.get(name).filter(|value| !value.is_null())
    }

    /// Returns all fields of the JSON object in their order, including null fields.
    pub(crate) fn all(&self) -> impl Iterator<Item = (&'a String, &'a Value)> {
        self.map.iter()
    }

    pub(crate) fn string(&self, name: &str) -> Result<Option<&'a str>, ApiError> {
        self.typed(name, "a string", Value::as_str)
    }

    pub(crate) fn boolean(&self, name: &str) -> Result<bool, ApiError> {
        self.boolean_or(name, false)
    }

    /// Reads a flag. Returns `default` if the field is absent or null.
    pub(crate) fn boolean_or(&self, name: &str, default: bool) -> Result<bool, ApiError> {
        Ok(self.typed(name, "true or false", Value::as_bool)?.unwrap_or(default))
    }

    pub(crate) fn array(&self, name: &str) -> Result<Option<&'a Vec<Value>>, ApiError> {
        self.typed(name, "an array", Value::as_array)
    }

    pub(crate) fn object(&self, name: &str) -> Result<Option<Fields<'a>>, ApiError> {
        self.get(name).map(|value| Fields::at(value, self.path(name))).transpose()
    }

    pub(crate) fn integer(
        &self,
        name: &str,
        range: RangeInclusive<i64>,
    ) -> Result<Option<i64>, ApiError> {
        self.get(name).map(|value| integer(value, &self.path(name), range)).transpose()
    }

    /// Reads a whole number within `range` from a field, as [`Fields::integer`] does, but as `u32`.
    pub(crate) fn count(
        &self,
        name: &str,
        range: RangeInclusive<u32>,
    ) -> Result<Option<u32>, ApiError> {
        let (low, high) = (i64::from(*range.start()), i64::from(*range.end()));
        Ok(self.integer(name, low..=high)?.map(|n| n as u32))
    }

    pub(crate) fn number(
        &self,
        name: &str,
        range: RangeInclusive<f64>,
    ) -> Result<Option<f32>, ApiError> {
        self.get(name).map(|value| number(value, &self.path(name), range)).transpose()
    }

    fn typed<T>(
        &self,
        name: &str,
        expected: &str,
        read: impl FnOnce(&'a Value) -> Option<T>,
    ) -> Result<Option<T>, ApiError> {
        let Some(value) = self.get(name) else { return Ok(None) };
        read(value).map(Some).ok_or_else(|| wrong(&self.path(name), expected, value))
    }
}

/// Reads a JSON value as a whole number within `range`; `5.0` counts as a whole number.
pub(crate) fn integer(
    value: &Value,
    path: &str,
    range: RangeInclusive<i64>,
) -> Result<i64, ApiError> {
    let whole = |x: f64| (x.fract() == 0.0 && x.abs() < 9e15).then_some(x as i64);
    let read = value.as_i64().or_else(|| value.as_f64().and_then(whole));
    read.filter(|n| range.contains(n)).ok_or_else(|| {
        let expected = format!("a whole number from {} to {}", range.start(), range.end());
        wrong(path, &expected, value)
    })
}

/// Reads a JSON value as a finite number within `range`.
pub(crate) fn number(
    value: &Value,
    path: &str,
    range: RangeInclusive<f64>,
) -> Result<f32, ApiError> {
    value.as_f64().filter(|x| range.contains(x)).map(|x| x as f32).ok_or_else(|| {
        let expected = format!("a number from {} to {}", range.start(), range.end());
        wrong(path, &expected, value)
    })
}

/// Makes the HTTP error for a field of the request's body, at `path`, whose value is not as expected.
pub(crate) fn wrong(path: &str, expected: &str, value: &Value) -> ApiError {
    let error =
        ApiError::param(path, format!("'{path}' must be {expected}, not {}", describe(value)));
    match value {
        Value::Number(_) => error,
        _ => error.code("invalid_type"),
    }
}

/// Describes a JSON value for an error message, in few characters however large the value is.
fn describe(value: &Value) -> String {
    match value {
        Value::Null => "null".into(),
        Value::Bool(_) | Value::Number(_) => value.to_string(),
        Value::String(text) => {
            let short: String = text.chars().take(40).collect();
            let dots = if short.len() < text.len() { "..." } else { "" };
            format!("the string {short:?}{dots}")
        }
        Value::Array(_) => "an array".into(),
        Value::Object(_) => "an object".into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn null_equals_absent_and_errors_name_the_path() {
        let body = json!({"a": null, "b": "x", "c": {"d": 7}, "e": 5.0});
        let root = Fields::root(&body).unwrap();
        assert_eq!(root.integer("a", 0..=9).unwrap(), None);
        assert_eq!(root.integer("e", 0..=9).unwrap(), Some(5));
        let error = root.integer("b", 0..=9).unwrap_err();
        assert_eq!(
            error.to_string(),
            "'b' must be a whole number from 0 to 9, not the string \"x\""
        );
        let inner = root.object("c").unwrap().unwrap();
        let error = inner.string("d").unwrap_err();
        assert_eq!(error.to_string(), "'c.d' must be a string, not 7");
        assert_eq!(error.body()["error"]["param"], "c.d");
    }

    #[test]
    fn numbers_stay_within_their_range() {
        for bad in [json!(-0.1), json!(2.1), json!(1e308), json!("1"), json!(true)] {
            let body = json!({"t": bad});
            assert!(Fields::root(&body).unwrap().number("t", 0.0..=2.0).is_err(), "{body}");
        }
        for bad in [json!(1.5), json!(1e300), json!(u64::MAX), json!(-1)] {
            let body = json!({"n": bad});
            assert!(Fields::root(&body).unwrap().integer("n", 0..=100).is_err(), "{body}");
        }
    }

    #[test]
    fn long_strings_are_cut_in_messages() {
        let body = json!({"n": "x".repeat(10_000)});
        let error = Fields::root(&body).unwrap().integer("n", 0..=1).unwrap_err();
        assert!(error.to_string().len() < 200);
    }
}
