//! Reads the Jinja source of a model's chat templates from a GGUF file or a model directory.

use super::TemplateError;
use crate::gguf::GgufFile;
use crate::source::ModelFiles;
use crate::tokenizer::read_config;
use serde_json::Value;
use std::fs::File;
use std::io::{self, Read};
use std::path::Path;

/// Maximum size of a chat template's source, bytes.
pub(super) const SOURCE_BYTES_MAX: usize = 1 << 20;
/// Name of a model's second chat template, which renders conversations with tools.
const TOOL_USE: &str = "tool_use";

/// ChatML chat template, for models without a chat template. Most instruction-tuned models understand ChatML.
pub(super) const CHATML: &str = "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\\n' + \
     message['content'] + '<|im_end|>' + '\\n' }}{% endfor %}\
     {% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}";

/// Jinja sources of a model's chat templates.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Sources {
    /// Source of the chat template, if the model has one.
    pub(super) default: Option<String>,
    /// Source of the second chat template, which renders conversations with tools, if the model has one.
    pub(super) tool_use: Option<String>,
}

impl Sources {
    /// Reads the Jinja source of a model's chat templates.
    pub(super) fn of(files: &ModelFiles) -> Result<Sources, TemplateError> {
        match files {
            ModelFiles::Gguf(path) => of_gguf(path),
            ModelFiles::HfDir(dir) => of_dir(dir),
        }
    }

    /// Reads the Jinja source of one chat template from a file.
    pub(super) fn of_file(path: &Path) -> Result<Sources, TemplateError> {
        let missing = || TemplateError::Template(format!("{} does not exist", path.display()));
        Ok(Sources { default: Some(of_file(path)?.ok_or_else(missing)?), tool_use: None })
    }
}

fn of_gguf(path: &Path) -> Result<Sources, TemplateError> {
    let file = GgufFile::open(path)?;
    let read = |key: &str| -> Result<Option<String>, TemplateError> {
        Ok(file.metadata().str(key)?.map(str::to_owned))
    };
    Ok(Sources {
        default: read("tokenizer.chat_template")?,
        tool_use: read("tokenizer.chat_template.tool_use")?,
    })
}

/// Reads the chat templates of a model directory from `chat_template.jinja` and `additional_chat_templates`, or else
/// from `tokenizer_config.json`. The field `chat_template` of `tokenizer_config.json` is a text, or a list of named
/// texts.
fn of_dir(dir: &Path) -> Result<Sources, TemplateError> {
    if let Some(default) = of_file(&dir.join("chat_template.jinja"))? {
        let tool_use = dir.join("additional_chat_templates").join(format!("{TOOL_USE}.jinja"));
        return Ok(Sources { default: Some(default), tool_use: of_file(&tool_use)? });
    }
    let Some(config) = read_config(&dir.join("tokenizer_config.json"))? else {
        return Ok(Sources::default());
    };
    let text = |value: &Value| value.as_str().map(str::to_owned);
    Ok(match &config["chat_template"] {
        Value::Array(named) => {
            let find = |name: &str| {
                let entry = named.iter().find(|entry| entry["name"] == name);
                entry.and_then(|entry| text(&entry["template"]))
            };
            Sources { default: find("default"), tool_use: find(TOOL_USE) }
        }
        other => Sources { default: text(other), tool_use: None },
    })
}

/// Returns the response template of a model directory: the field `response_template` of `tokenizer_config.json`, which
/// describes the form of the model's answers. Returns `None` for a model without this field, and for a GGUF file.
///
/// # Errors
/// If `tokenizer_config.json` cannot be read.
pub fn response_template(files: &ModelFiles) -> Result<Option<Value>, TemplateError> {
    let ModelFiles::HfDir(dir) = files else { return Ok(None) };
    let config = read_config(&dir.join("tokenizer_config.json"))?.unwrap_or_default();
    Ok(config.get("response_template").filter(|template| !template.is_null()).cloned())
}

fn of_file(path: &Path) -> Result<Option<String>, TemplateError> {
    if !path.exists() {
        return Ok(None);
    }
    let mut source = String::new();
    // Read one byte more than the maximum size, so that a chat template that is too long is refused, not cut.
    let bounded = File::open(path).map(|file| file.take(SOURCE_BYTES_MAX as u64 + 1));
    bounded
        .and_then(|mut file| file.read_to_string(&mut source))
        .map_err(|error: io::Error| TemplateError::Template(error.to_string()))?;
    Ok(Some(source))
}

/// Returns a chat template's source in which an `if` that always holds replaces the tags `generation` and
/// `endgeneration`. transformers uses these tags to mark the assistant's answers for training, and renders the text
/// between the tags.
pub(super) fn without_generation_tags(source: &str) -> String {
    let mut out = String::with_capacity(source.len());
    let mut rest = source;
    while let Some(at) = rest.find("{%") {
        let tag = &rest[at + 2..];
        let word = tag.trim_start_matches(['-', '+']).trim_start();
        let found = [("generation", "if true"), ("endgeneration", "endif")].into_iter().find(
            |(name, _)| {
                let after = word
                    .strip_prefix(name)
                    .map(|after| after.trim_start_matches([' ', '\n', '-', '+']));
                after.is_some_and(|after| after.starts_with("%}"))
            },
        );
        let before = at + 2 + (tag.len() - word.len());
        out.push_str(&rest[..before]);
        rest = &rest[before..];
        if let Some((name, instead)) = found {
            out.push_str(instead);
            rest = &rest[name.len()..];
        }
    }
    out + rest
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tags_for_training_are_replaced_and_nothing_else() {
        let replaced = without_generation_tags;
        assert_eq!(
            replaced("a{% generation %}b{%- endgeneration -%}c"),
            "a{% if true %}b{%- endif -%}c"
        );
        for same in ["{% set generation = 1 %}", "{% if generation %}", "{{ generation }} {%", ""] {
            assert_eq!(replaced(same), same);
        }
    }

    #[test]
    fn a_directory_may_have_a_response_template() {
        let dir = tempfile::tempdir().unwrap();
        let files = ModelFiles::HfDir(dir.path().to_owned());
        assert_eq!(response_template(&files).unwrap(), None);
        let config = dir.path().join("tokenizer_config.json");
        std::fs::write(&config, r#"{"response_template": {"fields": {}}}"#).unwrap();
        assert_eq!(response_template(&files).unwrap(), Some(serde_json::json!({"fields": {}})));
        std::fs::write(&config, r#"{"response_template": null}"#).unwrap();
        assert_eq!(response_template(&files).unwrap(), None);
    }

    #[test]
    fn a_directory_has_a_template_for_tools_beside_the_default_one() {
        let dir = tempfile::tempdir().unwrap();
        let config = r#"{"chat_template": [{"name": "tool_use", "template": "T"}, {"name": "default", "template": "D"}]}"#;
        std::fs::write(dir.path().join("tokenizer_config.json"), config).unwrap();
        let sources = |default: &str, tool_use: Option<&str>| Sources {
            default: Some(default.into()),
            tool_use: tool_use.map(str::to_owned),
        };
        assert_eq!(of_dir(dir.path()).unwrap(), sources("D", Some("T")));
        std::fs::write(dir.path().join("chat_template.jinja"), "F").unwrap();
        assert_eq!(of_dir(dir.path()).unwrap(), sources("F", None));
        std::fs::create_dir(dir.path().join("additional_chat_templates")).unwrap();
        std::fs::write(dir.path().join("additional_chat_templates/tool_use.jinja"), "A").unwrap();
        assert_eq!(of_dir(dir.path()).unwrap(), sources("F", Some("A")));
    }
}
