//! Types of the values of settings, and the ranges of numbers.

use crate::{DeviceKind, SettingsError, listen};
use std::fmt::Display;
use std::ops::RangeInclusive;
use toml::Value;

/// Range of latency targets, ms: up to a day.
pub const TARGET_MS: RangeInclusive<f64> = 0.001..=86_400_000.0;

/// Type and range of the values of a setting.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Kind {
    /// A whole number from `low` to `high`, both included.
    Integer {
        /// Smallest value that the setting may have.
        low: u64,
        /// Largest value that the setting may have.
        high: u64,
    },
    /// A number from `low` to `high`, both included.
    Number {
        /// Smallest value that the setting may have.
        low: f64,
        /// Largest value that the setting may have.
        high: f64,
    },
    /// A latency target: a number of ms from 0.001 to a day, `auto` or `none`.
    Target,
    /// A value that is `true` or `false`.
    Bool,
    /// One word of a list of words.
    Choice(&'static [&'static str]),
    /// The source of a model: a file, a directory or a name on Hugging Face.
    Model,
    /// A path of a file.
    File,
    /// A device that computes, as [`DeviceKind`](crate::DeviceKind) is written.
    Device,
    /// An address that the server listens on: `HOST:PORT`.
    Address,
    /// An address of a listener that the server may choose itself (`auto`) or do without (`off`).
    Listener,
    /// A setting whose value is a list of texts. In flags and environment variables, commas separate the texts.
    List,
}

impl Kind {
    /// Returns a description of the values that the setting allows, for users.
    pub fn allowed(&self) -> String {
        match self {
            Kind::Integer { low, high } => format!("a whole number from {low} to {high}"),
            Kind::Number { low, high } => format!("a number from {low} to {high}"),
            Kind::Target => "0.001 to 86400000, \"auto\" or \"none\"".into(),
            Kind::Bool => "true or false".into(),
            Kind::Choice(words) => words.join(", "),
            Kind::File => "a path of a file".into(),
            Kind::Model => "a .gguf file, a Hugging Face directory, or hf:ORG/NAME[@REV]".into(),
            Kind::Device => "auto, cpu, cuda, cuda:N or mock:PROFILE".into(),
            Kind::Address => listen::FORM.into(),
            Kind::Listener => format!("auto, off or {}", listen::FORM),
            Kind::List => "a list of texts".into(),
        }
    }

    /// Returns what was expected instead of a value that is not allowed, for users.
    pub(crate) fn expected(&self, instead_of: &Value) -> String {
        match (self, instead_of.as_str()) {
            (Kind::Address, Some(text)) => listen::expected(text),
            _ => self.allowed(),
        }
    }

    /// Returns the value that a text from the environment or a flag stands for. A text that is not of this kind stays a
    /// text.
    pub(crate) fn read(&self, text: &str) -> Value {
        let value = match self {
            Kind::Integer { .. } => text.parse().map(Value::Integer).ok(),
            Kind::Number { .. } | Kind::Target => text.parse().map(Value::Float).ok(),
            Kind::Bool => text.parse().map(Value::Boolean).ok(),
            Kind::Choice(_) | Kind::Model | Kind::File | Kind::Device => None,
            Kind::Address | Kind::Listener => None,
            Kind::List if text.trim().is_empty() => Some(Value::Array(Vec::new())),
            Kind::List => Some(Value::Array(
                text.split(',').map(|item| Value::String(item.trim().to_owned())).collect(),
            )),
        };
        value.unwrap_or_else(|| Value::String(text.to_owned()))
    }

