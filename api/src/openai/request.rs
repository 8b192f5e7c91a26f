//! Reads and checks the fields that requests for chat completions and for text completions share.

use crate::http::{ApiError, Rights};
use crate::openai::fields::{Fields, integer, number, wrong};
use crate::openai::structured::{self, Rule};
use crate::openai::unsupported::refuse_fields_of_vllm;
use crate::openai::usage_in::UsageIn;
use crate::openai::{patience, slo};
use crate::text::Forms;
use serde_json::Value;
use std::ops::RangeInclusive;
use tiercel_config::SloTargets;
use tiercel_device::{MinTokens, SamplingParams, Tier, TokenId};

/// Maximum number of choices of one request (number of prompts times `n`).
pub(crate) const MAX_CHOICES: usize = 128;
/// Maximum number of stop strings, and of stop tokens, of one request.
pub(crate) const MAX_STOPS: usize = 64;
/// Longest stop string, bytes; so much text is held back while a stop string may begin in it.
pub(crate) const MAX_STOP_BYTES: usize = 1024;
/// Maximum length of all stop strings of one request together, bytes. The automaton that searches for stop strings
/// takes up to 80 bytes of memory for each byte of a stop string.
pub(crate) const MAX_STOPS_BYTES: usize = 2048;
/// Maximum number of entries in the field `logit_bias` of a request.
pub(crate) const MAX_BIASES: usize = 1024;
/// Allowed range of the repetition penalty. Positive logits are divided by the penalty, so a value far below 1 would
/// overflow a float.
pub(crate) const REPETITION_PENALTY: RangeInclusive<f64> = 0.01..=10.0;
/// Allowed range of the temperature.
pub(crate) const TEMPERATURE: RangeInclusive<f64> = 0.0..=2.0;
/// Allowed range of `top_p` and `min_p`.
pub(crate) const PROBABILITY: RangeInclusive<f64> = 0.0..=1.0;
/// Allowed range of `top_k`; -1 and 0 are no limit.
pub(crate) const TOP_K: RangeInclusive<i64> = -1..=u32::MAX as i64;
/// Allowed range of the presence penalty and of the frequency penalty.
pub(crate) const PENALTY: RangeInclusive<f64> = -2.0..=2.0;
/// Allowed range of a bias in `logit_bias`.
pub(crate) const BIAS: RangeInclusive<f64> = -100.0..=100.0;
/// Names of the tiers in the field `service_tier`.
pub(crate) const SERVICE_TIERS: [&str; 5] = ["auto", "default", "priority", "flex", "scale"];
/// Maximum number of alternative tokens with log-probabilities per output token (`top_logprobs`).
pub(crate) const MAX_TOP_LOGPROBS: u32 = 20;

/// Facts about the model that the server needs to read a request.
#[derive(Debug, Clone, Default)]
pub(crate) struct ModelFacts {
    pub(crate) vocab_size: u32,
    /// Default sampling parameters, for those that a request leaves out.
    pub(crate) sampling: SamplingParams,
    /// Forms in which the model writes tool calls and reasoning.
    pub(crate) forms: Forms,
}

/// Fields that chat and text completion requests share; prompts are not among them.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Common {
    /// Name of the model that the request asks for, if it names one.
    pub(crate) model: Option<String>,
    pub(crate) stream: bool,
    pub(crate) usage_in: UsageIn,
    pub(crate) n: u32,
    /// Maximum number of output tokens that the request states; `None` if it states none.
    pub(crate) max_tokens: Option<MaxTokens>,
    pub(crate) sampling: SamplingParams,
    /// Sampling seed that the client states. Each of the `n` choices of a prompt gets its own seed: this one plus the
    /// choice's number.
    pub(crate) seed: Option<u64>,
    pub(crate) stop: Vec<String>,
    pub(crate) stop_token_ids: Vec<TokenId>,
    /// Whether the text of the answer includes the stop string that ends it.
    pub(crate) include_stop: bool,
    /// Least number of output tokens of a choice. Before it, neither an end token nor a stop token nor a stop string
    /// ends the output.
    pub(crate) min_tokens: u32,
    /// Whether the output goes on after the model's end tokens. An output that follows a grammar ends at an end token
    /// in any case.
    pub(crate) ignore_eos: bool,
    /// Whether the text of the answer leaves out control tokens, as it does by default. Tokens that mark tool calls or
    /// reasoning are read in any case.
    pub(crate) skip_special_tokens: bool,
    /// Grammar that the output follows, if the request states one.
    pub(crate) rule: Option<Rule>,
    pub(crate) tier: Tier,
    /// Priority of the request within its tier; a lower number is served first.
    pub(crate) priority: i32,
    /// Latency targets that the request states for itself.
    pub(crate) targets: SloTargets,
    /// Patience that the request states, ms: the longest wait for its first token.
    pub(crate) max_wait_ms: Option<u64>,
    /// Name of the namespace within the tenant's part of the prefix cache that the request shares blocks in; `None`
    /// stands for the namespace of all requests that name none.
    pub(crate) cache_salt: Option<String>,
}

