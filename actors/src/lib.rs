//! Messages, the six actors and the wiring of an engine.
