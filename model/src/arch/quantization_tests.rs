use super::*;
use serde_json::json;

fn read(config: &Value) -> Result<Option<Quantization>, ConfigError> {
    Quantization::from_hf(json!({ "quantization_config": config }).to_string().as_bytes())
}

fn good(config: Value) -> Quantization {
    read(&config).expect("supported").expect("quantized")
}

/// Returns a configuration of compressed-tensors with one group of weights.
fn float_quantized(weights: &Value) -> Value {
    json!({
        "quant_method": "compressed-tensors", "format": "float-quantized",
        "ignore": ["lm_head"], "kv_cache_scheme": null, "sparsity_config": {}, "transform_config": {},
        "config_groups": {"group_0": {
            "targets": ["Linear"], "output_activations": null, "weights": weights,
            "input_activations": {"num_bits": 8, "type": "float", "strategy": "token", "dynamic": true},
        }},
    })
}

/// Returns a configuration of compressed-tensors with one group of packed integers.
fn pack_quantized(weights: &Value) -> Value {
    let mut config = float_quantized(weights);
    config["format"] = json!("pack-quantized");
    config
}

#[test]
fn a_configuration_without_quantization_has_none() {
    assert_eq!(Quantization::from_hf(b"{}"), Ok(None));
    assert_eq!(read(&Value::Null), Ok(None));
}

#[test]
fn fp8_as_qwen3_and_autofp8_state_it() {
    let blocks = good(json!({
        "quant_method": "fp8", "fmt": "e4m3", "activation_scheme": "dynamic",
        "weight_block_size": [128, 64], "modules_to_not_convert": ["lm_head"],
    }));
    assert_eq!(blocks, Quantization::Fp8 { block: Some([128, 64]) });
    let auto_fp8 = json!({"quant_method": "fp8", "activation_scheme": "static"});
    assert_eq!(good(auto_fp8.clone()), Quantization::Fp8 { block: Some([128, 128]) });
    let mut tensor = auto_fp8;
    tensor["weight_block_size"] = Value::Null;
    assert_eq!(good(tensor), Quantization::Fp8 { block: None });
}

#[test]
fn compressed_tensors_in_fp8() {
    let weights = |strategy: &str| {
        json!({"num_bits": 8, "type": "float", "symmetric": true, "strategy": strategy,
               "group_size": null, "block_structure": null, "dynamic": false})
    };
    for strategy in ["tensor", "channel"] {
        let found = good(float_quantized(&weights(strategy)));
        assert_eq!(found, Quantization::Fp8 { block: None });
    }
    for structure in [json!([128, 128]), json!("128x128")] {
        let mut block = weights("block");
        block["block_structure"] = structure;
        let found = good(float_quantized(&block));
        assert_eq!(found, Quantization::Fp8 { block: Some([128, 128]) });
    }
}

#[test]
fn compressed_tensors_with_packed_integers() {
    let grouped = json!({"num_bits": 4, "type": "int", "symmetric": true, "strategy": "group",
                         "group_size": 128, "actorder": "static", "dynamic": false});
    let expected = PackedFormat { bits: 4, group: Some(128), symmetric: true };
    assert_eq!(good(pack_quantized(&grouped)), Quantization::Packed(expected));
    let channel = json!({"num_bits": 8, "type": "int", "symmetric": false, "strategy": "channel",
                         "group_size": null});
    let expected = PackedFormat { bits: 8, group: None, symmetric: false };
    assert_eq!(good(pack_quantized(&channel)), Quantization::Packed(expected));
}

#[test]
fn awq_in_both_spellings() {
    let new = good(json!({"quant_method": "awq", "bits": 4, "group_size": 128, "version": "gemm",
                          "zero_point": true, "modules_to_not_convert": null}));
    let old = good(json!({"quant_method": "awq", "w_bit": 4, "q_group_size": 128,
                          "version": "GEMM", "zero_point": true}));
    assert_eq!((new, old), (Quantization::Awq { group: Some(128) }, new));
}

#[test]
fn gptq_with_its_two_conventions_of_zero_points() {
    let base = json!({"quant_method": "gptq", "bits": 4, "group_size": 64, "desc_act": true});
    let with = |field: &str, value: Value| {
        let mut config = base.clone();
        config[field] = value;
        match good(config) {
            Quantization::Gptq(format) => format,
            other => panic!("{other:?}"),
        }
    };
    let plain = with("sym", json!(true));
    let (group, act_order, zeros_less_one, symmetric) = (Some(64), true, true, true);
    let expected = GptqFormat { bits: 4, group, act_order, zeros_less_one, symmetric };
    assert_eq!(plain, expected);
    assert_eq!(
        with("checkpoint_format", json!("gptq")),
        GptqFormat { symmetric: false, ..expected }
    );
    assert!(!with("checkpoint_format", json!("gptq_v2")).zeros_less_one);
    assert!(!with("format", json!("gptq_v2")).zeros_less_one);
    assert_eq!(with("bits", json!(8)).bits, 8);
    assert_eq!(with("group_size", json!(-1)).group, None);
    assert_eq!(with("group_size", Value::Null).group, Some(128));
}

