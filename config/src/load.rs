//! Loads settings in layers: defaults, then the file, then the environment, then flags.

use crate::{FIELDS, Field, Kind, Policy, ServerSettings, SettingsError, field, listen, suggest};
use std::fmt;
use std::path::{Path, PathBuf};
use toml::de::{DeTable, DeValue};
use toml::{Spanned, Table, Value};

/// Largest settings file, bytes.
const MAX_FILE_BYTES: u64 = 1 << 20;

/// Source of a setting's value, for error messages.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Origin {
    /// A line of the settings file.
    File {
        /// Path of the settings file.
        path: PathBuf,
        /// Number of the line, from 1.
        line: usize,
    },
    /// An environment variable, by its name.
    Env(String),
    /// A command-line flag, with its dashes.
    Flag(String),
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Origin::File { path, line } => write!(f, "{}:{line}", path.display()),
            Origin::Env(name) | Origin::Flag(name) => f.write_str(name),
        }
    }
}

/// Reason for which settings could not be loaded. The message is one line that names the place, the setting and what is
/// allowed.
#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    /// The settings file cannot be read.
    #[error("cannot read the settings file {}: {why}", path.display())]
    Unreadable {
        /// Path of the settings file.
        path: PathBuf,
        /// Reason for which the settings file cannot be used.
        why: String,
    },
    /// The settings file is not valid TOML.
    #[error("{origin}: not valid TOML: {why}")]
    Syntax {
        /// Place of the error: a line of the file, a variable or a flag.
        origin: Origin,
        /// Reason for which the settings file cannot be used.
        why: String,
    },
    /// A name that a user wrote is not the name of a setting.
    #[error("{origin}: unknown setting {name}{}", hint(suggestions))]
    Unknown {
        /// Place of the error: a line of the file, a variable or a flag.
        origin: Origin,
        /// Unknown name that the user wrote.
        name: String,
        /// Settings that the unknown name may have meant, the likeliest first.
        suggestions: Vec<&'static str>,
    },
    /// An assignment `PATH=VALUE` has no value.
    #[error("{origin}: {path} has no value; write {origin} {path}=VALUE, where VALUE is {allowed}")]
    NoValue {
        /// Place of the error: a line of the file, a variable or a flag.
        origin: Origin,
        /// Name of the setting.
        path: &'static str,
        /// Description of the values that the setting allows.
        allowed: String,
    },
    /// A setting has a value of the wrong type or outside its range.
    #[error("{origin}: {path} = {value} is not allowed: expected {allowed}")]
    Value {
        /// Place of the error: a line of the file, a variable or a flag.
        origin: Origin,
        /// Name of the setting.
        path: &'static str,
        /// Value of the setting as the user wrote it.
        value: String,
        /// Description of the values that the setting allows.
        allowed: String,
    },
    /// Each setting's value is allowed by itself, but the values cannot go together.
    #[error(transparent)]
    Settings(#[from] SettingsError),
}

fn hint(suggestions: &[&str]) -> String {
    match suggestions {
        [] => "; docs/configuration.md lists them all".into(),
        [one] => format!("; did you mean {one}?"),
        [others @ .., last] => format!("; did you mean {} or {last}?", others.join(", ")),
    }
}

/// Loader that collects settings layer by layer; a later layer wins. The preset of the policy lies under all layers.
#[derive(Debug, Default)]
pub struct Loader {
    base: ServerSettings,
    /// Settings that were set and their values, in order.
    given: Vec<(&'static Field, Value)>,
    warnings: Vec<String>,
}

impl Loader {
    /// Returns a loader that starts from other defaults than the server's.
    pub fn over(base: ServerSettings) -> Loader {
        Loader { base, ..Loader::default() }
    }

    /// Reads a settings file.
    ///
    /// # Errors
    /// [`LoadError`], which names the line.
    pub fn file(&mut self, path: &Path) -> Result<(), LoadError> {
        let unreadable = |why: String| LoadError::Unreadable { path: path.to_owned(), why };
        let size = std::fs::metadata(path).map_err(|error| unreadable(error.to_string()))?.len();
        if size > MAX_FILE_BYTES {
            return Err(unreadable(format!(
                "it has {size} bytes, more than the limit of {MAX_FILE_BYTES}"
            )));
        }
        let text = std::fs::read_to_string(path).map_err(|error| unreadable(error.to_string()))?;
        self.text(path, &text)
    }

