//! Enums for settings whose allowed values are words, such as `swap` or `recompute`.

/// Declares an enum whose variants are written as words in settings, and the list of these words for error messages.
macro_rules! words {
    ($(#[$doc:meta])* $name:ident, $words:ident { $($(#[$variant_doc:meta])* $variant:ident = $word:literal,)+ }) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
        pub enum $name {
            $($(#[$variant_doc])* #[serde(rename = $word)] $variant,)+
        }

        /// Words that the settings file accepts for this enum, in the order of its variants.
        pub(crate) const $words: &[&str] = &[$($word),+];
    };
}
