use super::checkpoint::interleaved_rows;
use super::roles::{LayerRole, Role};
use super::stored::Content;
use super::{Checkpoint, ModelFiles, WeightError, Weights};
use crate::arch::{Family, RopeScaling};
use crate::forward::{Decoder, DecoderLimits, ForwardBatch};
use crate::gguf::build::{Builder, Value};
use std::fs;
use std::path::{Path, PathBuf};
use tiercel_device::{BlockId, TokenId};
use tiercel_gpu::cpu::{CpuDevice, CpuOptions};
use tiercel_gpu::{KvType, RowInput, SeqRows, WeightFormat};

fn tiny(family: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/reference/tiny").join(family)
}

/// Runs the tokens as one prompt on the CPU and returns the logits after each of them, row by row.
fn logits(checkpoint: &Checkpoint, tokens: &[TokenId]) -> Vec<f32> {
    let config = checkpoint.config();
    let options = CpuOptions {
        threads: 1,
        kv_type: KvType::F32,
        block_size: 16,
        device_blocks: 8,
        host_blocks: 0,
        layers: config.layers(),
        kv_heads: config.kv_heads,
        head_dim: config.head_dim,
    };
    let (mut ops, _) = CpuDevice::open(options).unwrap();
    let weights =
        Weights::load(&mut ops, checkpoint, WeightFormat::F32, &mut |_| {}).expect("packs");
    let rows = tokens.len();
    let limits =
        DecoderLimits { max_batched_tokens: rows, max_sampled_rows: rows, max_positions: 128 };
    let mut decoder = Decoder::new(&mut ops, config.clone(), weights, limits).unwrap();
    let table = (0..8).map(BlockId).collect();
    let seqs = [SeqRows { rows: 0..rows, first_pos: 0, table }];
    let sampled: Vec<usize> = (0..rows).collect();
    let inputs: Vec<RowInput> = tokens.iter().copied().map(RowInput::Token).collect();
    decoder.forward(&mut ops, ForwardBatch { inputs: &inputs, seqs: &seqs, sampled: &sampled });
    decoder.logits(&mut ops, 0..rows).values().to_vec()
}

/// Makes a GGUF file of a tiny test checkpoint, as llama.cpp's converter would write it.
fn as_gguf(checkpoint: &Checkpoint) -> Builder {
    let config = checkpoint.config();
    let arch = config.family.name();
    let int = |name: &str, value: usize| (format!("{arch}.{name}"), Value::U32(value as u32));
    let float = |name: &str, value: f32| (format!("{arch}.{name}"), Value::F32(value));
    let mut builder = Builder {
        entries: vec![
            ("general.architecture".to_owned(), Value::Str(arch.to_owned())),
            int("block_count", config.layers()),
            int("context_length", config.max_positions),
            int("embedding_length", config.hidden_size),
            int("feed_forward_length", config.intermediate_size),
            int("attention.head_count", config.heads),
            int("attention.head_count_kv", config.kv_heads),
            int("attention.key_length", config.head_dim),
            float("attention.layer_norm_rms_epsilon", config.norm_eps),
            float("rope.freq_base", config.rope.theta),
        ],
        ..Builder::default()
    };
    for role in Role::required(config) {
        let stored = checkpoint.tensor(role).unwrap();
        let heads = match role {
            Role::Layer(_, LayerRole::Q | LayerRole::QBias) => Some(config.heads),
            Role::Layer(_, LayerRole::K | LayerRole::KBias) => Some(config.kv_heads),
            _ => None,
        };
        let Content::Encoded(_, bytes) = stored.content else { panic!("a plain tensor") };
        let row_bytes = bytes.len() / stored.shape[0];
        let rows: Vec<&[u8]> = bytes.chunks_exact(row_bytes).collect();
        let rows = match heads.filter(|_| config.family == Family::Llama) {
            Some(heads) => interleave(&rows, heads),
            None => rows,
        };
        let dims: Vec<u64> = stored.shape.iter().rev().map(|&dim| dim as u64).collect();
        builder = builder.tensor(&role.gguf_name(), &dims, 0, rows.concat());
    }
    if config.rope.scaling != RopeScaling::None {
        let mut plain = config.rope.clone();
        plain.scaling = RopeScaling::None;
        let (plain, scaled) =
            (plain.inv_freq(config.head_dim), config.rope.inv_freq(config.head_dim));
        let factors = plain.iter().zip(scaled).flat_map(|(p, s)| (p / s).to_le_bytes()).collect();
        builder = builder.tensor("rope_freqs.weight", &[plain.len() as u64], 0, factors);
    }
    builder
}

