//! Tests of the decoder from files to logits: its logits agree with another implementation, and do not depend on how
//! prompts are cut into steps.
#![allow(clippy::unwrap_used, reason = "tests state what must hold")]

mod constrained;
mod harness;
mod invariance;
mod quantized;
mod reference;
mod steps;