/// Maximum number of output tokens of a choice, as a request states it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum MaxTokens {
    /// As many tokens as fit into the context.
    NoLimit,
    /// At most this number of tokens, at least 1, which the field `param` states.
    Stated { tokens: u32, param: &'static str },
}

impl Common {
    /// Reads all shared fields of a completion request, but not the prompt and `logprobs`, whose form differs between
    /// chat and text completions.
    pub(crate) fn read(
        body: &Fields<'_>,
        (model, rights): (&ModelFacts, &Rights),
    ) -> Result<Common, ApiError> {
        let stream = body.boolean("stream")?;
        let (asked, priority) = tier(body)?;
        let (tier, priority) = (rights.tier(asked)?, rights.priority(priority));
        refuse_fields_of_vllm(body)?;
        // In vLLM and llama.cpp the seed -1 asks for a random seed.
        let stated = body.get("seed").filter(|value| value.as_f64() != Some(-1.0));
        let seed = stated.map(|value| seed(value, &body.path("seed"))).transpose()?;
        Ok(Common {
            model: body.string("model")?.map(str::to_owned),
            stream,
            usage_in: UsageIn::of_body(body, stream)?,
            n: body.count("n", 1..=MAX_CHOICES as u32)?.unwrap_or(1),
            max_tokens: max_tokens(body)?,
            sampling: sampling(body, model)?,
            seed,
            stop: stop(body)?,
            stop_token_ids: stop_token_ids(body, model.vocab_size)?,
            include_stop: body.boolean("include_stop_str_in_output")?,
            min_tokens: body.count("min_tokens", 0..=u32::MAX)?.unwrap_or(0),
            ignore_eos: body.boolean("ignore_eos")?,
            skip_special_tokens: body.boolean_or("skip_special_tokens", true)?,
            rule: structured::rule(body)?,
            tier,
            priority,
            targets: slo::of_body(body)?,
            max_wait_ms: patience::of_body(body)?,
            cache_salt: body
                .string("cache_salt")?
                .filter(|name| !name.is_empty())
                .map(str::to_owned),
        })
    }
}

/// Reads the fields `logprobs` (a flag) and `top_logprobs` (a count) of a chat request. Returns the number of
/// alternative tokens to list per output token, or `None` without log-probabilities.
pub(crate) fn chat_logprobs(body: &Fields<'_>) -> Result<Option<u8>, ApiError> {
    let wanted = body.boolean("logprobs")?;
    let top = body.count("top_logprobs", 0..=MAX_TOP_LOGPROBS)?;
    match (wanted, top) {
        (false, Some(1..)) => {
            Err(ApiError::param("top_logprobs", "'top_logprobs' needs 'logprobs' to be true"))
        }
        (false, _) => Ok(None),
        (true, top) => Ok(Some(top.unwrap_or(0) as u8)),
    }
}

/// Reads the field `logprobs` of a text completion request: the number of alternative tokens to list per output token.
pub(crate) fn text_logprobs(body: &Fields<'_>) -> Result<Option<u8>, ApiError> {
    Ok(body.count("logprobs", 0..=MAX_TOP_LOGPROBS)?.map(|top| top as u8))
}

