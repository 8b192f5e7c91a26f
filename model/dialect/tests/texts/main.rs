//! Tests of parsers and grammars on texts of models.
#![allow(clippy::unwrap_used, reason = "tests state what must hold")]

mod corpus;
mod grammars;
mod response_splits;
mod responses;
mod transcripts;
mod unparsed_text;
