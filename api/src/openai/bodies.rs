//! Bodies of answers and chunks of event streams, in OpenAI's form.

use serde::Serialize;
use std::collections::BTreeMap;
use std::sync::Arc;
use utoipa::ToSchema;

/// Fields that the body, or all chunks, of one answer share.
#[derive(Debug, Clone, Serialize, ToSchema)]
pub(crate) struct Head {
    pub(crate) id: String,
    /// Form of the answer: `chat.completion`, `chat.completion.chunk` or `text_completion`.
    pub(crate) object: &'static str,
    /// When the answer began, seconds since 1970.
    pub(crate) created: u64,
    /// Name of the model, as the request gave it.
    pub(crate) model: String,
    /// Tier in which the request is served: `priority`, `default` or `flex`.
    pub(crate) service_tier: &'static str,
    /// System fingerprint. The fingerprint stays the same as long as the program, the model and the settings that the
    /// texts of answers depend on stay the same.
    #[schema(value_type = String)]
    pub(crate) system_fingerprint: Arc<str>,
}

/// Token counts of a request.
#[derive(Debug, Clone, Copy, Serialize, ToSchema)]
pub(crate) struct Usage {
    pub(crate) prompt_tokens: u32,
    pub(crate) completion_tokens: u32,
    pub(crate) total_tokens: u32,
    /// Absent in the token counts of an output that is not complete.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = PromptTokens, required = false)]
    pub(crate) prompt_tokens_details: Option<PromptTokens>,
    /// Absent in the token counts of an output that is not complete.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = CompletionTokens, required = false)]
    pub(crate) completion_tokens_details: Option<CompletionTokens>,
}

/// Prompt tokens by where they came from.
#[derive(Debug, Clone, Copy, Serialize, ToSchema)]
pub(crate) struct PromptTokens {
    /// Tokens that were found in the prefix cache.
    pub(crate) cached_tokens: u32,
}

/// Output tokens by their kind.
#[derive(Debug, Clone, Copy, Serialize, ToSchema)]
pub(crate) struct CompletionTokens {
    /// Output tokens that are reasoning.
    pub(crate) reasoning_tokens: u32,
}

/// Answer to a conversation.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct ChatCompletion {
    #[serde(flatten)]
    pub(crate) head: Head,
    pub(crate) choices: Vec<ChatChoice>,
    pub(crate) usage: Usage,
}

/// One of the answers to a conversation; a request for `n` choices has `n` of them.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct ChatChoice {
    pub(crate) index: u32,
    pub(crate) message: ChatAnswer,
    #[schema(required)]
    pub(crate) logprobs: Option<ChatLogprobs>,
    /// `stop`, `length` or `tool_calls`.
    pub(crate) finish_reason: &'static str,
}

/// Message with which the model answers.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct ChatAnswer {
    /// `assistant`.
    pub(crate) role: &'static str,
    /// Text of the answer; null if the answer has only calls or reasoning.
    #[schema(required)]
    pub(crate) content: Option<String>,
    /// Always null.
    #[schema(value_type = Option<String>)]
    pub(crate) refusal: (),
    #[serde(flatten)]
    pub(crate) reasoning: Reasoning,
    /// Calls of functions; absent if there are none.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schema(required = false)]
    pub(crate) tool_calls: Vec<Call>,
}

/// Reasoning of a model, under both names that clients read. Both fields are absent if the answer has no reasoning.
#[derive(Debug, Clone, Default, Serialize, ToSchema)]
pub(crate) struct Reasoning {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) reasoning_content: Option<String>,
    /// The same text as in `reasoning_content`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) reasoning: Option<String>,
}

/// Call of a function.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct Call {
    /// Id of the call. The message with the function's result repeats the id.
    pub(crate) id: String,
    /// `function`.
    #[serde(rename = "type")]
    pub(crate) kind: &'static str,
    pub(crate) function: CalledFunction,
}

/// Function that is called, and its arguments.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct CalledFunction {
    pub(crate) name: String,
    /// JSON of an object. If the answer was cut off, the beginning of such JSON.
    pub(crate) arguments: String,
}

/// Piece of a streamed answer to a conversation.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct ChatCompletionChunk {
    #[serde(flatten)]
    pub(crate) head: Head,
    /// One choice, or none in the chunk with the token counts.
    pub(crate) choices: Vec<ChatPiece>,
    /// Token counts of the request in the last chunk, if the request asks for them. The other chunks have null, or the
    /// token counts of their choice so far.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Usage>)]
    pub(crate) usage: Option<Option<Usage>>,
}

