//! Compares chat templates in the style of the supported families with Jinja2:
//! `tests/reference/templates/make_templates.py` of the workspace makes the expected texts.
#![allow(clippy::unwrap_used, reason = "tests state what must hold")]

use serde::Deserialize;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use tiercel_model::source::ModelFiles;
use tiercel_model::template::{ChatMessage, ChatTemplate, TemplateError};
use tiercel_model::tokenizer::Tokenizer;

#[derive(Deserialize)]
struct Case {
    template: String,
    messages: Vec<Message>,
    open: bool,
    text: Option<String>,
    error: Option<String>,
}

#[derive(Deserialize)]
struct Message {
    role: String,
    content: String,
}

fn reference() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/reference")
}

/// Makes a model directory with the given chat template and a test tokenizer, and reads the chat template from it.
fn template(name: &str) -> ChatTemplate {
    let dir = tempfile::tempdir().unwrap();
    let tokenizer = reference().join("tokenizer/hf_byte_level");
    for file in ["tokenizer.json", "tokenizer_config.json"] {
        std::fs::copy(tokenizer.join(file), dir.path().join(file)).unwrap();
    }
    let source = reference().join("templates").join(name);
    std::fs::copy(source, dir.path().join("chat_template.jinja")).unwrap();
    let tokenizer = Tokenizer::from_dir(dir.path()).unwrap();
    ChatTemplate::from_files(&ModelFiles::HfDir(dir.path().to_owned()), &tokenizer).unwrap()
}

#[test]
fn templates_render_as_in_jinja2() {
    let expected = std::fs::read_to_string(reference().join("templates/expected.json")).unwrap();
    let cases: Vec<Case> = serde_json::from_str(&expected).unwrap();
    let mut templates: BTreeMap<String, ChatTemplate> = BTreeMap::new();
    for case in &cases {
        let chat =
            templates.entry(case.template.clone()).or_insert_with(|| template(&case.template));
        let messages: Vec<ChatMessage> = case
            .messages
            .iter()
            .map(|m| ChatMessage { role: m.role.clone(), content: m.content.clone() })
            .collect();
        let rendered = chat.render(&messages, case.open);
        let about = format!("{}: {messages:?}", case.template);
        match (&case.text, &case.error) {
            (Some(text), None) => assert_eq!(rendered.expect(&about), *text, "{about}"),
            (None, Some(error)) => match rendered {
                Err(TemplateError::Messages(message)) => {
                    assert!(message.contains(error), "{about}: {message}");
                }
                other => panic!("{about}: {other:?} instead of {error}"),
            },
            _ => panic!("a case has a text or an error: {about}"),
        }
    }
    assert_eq!(templates.len(), 9);
}
