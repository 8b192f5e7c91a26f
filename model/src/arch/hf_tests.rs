use super::*;
use serde_json::json;

fn smollm2() -> Value {
    json!({
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_act": "silu",
        "hidden_size": 576, "intermediate_size": 1536, "num_hidden_layers": 30,
        "num_attention_heads": 9, "num_key_value_heads": 3, "vocab_size": 49152,
        "max_position_embeddings": 8192, "rms_norm_eps": 1e-5, "rope_theta": 100000,
        "rope_scaling": null, "tie_word_embeddings": true, "attention_bias": false
    })
}

fn with(mut base: Value, changes: Value) -> Value {
    for (field, value) in changes.as_object().expect("an object") {
        base[field] = value.clone();
    }
    base
}

fn read(value: &Value) -> Result<ModelConfig, ConfigError> {
    ModelConfig::from_hf(value.to_string().as_bytes())
}

#[test]
fn smollm2_reads_as_llama_with_tied_embeddings() {
    let config = read(&smollm2()).expect("valid");
    assert_eq!(config.family, Family::Llama);
    assert_eq!((config.layers(), config.head_dim, config.kv_heads), (30, 64, 3));
    assert!(config.tied_embeddings && !config.qkv_bias && !config.head_norms);
    assert_eq!(config.rope.theta, 100_000.0);
    assert_eq!(config.attention(0).sliding_window, None);
    assert_eq!(config.parameters(), 134_515_008);
}

#[test]
fn families_set_what_they_imply() {
    let qwen2 = read(&with(smollm2(), json!({"architectures": ["Qwen2ForCausalLM"]})));
    assert!(qwen2.as_ref().is_ok_and(|config| config.qkv_bias && !config.output_bias));
    let qwen3 = read(&with(smollm2(), json!({"architectures": ["Qwen3ForCausalLM"]})));
    assert!(qwen3.is_ok_and(|config| config.head_norms && config.head_dim == 128));
    let mistral = with(smollm2(), json!({"architectures": ["MistralForCausalLM"]}));
    assert_eq!(read(&mistral).expect("valid").windows[0], Some(4096));
    let wide = read(&with(mistral, json!({"sliding_window": null, "head_dim": 32})));
    assert!(wide.is_ok_and(|config| config.windows[0].is_none() && config.head_dim == 32));
}

#[test]
fn qwen_windows_cover_the_layers_the_file_names() {
    let base = with(
        smollm2(),
        json!({"architectures": ["Qwen2ForCausalLM"], "num_hidden_layers": 3,
               "sliding_window": 8, "use_sliding_window": true, "max_window_layers": 1}),
    );
    assert_eq!(read(&base).expect("valid").windows, vec![None, Some(8), Some(8)]);
    let listed = with(
        base.clone(),
        json!({"layer_types": ["sliding_attention", "full_attention", "full_attention"]}),
    );
    assert_eq!(read(&listed).expect("valid").windows, vec![Some(8), None, None]);
    let off = with(base, json!({"use_sliding_window": false}));
    assert_eq!(read(&off).expect("valid").windows, vec![None; 3]);
}

#[test]
fn rope_scaling_in_both_spellings() {
    let scaling = json!({"rope_type": "llama3", "factor": 32.0, "low_freq_factor": 1.0,
                         "high_freq_factor": 4.0, "original_max_position_embeddings": 8192});
    let old = read(&with(smollm2(), json!({"rope_scaling": scaling}))).expect("valid");
    assert!(matches!(old.rope.scaling, RopeScaling::Llama3 { factor: 32.0, .. }));
    let new = with(scaling, json!({"rope_theta": 500000.0}));
    let new = read(&with(smollm2(), json!({"rope_parameters": new}))).expect("valid");
    assert_eq!(new.rope.theta, 500_000.0);
    assert_eq!(new.rope.scaling, old.rope.scaling);
    let linear = json!({"rope_scaling": {"type": "linear", "factor": 4}});
    let linear = read(&with(smollm2(), linear)).expect("valid");
    assert_eq!(linear.rope.scaling, RopeScaling::Linear { factor: 4.0 });
}

#[test]
fn every_bad_field_is_named() {
    for (change, named) in [
        (json!({"hidden_size": 0}), "hidden_size"),
        (json!({"hidden_size": -1}), "hidden_size"),
        (json!({"hidden_size": 1e30}), "hidden_size"),
        (json!({"hidden_size": "576"}), "hidden_size"),
        (json!({"hidden_size": null}), "hidden_size"),
        (json!({"hidden_size": 65537}), "hidden_size"),
        (json!({"vocab_size": 18446744073709551615u64}), "vocab_size"),
        (json!({"num_hidden_layers": 4000000000u64}), "num_hidden_layers"),
        (json!({"num_attention_heads": 0}), "num_attention_heads"),
        (json!({"num_attention_heads": 7}), "hidden_size"),
        (json!({"num_key_value_heads": 2}), "key/value"),
        (json!({"head_dim": 63}), "even"),
        (json!({"head_dim": 1 << 20}), "head_dim"),
        (json!({"rms_norm_eps": 0}), "rms_norm_eps"),
        (json!({"rms_norm_eps": -1e-5}), "rms_norm_eps"),
        (json!({"rope_theta": 0}), "rope_theta"),
        (json!({"max_position_embeddings": 0}), "max_position_embeddings"),
        (json!({"rope_scaling": {"type": "yarn", "factor": 4}}), "yarn"),
        (json!({"rope_scaling": {"type": "linear"}}), "factor"),
        (json!({"rope_scaling": []}), "rope_scaling"),
        (json!({"hidden_act": "gelu"}), "hidden_act"),
        (json!({"mlp_bias": true}), "mlp_bias"),
        (json!({"partial_rotary_factor": 0.5}), "partial_rotary_factor"),
        (json!({"tie_word_embeddings": 1}), "tie_word_embeddings"),
        (json!({"architectures": ["GPT2LMHeadModel"]}), "llama, mistral, qwen2, qwen3"),
        (
            json!({"architectures": ["Qwen2ForCausalLM"], "use_sliding_window": true,
                "sliding_window": 4, "layer_types": ["full_attention"]}),
            "layer_types",
        ),
    ] {
        let error = read(&with(smollm2(), change.clone())).expect_err(&change.to_string());
        assert!(error.to_string().contains(named), "{change}: {error}");
    }
}

#[test]
fn text_that_is_not_an_object_is_refused() {
    for text in ["", "[]", "{", "null", &"[".repeat(100_000)] {
        assert!(matches!(ModelConfig::from_hf(text.as_bytes()), Err(ConfigError::Syntax(_))));
    }
}

#[test]
fn a_silent_file_names_what_it_lacks() {
    let error = ModelConfig::from_hf(b"{}").expect_err("nothing there");
    assert_eq!(error, ConfigError::Missing("architectures".to_owned()));
}
