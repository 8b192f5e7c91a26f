//! List of all settings by name, which the file, the environment, the flags and the documentation share.

use crate::ServerSettings;
use crate::declare::Field;
use std::sync::LazyLock;

/// All settings, in the order of the documentation.
pub static FIELDS: LazyLock<Vec<Field>> = LazyLock::new(ServerSettings::fields);

/// Returns the setting of that name.
pub fn field(path: &str) -> Option<&'static Field> {
    FIELDS.iter().find(|field| field.path == path)
}
