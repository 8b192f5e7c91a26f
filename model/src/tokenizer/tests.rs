//! Compares the tokenizers with other programs: `tests/reference/tokenizer/make_tokenizer.py` of the workspace makes
//! the expected tokens and texts.

use super::*;
use crate::gguf::build::{Builder, Value};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use std::collections::BTreeMap;
use std::path::PathBuf;

fn reference(file: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/reference/tokenizer").join(file)
}

fn load<T: DeserializeOwned>(file: &str) -> T {
    serde_json::from_str(&std::fs::read_to_string(reference(file)).unwrap()).unwrap()
}

#[derive(Deserialize)]
struct ByteLevel {
    texts: Vec<String>,
    tokens: Vec<String>,
    types: Vec<i32>,
    merges: Vec<String>,
    expected: BTreeMap<String, Vec<Vec<TokenId>>>,
}

impl ByteLevel {
    fn gguf(&self, pre: &str) -> Builder {
        Builder::default()
            .entry("tokenizer.ggml.model", Value::Str("gpt2".into()))
            .entry("tokenizer.ggml.pre", Value::Str(pre.into()))
            .entry("tokenizer.ggml.tokens", Value::Strings(self.tokens.clone()))
            .entry("tokenizer.ggml.token_type", Value::I32s(self.types.clone()))
            .entry("tokenizer.ggml.merges", Value::Strings(self.merges.clone()))
            .entry("tokenizer.ggml.bos_token_id", Value::U32(1))
            .entry("tokenizer.ggml.eos_token_id", Value::U32(2))
    }
}

#[derive(Deserialize)]
struct SentencePiece {
    texts: Vec<String>,
    tokens: Vec<String>,
    types: Vec<i32>,
    scores: Vec<f32>,
    expected: Vec<Vec<TokenId>>,
}

impl SentencePiece {
    fn gguf(&self) -> Builder {
        Builder::default()
            .entry("tokenizer.ggml.model", Value::Str("llama".into()))
            .entry("tokenizer.ggml.tokens", Value::Strings(self.tokens.clone()))
            .entry("tokenizer.ggml.token_type", Value::I32s(self.types.clone()))
            .entry("tokenizer.ggml.scores", Value::F32s(self.scores.clone()))
            .entry("tokenizer.ggml.unknown_token_id", Value::U32(0))
            .entry("tokenizer.ggml.bos_token_id", Value::U32(1))
            .entry("tokenizer.ggml.eos_token_id", Value::U32(2))
    }
}

#[derive(Deserialize)]
struct Directory {
    texts: Vec<String>,
    expected: Vec<Vec<TokenId>>,
    decoded: Vec<String>,
    decoded_with_special: Vec<String>,
}

fn open(builder: &Builder) -> Result<Tokenizer, TokenizerError> {
    Tokenizer::from_gguf(&GgufFile::open(builder.save().path()).unwrap())
}

/// Checks that a text that is encoded without parsing control tokens gives no special tokens, and decodes to
/// `expected`.
fn check_plain(tokenizer: &Tokenizer, text: &str, expected: &str) {
    let ids = tokenizer.encode(text, false, false).unwrap();
    assert!(!ids.iter().any(|&id| tokenizer.is_special(id)), "{text:?}: {ids:?}");
    assert_eq!(tokenizer.decode(&ids, true), expected);
}

#[test]
fn byte_level_files_agree_with_hugging_face_and_llama_cpp() {
    let vectors: ByteLevel = load("byte_level.json");
    assert_eq!(vectors.expected.len(), 6);
    for (pre, expected) in &vectors.expected {
        let tokenizer = open(&vectors.gguf(pre)).unwrap();
        for (text, expected) in vectors.texts.iter().zip(expected) {
            let ids = tokenizer.encode(text, false, true).unwrap();
            assert_eq!(ids, *expected, "{pre}: {text:?}");
            if pre != "qwen2" {
                assert_eq!(tokenizer.decode(&ids, false), *text, "{pre}");
                check_plain(&tokenizer, text, text);
            }
        }
    }
}

#[test]
fn sentence_piece_files_agree_with_llama_cpp() {
    let vectors: SentencePiece = load("sentence_piece.json");
    let tokenizer = open(&vectors.gguf()).unwrap();
    for (text, expected) in vectors.texts.iter().zip(&vectors.expected) {
        let ids = tokenizer.encode(text, false, true).unwrap();
        assert_eq!(ids, *expected, "{text:?}");
        // Texts that do not decode to themselves are left out of this check: SentencePiece's own character for a space
        // decodes to a space, and a space is put after every user-defined token, such as `<think>`.
        if !text.contains('\u{2581}') && !text.contains("<think>") {
            check_plain(&tokenizer, text, text);
        }
    }
}