    fn text(&mut self, path: &Path, text: &str) -> Result<(), LoadError> {
        let origin = |offset: usize| Origin::File {
            path: path.to_owned(),
            line: text.as_bytes()[..offset.min(text.len())].iter().filter(|b| **b == b'\n').count()
                + 1,
        };
        let parsed = DeTable::parse(text).map_err(|error| LoadError::Syntax {
            origin: origin(error.span().map_or(0, |span| span.start)),
            why: error.message().replace('\n', " "),
        })?;
        self.table("", parsed.get_ref(), &origin)
    }

    fn table(
        &mut self,
        prefix: &str,
        table: &DeTable<'_>,
        origin: &dyn Fn(usize) -> Origin,
    ) -> Result<(), LoadError> {
        for (key, value) in table {
            let name = format!("{prefix}{}", key.get_ref());
            let at = || origin(key.span().start);
            if let Some(field) = field(&name) {
                self.set(field, plain(value), at())?;
            } else if let (DeValue::Table(inner), true) = (value.get_ref(), is_table(&name)) {
                self.table(&format!("{name}."), inner, origin)?;
            } else {
                let suggestions = suggest::paths(&name);
                return Err(LoadError::Unknown { origin: at(), name, suggestions });
            }
        }
        Ok(())
    }

    /// Takes every `TIERCEL_...` environment variable that names a setting. Other variables of that prefix only cause a
    /// warning, except `reserved` ones: the environment is shared, and orchestrators add variables of their own.
    ///
    /// # Errors
    /// [`LoadError::Value`] if a value is not allowed.
    pub fn env(
        &mut self,
        vars: impl IntoIterator<Item = (String, String)>,
        reserved: &[&str],
    ) -> Result<(), LoadError> {
        for (name, value) in vars {
            if !name.starts_with("TIERCEL_") || reserved.contains(&name.as_str()) {
                continue;
            }
            match FIELDS.iter().find(|field| field.env() == name) {
                Some(field) => self.set_text(field, &value, Origin::Env(name))?,
                None => self.warnings.push(format!(
                    "the environment variable {name} is ignored: it names no setting"
                )),
            }
        }
        Ok(())
    }

    /// Sets one field from a flag. `flag` is the flag as the user wrote it.
    ///
    /// # Errors
    /// [`LoadError::Value`] if a value is not allowed.
    pub fn flag(
        &mut self,
        field: &'static Field,
        flag: &str,
        value: &str,
    ) -> Result<(), LoadError> {
        self.set_text(field, value, Origin::Flag(flag.to_owned()))
    }

    /// Sets the field that `assignment` (`PATH=VALUE`) names.
    ///
    /// # Errors
    /// [`LoadError`] if the assignment names no setting or the value is not allowed.
    pub fn assignment(&mut self, assignment: &str) -> Result<(), LoadError> {
        let (name, value) = match assignment.split_once('=') {
            Some((name, value)) => (name, Some(value)),
            None => (assignment, None),
        };
        let origin = Origin::Flag("--set".into());
        match (field(name.trim()), value) {
            (Some(field), Some(value)) => self.set_text(field, value.trim(), origin),
            (Some(field), None) => {
                let (path, allowed) = (field.path, field.allowed());
                Err(LoadError::NoValue { origin, path, allowed })
            }
            (None, _) => {
                let suggestions = suggest::paths(name);
                Err(LoadError::Unknown { origin, name: name.to_owned(), suggestions })
            }
        }
    }

    /// Returns the names of the settings that were set, in order.
    pub fn given(&self) -> impl Iterator<Item = &'static str> + '_ {
        self.given.iter().map(|(field, _)| field.path)
    }

    /// Checks the collected settings. Returns them with the warnings that came up while they were collected.
    ///
    /// # Errors
    /// [`LoadError::Settings`] for values that cannot go together.
    pub fn finish(self) -> Result<(ServerSettings, Vec<String>), LoadError> {
        let mut base = self.base;
        if let Some(policy) = given_policy(&self.given) {
            base.engine.use_policy(policy);
        }
        let mut tree = Table::try_from(base)
            .expect("plain data of strings, numbers and tables always serializes");
        for (field, value) in self.given {
            place(&mut tree, field, value);
        }
        let settings: ServerSettings =
            tree.try_into().expect("every value was checked against its field");
        settings.check()?;
        Ok((settings, self.warnings))
    }