#[test]
fn a_refusal_names_method_field_value_and_what_is_supported() {
    let awq = |field: &str, value: Value| {
        let mut config = json!({"quant_method": "awq", "bits": 4});
        config[field] = value;
        config
    };
    let gptq = |field: &str, value: Value| {
        let mut config = json!({"quant_method": "gptq", "bits": 4});
        config[field] = value;
        config
    };
    let float = |field: &str, value: Value| {
        let mut config = float_quantized(&json!({"num_bits": 8, "type": "float"}));
        config[field] = value;
        config
    };
    let weights = |field: &str, value: Value| {
        let mut weights = json!({"num_bits": 8, "type": "float"});
        weights[field] = value;
        float_quantized(&weights)
    };
    let packed = |field: &str, value: Value| {
        let mut weights =
            json!({"num_bits": 4, "type": "int", "strategy": "group", "group_size": 32});
        weights[field] = value;
        pack_quantized(&weights)
    };
    for (config, method, field, value) in [
        (json!({"load_in_4bit": true}), "not stated", "quant_method", "absent"),
        (json!({"quant_method": "bitsandbytes"}), "bitsandbytes", "quant_method", "bitsandbytes"),
        (json!({"quant_method": "mxfp4"}), "mxfp4", "quant_method", "mxfp4"),
        (json!({"quant_method": "modelopt"}), "modelopt", "quant_method", "modelopt"),
        (json!({"quant_method": "fp8", "fmt": "e5m2"}), "fp8", "fmt", "e5m2"),
        (float("format", json!("nvfp4-pack-quantized")), "compressed-tensors", "format", "nvfp4"),
        (float("format", json!("int-quantized")), "compressed-tensors", "format", "int-quantized"),
        (float("format", json!("pack-quantized")), "compressed-tensors", "weights.type", "float"),
        (packed("num_bits", json!(3)), "compressed-tensors", "weights.num_bits", "3"),
        (packed("strategy", json!("tensor")), "compressed-tensors", "weights.strategy", "tensor"),
        (packed("strategy", Value::Null), "compressed-tensors", "weights.strategy", "absent"),
        (packed("group_size", Value::Null), "compressed-tensors", "weights.group_size", "absent"),
        (float("format", Value::Null), "compressed-tensors", "format", "absent"),
        (float("config_groups", json!({})), "compressed-tensors", "config_groups", "absent"),
        (
            float("sparsity_config", json!({"format": "sparse-24-bitmask"})),
            "compressed-tensors",
            "sparsity_config.format",
            "sparse-24",
        ),
        (float("transform_config", json!({"a": 1})), "compressed-tensors", "transform", "present"),
        (weights("num_bits", json!(4)), "compressed-tensors", "group_0.weights.num_bits", "4"),
        (weights("type", json!("int")), "compressed-tensors", "group_0.weights.type", "int"),
        (weights("symmetric", json!(false)), "compressed-tensors", "weights.symmetric", "false"),
        (weights("strategy", json!("group")), "compressed-tensors", "weights.strategy", "group"),
        (weights("strategy", json!("block")), "compressed-tensors", "block_structure", "absent"),
        (awq("bits", json!(3)), "awq", "bits", "3"),
        (awq("bits", Value::Null), "awq", "bits", "absent"),
        (awq("version", json!("gemv")), "awq", "version", "gemv"),
        (awq("backend", json!("llm-awq")), "awq", "backend", "llm-awq"),
        (awq("zero_point", json!(false)), "awq", "zero_point", "false"),
        (gptq("bits", json!(3)), "gptq", "bits", "3"),
        (gptq("checkpoint_format", json!("marlin")), "gptq", "checkpoint_format", "marlin"),
        (gptq("is_marlin_format", json!(true)), "gptq", "is_marlin_format", "true"),
        (gptq("pack_dtype", json!("int16")), "gptq", "pack_dtype", "int16"),
    ] {
        let error = read(&config).expect_err(&config.to_string());
        let ConfigError::Quantization { method: m, field: f, value: v } = &error else {
            panic!("{config}: {error}");
        };
        assert!(m == method && f.contains(field) && v.contains(value), "{config}: {error}");
        let text = error.to_string();
        assert!(text.contains("supported are fp8") && text.contains("gptq (4 or 8"), "{text}");
    }
}

#[test]
fn numbers_of_the_wrong_kind_or_size_are_named() {
    for (config, named) in [
        (json!([]), "quantization_config"),
        (json!({"quant_method": 8}), "quant_method"),
        (json!({"quant_method": "gptq", "bits": "4"}), "bits"),
        (json!({"quant_method": "gptq", "bits": 4, "group_size": 0}), "group_size"),
        (json!({"quant_method": "awq", "bits": 4, "group_size": -2}), "group_size"),
        (json!({"quant_method": "awq", "bits": 4, "group_size": 1u64 << 40}), "group_size"),
        (json!({"quant_method": "fp8", "weight_block_size": [128]}), "weight_block_size"),
        (json!({"quant_method": "fp8", "weight_block_size": [0, 128]}), "weight_block_size"),
        (json!({"quant_method": "fp8", "weight_block_size": [128, -1]}), "weight_block_size"),
        (json!({"quant_method": "fp8", "weight_block_size": 128}), "weight_block_size"),
    ] {
        let error = read(&config).expect_err(&config.to_string());
        assert!(error.to_string().contains(named), "{config}: {error}");
    }
}

#[test]
fn groups_with_different_blocks_are_refused() {
    let group = |rows: u64| {
        json!({"weights": {"num_bits": 8, "type": "float", "strategy": "block",
                           "block_structure": [rows, 128]}})
    };
    let mut config = float_quantized(&Value::Null);
    config["config_groups"] = json!({"a": group(128), "b": group(64)});
    let error = read(&config).expect_err("blocks differ").to_string();
    assert!(error.contains("config_groups.b.weights\" is unlike other groups"), "{error}");
}

#[test]
fn a_long_value_is_cut() {
    let error = read(&json!({"quant_method": "x".repeat(10_000)})).expect_err("unknown");
    assert!(error.to_string().len() < 600, "{}", error.to_string().len());
}
