//! OpenAI's API: reads requests, generates their output and writes responses.
//!
//! | file | what it does |
//! |---|---|
//! | `chat.rs`, `completions.rs`, `tokens.rs` | one endpoint each |
//! | `fields.rs` | reads JSON fields, with errors that name their path |
//! | `request.rs`, `messages.rs` | the fields of requests and their ranges |
//! | `structured.rs`, `structured_schemas.rs` | fields for the grammar of the output, and their OpenAPI schemas |
//! | `slo.rs`, `patience.rs`, `returning.rs` | targets, patience and retries that clients state |
//! | `unsupported.rs` | fields of vLLM that are refused |
//! | `usage_in.rs` | the field that asks for token counts in chunks |
//! | `generate.rs` | submits every choice, then streams or collects |
//! | `choice.rs` | one choice: tokens in, text out |
//! | `tools/` | tools and reasoning in requests and answers |
//! | `bodies.rs`, `parts.rs`, `response.rs`, `sse.rs` | bodies, chunks, events |
//! | `schemas.rs` | what the OpenAPI document says of requests |

mod bodies;
mod chat;
mod choice;
mod completions;
mod fields;
mod generate;
mod messages;
mod parts;
mod patience;
mod request;
mod response;
mod returning;
mod schemas;
mod slo;
mod sse;
mod structured;
mod structured_schemas;
mod tokens;
mod tools;
mod unsupported;
mod usage_in;

pub(crate) use bodies::{ChatCompletion, ChatCompletionChunk, TextCompletion, TextCompletionChunk};
pub(crate) use chat::chat;
pub(crate) use completions::completions;
pub(crate) use request::ModelFacts;
pub(crate) use schemas::{
    ChatRequest, DetokenizeRequest, TextRequest, TokenizeRequest, generation_headers,
};
pub(crate) use structured::Rule;
pub(crate) use tokens::{Text, Tokens, detokenize, tokenize};
