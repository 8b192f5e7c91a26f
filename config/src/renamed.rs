//! Settings that were renamed. Their old names are still read, with a warning.

use crate::declare::Field;
use crate::{FIELDS, field};

/// Old name and present name of each setting that was renamed.
pub(crate) const RENAMED: &[(&str, &str)] = &[
    ("http.head_wait_ms", "http.first_token_wait_ms"),
    ("preemption.victim_gives", "preemption.victim_release"),
    ("preemption.victim_gives_blocks", "preemption.victim_release_blocks"),
];

/// A setting as a user named it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Named {
    /// Setting that the name stands for.
    pub(crate) field: &'static Field,
    /// Old name of the setting, if the user wrote that.
    pub(crate) old: Option<&'static str>,
}

/// Returns the setting for whose present name, or one of whose old names, `is_meant` returns true.
pub(crate) fn named(is_meant: impl Fn(&str) -> bool) -> Option<Named> {
    if let Some(field) = FIELDS.iter().find(|field| is_meant(&field.path)) {
        return Some(Named { field, old: None });
    }
    let (old, new) = RENAMED.iter().find(|(old, _)| is_meant(old))?;
    let field = field(new).expect("the new name of a setting is the name of a setting");
    Some(Named { field, old: Some(old) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn old_names_are_free_and_new_names_are_settings() {
        for (old, new) in RENAMED {
            assert!(field(old).is_none(), "{old}");
            assert!(field(new).is_some(), "{new}");
        }
    }
}
