//! Layers of settings: defaults, then the file, then the environment, then flags.

use crate::{FIELDS, Field, Kind, Policy, ServerSettings, SettingsError, field, listen, suggest};
use std::fmt;
use std::path::{Path, PathBuf};
use toml::de::{DeTable, DeValue};
use toml::{Spanned, Table, Value};

/// Largest settings file, bytes.
const MAX_FILE_BYTES: u64 = 1 << 20;

/// Where a value came from, for error messages.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Origin {
    /// A line of the settings file, from 1.
    File {
        /// The file.
        path: PathBuf,
        /// The line.
        line: usize,
    },
    /// An environment variable.
    Env(String),
    /// A flag, with its dashes.
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

/// Settings that could not be loaded. One line; names the place, the setting and what is allowed.
#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    /// The file cannot be read.
    #[error("cannot read the settings file {}: {why}", path.display())]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// The reason.
        why: String,
    },
    /// The file is not TOML.
    #[error("{origin}: not valid TOML: {why}")]
    Syntax {
        /// Where.
        origin: Origin,
        /// The reason.
        why: String,
    },
    /// No such setting.
    #[error("{origin}: unknown setting {name}{}", hint(suggestions))]
    Unknown {
        /// Where.
        origin: Origin,
        /// What was written.
        name: String,
        /// What it may have meant, the likeliest first.
        suggestions: Vec<&'static str>,
    },
    /// An assignment without a value.
    #[error("{origin}: {path} has no value; write {origin} {path}=VALUE, where VALUE is {allowed}")]
    NoValue {
        /// Where.
        origin: Origin,
        /// The setting.
        path: &'static str,
        /// What may be written.
        allowed: String,
    },
    /// A value of the wrong type, or outside its range.
    #[error("{origin}: {path} = {value} is not allowed: expected {allowed}")]
    Value {
        /// Where.
        origin: Origin,
        /// The setting.
        path: &'static str,
        /// What was written.
        value: String,
        /// What may be written.
        allowed: String,
    },
    /// Settings that are fine alone but not together.
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

/// Settings collected layer by layer; a later layer wins. The policy's preset lies under all of them.
#[derive(Debug, Default)]
pub struct Loader {
    base: ServerSettings,
    /// What was set, in order.
    given: Vec<(&'static Field, Value)>,
    warnings: Vec<String>,
}

impl Loader {
    /// Starts from other defaults than the server's.
    pub fn over(base: ServerSettings) -> Loader {
        Loader { base, ..Loader::default() }
    }

    /// Reads a settings file.
    ///
    /// # Errors
    /// [`LoadError`], naming the line.
    pub fn file(&mut self, path: &Path) -> Result<(), LoadError> {
        let unreadable = |why: String| LoadError::Unreadable { path: path.to_owned(), why };
        let size = std::fs::metadata(path).map_err(|error| unreadable(error.to_string()))?.len();
        if size > MAX_FILE_BYTES {
            return Err(unreadable(format!("{size} bytes, more than {MAX_FILE_BYTES}")));
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

    /// Takes every `TIERCEL_...` variable that names a setting. Others of that prefix only warn: the
    /// environment is shared, and orchestrators add variables of their own.
    ///
    /// # Errors
    /// [`LoadError::Value`].
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
                None => self.warnings.push(format!("{name} names no setting and is ignored")),
            }
        }
        Ok(())
    }

    /// Sets one field from a flag. `flag` is how it was written.
    ///
    /// # Errors
    /// [`LoadError::Value`].
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
    /// [`LoadError`] if it names no setting or the value is not allowed.
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

    /// Names of the settings that were set, in order.
    pub fn given(&self) -> impl Iterator<Item = &'static str> + '_ {
        self.given.iter().map(|(field, _)| field.path)
    }

    /// The settings, checked, and what is worth a warning.
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

/// The policy that was set last.
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

/// The value as its type writes it; `None` if it is not allowed.
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
        // A list of one; several in one text are a mistake in a file.
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

/// The value without its place in the file.
fn plain(value: &Spanned<DeValue<'_>>) -> Value {
    use serde::de::{Deserialize, IntoDeserializer};
    let text = || Value::String(value.get_ref().type_str().to_owned());
    let deserializer = toml::de::ValueDeserializer::from(value.clone());
    Value::deserialize(deserializer.into_deserializer()).unwrap_or_else(|_| text())
}

#[cfg(test)]
#[path = "load_tests.rs"]
mod tests;
