//! Support of the end-to-end tests: Tiercel servers in the test's process, and a small HTTP client that can misbehave.
#![allow(clippy::unwrap_used, reason = "test support: a surprise is a failed test")]

mod client;
mod program;
mod python;
mod server;
mod slow;
mod wire;

pub use client::{Connection, Response, events};
pub use program::Program;
pub use python::run_script;
pub use server::TestServer;
pub use slow::SlowProfile;
pub use wire::Wire;
