//! Makes the bodies of responses and the chunks of response streams.

use crate::live::LiveRequest;
use crate::openai::bodies::{
    Body, ChatChoice, ChatCompletion, ChatCompletionChunk, ChatDelta, ChatLogprobs, ChatPiece,
    ChatToken, Chunk, CompletionTokens, Head, Likelihood, PromptTokens, TextChoice, TextCompletion,
    TextCompletionChunk, TextLogprobs, Usage,
};
use crate::openai::choice::{Delta, Logprobs};
use crate::openai::parts;
use crate::openai::request::service_tier;
use crate::openai::tools::Part;
use crate::openai::usage_in::UsageIn;
use crate::text::Text;
use std::sync::Arc;
use tiercel_device::{Tier, TokenId};

/// Endpoint that decides the JSON form of a response: chat or text completions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Style {
    /// The response has the JSON form of `/v1/chat/completions`.
    Chat,
    /// The response has the JSON form of `/v1/completions`.
    Text,
}

/// Token counts of a request: prompt tokens, output tokens, output tokens that are reasoning, and prompt tokens that
/// were found in the prefix cache.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Totals {
    pub(crate) prompt_tokens: u32,
    pub(crate) completion_tokens: u32,
    pub(crate) reasoning_tokens: u32,
    pub(crate) cached_tokens: u32,
}

/// A complete choice of a response that is not streamed.
#[derive(Debug)]
pub(crate) struct Collected {
    pub(crate) index: u32,
    pub(crate) delta: Delta,
    pub(crate) reason: &'static str,
}

/// Fields that the body, or all streamed chunks, of one response share.
pub(crate) struct Envelope {
    pub(crate) style: Style,
    pub(crate) id: String,
    pub(crate) created: u64,
    pub(crate) model: String,
    /// System fingerprint of the server.
    pub(crate) fingerprint: Arc<str>,
    /// The request in the list of live requests, which knows its tier.
    pub(crate) request: Arc<LiveRequest>,
    /// Whether the scheduling policy serves requests in order of their tiers.
    pub(crate) tiers_matter: bool,
    pub(crate) usage_in: UsageIn,
    /// Number of prompt tokens of each choice.
    pub(crate) prompt_tokens: Vec<u32>,
    /// Whether the request asks for log-probabilities.
    pub(crate) logprobs: bool,
    pub(crate) text: Arc<Text>,
}

impl Envelope {
    /// Returns the complete body of a response that is not streamed.
    pub(crate) fn full(&self, choices: Vec<Collected>, totals: Totals) -> Body {
        let usage = usage(totals);
        match self.style {
            Style::Chat => Body::Chat(ChatCompletion {
                head: self.head("chat.completion"),
                choices: choices.into_iter().map(|choice| self.chat_choice(choice)).collect(),
                usage,
            }),
            Style::Text => Body::Text(TextCompletion {
                head: self.head("text_completion"),
                choices: choices.into_iter().map(|choice| self.text_choice(choice)).collect(),
                usage,
            }),
        }
    }

    fn chat_choice(&self, choice: Collected) -> ChatChoice {
        ChatChoice {
            index: choice.index,
            logprobs: self.chat_logprobs(&choice.delta.logprobs),
            message: parts::message(choice.delta.parts),
            finish_reason: choice.reason,
        }
    }

    fn text_choice(&self, choice: Collected) -> TextChoice {
        TextChoice {
            index: choice.index,
            logprobs: self.text_logprobs(&choice.delta.logprobs),
            text: content(&choice.delta.parts),
            finish_reason: Some(choice.reason),
        }
    }

    /// Returns the first chunk of a streamed chat choice, which names the role `assistant`. A text completion has no
    /// such chunk.
    pub(crate) fn opening(&self, index: u32) -> Option<Chunk> {
        let delta = ChatDelta {
            role: Some("assistant"),
            content: Some(String::new()),
            refusal: Some(()),
            ..ChatDelta::default()
        };
        (self.style == Style::Chat).then(|| {
            let piece = ChatPiece { index, delta, logprobs: None, finish_reason: None };
            self.chat_chunk(piece, 0)
        })
    }