    fn set_text(
        &mut self,
        field: &'static Field,
        text: &str,
        origin: Origin,
    ) -> Result<(), LoadError> {
        let value = match field.kind {
            Kind::Integer { .. } => text.parse().map(Value::Integer).ok(),
            Kind::Number { .. } => text.parse().map(Value::Float).ok(),
            Kind::Target => text.parse().map(Value::Float).ok(),
            Kind::Bool => text.parse().map(Value::Boolean).ok(),
            Kind::Choice(_) | Kind::Text(_) => None,
            Kind::List if text.trim().is_empty() => Some(Value::Array(Vec::new())),
            Kind::List => Some(Value::Array(
                text.split(',').map(|item| Value::String(item.trim().to_owned())).collect(),
            )),
        };
        self.set(field, value.unwrap_or_else(|| Value::String(text.to_owned())), origin)
    }

    fn set(
        &mut self,
        field: &'static Field,
        value: Value,
        origin: Origin,
    ) -> Result<(), LoadError> {
        let refuse = |value: &Value| LoadError::Value {
            origin: origin.clone(),
            path: field.path,
            value: value.to_string(),
            allowed: match value.as_str() {
                Some(text) if field.path == "http.listen" => listen::expected(text),
                _ => field.allowed(),
            },
        };
        let accepted = accept(field, &value).ok_or_else(|| refuse(&value))?;
        self.given.push((field, accepted));
        Ok(())
    }
}

/// Returns the policy that was set last, if any.
fn given_policy(given: &[(&'static Field, Value)]) -> Option<Policy> {
    let named = given.iter().rev().find(|(field, _)| field.path == "scheduler.policy")?;
    let name = named.1.as_str()?;
    Policy::ALL.iter().find(|(_, known)| *known == name).map(|(policy, _)| *policy)
}

fn place(tree: &mut Table, field: &Field, value: Value) {
    let mut table = tree;
    let mut keys = field.path.split('.').peekable();
    while let Some(key) = keys.next() {
        if keys.peek().is_some() {
            let inner = table.entry(key).or_insert_with(|| Value::Table(Table::new()));
            table = inner.as_table_mut().expect("a prefix of a field is always a table");
        } else {
            table.insert(key.to_owned(), value);
            return;
        }
    }
}

/// Returns the value in the type of its setting; `None` if the value is not allowed.
fn accept(field: &Field, value: &Value) -> Option<Value> {
    let number = match value {
        Value::Integer(n) => Some(*n as f64),
        Value::Float(x) => Some(*x),
        _ => None,
    };
    match field.kind {
        Kind::Integer { low, high } => {
            let n = u64::try_from(value.as_integer()?).ok()?;
            (low..=high).contains(&n).then(|| value.clone())
        }
        Kind::Number { low, high } => number.filter(|x| (low..=high).contains(x)).map(Value::Float),
        Kind::Target if value.is_str() => {
            value.as_str().filter(|word| ["auto", "none"].contains(word)).map(|_| value.clone())
        }
        Kind::Target => number.filter(|x| x.is_finite() && *x > 0.0).map(Value::Float),
        Kind::Bool => value.as_bool().map(Value::Boolean),
        Kind::Choice(words) => {
            value.as_str().filter(|word| words.contains(word)).map(|_| value.clone())
        }
        Kind::Text(_) if field.path == "device.kind" => {
            let text = value.as_str()?.to_owned();
            crate::DeviceKind::try_from(text).ok().map(|_| value.clone())
        }
        Kind::Text(_) if field.path == "http.listen" => {
            value.as_str().filter(|text| listen::is_address(text)).map(|_| value.clone())
        }
        Kind::Text(_) => value.as_str().filter(|text| !text.is_empty()).map(|_| value.clone()),
        // A text without commas is a list of one text. With commas it is a mistake in a file, where several texts must
        // be a list.
        Kind::List if value.as_str().is_some_and(|text| !text.contains(',')) => {
            Some(Value::Array(vec![value.clone()]))
        }
        Kind::List => {
            let items = value.as_array()?;
            items.iter().all(Value::is_str).then(|| value.clone())
        }
    }
}

fn is_table(name: &str) -> bool {
    FIELDS
        .iter()
        .any(|field| field.path.strip_prefix(name).is_some_and(|rest| rest.starts_with('.')))
}

/// Returns a parsed value without its place in the file.
fn plain(value: &Spanned<DeValue<'_>>) -> Value {
    use serde::de::{Deserialize, IntoDeserializer};
    let text = || Value::String(value.get_ref().type_str().to_owned());
    let deserializer = toml::de::ValueDeserializer::from(value.clone());
    Value::deserialize(deserializer.into_deserializer()).unwrap_or_else(|_| text())
}

#[cfg(test)]
#[path = "load_tests.rs"]
mod tests;
