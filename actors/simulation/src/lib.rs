//! An engine on the mock device under simulated time.