    /// Returns the value converted to the type of its setting; `None` if the setting does not allow the value.
    pub(crate) fn accept(&self, value: &Value) -> Option<Value> {
        let number = match value {
            Value::Integer(n) => Some(*n as f64),
            Value::Float(x) => Some(*x),
            _ => None,
        };
        let text_that = |is_allowed: &dyn Fn(&str) -> bool| {
            value.as_str().filter(|text| is_allowed(text)).map(|_| value.clone())
        };
        match self {
            Kind::Integer { low, high } => {
                let n = u64::try_from(value.as_integer()?).ok()?;
                (low..=high).contains(&&n).then(|| value.clone())
            }
            Kind::Number { low, high } => {
                number.filter(|x| (low..=high).contains(&x)).map(Value::Float)
            }
            Kind::Target if value.is_str() => text_that(&|word| ["auto", "none"].contains(&word)),
            Kind::Target => number.filter(|x| TARGET_MS.contains(x)).map(Value::Float),
            Kind::Bool => value.as_bool().map(Value::Boolean),
            Kind::Choice(words) => text_that(&|word| words.contains(&word)),
            Kind::Model | Kind::File => text_that(&|text| !text.is_empty()),
            Kind::Device => text_that(&|text| DeviceKind::try_from(text.to_owned()).is_ok()),
            Kind::Address => text_that(&listen::is_address),
            Kind::Listener => {
                text_that(&|text| ["auto", "off"].contains(&text) || listen::is_address(text))
            }
            // For a setting that takes a list of texts, one text without commas is a list of one. In a settings file,
            // one text with commas is a mistake: several texts must be a TOML list.
            Kind::List if value.as_str().is_some_and(|text| !text.contains(',')) => {
                Some(Value::Array(vec![value.clone()]))
            }
            Kind::List => {
                let items = value.as_array()?;
                items.iter().all(Value::is_str).then(|| value.clone())
            }
        }
    }
}

/// A type whose values are of one kind in every setting of that type.
pub(crate) trait OfKind {
    /// Kind of value (integer, boolean, list and so on) that every setting of the implementing type has.
    const KIND: Kind;
}

impl OfKind for bool {
    const KIND: Kind = Kind::Bool;
}

impl OfKind for Vec<String> {
    const KIND: Kind = Kind::List;
}

/// A type of numbers. Each setting of that type has a range of its own.
pub(crate) trait Ranged: Copy {
    /// Number that is compared with the range.
    type Number: PartialOrd + Display + Copy;

    /// Returns the setting's value as a number to compare with the setting's range; `None` for an optional setting
    /// without a value.
    fn number(self) -> Option<Self::Number>;

    /// Returns the kind of a setting whose numbers must lie in `range`.
    fn kind(range: RangeInclusive<Self::Number>) -> Kind;
}

/// Implements [`Ranged`] for a type of numbers.
macro_rules! ranged {
    ($type:ty, $number:ty, $kind:ident, $some:expr) => {
        impl Ranged for $type {
            type Number = $number;

            fn number(self) -> Option<$number> {
                $some(self)
            }

            fn kind(range: RangeInclusive<$number>) -> Kind {
                Kind::$kind { low: (*range.start()).into(), high: (*range.end()).into() }
            }
        }
    };
}

ranged!(u32, u32, Integer, Some);
ranged!(u64, u64, Integer, Some);
ranged!(f64, f64, Number, Some);
ranged!(Option<u64>, u64, Integer, std::convert::identity);
ranged!(Option<f64>, f64, Number, std::convert::identity);

/// Error: a setting of a number type has a value outside its range. Does not say which setting.
pub(crate) struct OutOfRange {
    value: String,
    allowed: String,
}

impl OutOfRange {
    /// Returns the error with the name of the setting, `field`.
    pub(crate) fn of(self, field: &str) -> SettingsError {
        let OutOfRange { value, allowed } = self;
        SettingsError::Range { field: field.to_owned(), value, allowed }
    }
}

/// Checks that a number is in the range of its setting. An optional setting without a value passes.
pub(crate) fn in_range<T: Ranged>(
    value: T,
    range: RangeInclusive<T::Number>,
) -> Result<(), OutOfRange> {
    match value.number() {
        Some(number) if !range.contains(&number) => Err(OutOfRange {
            value: number.to_string(),
            allowed: format!("{} to {}", range.start(), range.end()),
        }),
        _ => Ok(()),
    }
}
