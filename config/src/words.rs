//! Enums for settings whose allowed values are words, such as `swap` or `recompute`.

/// Declares an enum whose variants are written as words in settings.
macro_rules! words {
    ($(#[$meta:meta])* $name:ident { $($(#[$variant_meta:meta])* $variant:ident = $word:literal,)+ }) => {
        $(#[$meta])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize)]
        pub enum $name {
            $($(#[$variant_meta])* #[serde(rename = $word)] $variant,)+
        }

        impl $name {
            /// All variants, each with the word that settings accept for it.
            pub const ALL: &[($name, &str)] = &[$(($name::$variant, $word)),+];

            /// Returns the word that settings accept for the variant.
            pub fn word(self) -> &'static str {
                match self {
                    $($name::$variant => $word,)+
                }
            }
        }

        impl $crate::kind::OfKind for $name {
            const KIND: $crate::Kind = $crate::Kind::Choice(&[$($word),+]);
        }
    };
}
