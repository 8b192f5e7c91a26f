//! Lateness: which first tokens can still be in time, and which late requests starve.

pub(crate) mod deadlines;
pub(crate) mod starvation;
