//! The Tiercel server.
