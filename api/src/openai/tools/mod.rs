//! Tools and reasoning in chat requests and their answers.
//!
//! | file | what it does |
//! |---|---|
//! | `budget.rs` | budget of reasoning tokens |
//! | `conversation.rs` | reads the conversation that the chat template renders |
//! | `offer.rs` | reads the tools of a request, and which of them the model may or must call |
//! | `variables.rs` | reads the variables of the chat template, such as those that turn reasoning on and off |
//! | `parsing.rs` | splits the text of an answer into content, reasoning and calls |
//! | `rules.rs` | grammars of answers that may have calls or reasoning |
//! | `schemas.rs` | OpenAPI schemas of the fields for tools and reasoning |

mod budget;
mod conversation;
mod offer;
mod parsing;
mod rules;
pub(crate) mod schemas;
mod variables;

pub(crate) use budget::{ReasoningLimit, ThinkingBudget};
pub(crate) use conversation::conversation;
pub(crate) use offer::{Demand, Offer};
pub(crate) use parsing::{AnswerParser, Parsing, Part};

/// Most tool calls in one message of a conversation.
pub(crate) const MAX_CALLS: usize = 128;