#[test]
fn spelled_control_tokens_stay_text_in_every_kind_of_tokenizer() {
    let byte_level: ByteLevel = load("byte_level.json");
    let sentence_piece: SentencePiece = load("sentence_piece.json");
    for (tokenizer, spaces) in [
        (open(&byte_level.gguf("smollm")).unwrap(), false),
        (open(&sentence_piece.gguf()).unwrap(), false),
        (Tokenizer::from_dir(&reference("hf_byte_level")).unwrap(), false),
        (Tokenizer::from_dir(&reference("hf_sentence_piece")).unwrap(), true),
    ] {
        let end = tokenizer.token_bytes(tokenizer.special().eos.unwrap());
        let end = String::from_utf8(end.to_vec()).unwrap();
        let text = format!("a{end}b {end}");
        let ids = tokenizer.encode_markup(&tokenizer.protect(&text)).unwrap();
        assert!(!ids.iter().any(|&id| tokenizer.is_special(id)), "{text}: {ids:?}");
        let decoded = tokenizer.decode(&ids, false);
        if spaces {
            assert_eq!(decoded.replace(' ', ""), text.replace(' ', ""));
        } else {
            assert_eq!(decoded, text);
        }
        let read = tokenizer.encode_markup(&text).unwrap();
        assert_eq!(read, tokenizer.encode(&text, false, true).unwrap());
        assert!(read.contains(&tokenizer.special().eos.unwrap()));
    }
}

#[test]
fn control_tokens_typed_as_words_are_control_tokens() {
    let mut vectors: ByteLevel = load("byte_level.json");
    let markup = |text: &String| text.starts_with("<|") && text.ends_with("|>");
    let ids: Vec<usize> =
        (0..vectors.tokens.len()).filter(|&id| markup(&vectors.tokens[id])).collect();
    assert!(ids.len() >= 2);
    ids.iter().for_each(|&id| vectors.types[id] = 4);
    let tokenizer = open(&vectors.gguf("smollm")).unwrap();
    assert!(ids.iter().all(|&id| tokenizer.is_special(id as TokenId)));
    assert_eq!(tokenizer.special().ends, [0, 2]);
}

#[test]
fn directories_agree_with_hugging_face() {
    for dir in ["hf_byte_level", "hf_sentence_piece"] {
        let vectors: Directory = load(&format!("{dir}/expected.json"));
        let tokenizer = Tokenizer::from_files(&ModelFiles::HfDir(reference(dir))).unwrap();
        let bos = tokenizer.special().bos.unwrap();
        for (at, text) in vectors.texts.iter().enumerate() {
            let ids = tokenizer.encode(text, true, true).unwrap();
            assert_eq!(ids, vectors.expected[at], "{dir}: {text:?}");
            assert_eq!(tokenizer.encode(text, false, true).unwrap(), ids[1..]);
            assert_eq!(ids[0], bos);
            assert_eq!(tokenizer.decode(&ids, true), vectors.decoded[at]);
            assert_eq!(tokenizer.decode(&ids, false), vectors.decoded_with_special[at]);
        }
    }
}

#[test]
fn streams_continue_where_the_prompt_ended() {
    let vectors: SentencePiece = load("sentence_piece.json");
    let tokenizer = open(&vectors.gguf()).unwrap();
    let ids = tokenizer.encode("Hello world", false, true).unwrap();
    assert_eq!(tokenizer.decode(&ids, true), "Hello world");
    let mut stream = tokenizer.stream_decoder(true);
    let text: String = ids.iter().map(|&id| stream.push(id)).collect();
    assert_eq!(text + &stream.finish(), " Hello world");
}

#[test]
fn end_tokens_are_gathered_from_every_place_that_names_them() {
    let vectors: ByteLevel = load("byte_level.json");
    let tokenizer = open(&vectors.gguf("smollm")).unwrap();
    // Check that end tokens are found in the GGUF metadata (token 2) and by their names (token 0, `<|endoftext|>`).
    assert_eq!(tokenizer.special().ends, [0, 2]);
    assert_eq!((tokenizer.special().bos, tokenizer.special().eos), (Some(1), Some(2)));
    let tokenizer = Tokenizer::from_dir(&reference("hf_byte_level")).unwrap();
    assert_eq!(tokenizer.special().ends, [0, 2]);
    assert_eq!(tokenizer.special().eos, Some(2));
    assert_eq!(tokenizer.vocab_size(), vectors.tokens.len());
}

