//! Settings of the model: its source, the form of its weights in memory, and the forms of its calls and reasoning.

use crate::{Kind, SettingsError};
use std::collections::BTreeSet;

/// Most names that the model may have.
const MAX_NAMES: usize = 32;
/// Longest name that the model may have, bytes.
const MAX_NAME_BYTES: usize = 256;

settings! {
    /// Settings of the model and its weights.
    pub struct ModelSettings {
        /// Model to serve: a .gguf file, a Hugging Face directory or `hf:ORG/NAME[@REV]`. Without this setting:
        /// SmolLM2-135M-Instruct, downloaded at the first start.
        source: Option<String> = None, as Kind::Model, flag "model";
        /// Names that clients may use for the model; by default the name of its source. An answer repeats the name that
        /// the request used, or has the first name if the request used none. The flag may be repeated.
        served_name: Vec<String> = Vec::new(), flag "served-name";
        /// Whether sampling parameters that a request leaves out are taken from the checkpoint (generation_config.json,
        /// or general.sampling of a GGUF file) instead of from OpenAI's defaults.
        generation_config: bool = true;
        /// File with a chat template (Jinja) that replaces the model's. With a mock device, the template decides the
        /// forms of calls and of reasoning (docs/mock.md).
        chat_template: Option<String> = None, as Kind::File, flag "chat-template";
        /// Form in which the model writes tool calls. auto: the form that the model's response template describes or
        /// its chat template shows, or the form of the Hermes models for a template without tools; none: requests with
        /// tools are refused.
        tool_parser: ToolParser = ToolParser::Auto, flag "tool-parser";
        /// Tags that the model writes around its reasoning. Answers have the text between the tags apart from the
        /// content. auto: the tags that the model's response template, chat template or vocabulary shows; none:
        /// reasoning stays in the content.
        reasoning_parser: ReasoningParser = ReasoningParser::Auto, flag "reasoning-parser";
        /// Temperature of requests that state none; 0 takes the most likely token. Without this setting: the
        /// temperature that the checkpoint recommends, otherwise 1.
        temperature: Option<f64> = None, in 0.0..=2.0, flag "temperature";
        /// Form in which weights are held in memory. native: as in the model's file; auto: the fastest form that keeps
        /// the file's quality on a CPU, and the smallest on a GPU. A GPU takes auto and bf16: with auto, it holds FP8,
        /// AWQ, GPTQ, Q4_0 and Q8_0 matrices as in the file and all others in bf16.
        weights: Weights = Weights::Auto, flag "weights";
        /// Longest sequence (prompt + output), tokens; 0 takes the model's own limit. A small KV cache may shorten it.
        max_model_len: u32 = 0, in 0..=1 << 24, flag "max-model-len";
    }
}

words! {
    /// Form in which a model writes tool calls. The words are vLLM's names of the forms.
    ToolParser {
        /// The form that the model shows.
        Auto = "auto",
        /// No form: the server does not look for calls.
        None = "none",
        /// `<tool_call>{"name": ..., "arguments": {...}}</tool_call>`.
        Hermes = "hermes",
        /// `<tool_call><function=...><parameter=...>`.
        Qwen3Coder = "qwen3_coder",
        /// `{"name": ..., "parameters": {...}}`.
        Llama3Json = "llama3_json",
        /// `[f(a=1)]`.
        Pythonic = "pythonic",
        /// `[TOOL_CALLS]`.
        Mistral = "mistral",
    }
}

words! {
    /// Tags that a model writes around its reasoning.
    ReasoningParser {
        /// The tags that the model shows.
        Auto = "auto",
        /// No tags: reasoning stays in the content.
        None = "none",
        /// `<think>` and `</think>`.
        Think = "think",
        /// `[THINK]` and `[/THINK]`.
        Mistral = "mistral",
    }
}

words! {
    /// Form in which weights are held in memory.
    Weights {
        /// The form that keeps the source's quality: the fastest on a CPU, the smallest on a GPU.
        Auto = "auto",
        /// IEEE single precision: exact, and the slowest form.
        F32 = "f32",
        /// bfloat16 weights.
        Bf16 = "bf16",
        /// 8-bit integers in blocks, the Q8_0 form of GGUF files.
        Q8_0 = "q8_0",
        /// The form in which the model's file holds the weights.
        Native = "native",
    }
}

impl ModelSettings {
    /// Checks the names that clients may use for the model.
    pub(crate) fn check_names(&self) -> Result<(), SettingsError> {
        let names = &self.served_name;
        let refuse = |why| Err(SettingsError::Conflict { field: "model.served_name", why });
        if names.iter().any(|name| name.trim().is_empty() || name.len() > MAX_NAME_BYTES) {
            return refuse("each name must have 1 to 256 bytes");
        }
        if names.len() > MAX_NAMES {
            return refuse("there may be at most 32 names");
        }
        if names.iter().collect::<BTreeSet<_>>().len() < names.len() {
            return refuse("holds a name twice; remove one of them");
        }
        Ok(())
    }
}