fn max_tokens(body: &Fields<'_>) -> Result<Option<MaxTokens>, ApiError> {
    let read = |param| -> Result<Option<MaxTokens>, ApiError> {
        // In llama.cpp -1 is no limit.
        if body.get(param).and_then(Value::as_f64) == Some(-1.0) {
            return Ok(Some(MaxTokens::NoLimit));
        }
        let tokens = body.count(param, 1..=u32::MAX)?;
        Ok(tokens.map(|tokens| MaxTokens::Stated { tokens, param }))
    };
    // Check both fields for the maximum of output tokens, even if only the newer one, `max_completion_tokens`, counts.
    let (newer, older) = (read("max_completion_tokens")?, read("max_tokens")?);
    Ok(newer.or(older))
}

fn sampling(body: &Fields<'_>, model: &ModelFacts) -> Result<SamplingParams, ApiError> {
    let defaults = &model.sampling;
    let top_k = body.integer("top_k", TOP_K)?;
    let repetition_penalty = body.number("repetition_penalty", REPETITION_PENALTY)?;
    Ok(SamplingParams {
        temperature: body.number("temperature", TEMPERATURE)?.unwrap_or(defaults.temperature),
        top_k: top_k.map_or(defaults.top_k, |k| k.max(0) as u32),
        // Replace a `top_p` of 0, which means the most likely token alone, by the smallest positive number, which
        // selects the same set.
        top_p: body.number("top_p", PROBABILITY)?.unwrap_or(defaults.top_p).max(f32::MIN_POSITIVE),
        min_p: body.number("min_p", PROBABILITY)?.unwrap_or(defaults.min_p),
        repetition_penalty: repetition_penalty.unwrap_or(defaults.repetition_penalty),
        presence_penalty: body.number("presence_penalty", PENALTY)?.unwrap_or(0.0),
        frequency_penalty: body.number("frequency_penalty", PENALTY)?.unwrap_or(0.0),
        logit_bias: logit_bias(body, model.vocab_size)?,
        min_tokens: MinTokens::default(),
        seed: 0,
        logprobs: None,
        constraint: None,
    })
}

fn logit_bias(body: &Fields<'_>, vocab_size: u32) -> Result<Vec<(TokenId, f32)>, ApiError> {
    let Some(value) = body.get("logit_bias") else { return Ok(Vec::new()) };
    let Value::Object(map) = value else {
        return Err(wrong("logit_bias", "an object of token ids and numbers", value));
    };
    if map.len() > MAX_BIASES {
        let message = format!("'logit_bias' has {} entries, more than {MAX_BIASES}", map.len());
        return Err(ApiError::param("logit_bias", message));
    }
    map.iter()
        .map(|(key, bias)| {
            let token = key.parse().ok().filter(|id| *id < vocab_size).ok_or_else(|| {
                ApiError::param(
                    "logit_bias",
                    format!("'logit_bias' keys are token ids below {vocab_size}"),
                )
            })?;
            Ok((token, number(bias, "logit_bias", BIAS)?))
        })
        .collect()
}

fn seed(value: &Value, path: &str) -> Result<u64, ApiError> {
    match value.as_u64() {
        Some(seed) => Ok(seed),
        None => integer(value, path, i64::MIN..=i64::MAX).map(|seed| seed as u64),
    }
}

fn stop(body: &Fields<'_>) -> Result<Vec<String>, ApiError> {
    let values = match body.get("stop") {
        None => return Ok(Vec::new()),
        Some(Value::Array(values)) => values.as_slice(),
        Some(one @ Value::String(_)) => std::slice::from_ref(one),
        Some(other) => return Err(wrong("stop", "a string or an array of strings", other)),
    };
    if values.len() > MAX_STOPS {
        let message = format!("'stop' has {} strings, more than {MAX_STOPS}", values.len());
        return Err(ApiError::param("stop", message));
    }
    let stops: Vec<String> = values
        .iter()
        .map(|value| {
            let text = value.as_str().ok_or_else(|| wrong("stop", "an array of strings", value))?;
            if text.is_empty() || text.len() > MAX_STOP_BYTES {
                let message =
                    format!("each string of 'stop' must have 1 to {MAX_STOP_BYTES} bytes");
                return Err(ApiError::param("stop", message));
            }
            Ok(text.to_owned())
        })
        .collect::<Result<_, ApiError>>()?;
    let bytes: usize = stops.iter().map(String::len).sum();
    if bytes > MAX_STOPS_BYTES {
        let message = format!(
            "the strings of 'stop' have {bytes} bytes together, more than {MAX_STOPS_BYTES}"
        );
        return Err(ApiError::param("stop", message));
    }
    Ok(stops)
}