/// Permutes the rows of q and k heads as llama.cpp's converter does: `reshape(heads, 2, half, ...).swapaxes(1, 2)`.
fn interleave<'a>(rows: &[&'a [u8]], heads: usize) -> Vec<&'a [u8]> {
    let half = rows.len() / heads / 2;
    let mut out = Vec::new();
    for head in rows.chunks_exact(2 * half) {
        for i in 0..half {
            out.extend([head[i], head[half + i]]);
        }
    }
    out
}

#[test]
fn a_gguf_file_gives_the_logits_of_the_checkpoint_it_was_made_from() {
    let tokens: Vec<TokenId> = (0..40).map(|i| i * 37 % 300).collect();
    for family in ["llama2", "llama3", "qwen2", "qwen3"] {
        let original = Checkpoint::open(&ModelFiles::HfDir(tiny(family))).unwrap();
        let file = as_gguf(&original).save();
        let converted = Checkpoint::open(&ModelFiles::Gguf(file.path().to_owned())).unwrap();
        let (ours, theirs) = (logits(&converted, &tokens), logits(&original, &tokens));
        let worst =
            ours.iter().zip(&theirs).map(|(a, b)| (a - b).abs()).fold(0.0f32, |a, b| a.max(b));
        assert!(theirs.len() == 40 * 300 && worst < 1e-4, "{family}: {worst}");
    }
}

#[test]
fn interleaved_rows_undo_the_converter() {
    let names: Vec<Vec<u8>> = (0..24).map(|row| vec![row]).collect();
    let rows: Vec<&[u8]> = names.iter().map(Vec::as_slice).collect();
    let stored = interleave(&rows, 3);
    let order = interleaved_rows(3, 8);
    let undone: Vec<&[u8]> = order.iter().map(|&row| stored[row as usize]).collect();
    assert_eq!(undone, rows);
}

/// Copies a tiny test checkpoint to a temporary directory, where a test may damage it.
fn copy(family: &str) -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    for entry in fs::read_dir(tiny(family)).unwrap() {
        let path = entry.unwrap().path();
        fs::copy(&path, dir.path().join(path.file_name().unwrap())).unwrap();
    }
    dir
}

fn refusal(dir: &tempfile::TempDir) -> String {
    let files = ModelFiles::HfDir(dir.path().to_owned());
    Checkpoint::open(&files).err().expect("damaged").to_string()
}

fn edit(dir: &tempfile::TempDir, file: &str, from: &str, to: &str) {
    let path = dir.path().join(file);
    let text = fs::read_to_string(&path).unwrap();
    assert!(text.contains(from), "{file} holds {from}");
    fs::write(path, text.replace(from, to)).unwrap();
}

