//! Failures of commands: message and exit code.

/// Reason why a command failed, with its exit code.
#[derive(Debug)]
pub(crate) struct Failure {
    pub(crate) message: String,
    pub(crate) code: u8,
}

impl Failure {
    /// Makes a command's failure with exit code 1, for any error but those of the user's input.
    pub(crate) fn new(error: impl std::fmt::Display) -> Failure {
        Failure { message: error.to_string(), code: 1 }
    }

    /// Makes a failure with exit code 2, for invalid arguments and settings, and for unreadable input files such as
    /// workloads and traces.
    pub(crate) fn usage(error: impl std::fmt::Display) -> Failure {
        Failure { message: error.to_string(), code: 2 }
    }
}
