//! The `tiercel` binary.

fn main() {}
