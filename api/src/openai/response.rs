//! Bodies of responses and chunks of response streams, as OpenAI's clients read them.

use crate::live::LiveRequest;
use crate::openai::choice::Delta;
use crate::openai::request::service_tier;
use crate::text::Text;
use serde_json::{Map, Value, json};
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

/// Token counts of a request: prompt tokens, output tokens, and prompt tokens that were found in the prefix cache.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Totals {
    pub(crate) prompt_tokens: u32,
    pub(crate) completion_tokens: u32,
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
    /// The request in the list of live requests, which knows its tier.
    pub(crate) request: Arc<LiveRequest>,
    /// Whether the scheduling policy serves requests in order of their tiers.
    pub(crate) tiers_matter: bool,
    /// Whether the response stream ends with a usage chunk; all other chunks then hold `"usage": null`.
    pub(crate) include_usage: bool,
    /// Whether the request asks for log-probabilities.
    pub(crate) logprobs: bool,
    pub(crate) text: Arc<Text>,
}

impl Envelope {
    /// Returns the complete body of a response that is not streamed.
    pub(crate) fn full(&self, choices: &[Collected], totals: Totals) -> Value {
        let choices = choices.iter().map(|choice| {
            let mut out = json!({
                "index": choice.index,
                "logprobs": self.logprobs(&choice.delta),
                "finish_reason": choice.reason,
            });
            match self.style {
                Style::Chat => {
                    out["message"] = json!({
                        "role": "assistant", "content": choice.delta.text, "refusal": null,
                    });
                }
                Style::Text => out["text"] = json!(choice.delta.text),
            }
            out
        });
        let mut body = self.head(match self.style {
            Style::Chat => "chat.completion",
            Style::Text => "text_completion",
        });
        body.insert("choices".into(), choices.collect());
        body.insert("usage".into(), usage(totals));
        Value::Object(body)
    }

    /// Returns the first chunk of a streamed chat choice, which names the role `assistant`. A text completion has no
    /// such chunk.
    pub(crate) fn opening(&self, index: u32) -> Option<Value> {
        let delta = json!({"role": "assistant", "content": "", "refusal": null});
        (self.style == Style::Chat).then(|| {
            self.chunk(json!({
                "index": index, "delta": delta, "logprobs": null, "finish_reason": null,
            }))
        })
    }

    /// Returns a chunk of a response stream with more text of a choice.
    pub(crate) fn delta(&self, index: u32, delta: &Delta) -> Value {
        let logprobs = self.logprobs(delta);
        self.chunk(match self.style {
            Style::Chat => json!({
                "index": index, "delta": {"content": delta.text},
                "logprobs": logprobs, "finish_reason": null,
            }),
            Style::Text => json!({
                "index": index, "text": delta.text, "logprobs": logprobs, "finish_reason": null,
            }),
        })
    }

    /// Returns the last chunk of a choice in a response stream, with the finish reason.
    pub(crate) fn closing(&self, index: u32, reason: &str) -> Value {
        self.chunk(match self.style {
            Style::Chat => json!({
                "index": index, "delta": {}, "logprobs": null, "finish_reason": reason,
            }),
            Style::Text => json!({
                "index": index, "text": "", "logprobs": null, "finish_reason": reason,
            }),
        })
    }

    /// Returns the usage chunk of a response stream: token counts, and no choices.
    pub(crate) fn usage(&self, totals: Totals) -> Value {
        let mut chunk = self.head(self.chunk_object());
        chunk.insert("choices".into(), json!([]));
        chunk.insert("usage".into(), usage(totals));
        Value::Object(chunk)
    }

    fn chunk(&self, choice: Value) -> Value {
        let mut chunk = self.head(self.chunk_object());
        chunk.insert("choices".into(), Value::Array(vec![choice]));
        if self.include_usage {
            chunk.insert("usage".into(), Value::Null);
        }
        Value::Object(chunk)
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

    fn head(&self, object: &str) -> Map<String, Value> {
        let mut head = Map::new();
        head.insert("id".into(), json!(self.id));
        head.insert("object".into(), json!(object));
        head.insert("created".into(), json!(self.created));
        head.insert("model".into(), json!(self.model));
        head.insert("service_tier".into(), json!(service_tier(self.tier())));
        head
    }

    fn logprobs(&self, delta: &Delta) -> Value {
        match self.style {
            _ if !self.logprobs => Value::Null,
            Style::Chat => self.chat_logprobs(delta),
            Style::Text => self.text_logprobs(delta),
        }
    }

    fn chat_logprobs(&self, delta: &Delta) -> Value {
        let entry = |token: TokenId, logprob: f32| {
            json!({
                "token": self.text.token_name(token),
                "logprob": finite(logprob),
                "bytes": self.text.token_bytes(token),
            })
        };
        let content = delta.logprobs.iter().map(|token| {
            let mut out = entry(token.token, token.chosen);
            let top = token.top.iter().map(|(token, logprob)| entry(*token, *logprob));
            out["top_logprobs"] = top.collect();
            out
        });
        json!({"content": content.collect::<Value>(), "refusal": null})
    }

    fn text_logprobs(&self, delta: &Delta) -> Value {
        let name = |token: TokenId| self.text.token_name(token);
        let tokens: Value = delta.logprobs.iter().map(|token| name(token.token)).collect();
        let chosen: Value = delta.logprobs.iter().map(|token| finite(token.chosen)).collect();
        let offsets: Value = delta.logprobs.iter().map(|token| token.offset).collect();
        let top = delta.logprobs.iter().map(|token| {
            let best = token.top.iter().map(|(id, logprob)| (name(*id), finite(*logprob).into()));
            let mut map: Map<String, Value> = best.collect();
            // List the chosen token in `top_logprobs` even if it is not among the most likely tokens.
            map.insert(name(token.token), finite(token.chosen).into());
            map
        });
        json!({
            "tokens": tokens,
            "token_logprobs": chosen,
            "top_logprobs": top.collect::<Value>(),
            "text_offset": offsets,
        })
    }
}

/// Replaces an infinite log-probability by -9999, because JSON has no infinity and clients compare with this value.
fn finite(logprob: f32) -> f32 {
    if logprob.is_finite() { logprob } else { -9999.0 }
}

fn usage(totals: Totals) -> Value {
    json!({
        "prompt_tokens": totals.prompt_tokens,
        "completion_tokens": totals.completion_tokens,
        "total_tokens": totals.prompt_tokens + totals.completion_tokens,
        "prompt_tokens_details": {"cached_tokens": totals.cached_tokens},
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::openai::choice::Logprobs;

    #[test]
    fn tokens_of_text_completions_keep_their_names_places_and_chances() {
        let envelope = Envelope {
            style: Style::Text,
            id: String::new(),
            created: 0,
            model: String::new(),
            request: Arc::new(LiveRequest::of_tier(Tier::Standard)),
            tiers_matter: true,
            include_usage: false,
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
        let out = envelope.text_logprobs(&Delta { text: String::new(), logprobs });
        let expected = json!({
            "tokens": ["bytes:\\xf0", "A"],
            "token_logprobs": [-3.0, -0.25],
            "top_logprobs": [
                {"bytes:\\xe2": -0.5, "bytes:\\xc3": -1.0, "bytes:\\xf0": -3.0},
                {"A": -0.25, "B": -9999.0},
            ],
            "text_offset": [0, 1],
        });
        assert_eq!(out, expected);
    }
}
