//! Holds the test that compares parsers; see `tests/second_opinion.rs`.
