//! Bodies and stream chunks as OpenAI's clients read them.

use crate::openai::choice::Delta;
use crate::openai::request::service_tier;
use crate::text::Text;
use serde_json::{Map, Value, json};
use std::sync::Arc;
use tiercel_device::{Tier, TokenId};

/// Which endpoint's form.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Style {
    /// `/v1/chat/completions`.
    Chat,
    /// `/v1/completions`.
    Text,
}

/// Tokens a request took.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Totals {
    pub(crate) prompt_tokens: u32,
    pub(crate) completion_tokens: u32,
    pub(crate) cached_tokens: u32,
}

/// A complete choice.
#[derive(Debug)]
pub(crate) struct Collected {
    pub(crate) index: u32,
    pub(crate) delta: Delta,
    pub(crate) reason: &'static str,
}

/// What all chunks of one response share.
pub(crate) struct Envelope {
    pub(crate) style: Style,
    pub(crate) id: String,
    pub(crate) created: u64,
    pub(crate) model: String,
    pub(crate) tier: Tier,
    /// Whether the stream ends with a usage chunk; all others then hold `"usage": null`.
    pub(crate) include_usage: bool,
    /// Whether log-probabilities were asked for.
    pub(crate) logprobs: bool,
    pub(crate) text: Arc<Text>,
}

impl Envelope {
    /// The complete response.
    pub(crate) fn full(&self, choices: &[Collected], totals: Totals) -> Value {
        let choices = choices.iter().map(|choice| {
            let mut out = json!({
                "index": choice.index,
                "logprobs": self.logprobs(&choice.delta, 0),
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

    /// The first chunk of a chat choice: who speaks. Text completions have none.
    pub(crate) fn opening(&self, index: u32) -> Option<Value> {
        let delta = json!({"role": "assistant", "content": "", "refusal": null});
        (self.style == Style::Chat).then(|| {
            self.chunk(json!({
                "index": index, "delta": delta, "logprobs": null, "finish_reason": null,
            }))
        })
    }

    /// More text of a choice. `chars_before` is how many characters it had.
    pub(crate) fn delta(&self, index: u32, delta: &Delta, chars_before: usize) -> Value {
        let logprobs = self.logprobs(delta, chars_before);
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

    /// The last chunk of a choice.
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

    /// The usage chunk: no choices.
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

    fn head(&self, object: &str) -> Map<String, Value> {
        let mut head = Map::new();
        head.insert("id".into(), json!(self.id));
        head.insert("object".into(), json!(object));
        head.insert("created".into(), json!(self.created));
        head.insert("model".into(), json!(self.model));
        head.insert("service_tier".into(), json!(service_tier(self.tier)));
        head
    }

    fn logprobs(&self, delta: &Delta, chars_before: usize) -> Value {
        match self.style {
            _ if !self.logprobs => Value::Null,
            Style::Chat => self.chat_logprobs(delta),
            Style::Text => self.text_logprobs(delta, chars_before),
        }
    }

    fn chat_logprobs(&self, delta: &Delta) -> Value {
        let entry = |token: TokenId, logprob: f32| {
            let bytes = self.text.token_bytes(token);
            json!({
                "token": String::from_utf8_lossy(&bytes), "logprob": finite(logprob), "bytes": bytes,
            })
        };
        let content = delta.logprobs.iter().map(|(token, logprobs)| {
            let mut out = entry(*token, logprobs.chosen);
            out["top_logprobs"] =
                logprobs.top.iter().map(|(token, logprob)| entry(*token, *logprob)).collect();
            out
        });
        json!({"content": content.collect::<Value>(), "refusal": null})
    }

    fn text_logprobs(&self, delta: &Delta, chars_before: usize) -> Value {
        let token = |id: TokenId| String::from_utf8_lossy(&self.text.token_bytes(id)).into_owned();
        let mut offset = chars_before;
        let (mut tokens, mut chosen, mut top, mut offsets) = (vec![], vec![], vec![], vec![]);
        for (id, logprobs) in &delta.logprobs {
            let text = token(*id);
            offsets.push(offset);
            offset += text.chars().count();
            tokens.push(text);
            chosen.push(finite(logprobs.chosen));
            let best = logprobs.top.iter().map(|(id, logprob)| (token(*id), finite(*logprob)));
            top.push(best.map(|(text, logprob)| (text, json!(logprob))).collect::<Map<_, _>>());
        }
        json!({
            "tokens": tokens, "token_logprobs": chosen, "top_logprobs": top, "text_offset": offsets,
        })
    }
}

/// JSON has no infinity; clients compare with -9999.
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
