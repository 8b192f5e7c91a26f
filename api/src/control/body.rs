//! Reads the JSON bodies of the control API.

use crate::http::ApiError;
use serde::de::{DeserializeOwned, Error};
use serde_json::Value;

/// Reads a body whose fields are texts, numbers, true, false or null. Without this check serde would also accept an
/// array in place of the object, and an object in place of a word.
///
/// # Errors
/// If the body is no such object, or does not fit `T`.
pub(super) fn read<T: DeserializeOwned>(body: Value) -> Result<T, serde_json::Error> {
    let fields = body.as_object().ok_or_else(|| Error::custom("the body must be an object"))?;
    let nested = fields.iter().find(|(_, value)| value.is_object() || value.is_array());
    match nested {
        Some((name, _)) => {
            let name: String = name.chars().take(40).collect();
            Err(Error::custom(format!("'{name}' must be a plain value")))
        }
        None => serde_json::from_value(body),
    }
}

/// Reads a body as [`read`] does, and checks with `allowed` that the values in the body are in their ranges.
///
/// # Errors
/// 400 with the message `expected` about the field `param`, if the body cannot be used.
pub(super) fn read_if<T: DeserializeOwned>(
    body: Value,
    (param, expected): (&str, String),
    allowed: impl FnOnce(&T) -> bool,
) -> Result<T, ApiError> {
    let asked = read(body).ok().filter(allowed);
    asked.ok_or_else(|| ApiError::param(param, expected))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde::Deserialize;
    use serde_json::json;

    #[derive(Debug, PartialEq, Deserialize)]
    struct Sample {
        tier: tiercel_device::Tier,
        priority: Option<i32>,
    }

    #[test]
    fn only_an_object_of_plain_values_is_read() {
        let premium = Sample { tier: tiercel_device::Tier::Premium, priority: None };
        assert_eq!(read::<Sample>(json!({"tier": "premium"})).unwrap(), premium);
        for bad in [
            json!(["premium", 0]),
            json!({"tier": {"premium": null}}),
            json!({"tier": ["premium"]}),
            json!({"tier": "gold"}),
            json!("premium"),
            json!(null),
        ] {
            assert!(read::<Sample>(bad.clone()).is_err(), "{bad}");
        }
    }
}