fn stop_token_ids(body: &Fields<'_>, vocab_size: u32) -> Result<Vec<TokenId>, ApiError> {
    let values = body.array("stop_token_ids")?.map_or(&[][..], Vec::as_slice);
    if values.len() > MAX_STOPS {
        let message = format!("'stop_token_ids' has {} ids, more than {MAX_STOPS}", values.len());
        return Err(ApiError::param("stop_token_ids", message));
    }
    token_ids(values, "stop_token_ids", vocab_size)
}

/// Reads token ids from a JSON array; fails if an id is not in the vocabulary.
pub(crate) fn token_ids(
    values: &[Value],
    path: &str,
    vocab_size: u32,
) -> Result<Vec<TokenId>, ApiError> {
    let last = i64::from(vocab_size) - 1;
    values.iter().map(|value| integer(value, path, 0..=last).map(|id| id as TokenId)).collect()
}

/// Reads the tier that a request asks for, if any, and its priority within the tier. The field `service_tier` names the
/// tier; without it, the sign of the field `priority` decides: negative is premium, positive is background.
fn tier(body: &Fields<'_>) -> Result<(Option<Tier>, i32), ApiError> {
    let priority = body.integer("priority", i64::MIN..=i64::MAX)?.unwrap_or(0);
    let tier = match body.string("service_tier")? {
        Some("priority") => Some(Tier::Premium),
        Some("default") => Some(Tier::Standard),
        Some("flex") => Some(Tier::Background),
        // OpenAI's clients also know `scale`: capacity that an organisation has bought there.
        Some("auto" | "scale") => None,
        Some(other) => {
            let short: String = other.chars().take(40).collect();
            let message = format!(
                "'service_tier' must be auto, default, priority, flex or scale, not {short:?}"
            );
            return Err(ApiError::param("service_tier", message));
        }
        None => match priority {
            ..0 => Some(Tier::Premium),
            0 => None,
            1.. => Some(Tier::Background),
        },
    };
    Ok((tier, priority.clamp(i64::from(i32::MIN), i64::from(i32::MAX)) as i32))
}

