//! The decoder from files to logits: agreement with another implementation, and independence of how the
//! work is cut into steps.
#![allow(clippy::unwrap_used, reason = "tests state what must hold")]

mod harness;
mod invariance;
mod reference;
mod steps;
