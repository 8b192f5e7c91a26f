//! Functions and filters that Hugging Face's renderer offers to chat templates and that minijinja lacks.

use minijinja::value::{Kwargs, Value};
use minijinja::{Environment, Error, ErrorKind};
use serde::Serialize;
use serde_json::ser::{Formatter, PrettyFormatter, Serializer};
use std::io::{self, Write};
use tiercel_device::Clock;

/// Maximum indentation of JSON that a chat template writes, spaces. A larger indentation is reduced to the maximum.
const INDENT_MAX: usize = 16;

/// Adds the functions and filters to an environment of chat templates.
pub(super) fn add_to(environment: &mut Environment<'_>) {
    environment.set_unknown_method_callback(minijinja_contrib::pycompat::unknown_method_callback);
    environment.add_function("raise_exception", raise_exception);
    environment.add_function("strftime_now", strftime_now);
    environment.add_filter("tojson", tojson);
    environment.add_test("iterable", is_iterable);
}

/// Jinja test `iterable`: as in Python, the value `none` is not iterable. minijinja treats `none` as an empty list.
fn is_iterable(value: &Value) -> bool {
    !value.is_none() && value.try_iter().is_ok()
}

fn raise_exception(message: String) -> Result<Value, Error> {
    Err(Error::new(ErrorKind::InvalidOperation, message))
}

/// Jinja function: returns the current date in UTC, in the given format of C's `strftime`.
fn strftime_now(format: String) -> Result<String, Error> {
    let invalid = |error: jiff::Error| Error::new(ErrorKind::InvalidOperation, error.to_string());
    let seconds = i64::try_from(Clock::unix_s()).unwrap_or(0);
    let now = jiff::Timestamp::from_second(seconds).map_err(invalid)?;
    jiff::fmt::strtime::format(format, now).map_err(invalid)
}

/// Returns a value as JSON in one line, as the filter `tojson` writes it.
pub(super) fn json(value: &serde_json::Value) -> String {
    let mut text = Vec::new();
    // Writing to memory cannot fail, and the names in a JSON value are strings.
    let written = value.serialize(&mut Serializer::with_formatter(&mut text, Spaced));
    debug_assert!(written.is_ok(), "{written:?}");
    String::from_utf8_lossy(&text).into_owned()
}

/// Jinja filter `tojson`: writes a value as JSON like Python's `json.dumps(ensure_ascii=False)`. minijinja's own filter
/// escapes characters of HTML.
fn tojson(value: Value, options: Kwargs) -> Result<Value, Error> {
    let indent: Option<usize> = options.get("indent")?;
    // Accept and ignore the option `ensure_ascii`, which some chat templates set: the JSON is never reduced to ASCII.
    options.get::<Option<bool>>("ensure_ascii")?;
    options.assert_all_used()?;
    let mut text = Vec::new();
    let written = match indent {
        None => value.serialize(&mut Serializer::with_formatter(&mut text, Spaced)),
        Some(width) => {
            let indent = " ".repeat(width.min(INDENT_MAX));
            let pretty = PrettyFormatter::with_indent(indent.as_bytes());
            value.serialize(&mut Serializer::with_formatter(&mut text, pretty))
        }
    };
    written.map_err(|error| Error::new(ErrorKind::InvalidOperation, format!("tojson: {error}")))?;
    Ok(Value::from_safe_string(String::from_utf8_lossy(&text).into_owned()))
}

/// JSON formatter that writes a space after commas and colons, as Python does.
struct Spaced;

impl Formatter for Spaced {
    fn begin_array_value<W: ?Sized + Write>(&mut self, out: &mut W, first: bool) -> io::Result<()> {
        if first { Ok(()) } else { out.write_all(b", ") }
    }

    fn begin_object_key<W: ?Sized + Write>(&mut self, out: &mut W, first: bool) -> io::Result<()> {
        if first { Ok(()) } else { out.write_all(b", ") }
    }

    fn begin_object_value<W: ?Sized + Write>(&mut self, out: &mut W) -> io::Result<()> {
        out.write_all(b": ")
    }
}
