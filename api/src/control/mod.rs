//! The control API: operators see and change live requests, and drain the server. It has a listener of its own, which
//! only this machine can reach unless the settings say otherwise.

mod audit;
mod body;
pub(crate) mod dashboard;
pub(crate) mod keys;
mod latest;
pub(crate) mod live;
pub(crate) mod policy;
pub(crate) mod query;
mod recorded;
pub(crate) mod recording;
mod recording_file;
pub(crate) mod requests;
mod row;
pub(crate) mod server;
mod sorted;
pub(crate) mod support;
mod timeline;
pub(crate) mod trace;
mod traces;
mod usage;
mod views;

pub(crate) use audit::{Audit, Event as AuditEvent, Numbered, SERVER};
pub(crate) use latest::{LatestDocument, LatestRows};
pub(crate) use recorded::Recorded;
pub(crate) use traces::Traces;
