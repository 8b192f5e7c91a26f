//! Compares the default model's vocabulary with Hugging Face tokenizers and llama.cpp, which agree on the test's texts:
//! `tests/reference/tokenizer/make_tokenizer.py` of the workspace makes the expected tokens.
#![allow(clippy::unwrap_used, reason = "tests state what must hold")]

use serde::Deserialize;
use std::path::Path;
use tiercel_device::TokenId;
use tiercel_model::source::Resolver;
use tiercel_model::tokenizer::Tokenizer;

#[derive(Deserialize)]
struct Vectors {
    texts: Vec<String>,
    expected: Vec<Vec<TokenId>>,
}

#[test]
fn the_default_model_tokenizes_like_other_programs() {
    let path =
        Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/reference/tokenizer/smollm2.json");
    let vectors: Vectors = serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap();
    let model = Resolver::from_env().unwrap().resolve(None).unwrap();
    let tokenizer = Tokenizer::from_files(&model.files).unwrap();
    assert_eq!(tokenizer.vocab_size(), 49_152);
    for (text, expected) in vectors.texts.iter().zip(&vectors.expected) {
        let ids = tokenizer.encode(text, true, true).unwrap();
        assert_eq!(ids, *expected, "{text:?}");
        assert_eq!(tokenizer.decode(&ids, false), *text);
        let mut stream = tokenizer.stream_decoder(false);
        let pieces: String = ids.iter().map(|&id| stream.push(id)).collect();
        assert_eq!(pieces + &stream.finish(), *text);
        let plain = tokenizer.encode(text, false, false).unwrap();
        assert!(!plain.iter().any(|&id| tokenizer.is_special(id)), "{text:?}");
        assert_eq!(tokenizer.decode(&plain, true), *text);
    }
}
