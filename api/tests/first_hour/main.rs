//! Tests of the texts that an operator meets in the first hour: when the server starts or is started wrongly, when a
//! client asks for something that the server does not have, and when the server refuses a request. The texts are
//! compared word for word, because people and programs act on them.
#![allow(clippy::unwrap_used, reason = "tests state what must hold")]

#[path = "../command/mod.rs"]
mod command;

mod answers;
mod command_line;
mod log_lines;
mod served;
