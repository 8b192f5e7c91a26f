//! Loads settings in layers: defaults, then the file, then the environment, then flags, then assignments (`--set`).

use crate::declare::{Field, variable};
use crate::renamed::{Named, named};
use crate::step_sizes::StatedSizes;
use crate::{FIELDS, Policy, ServerSettings, SettingsError, suggest};
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
    /// Origin of a setting: the environment variable with this name.
    Env(String),
    /// A command-line flag, with its dashes.
    Flag(String),
    /// An operator's request to change settings while the server runs.
    Request,
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Origin::File { path, line } => write!(f, "{}:{line}", path.display()),
            Origin::Env(name) | Origin::Flag(name) => f.write_str(name),
            Origin::Request => f.write_str("the request"),
        }
    }
}

/// Reason for which settings could not be loaded. The message is one line that says what is wrong and, for a single
/// setting, names the place and what is allowed.
#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    /// The settings file cannot be read.
    #[error("cannot read the settings file {}: {why}", path.display())]
    Unreadable {
        /// Path of the settings file.
        path: PathBuf,
        /// Reason for which the settings file cannot be read.
        why: String,
    },
    /// The settings file is not valid TOML.
    #[error("{origin}: not valid TOML: {why}")]
    Syntax {
        /// Line of the settings file at which the error was noticed.
        origin: Origin,
        /// What is wrong with the syntax of the settings file.
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
        /// Place where the assignment without a value stands: the flag `--set`.
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
    /// A setting is given under its present name and under an old one.
    #[error("{origin}: {old} is the old name of {new}, and both are set; remove {old}")]
    BothNames {
        /// Place of the second of the two: a line of the file, a variable or a flag.
        origin: Origin,
        /// Old name of the setting.
        old: &'static str,
        /// Present name of the setting.
        new: &'static str,
    },
    /// Each setting's value has the right type and range, but a value breaks another rule, mostly together with a
    /// second one.
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

/// Loader that collects settings layer by layer; for each setting, the value set last wins. The preset of the policy
/// lies under all layers.
#[derive(Debug, Default)]
pub struct Loader {
    base: ServerSettings,
    /// Settings that were set and their values, in the order in which they were set.
    given: Vec<(Named, Value)>,
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
    /// [`LoadError`], which names the line, or the file if it cannot be read.
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
            if let Some(named) = named(|path| path == name) {
                self.set(named, plain(value), at())?;
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
    /// [`LoadError::Value`] if a value is not allowed, [`LoadError::BothNames`] if a setting is given under two names.
    pub fn env(
        &mut self,
        vars: impl IntoIterator<Item = (String, String)>,
        reserved: &[&str],
    ) -> Result<(), LoadError> {
        for (name, value) in vars {
            if !name.starts_with("TIERCEL_") || reserved.contains(&name.as_str()) {
                continue;
            }
            match named(|path| variable(path) == name) {
                Some(named) => self.set_text(named, &value, Origin::Env(name))?,
                None => self.warnings.push(format!(
                    "the environment variable {name} is ignored: it names no setting"
                )),
            }
        }
        Ok(())
    }

    /// Sets one setting from a flag. `flag` is the flag as the user wrote it.
    ///
    /// # Errors
    /// [`LoadError::Value`] if a value is not allowed, [`LoadError::BothNames`] if the setting was given under an old
    /// name.
    pub fn flag(
        &mut self,
        field: &'static Field,
        flag: &str,
        value: &str,
    ) -> Result<(), LoadError> {
        self.set_text(Named { field, old: None }, value, Origin::Flag(flag.to_owned()))
    }

    /// Sets the setting that `assignment` (`PATH=VALUE`) names.
    ///
    /// # Errors
    /// [`LoadError`] if the assignment names no setting or has no value, if the value is not allowed, or if the setting
    /// is given under two names.
    pub fn assignment(&mut self, assignment: &str) -> Result<(), LoadError> {
        let (name, value) = match assignment.split_once('=') {
            Some((name, value)) => (name, Some(value)),
            None => (assignment, None),
        };
        let origin = Origin::Flag("--set".into());
        match (named(|path| path == name.trim()), value) {
            (Some(named), Some(value)) => self.set_text(named, value.trim(), origin),
            (Some(Named { field, .. }), None) => {
                let (path, allowed) = (field.path.as_str(), field.kind.allowed());
                Err(LoadError::NoValue { origin, path, allowed })
            }
            (None, _) => {
                let suggestions = suggest::paths(name);
                Err(LoadError::Unknown { origin, name: name.to_owned(), suggestions })
            }
        }
    }

    /// Sets the setting of this name from a text.
    ///
    /// # Errors
    /// [`LoadError`] if there is no such setting, or if the value is not allowed.
    pub fn named(&mut self, name: &str, value: &str, origin: Origin) -> Result<(), LoadError> {
        match named(|path| path == name) {
            Some(named) => self.set_text(named, value, origin),
            None => {
                let suggestions = suggest::paths(name);
                Err(LoadError::Unknown { origin, name: name.to_owned(), suggestions })
            }
        }
    }

    /// Returns the names of the settings that were set, in order.
    pub fn given(&self) -> impl Iterator<Item = &'static str> + '_ {
        self.given.iter().map(|(named, _)| named.field.path.as_str())
    }

    /// Checks the collected settings. Returns them with the warnings that came up while they were collected.
    ///
    /// # Errors
    /// [`LoadError::Settings`] for a value that breaks a rule other than the range of its setting, mostly values that
    /// cannot go together.
    pub fn finish(self) -> Result<(ServerSettings, Vec<String>), LoadError> {
        let mut base = self.base;
        let mut stated = StatedSizes::default();
        if let Some(policy) = given_policy(&self.given) {
            let before = base.engine.scheduler.max_num_batched_tokens;
            base.engine.use_policy(policy);
            stated.tokens = base.engine.scheduler.max_num_batched_tokens != before;
        }
        let mut tree = Table::try_from(base)
            .expect("plain data of strings, numbers and tables always serializes");
        for (named, value) in self.given {
            stated.add(&named.field.path);
            place(&mut tree, named.field, value);
        }
        let settings: ServerSettings =
            tree.try_into().expect("every value was checked against its field");
        let settings = ServerSettings { stated, ..settings };
        settings.check()?;
        Ok((settings, self.warnings))
    }

    fn set_text(&mut self, named: Named, text: &str, origin: Origin) -> Result<(), LoadError> {
        self.set(named, named.field.kind.read(text), origin)
    }

    fn set(&mut self, named: Named, value: Value, origin: Origin) -> Result<(), LoadError> {
        let Named { field, old } = named;
        let mut given = self.given.iter().filter(|(given, _)| given.field.path == field.path);
        if let Some((other, _)) = given.find(|(given, _)| given.old != old)
            && let Some(old) = old.or(other.old)
        {
            return Err(LoadError::BothNames { origin, old, new: &field.path });
        }
        let Some(accepted) = field.kind.accept(&value) else {
            return Err(LoadError::Value {
                origin,
                path: old.unwrap_or(&field.path),
                value: shown(field, &value),
                allowed: field.kind.expected(&value),
            });
        };
        if let Some(old) = old {
            let new = &field.path;
            self.warnings.push(format!("{origin}: {old} is now called {new}; use the new name"));
        }
        self.given.push((named, accepted));
        Ok(())
    }
}

/// Returns the value of a setting as an error message shows it. API keys are secret.
fn shown(field: &Field, value: &Value) -> String {
    if field.path == "http.api_keys" { "...".to_owned() } else { value.to_string() }
}

/// Returns the policy that was set last, if any.
fn given_policy(given: &[(Named, Value)]) -> Option<Policy> {
    let last = given.iter().rev().find(|(named, _)| named.field.path == "scheduler.policy")?;
    let name = last.1.as_str()?;
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

fn is_table(name: &str) -> bool {
    FIELDS
        .iter()
        .any(|field| field.path.strip_prefix(name).is_some_and(|rest| rest.starts_with('.')))
}

/// Returns a value parsed from the settings file, without the position at which it stands there.
fn plain(value: &Spanned<DeValue<'_>>) -> Value {
    use serde::de::{Deserialize, IntoDeserializer};
    let text = || Value::String(value.get_ref().type_str().to_owned());
    let deserializer = toml::de::ValueDeserializer::from(value.clone());
    Value::deserialize(deserializer.into_deserializer()).unwrap_or_else(|_| text())
}

#[cfg(test)]
#[path = "load_tests.rs"]
mod tests;
