//! Settings whose values are words.

/// Declares an enum of words: as written in settings, and listed for error messages.
macro_rules! words {
    ($(#[$doc:meta])* $name:ident, $words:ident { $($(#[$variant_doc:meta])* $variant:ident = $word:literal,)+ }) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
        pub enum $name {
            $($(#[$variant_doc])* #[serde(rename = $word)] $variant,)+
        }

        /// The words of the enum, in its order.
        pub(crate) const $words: &[&str] = &[$($word),+];
    };
}