/// Returns the name that OpenAI's field `service_tier` has for a tier.
pub(crate) fn service_tier(tier: Tier) -> &'static str {
    match tier {
        Tier::Premium => "priority",
        Tier::Standard | Tier::System => "default",
        Tier::Background => "flex",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn read(body: Value) -> Result<Common, ApiError> {
        let model = ModelFacts { vocab_size: 100, ..ModelFacts::default() };
        Common::read(&Fields::root(&body).unwrap(), (&model, &Rights::ALL))
    }

    #[test]
    fn what_is_left_out_is_what_the_model_recommends() {
        let sampling = SamplingParams {
            temperature: 0.6,
            top_k: 20,
            top_p: 0.95,
            min_p: 0.1,
            repetition_penalty: 1.1,
            ..SamplingParams::default()
        };
        let model =
            ModelFacts { vocab_size: 100, sampling: sampling.clone(), forms: Forms::default() };
        let read = |body: Value| {
            Common::read(&Fields::root(&body).unwrap(), (&model, &Rights::ALL)).unwrap()
        };
        assert_eq!(read(json!({})).sampling, sampling);
        let given = json!({
            "temperature": 1, "top_k": 0, "top_p": 1, "min_p": 0, "repetition_penalty": 1,
        });
        assert_eq!(read(given).sampling, SamplingParams::default());
    }

    #[test]
    fn nulls_and_unknown_fields_change_nothing() {
        let nulls = json!({
            "model": null, "stream": null, "n": null, "max_tokens": null, "temperature": null,
            "stop": null, "seed": null, "logit_bias": null, "service_tier": null,
            "stream_options": null, "priority": null, "user": null, "colour": "blue",
        });
        assert_eq!(read(nulls).unwrap(), read(json!({})).unwrap());
    }

    #[test]
    fn tiers_come_from_the_name_or_else_from_the_sign() {
        let tier = |body| read(body).map(|common| (common.tier, common.priority));
        assert_eq!(tier(json!({})).unwrap(), (Tier::Standard, 0));
        assert_eq!(tier(json!({"service_tier": "priority"})).unwrap(), (Tier::Premium, 0));
        assert_eq!(tier(json!({"service_tier": "flex"})).unwrap(), (Tier::Background, 0));
        for own in ["auto", "scale"] {
            assert_eq!(tier(json!({"service_tier": own})).unwrap(), (Tier::Standard, 0));
        }
        assert_eq!(tier(json!({"priority": -3})).unwrap(), (Tier::Premium, -3));
        assert_eq!(tier(json!({"priority": 3})).unwrap(), (Tier::Background, 3));
        let both = json!({"service_tier": "flex", "priority": -3});
        assert_eq!(tier(both).unwrap(), (Tier::Background, -3));
        assert!(tier(json!({"service_tier": "gold"})).is_err());
        assert_eq!(tier(json!({"priority": i64::MAX})).unwrap().1, i32::MAX);
    }

    #[test]
    fn a_seed_of_minus_one_is_none_and_as_many_tokens_are_no_limit() {
        assert_eq!(read(json!({"seed": -1})).unwrap().seed, None);
        assert_eq!(read(json!({"seed": -1.0})).unwrap().seed, None);
        assert_eq!(read(json!({"seed": u64::MAX})).unwrap().seed, Some(u64::MAX));
        assert_eq!(read(json!({"seed": -2})).unwrap().seed, Some(-2_i64 as u64));
        for field in ["max_tokens", "max_completion_tokens"] {
            assert_eq!(read(json!({field: -1})).unwrap().max_tokens, Some(MaxTokens::NoLimit));
        }
    }

    #[test]
    fn edges_of_every_range() {
        for good in [
            json!({"temperature": 0}),
            json!({"temperature": 2}),
            json!({"top_p": 0}),
            json!({"top_k": -1}),
            json!({"stop": "x"}),
            json!({"stop": []}),
            json!({"stop": ["a", "b"]}),
            json!({"stop": vec!["x".repeat(32); 64]}),
            json!({"stop_token_ids": [0, 99]}),
            json!({"logit_bias": {"99": -100}}),
            json!({"seed": -1}),
            json!({"seed": u64::MAX}),
            json!({"max_completion_tokens": 1}),
            json!({"max_completion_tokens": 1, "max_tokens": 2}),
            json!({"repetition_penalty": 0.01}),
            json!({"stream": true, "stream_options": {"include_usage": true}}),
        ] {
            assert!(read(good.clone()).is_ok(), "{good}");
        }
        for bad in [
            json!({"temperature": -0.1}),
            json!({"top_p": 1.1}),
            json!({"top_k": -2}),
            json!({"n": 0}),
            json!({"n": 129}),
            json!({"stop": ""}),
            json!({"stop": [1]}),
            json!({"stop": vec!["x"; 65]}),
            json!({"stop": "x".repeat(1025)}),
            json!({"stop": ["x".repeat(1024), "y".repeat(1024), "z".to_owned()]}),
            json!({"stop_token_ids": [100]}),
            json!({"logit_bias": {"100": 1}}),
            json!({"logit_bias": {"1": 101}}),
            json!({"logit_bias": {"1": "x"}}),
            json!({"logit_bias": [1]}),
            json!({"seed": 1.5}),
            json!({"max_tokens": 0}),
            json!({"max_tokens": -2}),
            json!({"max_completion_tokens": 5, "max_tokens": "x"}),
            json!({"max_completion_tokens": 5, "max_tokens": 0}),
            json!({"repetition_penalty": 0}),
            json!({"repetition_penalty": 1e-38}),
            json!({"repetition_penalty": 10.1}),
            json!({"stream_options": {"include_usage": true}}),
        ] {
            assert!(read(bad.clone()).is_err(), "{bad}");
        }
    }
}