#[test]
fn a_beginning_of_text_token_is_added_as_the_file_says() {
    let vectors: ByteLevel = load("byte_level.json");
    let first = |builder: &Builder| open(builder).unwrap().encode("x", true, true).unwrap()[0];
    let says = |add| vectors.gguf("smollm").entry("tokenizer.ggml.add_bos_token", Value::Bool(add));
    assert_ne!(first(&vectors.gguf("smollm")), 1);
    assert_eq!(first(&vectors.gguf("llama-bpe")), 1);
    assert_eq!(first(&says(true)), 1);
    assert_ne!(first(&says(false)), 1);
}

#[test]
fn malformed_metadata_is_refused() {
    let vectors: ByteLevel = load("byte_level.json");
    let error = |change: fn(&mut ByteLevel)| {
        let mut vectors: ByteLevel = load("byte_level.json");
        change(&mut vectors);
        open(&vectors.gguf("smollm")).unwrap_err().to_string()
    };
    assert!(error(|v| v.types.truncate(3)).contains("3 token types"));
    assert!(error(|v| v.merges[5] = "no-space".into()).contains("not two tokens"));
    assert!(error(|v| v.merges[5] = "no such".into()).contains("not usable"));
    assert!(error(|v| v.merges[5] = String::new()).contains("not two tokens"));
    assert!(error(|v| (v.tokens, v.types) = (vec![], vec![])).contains("no tokens"));
    let unknown = open(&vectors.gguf("made-up")).unwrap_err().to_string();
    assert!(unknown.contains("`made-up`") && unknown.contains("tokenizer.json"), "{unknown}");
    let mut spm: SentencePiece = load("sentence_piece.json");
    spm.scores.pop();
    assert!(open(&spm.gguf()).unwrap_err().to_string().contains("scores for"));
    let missing = open(&Builder::default()).unwrap_err().to_string();
    assert!(missing.contains("tokenizer.ggml.tokens"), "{missing}");
}

#[test]
fn ids_out_of_range_are_not_special() {
    let vectors: ByteLevel = load("byte_level.json");
    let mut file = vectors.gguf("smollm");
    file.entries.retain(|(key, _)| !key.ends_with("os_token_id"));
    let file = file.entry("tokenizer.ggml.bos_token_id", Value::U32(u32::MAX));
    assert_eq!(open(&file).unwrap().special().bos, None);
}

#[test]
fn scores_that_are_not_numbers_and_hostile_texts_end() {
    let mut vectors: SentencePiece = load("sentence_piece.json");
    vectors.scores.iter_mut().step_by(3).for_each(|score| *score = f32::NAN);
    let tokenizer = open(&vectors.gguf()).unwrap();
    for text in ["a".repeat(20_000), "ab ".repeat(10_000), "\u{10ffff}".repeat(5_000)] {
        let ids = tokenizer.encode(&text, false, false).unwrap();
        assert_eq!(tokenizer.decode(&ids, true), text);
    }
    let long = "x".repeat(TEXT_BYTES_MAX + 1);
    let refused = tokenizer.encode(&long, false, true);
    assert!(matches!(refused, Err(TokenizerError::TextTooLong { .. })));
}

#[test]
fn directories_that_are_not_tokenizers_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    let open = || Tokenizer::from_dir(dir.path()).unwrap_err();
    assert!(matches!(open(), TokenizerError::Io { .. }));
    let path = dir.path().join("tokenizer.json");
    for text in ["", "{", "[]", "{\"model\": {\"type\": \"BPE\"}}", "\u{0}"] {
        std::fs::write(&path, text).unwrap();
        assert!(matches!(open(), TokenizerError::Invalid { .. }), "{text:?}");
    }
    let json = std::fs::read_to_string(reference("hf_byte_level/tokenizer.json")).unwrap();
    let mut json: serde_json::Value = serde_json::from_str(&json).unwrap();
    json["decoder"] = serde_json::json!({"type": "CTC", "pad_token": "p", "word_delimiter_token": "|", "cleanup": true});
    std::fs::write(&path, json.to_string()).unwrap();
    assert!(matches!(open(), TokenizerError::Unsupported { .. }));
}
