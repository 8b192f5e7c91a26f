use super::*;
use crate::gguf::build::{Builder, Value};

fn read(builder: &Builder) -> Result<ModelConfig, ConfigError> {
    let file = builder.save();
    ModelConfig::from_gguf(&GgufFile::open(file.path()).expect("well-formed"))
}

fn entries(architecture: &str) -> Vec<(String, Value)> {
    let key = |name: &str| format!("{architecture}.{name}");
    vec![
        ("general.architecture".to_owned(), Value::Str(architecture.to_owned())),
        (key("block_count"), Value::U32(2)),
        (key("context_length"), Value::U32(128)),
        (key("embedding_length"), Value::U32(64)),
        (key("feed_forward_length"), Value::U32(96)),
        (key("attention.head_count"), Value::U32(4)),
        (key("attention.head_count_kv"), Value::U32(2)),
        (key("attention.layer_norm_rms_epsilon"), Value::F32(1e-5)),
        (key("rope.freq_base"), Value::F32(20_000.0)),
    ]
}

fn tiny(architecture: &str) -> Builder {
    let mut builder = Builder { entries: entries(architecture), ..Builder::default() };
    builder = builder.tensor("token_embd.weight", &[64, 300], 0, vec![0; 64 * 300 * 4]);
    builder
}

fn set(mut builder: Builder, name: &str, value: Value) -> Builder {
    builder.entries.retain(|(key, _)| key != name);
    builder.entry(name, value)
}

#[test]
fn llama_metadata_reads() {
    let config = read(&tiny("llama")).expect("valid");
    assert_eq!((config.vocab_size, config.hidden_size, config.layers()), (300, 64, 2));
    assert_eq!((config.heads, config.kv_heads, config.head_dim), (4, 2, 16));
    assert!(config.tied_embeddings && !config.qkv_bias && !config.head_norms);
    assert_eq!(config.rope, RopeConfig { theta: 20_000.0, scaling: RopeScaling::None });
}

#[test]
fn tensors_tell_what_metadata_does_not() {
    let factors: Vec<u8> = (1..=8).flat_map(|i| (i as f32).to_le_bytes()).collect();
    let builder = tiny("llama")
        .tensor("output.weight", &[64, 300], 0, vec![0; 64 * 300 * 4])
        .tensor("blk.0.attn_q.bias", &[64], 0, vec![0; 256])
        .tensor(ROPE_FACTORS, &[8], 0, factors);
    let config = read(&builder).expect("valid");
    assert!(!config.tied_embeddings && config.qkv_bias && !config.output_bias);
    let expected = (1..=8).map(|i| i as f32).collect();
    assert_eq!(config.rope.scaling, RopeScaling::Factors(expected));
}

#[test]
fn qwen3_has_head_norms_and_an_explicit_head_width() {
    let builder = set(tiny("qwen3"), "qwen3.attention.key_length", Value::U32(32));
    let config = read(&builder).expect("valid");
    assert!(config.head_norms);
    assert_eq!(config.head_dim, 32);
}

#[test]
fn linear_scaling_and_windows() {
    let builder = set(tiny("llama"), "llama.rope.scaling.type", Value::Str("linear".into()));
    let builder = set(builder, "llama.rope.scaling.factor", Value::F32(4.0));
    let builder = set(builder, "llama.attention.sliding_window", Value::U32(24));
    let config = read(&builder).expect("valid");
    assert_eq!(config.rope.scaling, RopeScaling::Linear { factor: 4.0 });
    assert_eq!(config.windows, vec![Some(24); 2]);
}

#[test]
fn every_bad_key_is_named() {
    for (key, value, named) in [
        ("general.architecture", Value::Str("gpt2".into()), "llama, mistral, qwen2, qwen3"),
        ("general.architecture", Value::U32(1), "general.architecture"),
        ("llama.block_count", Value::U32(0), "llama.block_count"),
        ("llama.block_count", Value::U32(u32::MAX), "llama.block_count"),
        ("llama.block_count", Value::Str("2".into()), "llama.block_count"),
        ("llama.embedding_length", Value::U32(u32::MAX), "llama.embedding_length"),
        ("llama.embedding_length", Value::U32(65), "embedding_length"),
        ("llama.attention.head_count", Value::U32(0), "llama.attention.head_count"),
        ("llama.attention.head_count", Value::I32s(vec![4, 4]), "llama.attention.head_count"),
        ("llama.attention.head_count_kv", Value::U32(3), "key/value"),
        ("llama.attention.key_length", Value::U32(15), "even"),
        ("llama.attention.layer_norm_rms_epsilon", Value::F32(f32::NAN), "rms_epsilon"),
        ("llama.rope.freq_base", Value::F32(-1.0), "llama.rope.freq_base"),
        ("llama.rope.scaling.type", Value::Str("yarn".into()), "yarn"),
        ("llama.rope.scaling.factor", Value::F32(f32::INFINITY), "llama.rope.scaling.factor"),
        ("llama.rope.dimension_count", Value::U32(8), "llama.rope.dimension_count"),
        ("llama.expert_count", Value::U32(8), "llama.expert_count"),
        ("llama.context_length", Value::U32(0), "llama.context_length"),
    ] {
        let error = read(&set(tiny("llama"), key, value)).expect_err(key);
        assert!(error.to_string().contains(named), "{key}: {error}");
    }
}

#[test]
fn missing_keys_and_tensors_are_named() {
    for (key, _) in entries("llama") {
        if key.ends_with("freq_base") || key.ends_with("head_count_kv") {
            continue;
        }
        let mut builder = tiny("llama");
        builder.entries.retain(|(name, _)| *name != key);
        let error = read(&builder).expect_err(&key);
        assert!(error.to_string().contains(&key), "{key}: {error}");
    }
    let builder = Builder { entries: entries("llama"), ..Builder::default() };
    let error = read(&builder).expect_err("no tensors");
    assert!(error.to_string().contains("token_embd.weight"), "{error}");
}

#[test]
fn rope_factors_that_would_divide_by_zero_are_refused() {
    for bad in [0.0f32, -1.0, f32::NAN, f32::INFINITY] {
        let bytes: Vec<u8> = [bad; 8].iter().flat_map(|value| value.to_le_bytes()).collect();
        let error = read(&tiny("llama").tensor(ROPE_FACTORS, &[8], 0, bytes)).expect_err("bad");
        assert!(error.to_string().contains(ROPE_FACTORS), "{error}");
    }
    let short = vec![0u8, 0, 128, 63];
    let error = read(&tiny("llama").tensor(ROPE_FACTORS, &[1], 0, short)).expect_err("too few");
    assert!(error.to_string().contains("rope factors"), "{error}");
}