    /// Returns the chunks of a response stream for new parts of a choice: one chunk for each part of a chat choice, or
    /// one chunk with all parts of a text choice. The first chunk has the log-probabilities. An empty delta has no
    /// chunks.
    pub(crate) fn delta(&self, index: u32, delta: Delta) -> Vec<Chunk> {
        let Delta { parts, completion_tokens, logprobs } = delta;
        if parts.is_empty() && logprobs.is_empty() {
            return Vec::new();
        }
        match self.style {
            Style::Chat => {
                let parts =
                    if parts.is_empty() { vec![Part::Content(String::new())] } else { parts };
                let mut logprobs = self.chat_logprobs(&logprobs);
                let chunk = |part| {
                    let logprobs = logprobs.take().or_else(|| self.chat_logprobs(&[]));
                    let delta = parts::delta(part);
                    let piece = ChatPiece { index, delta, logprobs, finish_reason: None };
                    self.chat_chunk(piece, completion_tokens)
                };
                parts.into_iter().map(chunk).collect()
            }
            Style::Text => {
                let likely = self.text_logprobs(&logprobs);
                let text = content(&parts);
                let piece = TextChoice { index, text, logprobs: likely, finish_reason: None };
                vec![self.text_chunk(piece, completion_tokens)]
            }
        }
    }

    /// Returns the last chunk of a choice in a response stream, with the finish reason. The choice has
    /// `completion_tokens` output tokens.
    pub(crate) fn closing(
        &self,
        index: u32,
        reason: &'static str,
        completion_tokens: u32,
    ) -> Chunk {
        let (finish_reason, logprobs) = (Some(reason), None);
        match self.style {
            Style::Chat => {
                let delta = ChatDelta::default();
                let piece = ChatPiece { index, delta, logprobs, finish_reason };
                self.chat_chunk(piece, completion_tokens)
            }
            Style::Text => {
                let text = String::new();
                let piece = TextChoice { index, text, logprobs: None, finish_reason };
                self.text_chunk(piece, completion_tokens)
            }
        }
    }

    /// Returns the usage chunk of a response stream: token counts, and no choices.
    pub(crate) fn usage(&self, totals: Totals) -> Chunk {
        let usage = Some(Some(usage(totals)));
        let (head, choices) = (self.head(self.chunk_object()), Vec::new());
        match self.style {
            Style::Chat => Chunk::Chat(ChatCompletionChunk { head, choices, usage }),
            Style::Text => Chunk::Text(TextCompletionChunk { head, choices: Vec::new(), usage }),
        }
    }

    /// Returns a chunk with a piece of a choice. The choice has `completion_tokens` output tokens so far.
    fn chat_chunk(&self, piece: ChatPiece, completion_tokens: u32) -> Chunk {
        Chunk::Chat(ChatCompletionChunk {
            head: self.head(self.chunk_object()),
            usage: self.usage_so_far(piece.index, completion_tokens),
            choices: vec![piece],
        })
    }

    /// Returns a chunk with a piece of a choice. The choice has `completion_tokens` output tokens so far.
    fn text_chunk(&self, piece: TextChoice, completion_tokens: u32) -> Chunk {
        Chunk::Text(TextCompletionChunk {
            head: self.head(self.chunk_object()),
            usage: self.usage_so_far(piece.index, completion_tokens),
            choices: vec![piece],
        })
    }

    /// Returns the field `usage` of a chunk that is not the last: `None` leaves the field out, and `Some(None)` is
    /// null. The field has the token counts of the chunk's choice. The field has no numbers of cached tokens and of
    /// reasoning tokens; the number of cached tokens is known only at the end.
    fn usage_so_far(&self, index: u32, completion_tokens: u32) -> Option<Option<Usage>> {
        match self.usage_in {
            UsageIn::Nothing => None,
            UsageIn::Last => Some(None),
            UsageIn::Every => {
                let prompt_tokens = self.prompt_tokens.get(index as usize).copied().unwrap_or(0);
                let totals = Totals { prompt_tokens, completion_tokens, ..Totals::default() };
                Some(Some(Usage {
                    prompt_tokens_details: None,
                    completion_tokens_details: None,
                    ..usage(totals)
                }))
            }
        }
    }

