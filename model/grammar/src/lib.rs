//! Grammars that outputs follow.
//!
//! A [`Source`] is a grammar as a client writes it: a JSON schema, a regular expression, a list of choices, a Lark
//! grammar or a GBNF grammar. [`Grammars`] compiles it, for one vocabulary, into a
//! [`Constraint`](tiercel_device::Constraint). The parser is llguidance. Everything that would make it accept a source
//! and then not follow all of it is refused before, by name.
//!
//! | file | what it does |
//! |---|---|
//! | `source.rs` | forms of a source, and the limits on its size |
//! | `schema.rs`, `overlap.rs`, `conjuncts.rs` | JSON schemas: what is refused, how they are prepared |
//! | `lark.rs`, `gbnf/` | Lark grammars: what is refused; from GBNF to Lark |
//! | `vocabulary.rs` | the bytes of the tokens |
//! | `compile.rs`, `cache.rs` | compiling, with limits and a cache |
//! | `constraint.rs` | compiled grammars as constraints of the device boundary |

#![cfg_attr(test, allow(clippy::unwrap_used, reason = "tests state what must hold"))]

mod cache;
mod compile;
mod conjuncts;
mod constraint;
mod error;
mod gbnf;
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