#[test]
fn damaged_directories_are_refused_with_a_reason() {
    const INDEX: &str = "model.safetensors.index.json";
    const SHARD: &str = "model-00002-of-00002.safetensors";
    type Damage<'a> = (&'a str, &'a dyn Fn(&tempfile::TempDir));
    let damage: [Damage<'_>; 10] = [
        ("lacks 9 of its tensors: model.layers.2.", &|dir| {
            edit(dir, "config.json", "\"num_hidden_layers\": 2", "\"num_hidden_layers\": 3")
        }),
        ("implies [301, 64]", &|dir| {
            edit(dir, "config.json", "\"vocab_size\": 300", "\"vocab_size\": 301")
        }),
        ("plain file name", &|dir| edit(dir, INDEX, SHARD, "../../secret.safetensors")),
        ("plain file name", &|dir| edit(dir, INDEX, SHARD, "/etc/passwd")),
        ("cannot read", &|dir| fs::remove_file(dir.path().join(SHARD)).unwrap()),
        ("not a usable safetensors file", &|dir| {
            let bytes = fs::read(dir.path().join(SHARD)).unwrap();
            fs::write(dir.path().join(SHARD), &bytes[..bytes.len() - 1]).unwrap();
        }),
        ("not a usable safetensors file", &|dir| {
            fs::write(dir.path().join(SHARD), [0xff; 16]).unwrap();
        }),
        ("although the index says so", &|dir| edit(dir, INDEX, "00002-of", "00001-of")),
        ("not a usable safetensors file", &|dir| fs::write(dir.path().join(INDEX), "[]").unwrap()),
        ("neither model.safetensors nor", &|dir| fs::remove_file(dir.path().join(INDEX)).unwrap()),
    ];
    for (expected, damage) in damage {
        let dir = copy("llama3");
        damage(&dir);
        let error = refusal(&dir);
        assert!(error.contains(expected), "{expected}: {error}");
    }
}

#[test]
fn an_encoding_nobody_reads_is_named() {
    let checkpoint = Checkpoint::open(&ModelFiles::HfDir(tiny("llama2"))).unwrap();
    let mut builder = as_gguf(&checkpoint);
    let tensor = builder.tensors.iter_mut().find(|(name, ..)| name == "blk.1.ffn_up.weight");
    let (.., id, data) = tensor.unwrap();
    (*id, *data) = (28, vec![0; 64 * 96 * 8]);
    let file = builder.save();
    let error = Checkpoint::open(&ModelFiles::Gguf(file.path().to_owned())).err().unwrap();
    assert!(matches!(&error, WeightError::Encoding { name, .. } if name == "blk.1.ffn_up.weight"));
    assert!(error.to_string().contains("F64"), "{error}");
}

#[test]
fn a_bias_that_nobody_reads_is_refused() {
    let checkpoint = Checkpoint::open(&ModelFiles::HfDir(tiny("llama2"))).unwrap();
    let open = |bias: Vec<u8>| {
        let file = as_gguf(&checkpoint).tensor("blk.1.ffn_up.bias", &[96], 0, bias).save();
        Checkpoint::open(&ModelFiles::Gguf(file.path().to_owned()))
    };
    let mut bias = vec![0; 384];
    assert!(open(bias.clone()).is_ok(), "a bias of zeros changes nothing");
    bias[383] = 1;
    let error = open(bias).err().unwrap();
    assert!(error.to_string().contains("blk.1.ffn_up.bias is not read"), "{error}");
}

#[test]
fn a_single_file_wins_over_a_stale_index() {
    let dir = copy("llama2");
    let index = dir.path().join("model.safetensors.index.json");
    fs::write(index, r#"{"weight_map": {"x": "gone.safetensors"}}"#).unwrap();
    assert!(Checkpoint::open(&ModelFiles::HfDir(dir.path().to_owned())).is_ok());
}

#[test]
fn packed_sizes_follow_the_form_of_every_tensor() {
    let checkpoint = Checkpoint::open(&ModelFiles::HfDir(tiny("llama2"))).unwrap();
    let bytes = |format| checkpoint.packed_bytes(format).unwrap() as f64;
    let parameters = checkpoint.config().parameters() as f64;
    // Packed matrices may be a little larger than their weights: packing pads a matrix to whole rows, and a matrix of
    // 8-bit weights to whole quantization blocks.
    for (format, least, most) in [
        (WeightFormat::F32, 4.0, 4.2),
        (WeightFormat::Auto, 4.0, 4.2),
        (WeightFormat::Bf16, 2.0, 2.2),
        (WeightFormat::Q8_0, 1.06, 1.3),
    ] {
        let each = bytes(format) / parameters;
        assert!((least..most).contains(&each), "{format:?}: {each} bytes per parameter");
    }
}
