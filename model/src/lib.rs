//! Everything that belongs to a model: finding and loading its files, weights, tokenizer, chat template, forward pass
//! and sampling.

#![cfg_attr(test, allow(clippy::unwrap_used, reason = "tests state what must hold"))]

pub mod arch;
pub mod forward;
pub mod generation;
pub mod gguf;
pub mod load;
pub mod runner;
pub mod sampling;
pub mod source;
pub mod template;
pub mod tokenizer;
pub mod weights;
