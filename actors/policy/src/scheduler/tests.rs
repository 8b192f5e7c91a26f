//! Behaviour of the scheduler over a block store.
