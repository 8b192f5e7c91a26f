//! Declaration of settings: [`settings!`] declares each setting once, and everything else about the setting follows.

use crate::{Kind, SettingsError};

/// One setting: its name, its flag, the kind of its values and its help text.
#[derive(Debug, Clone, PartialEq)]
pub struct Field {
    /// Dotted name of the setting, as in the file: `table.key`.
    pub path: String,
    /// Flag of the setting without the dashes. `None`: the setting has no flag and is set with `--set PATH=VALUE`.
    pub flag: Option<&'static str>,
    /// Type and range of the setting's values.
    pub kind: Kind,
    /// Help text of the setting, for users.
    pub help: String,
}

/// Returns the name of the environment variable that sets the setting of this name.
pub(crate) fn variable(path: &str) -> String {
    format!("TIERCEL_{}", path.replace('.', "_").to_uppercase())
}

/// A table of settings.
pub(crate) trait SettingsTable {
    /// Names of the tables in this table.
    const TABLES: &'static [&'static str];

    /// Returns the settings of the table in the order of their declarations. Their names do not begin with the name of
    /// this table.
    fn fields() -> Vec<Field>;

    /// Checks that every number is in its range. The error gives the first setting that is not, by its name without the
    /// name of this table.
    fn check_ranges(&self) -> Result<(), SettingsError>;
}

/// Returns the settings with the name of their table, `name`, put before their names.
pub(crate) fn within(name: &str, fields: Vec<Field>) -> impl Iterator<Item = Field> {
    fields.into_iter().map(move |field| Field { path: format!("{name}.{}", field.path), ..field })
}

/// Declares a table of settings. Each setting is declared once: its help text (the doc comment), its name, its type,
/// its default, and, separated by commas,
///
/// - `in LOW..=HIGH`: the range; every number has one,
/// - `as KIND`: the kind of the values, for a type that has settings of several kinds,
/// - `flag "NAME"`: the flag of `tiercel serve`, for a setting that has one of its own,
/// - `name "NAME"`: the name in settings, if it differs from the name in the code.
///
/// `tables { ... }` before the settings declares tables within the table; `fields EXPRESSION` gives the settings of
/// such a table if they are not those of its type. `..EXPRESSION` after the settings gives the defaults of the settings
/// that are declared without one. The declaration makes the struct, its [`Default`], how it is read and written, and
/// its [`SettingsTable`].
macro_rules! settings {
    (
        $(#[$meta:meta])*
        pub struct $name:ident {
            $(tables { $(
                $(#[doc = $table_doc:literal])+
                $table:ident: $table_type:ty
                $(= $table_default:expr)? $(, fields $fields:expr)?;
            )* })?
            $(
                $(#[doc = $doc:literal])+
                $field:ident: $type:ty $(= $default:expr)?
                $(, in $range:expr)? $(, as $kind:expr)? $(, flag $flag:literal)? $(, name $key:literal)?;
            )*
            $(..$base:expr)?
        }
    ) => {
        $(#[$meta])*
        #[derive(Debug, Clone, PartialEq, serde::Serialize, serde::Deserialize)]
        #[serde(default, deny_unknown_fields)]
        pub struct $name {
            $($($(#[doc = $table_doc])+ pub $table: $table_type,)*)?
            $($(#[doc = $doc])+ $(#[serde(rename = $key)])? pub $field: $type,)*
        }

        impl Default for $name {
            fn default() -> Self {
                $name {
                    $($($table: or!([$($table_default)?] Default::default()),)*)?
                    $($($field: $default,)?)*
                    $(..$base)?
                }
            }
        }

        impl $crate::declare::SettingsTable for $name {
            const TABLES: &'static [&'static str] = &[$($(stringify!($table)),*)?];

            fn fields() -> Vec<$crate::declare::Field> {
                let tables = std::iter::empty();
                $($(let tables = tables.chain($crate::declare::within(
                    stringify!($table),
                    or!([$($fields)?] <$table_type as $crate::declare::SettingsTable>::fields()),
                ));)*)?
                let own = [$($crate::declare::Field {
                    path: or!([$($key)?] stringify!($field)).to_owned(),
                    flag: or!([$(Some($flag))?] None),
                    kind: or!(
                        [$($kind)? $(<$type as $crate::kind::Ranged>::kind($range))?]
                        <$type as $crate::kind::OfKind>::KIND
                    ),
                    help: concat!($($doc),+).trim_start().to_owned(),
                }),*];
                tables.chain(own).collect()
            }

            fn check_ranges(&self) -> Result<(), $crate::SettingsError> {
                $($(
                    let checked = $crate::declare::SettingsTable::check_ranges(&self.$table);
                    checked.map_err(|error| error.within(stringify!($table)))?;
                )*)?
                $(
                    let checked: Result<(), $crate::kind::OutOfRange> =
                        or!([$($crate::kind::in_range(self.$field, $range))?] Ok(()));
                    checked.map_err(|out| out.of(or!([$($key)?] stringify!($field))))?;
                )*
                Ok(())
            }
        }
    };
}

/// Stands for the expression in brackets, or for the expression behind them if the brackets are empty.
macro_rules! or {
    ([] $otherwise:expr) => {
        $otherwise
    };
    ([$given:expr] $otherwise:expr) => {
        $given
    };
}
