//! Lateness: which first tokens can still meet their deadlines, and which late requests starve.

pub(crate) mod deadlines;
pub(crate) mod flow;
pub(crate) mod starvation;
