//! Crate without code. Its test compares the parsers of two projects; see `tests/second_opinion.rs`.
