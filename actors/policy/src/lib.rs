//! Pure decisions: the block store, the scheduler and the cost model.
