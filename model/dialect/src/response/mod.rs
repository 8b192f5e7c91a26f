//! Response templates: descriptions of the form of a model's answers, which come with the model. transformers reads
//! them since version 5.13 from `response_template` in `tokenizer_config.json`
//! (<https://huggingface.co/docs/transformers/main/chat_response_parsing>).
//!
//! A template has fields, for example `content`, `thinking` and `tool_calls`. Each field states the delimiters around
//! its text and the type of its text. At most one field has no opening delimiter: this field is implicit and has the
//! text outside of other fields.
//!
//! | file | content |
//! |---|---|
//! | `field.rs` | fields |
//! | `delimiter.rs` | delimiters, and which text may become a delimiter |
//! | `content.rs`, `lax_json.rs` | types of texts and their parsers |
//! | `shape.rs`, `call.rs` | conversion of parsed texts to calls |
//! | `regions.rs` | parser of an answer that arrives in pieces |
//! | `scan.rs` | search for the next delimiter |
//! | `text.rs`, `outside.rs` | text that is passed on while it arrives |

mod call;
mod content;
mod delimiter;
mod error;
mod field;
mod lax_json;
mod outside;
mod regions;
mod scan;
mod shape;
mod template;
mod text;

pub use error::ResponseTemplateError;
pub(crate) use regions::Regions;
pub use template::ResponseTemplate;