    fn chunk_object(&self) -> &'static str {
        match self.style {
            Style::Chat => "chat.completion.chunk",
            Style::Text => "text_completion",
        }
    }

    /// Returns the tier that the request is served in now: always standard if the scheduling policy ignores tiers.
    fn tier(&self) -> Tier {
        if self.tiers_matter { self.request.tier() } else { Tier::Standard }
    }

    fn head(&self, object: &'static str) -> Head {
        Head {
            id: self.id.clone(),
            object,
            created: self.created,
            model: self.model.clone(),
            service_tier: service_tier(self.tier()),
            system_fingerprint: self.fingerprint.clone(),
        }
    }

    /// Returns the log-probabilities of a chat choice, if the request asks for them.
    fn chat_logprobs(&self, tokens: &[Logprobs]) -> Option<ChatLogprobs> {
        let likelihood = |token: TokenId, logprob: f32| Likelihood {
            token: self.text.token_name(token),
            logprob: finite(logprob),
            bytes: self.text.token_bytes(token).into_owned(),
        };
        let content = tokens.iter().map(|token| ChatToken {
            token: likelihood(token.token, token.chosen),
            top_logprobs: token.top.iter().map(|(id, logprob)| likelihood(*id, *logprob)).collect(),
        });
        self.logprobs.then(|| ChatLogprobs { content: content.collect(), refusal: () })
    }

    /// Returns the log-probabilities of a text choice, if the request asks for them.
    fn text_logprobs(&self, tokens: &[Logprobs]) -> Option<TextLogprobs> {
        let name = |token: TokenId| self.text.token_name(token);
        let tokens = || tokens.iter();
        let top = tokens().map(|token| {
            let best = token.top.iter().map(|(id, logprob)| (name(*id), finite(*logprob)));
            // List the chosen token in `top_logprobs` even if it is not among the most likely tokens.
            best.chain([(name(token.token), finite(token.chosen))]).collect()
        });
        self.logprobs.then(|| TextLogprobs {
            tokens: tokens().map(|token| name(token.token)).collect(),
            token_logprobs: tokens().map(|token| finite(token.chosen)).collect(),
            top_logprobs: top.collect(),
            text_offset: tokens().map(|token| token.offset).collect(),
        })
    }
}

/// Returns the content in the parts of a choice.
fn content(parts: &[Part]) -> String {
    let content = |part: &Part| match part {
        Part::Content(text) => Some(text.clone()),
        _ => None,
    };
    parts.iter().filter_map(content).collect()
}

/// Replaces an infinite log-probability by -9999, because JSON has no infinity and clients compare with this value.
fn finite(logprob: f32) -> f64 {
    if logprob.is_finite() { logprob.into() } else { -9999.0 }
}

fn usage(totals: Totals) -> Usage {
    Usage {
        prompt_tokens: totals.prompt_tokens,
        completion_tokens: totals.completion_tokens,
        total_tokens: totals.prompt_tokens + totals.completion_tokens,
        prompt_tokens_details: Some(PromptTokens { cached_tokens: totals.cached_tokens }),
        completion_tokens_details: Some(CompletionTokens {
            reasoning_tokens: totals.reasoning_tokens,
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::openai::choice::Logprobs;
    use serde_json::json;

    #[test]
    fn tokens_of_text_completions_keep_their_names_places_and_chances() {
        let envelope = Envelope {
            style: Style::Text,
            id: String::new(),
            created: 0,
            model: String::new(),
            fingerprint: "".into(),
            request: Arc::new(LiveRequest::of_tier(Tier::Standard)),
            tiers_matter: true,
            usage_in: UsageIn::Nothing,
            prompt_tokens: vec![1],
            logprobs: true,
            text: Arc::new(Text::of_bytes()),
        };
        let of = |token, offset, chosen, top: &[(TokenId, f32)]| Logprobs {
            token,
            offset,
            chosen,
            top: top.to_vec(),
        };
        let logprobs = vec![
            of(0xf0, 0, -3.0, &[(0xe2, -0.5), (0xc3, -1.0)]),
            of(65, 1, -0.25, &[(65, -0.25), (66, f32::NEG_INFINITY)]),
        ];
        let out = envelope.text_logprobs(&logprobs);
        let expected = json!({
            "tokens": ["bytes:\\xf0", "A"],
            "token_logprobs": [-3.0, -0.25],
            "top_logprobs": [
                {"bytes:\\xe2": -0.5, "bytes:\\xc3": -1.0, "bytes:\\xf0": -3.0},
                {"A": -0.25, "B": -9999.0},
            ],
            "text_offset": [0, 1],
        });
        assert_eq!(json!(out), expected);
    }
}
