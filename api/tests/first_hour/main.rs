//! The first hour with the server: what it says when it starts, when it is started wrongly, when it is asked
//! for what it does not have, and when it refuses. Word for word: people and programs act on these texts.
#![allow(clippy::unwrap_used, reason = "tests state what must hold")]

#[path = "../command/mod.rs"]
mod command;

mod answers;
mod command_line;
mod log_lines;
mod served;
