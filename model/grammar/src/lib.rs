//! Compiler of the grammars that outputs follow.
//!
//! A [`Source`] is a grammar as a client writes it: a JSON schema, a regular expression, a list of choices, a Lark
//! grammar or a GBNF grammar. [`Grammars`] compiles a source, for one vocabulary, to a
//! [`Constraint`](tiercel_device::Constraint). The parser that follows compiled grammars is llguidance. A source that
//! llguidance would accept but not follow as a whole is refused, with the name of the unsupported feature.
//!
//! | file | content |
//! |---|---|
//! | `source.rs` | forms of a source, and the limits on its size |
//! | `schema.rs`, `keyword_values.rs`, `overlap.rs`, `conjuncts.rs`, `expansion.rs` | checks and preparation of JSON schemas |
//! | `lark.rs`, `gbnf/` | checks of Lark grammars; conversion from GBNF to Lark |
//! | `vocabulary.rs` | the bytes of the tokens |
//! | `compile.rs`, `cache.rs` | compiler, with limits and a cache |
//! | `constraint.rs` | compiled grammars as constraints on outputs |

#![cfg_attr(test, allow(clippy::unwrap_used, reason = "tests state what must hold"))]

mod cache;
mod compile;
mod conjuncts;
mod constraint;
mod error;
mod expansion;
mod gbnf;
mod integers;
mod keyword_values;
mod lark;
mod overlap;
mod schema;
mod source;
mod vocabulary;

pub use compile::{Compiled, Grammars, STACK_BYTES};
pub use error::GrammarError;
pub use gbnf::{is_gbnf, to_lark};
pub use schema::{check_schema, lark_of_schema};
pub use source::{CHOICES_MAX, SCHEMA_BYTES_MAX, SCHEMA_DEPTH_MAX, SOURCE_BYTES_MAX, Source};
pub use vocabulary::{TokenText, Vocabulary};