/// Piece of a choice of a streamed answer to a conversation.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct ChatPiece {
    pub(crate) index: u32,
    pub(crate) delta: ChatDelta,
    #[schema(required)]
    pub(crate) logprobs: Option<ChatLogprobs>,
    /// `stop`, `length` or `tool_calls` in the last piece of the choice, null before.
    #[schema(required)]
    pub(crate) finish_reason: Option<&'static str>,
}

/// What a piece adds to the message.
#[derive(Debug, Default, Serialize, ToSchema)]
pub(crate) struct ChatDelta {
    /// `assistant`, in the first piece.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) role: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) content: Option<String>,
    /// Null, in the first piece.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    pub(crate) refusal: Option<()>,
    #[serde(flatten)]
    pub(crate) reasoning: Reasoning,
    /// Beginning of a call, or more of the arguments of the last call.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) tool_calls: Option<[CallPiece; 1]>,
}

/// Piece of a streamed call.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct CallPiece {
    /// Number of the call in the choice, from 0.
    pub(crate) index: u32,
    /// Id of the call, in its first piece.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) id: Option<String>,
    /// `function`, in the first piece of the call.
    #[serde(rename = "type", skip_serializing_if = "Option::is_none")]
    pub(crate) kind: Option<&'static str>,
    pub(crate) function: FunctionPiece,
}

/// Piece of the function of a streamed call.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct FunctionPiece {
    /// Name of the function, in the first piece of the call.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) name: Option<String>,
    /// More of the JSON of the arguments.
    pub(crate) arguments: String,
}

/// Log-probabilities of the tokens of a chat choice, or of a piece of it.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct ChatLogprobs {
    pub(crate) content: Vec<ChatToken>,
    /// Always null.
    #[schema(value_type = Option<String>)]
    pub(crate) refusal: (),
}

/// An output token, and the tokens that were most likely in its place.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct ChatToken {
    #[serde(flatten)]
    pub(crate) token: Likelihood,
    /// Most likely tokens, the most likely first.
    pub(crate) top_logprobs: Vec<Likelihood>,
}

/// A token and its log-probability.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct Likelihood {
    pub(crate) token: String,
    /// Natural logarithm of the token's probability; -9999 stands for a probability of 0.
    pub(crate) logprob: f64,
    /// UTF-8 bytes of the token.
    pub(crate) bytes: Vec<u8>,
}

/// Continuation of one or several texts.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct TextCompletion {
    #[serde(flatten)]
    pub(crate) head: Head,
    pub(crate) choices: Vec<TextChoice>,
    pub(crate) usage: Usage,
}

/// Piece of a streamed continuation of a text.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct TextCompletionChunk {
    #[serde(flatten)]
    pub(crate) head: Head,
    /// One choice, or none in the chunk with the token counts.
    pub(crate) choices: Vec<TextChoice>,
    /// Token counts of the request in the last chunk, if the request asks for them. The other chunks have null, or the
    /// token counts of their choice so far.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Usage>)]
    pub(crate) usage: Option<Option<Usage>>,
}

/// A choice of a continuation, or a piece of one.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct TextChoice {
    pub(crate) index: u32,
    pub(crate) text: String,
    #[schema(required)]
    pub(crate) logprobs: Option<TextLogprobs>,
    /// `stop` or `length`; null in a piece that is not the last of the choice.
    #[schema(required)]
    pub(crate) finish_reason: Option<&'static str>,
}

/// Log-probabilities of the tokens of a text choice, or of a piece of it.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct TextLogprobs {
    pub(crate) tokens: Vec<String>,
    pub(crate) token_logprobs: Vec<f64>,
    /// For each token, the most likely tokens in its place and the token itself, with their log-probabilities.
    pub(crate) top_logprobs: Vec<BTreeMap<String, f64>>,
    /// For each token, the number of characters of the output before it.
    pub(crate) text_offset: Vec<usize>,
}

/// Whole body of an answer.
#[derive(Debug, Serialize)]
#[serde(untagged)]
pub(crate) enum Body {
    Chat(ChatCompletion),
    Text(TextCompletion),
}

/// Chunk of an event stream.
#[derive(Debug, Serialize)]
#[serde(untagged)]
pub(crate) enum Chunk {
    Chat(ChatCompletionChunk),
    Text(TextCompletionChunk),
}
