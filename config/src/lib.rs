//! Typed settings of the server as plain data: file, environment and flags, validated.
