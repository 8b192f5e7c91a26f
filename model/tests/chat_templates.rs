//! Compares the rendering of chat templates in the style of the supported families with transformers'
//! `apply_chat_template`. `tests/reference/templates/make_templates.py` of the workspace makes the expected texts. If
//! the environment variable `CHAT_TEMPLATES` names a folder, the templates and expected texts of this folder are
//! compared.
#![allow(clippy::unwrap_used, reason = "tests state what must hold")]

use serde::Deserialize;
use serde_json::{Map, Value};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use tiercel_model::source::ModelFiles;
use tiercel_model::template::{ChatTemplate, Conversation, Ending, Message, TemplateError};
use tiercel_model::tokenizer::Tokenizer;

#[derive(Deserialize)]
struct Case {
    template: String,
    messages: Vec<Message>,
    tools: Vec<Value>,
    variables: Map<String, Value>,
    ending: String,
    text: Option<String>,
    error: Option<String>,
}

fn reference() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/reference")
}

/// Returns the folder of the templates.
fn folder() -> PathBuf {
    std::env::var_os("CHAT_TEMPLATES").map_or(reference().join("templates"), PathBuf::from)
}

/// Makes a model directory with the given chat template and a test tokenizer, and reads the chat template from it.
fn template(name: &str) -> ChatTemplate {
    let dir = tempfile::tempdir().unwrap();
    let tokenizer = reference().join("tokenizer/hf_byte_level");
    for file in ["tokenizer.json", "tokenizer_config.json"] {
        std::fs::copy(tokenizer.join(file), dir.path().join(file)).unwrap();
    }
    let source = folder().join(name);
    std::fs::copy(source, dir.path().join("chat_template.jinja")).unwrap();
    let tokenizer = Tokenizer::from_dir(dir.path()).unwrap();
    ChatTemplate::from_files(&ModelFiles::HfDir(dir.path().to_owned()), &tokenizer).unwrap()
}

#[test]
fn templates_render_as_in_transformers() {
    let expected = std::fs::read_to_string(folder().join("expected.json")).unwrap();
    let cases: Vec<Case> = serde_json::from_str(&expected).unwrap();
    let mut templates: BTreeMap<String, ChatTemplate> = BTreeMap::new();
    let mut different = Vec::new();
    for case in &cases {
        let chat =
            templates.entry(case.template.clone()).or_insert_with(|| template(&case.template));
        let about = format!("{}, {}: {:?}", case.template, case.ending, case.messages);
        let conversation = Conversation {
            messages: case.messages.clone(),
            tools: case.tools.clone(),
            variables: case.variables.clone(),
            ending: match case.ending.as_str() {
                "open" => Ending::Open,
                "closed" => Ending::Closed,
                _ => Ending::Continued,
            },
        };
        let rendered = chat.render(&conversation);
        let same = match (&case.text, &case.error, &rendered) {
            (Some(text), None, Ok(rendered)) => text == rendered,
            // If the template does not raise the error itself, the message comes from the renderer and is not compared.
            (None, Some(error), Err(TemplateError::Messages(message))) => {
                message.contains(error) || !error.ends_with(['!', '.'])
            }
            _ => false,
        };
        if !same {
            different.push(format!(
                "{about}\nexpected {:?} {:?}\nrendered {rendered:?}",
                case.text, case.error
            ));
        }
    }
    assert!(templates.len() >= 9);
    assert!(
        different.is_empty(),
        "{} of {} cases:\n{}",
        different.len(),
        cases.len(),
        different.join("\n\n")
    );
}
