//! The Tiercel server: OpenAI's API over the actor engine, and the command line.
//!
//! | module | what it does |
//! |---|---|
//! | [`cli`] | arguments, logs, exit codes |
//! | [`boot`] | settings to model, device, engine and server; shutdown |
//! | `control` | the control API: operators see and change live requests |
//! | `document` | the OpenAPI document of the routes |
//! | `live` | live requests, by the ids that clients and the engine know |
//! | `http` | routes, limits, errors, tenants, health |
//! | `openai` | requests, responses, response streams |
//! | `replies` | replies of a mock device, and the recording of answers for it |
//! | `spans` | spans of requests for OpenTelemetry, in builds with the feature `otel` |
//! | `standing` | where live requests stand: positions in line, paused, preempted |
//! | `text` | tokens to text and back |
#![cfg_attr(test, allow(clippy::unwrap_used, reason = "tests state what must hold"))]

pub mod boot;
pub mod cli;
mod control;
mod document;
mod http;
mod live;
mod openai;
mod replies;
mod spans;
mod standing;
mod text;
