//! Quantized Hugging Face checkpoints give the logits of a checkpoint whose weights are the decoded floats: bit for bit on
//! the CPU, and on an emulated GPU that decodes them; within the precision of f32 sums on an emulated GPU that holds them
//! quantized.
//!
//! The checkpoints are copies of tiny reference checkpoints in which random integers or 8-bit floats replace the weights
//! of the layers. Their scales have few bits, so that all decoded weights are bf16 numbers. One matrix stays as it is.

use crate::harness::{EmulatedRig, Rig, Row, Sequence, some_tokens, tiny};
use half::bf16;
use safetensors::SafeTensors;
use safetensors::tensor::{Dtype, TensorView, serialize_to_file};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::path::Path;
use tiercel_emulated::EmulatedDriver;
use tiercel_gpu::cuda::Driver;
use tiercel_gpu::{KvType, WeightFormat};
use tiercel_model::load::{GpuUse, KvCapacity, LoadOptions, open_cuda};
use tiercel_model::weights::{Checkpoint, ModelFiles};

/// Matrix that the quantized checkpoints hold as floats.
const NOT_CONVERTED: &str = "model.layers.1.mlp.down_proj";
/// Inputs of a row that share a scale and a zero point.
const GROUP: usize = 32;
/// Tokens of the prompt whose logits are compared.
const TOKENS: usize = 24;

/// Tensors of a checkpoint by name: type, shape and bytes.
type Tensors = BTreeMap<String, (Dtype, Vec<usize>, Vec<u8>)>;
/// Function that quantizes the matrix of a module: called with the name of the module and its dimensions, it adds the
/// parts of a random matrix to the first tensors, and returns the decoded weights, row by row.
type Quantize<'a> = &'a dyn Fn(&mut Tensors, &str, (usize, usize)) -> Vec<f32>;

/// Random numbers.
struct Random(std::vec::IntoIter<u32>);

impl Random {
    fn new(count: usize, name: &str) -> Random {
        let seed = name.bytes().fold(7_u64, |seed, byte| seed * 31 % 1_000_003 + u64::from(byte));
        Random(some_tokens(count, seed, 1 << 16).into_iter())
    }

    fn below(&mut self, end: u32) -> u32 {
        self.0.next().expect("a number") % end
    }

    /// Returns 1, 1.25, 1.5 or 1.75 times a power of two.
    fn scale(&mut self, power: i32) -> f32 {
        (1.0 + self.below(4) as f32 / 4.0) * 2_f32.powi(power)
    }
}

/// A random matrix `[n, k]` of integers with scales and zero points of groups of inputs.
struct Integers {
    k: usize,
    integers: Vec<u32>,
    groups: Vec<usize>,
    /// Scale and zero point of group `g` of row `r` at `g * n + r`.
    entries: Vec<(f32, u32)>,
    n: usize,
}

impl Integers {
    fn new((n, k): (usize, usize), bits: u32, groups: Vec<usize>, name: &str) -> Integers {
        let mut random = Random::new(4 * n * k, name);
        let integers = (0..n * k).map(|_| random.below(1 << bits)).collect();
        // Differences of 8-bit integers have eight bits, as many as bf16 has: their scales are powers of two.
        let mut entry = || match bits {
            8 => (2_f32.powi(-10), random.below(256)),
            _ => (random.scale(-6), random.below(16)),
        };
        let entries = (0..n * k / GROUP).map(|_| entry()).collect();
        Integers { k, integers, groups, entries, n }
    }

    fn decoded(&self) -> Vec<f32> {
        let decode = |at: usize| {
            let (row, input) = (at / self.k, at % self.k);
            let (scale, zero) = self.entries[self.groups[input] * self.n + row];
            scale * (self.integers[at] as f32 - zero as f32)
        };
        (0..self.n * self.k).map(decode).collect()
    }

    fn scales(&self, tensors: &mut Tensors, module: &str) {
        let bytes =
            self.entries.iter().flat_map(|(scale, _)| half::f16::from_f32(*scale).to_le_bytes());
        let shape = vec![self.k / GROUP, self.n];
        tensors.insert(format!("{module}.scales"), (Dtype::F16, shape, bytes.collect()));
    }
}

fn words(tensors: &mut Tensors, name: String, shape: [usize; 2], words: Vec<u32>) {
    assert_eq!(shape[0] * shape[1], words.len(), "{name}");
    let bytes = words.iter().flat_map(|word| word.to_le_bytes()).collect();
    tensors.insert(name, (Dtype::I32, shape.to_vec(), bytes));
}

/// Packs integers into words, the first in the lowest bits.
fn pack(bits: usize, integers: impl Iterator<Item = u32>) -> u32 {
    integers.enumerate().map(|(at, integer)| integer << (bits * at)).sum()
}

fn in_order(k: usize) -> Vec<usize> {
    (0..k).map(|input| input / GROUP).collect()
}

fn awq(tensors: &mut Tensors, module: &str, (n, k): (usize, usize)) -> Vec<f32> {
    const ORDER: [usize; 8] = [0, 2, 4, 6, 1, 3, 5, 7];
    let matrix = Integers::new((n, k), 4, in_order(k), module);
    let weight = |input: usize, row: usize| matrix.integers[row * k + input];
    let zero = |group: usize, row: usize| matrix.entries[group * n + row].1;
    let packed = |lines: usize, at: &dyn Fn(usize, usize) -> u32| {
        let word = |i: usize| {
            let (line, first) = (i / (n / 8), i % (n / 8) * 8);
            pack(4, ORDER.into_iter().map(|column| at(line, first + column)))
        };
        (0..lines * n / 8).map(word).collect()
    };
    words(tensors, format!("{module}.qweight"), [k, n / 8], packed(k, &weight));
    words(tensors, format!("{module}.qzeros"), [k / GROUP, n / 8], packed(k / GROUP, &zero));
    matrix.scales(tensors, module);
    matrix.decoded()
}

/// Adds a GPTQ matrix. With `less_one`, zero points are stored less 1; with `act_order`, the groups' inputs are not
/// neighbours.
fn gptq(
    tensors: &mut Tensors,
    module: &str,
    (n, k): (usize, usize),
    (bits, less_one, act_order): (usize, bool, bool),
) -> Vec<f32> {
    let groups = match act_order {
        true => (0..k).map(|input| input * 7 % k / GROUP).collect(),
        false => in_order(k),
    };
    let matrix = Integers::new((n, k), bits as u32, groups, module);
    let per_word = 32 / bits;
    let weight = |i: usize| {
        let (first, row) = (i / n * per_word, i % n);
        pack(bits, (first..first + per_word).map(|input| matrix.integers[row * k + input]))
    };
    let zero = |i: usize| {
        let zeros = pack(bits, (i * per_word..(i + 1) * per_word).map(|at| matrix.entries[at].1));
        zeros.wrapping_sub(if less_one { pack(bits, (0..per_word).map(|_| 1)) } else { 0 })
    };
    let rows = k / per_word;
    words(tensors, format!("{module}.qweight"), [rows, n], (0..rows * n).map(weight).collect());
    let shape = [k / GROUP, n / per_word];
    words(tensors, format!("{module}.qzeros"), shape, (0..shape[0] * shape[1]).map(zero).collect());
    matrix.scales(tensors, module);
    if act_order {
        let groups = matrix.groups.iter().flat_map(|group| (*group as i32).to_le_bytes());
        tensors.insert(format!("{module}.g_idx"), (Dtype::I32, vec![k], groups.collect()));
    }
    matrix.decoded()
}

/// Adds a matrix as compressed-tensors packs it; symmetric integers have no zero points.
fn packed(
    tensors: &mut Tensors,
    module: &str,
    (n, k): (usize, usize),
    (bits, symmetric): (usize, bool),
) -> Vec<f32> {
    let mut matrix = Integers::new((n, k), bits as u32, in_order(k), module);
    if symmetric {
        matrix.entries.iter_mut().for_each(|(_, zero)| *zero = 1 << (bits - 1));
    }
    let (per_word, groups) = (32 / bits, k / GROUP);
    let weights = matrix.integers.chunks(per_word).map(|chunk| pack(bits, chunk.iter().copied()));
    words(tensors, format!("{module}.weight_packed"), [n, k / per_word], weights.collect());
    if !symmetric {
        let zero = |i: usize| {
            let (first, group) = (i / groups * per_word, i % groups);
            pack(bits, (first..first + per_word).map(|row| matrix.entries[group * n + row].1))
        };
        let shape = [n / per_word, groups];
        let zeros = (0..shape[0] * shape[1]).map(zero).collect();
        words(tensors, format!("{module}.weight_zero_point"), shape, zeros);
    }
    let scales = (0..n * groups).map(|i| matrix.entries[i % groups * n + i / groups].0);
    let scales = scales.flat_map(|scale| bf16::from_f32(scale).to_le_bytes()).collect();
    tensors.insert(format!("{module}.weight_scale"), (Dtype::BF16, vec![n, groups], scales));
    let shape = [n, k].iter().flat_map(|side| (*side as u64).to_le_bytes()).collect();
    tensors.insert(format!("{module}.weight_shape"), (Dtype::I64, vec![2], shape));
    matrix.decoded()
}

/// Adds a matrix of 8-bit floats with a scale for each block of `block` weights, named `scales`.
fn fp8(
    tensors: &mut Tensors,
    module: &str,
    (n, k): (usize, usize),
    (block, scales): ([usize; 2], &str),
) -> Vec<f32> {
    let (down, across) = (n.div_ceil(block[0]), k.div_ceil(block[1]));
    let mut random = Random::new(4 * n * k, module);
    let factors: Vec<f32> = (0..down * across).map(|_| random.scale(-4)).collect();
    let bytes: Vec<u8> = (0..n * k)
        .map(|_| (random.below(2) << 7 | (random.below(4) + 4) << 3 | random.below(8)) as u8)
        .collect();
    let decoded = bytes.iter().enumerate().map(|(at, &byte)| {
        let sign = if byte & 0x80 == 0 { 1.0 } else { -1.0 };
        let size = (1.0 + f32::from(byte & 7) / 8.0) * 2_f32.powi(i32::from(byte >> 3 & 15) - 7);
        sign * size * factors[at / k / block[0] * across + at % k / block[1]]
    });
    let decoded = decoded.collect();
    tensors.insert(format!("{module}.weight"), (Dtype::F8_E4M3, vec![n, k], bytes));
    let factors = factors.iter().flat_map(|factor| bf16::from_f32(*factor).to_le_bytes());
    let shape = vec![down, across];
    tensors.insert(format!("{module}.{scales}"), (Dtype::BF16, shape, factors.collect()));
    decoded
}

/// Reads all tensors of a reference checkpoint.
fn tensors_of(folder: &Path) -> Tensors {
    let mut tensors = Tensors::new();
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_string_lossy().into_owned();
        if name.starts_with("model") && name.ends_with(".safetensors") {
            let bytes = std::fs::read(&path).unwrap();
            for (name, view) in SafeTensors::deserialize(&bytes).unwrap().tensors() {
                let tensor = (view.dtype(), view.shape().to_vec(), view.data().to_vec());
                tensors.insert(name, tensor);
            }
        }
    }
    tensors
}

fn save(tensors: &Tensors, config: &Value) -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("config.json"), config.to_string()).unwrap();
    let views = tensors.iter().map(|(name, (dtype, shape, bytes))| {
        (name, TensorView::new(*dtype, shape.clone(), bytes).unwrap())
    });
    serialize_to_file(views, None, &folder.path().join("model.safetensors")).unwrap();
    folder
}

/// Makes a checkpoint with quantized matrices, and its twin with the decoded weights.
fn twins(
    family: &str,
    quantization: &Value,
    quantize: Quantize<'_>,
) -> (tempfile::TempDir, tempfile::TempDir) {
    let mut twin = tensors_of(&tiny(family));
    let mut quantized = twin.clone();
    let names: Vec<String> =
        twin.keys().filter(|name| name.ends_with("_proj.weight")).cloned().collect();
    assert_eq!(names.len(), 14, "{family}");
    for name in names {
        let module = name.strip_suffix(".weight").unwrap();
        if module == NOT_CONVERTED {
            continue;
        }
        let (_, shape, _) = quantized.remove(&name).unwrap();
        let decoded = quantize(&mut quantized, module, (shape[0], shape[1]));
        assert!(decoded.iter().all(|weight| bf16::from_f32(*weight).to_f32() == *weight), "{name}");
        let bytes = decoded.iter().flat_map(|weight| bf16::from_f32(*weight).to_le_bytes());
        twin.insert(name, (Dtype::BF16, shape, bytes.collect()));
    }
    let mut config: Value =
        serde_json::from_slice(&std::fs::read(tiny(family).join("config.json")).unwrap()).unwrap();
    let plain = save(&twin, &config);
    config["quantization_config"] = quantization.clone();
    (save(&quantized, &config), plain)
}

fn options(weights: WeightFormat) -> LoadOptions {
    LoadOptions {
        weights,
        kv_type: KvType::F32,
        kv_capacity: KvCapacity::Blocks(4),
        threads: 2,
        // A GPU runs the largest step when it loads a model. Logits of all tokens are compared.
        max_num_seqs: TOKENS,
        max_num_batched_tokens: TOKENS,
        ..LoadOptions::default()
    }
}

/// Returns the logits of all tokens of a prompt that is cut into chunks.
fn logits(
    chunks: &[usize],
    mut step: impl FnMut(&mut Sequence, usize) -> Vec<Row>,
) -> Vec<Vec<f32>> {
    let mut sequence = Sequence::new(some_tokens(chunks.iter().sum(), 3, 300));
    let rows = chunks.iter().flat_map(|&chunk| step(&mut sequence, chunk));
    rows.map(|row| row.logits).collect()
}

fn on_cpu(folder: &Path, weights: WeightFormat) -> Vec<Vec<f32>> {
    let mut rig = Rig::open(&ModelFiles::HfDir(folder.to_owned()), &options(weights));
    logits(&[TOKENS], |sequence, count| rig.step(&mut [(sequence, count)], &|_, _| true))
}

/// Returns the logits on an emulated GPU whose results do not depend on the chunks.
fn on_gpu(folder: &Path, weights: WeightFormat, chunks: &[usize]) -> Vec<Vec<f32>> {
    let files = ModelFiles::HfDir(folder.to_owned());
    let mut rig = EmulatedRig::emulated(&files, &options(weights), true);
    logits(chunks, |sequence, count| rig.step(&mut [(sequence, count)], &|_, _| true))
}

/// Returns the logits of a prompt of `count` tokens on an emulated GPU that may add up products in another order for other numbers of rows.
fn inexact_on_gpu(folder: &Path, weights: WeightFormat, count: usize) -> Vec<Vec<f32>> {
    let files = ModelFiles::HfDir(folder.to_owned());
    let options = LoadOptions {
        kv_capacity: KvCapacity::Blocks(8),
        max_num_seqs: count,
        max_num_batched_tokens: count,
        ..options(weights)
    };
    let mut rig = EmulatedRig::emulated(&files, &options, false);
    logits(&[count], |sequence, count| rig.step(&mut [(sequence, count)], &|_, _| true))
}

/// Returns the norm of the differences as a share of the norm of the expected logits.
fn difference(found: &[Vec<f32>], expected: &[Vec<f32>]) -> f32 {
    let square = |sum: f32, value: f32| sum + value * value;
    let (found, expected) = (found.concat(), expected.concat());
    let differences = found.iter().zip(&expected).map(|(a, b)| a - b).fold(0.0, square);
    (differences / expected.into_iter().fold(0.0, square)).sqrt()
}

/// Returns the number of bytes of device memory that a model takes in a weight format, all else included, and the number
/// of bytes that its weights take by the checkpoint's count. No step has enough rows to need the strip buffer.
fn device_bytes(folder: &Path, weights: WeightFormat) -> (u64, u64) {
    let taken = device_bytes_with(folder, &options(weights));
    let checkpoint = Checkpoint::open(&ModelFiles::HfDir(folder.to_owned())).unwrap();
    (taken, checkpoint.cuda_bytes(weights).unwrap())
}

fn device_bytes_with(folder: &Path, options: &LoadOptions) -> u64 {
    let checkpoint = Checkpoint::open(&ModelFiles::HfDir(folder.to_owned())).unwrap();
    let mut driver = EmulatedDriver::new(1 << 30);
    let before = driver.free_bytes().unwrap();
    let parts = open_cuda(driver, GpuUse::default(), &checkpoint, options, &mut |_| {});
    before - parts.unwrap().ops.free_bytes().unwrap()
}

/// Checks how a checkpoint whose matrices an emulated GPU holds quantized, unless `decoded` is set, computes on the GPU.
fn agrees_on_a_gpu(what: &str, (quantized, twin): (&Path, &Path), decoded: bool) {
    let (auto, bf16) = (WeightFormat::Auto, WeightFormat::Bf16);
    let expected = on_gpu(twin, bf16, &[TOKENS]);
    assert!(on_gpu(quantized, bf16, &[TOKENS]) == expected, "{what}, decoded on a GPU");
    let found = on_gpu(quantized, auto, &[TOKENS]);
    let ((taken, held), (taken_bf16, held_bf16)) =
        (device_bytes(quantized, auto), device_bytes(quantized, bf16));
    assert_eq!(taken_bf16 - taken, held_bf16 - held, "{what}: counted bytes and taken bytes");
    if decoded {
        assert!(found == expected && held == held_bf16, "{what}, decoded because of its order");
        return;
    }
    assert!(held * 10 < held_bf16 * 8, "{what}: {held} bytes instead of {held_bf16}");
    let far = difference(&found, &expected);
    assert!(far < 1e-2, "{what}, quantized on a GPU: {far}");
    let far = difference(&found, &on_cpu(twin, WeightFormat::F32));
    assert!(far < 3e-2, "{what}, quantized on a GPU, against the CPU: {far}");
    assert!(on_gpu(quantized, auto, &[7, 1, 1, TOKENS - 9]) == found, "{what}, in chunks");
}

/// Checks that a quantized checkpoint gives the logits of its twin.
fn agrees(family: &str, quantization: Value, quantize: Quantize<'_>) {
    // The groups of a checkpoint with `desc_act` are not neighbours.
    let decoded = quantization["desc_act"] == json!(true);

    let (quantized, twin) = twins(family, &quantization, quantize);
    let (quantized, twin) = (quantized.path(), twin.path());
    let expected = on_cpu(twin, WeightFormat::Bf16);
    assert_eq!(expected.len(), TOKENS);
    assert!(expected[0] != on_cpu(&tiny(family), WeightFormat::Bf16)[0], "the weights differ");
    for format in [WeightFormat::Bf16, WeightFormat::Auto, WeightFormat::F32, WeightFormat::Q8_0] {
        let (found, expected) = (on_cpu(quantized, format), on_cpu(twin, format));
        assert!(found == expected, "{family}, {quantization}, {format:?}");
    }
    agrees_on_a_gpu(&format!("{family}, {quantization}"), (quantized, twin), decoded);
}

#[test]
fn a_long_prompt_has_the_logits_of_decoded_weights_bit_for_bit() {
    let config = json!({"quant_method": "awq", "bits": 4, "group_size": GROUP, "zero_point": true,
                        "version": "gemm", "modules_to_not_convert": [NOT_CONVERTED]});
    let (quantized, twin) = twins("llama3", &config, &awq);
    // More rows than the kernels multiply that read the stored numbers, so that all matrices are decoded in strips.
    let count = 80;
    let expected = inexact_on_gpu(twin.path(), WeightFormat::Bf16, count);
    assert_eq!(expected.len(), count);
    assert!(inexact_on_gpu(quantized.path(), WeightFormat::Auto, count) == expected);
}

#[test]
fn fp8_checkpoints_give_the_logits_of_their_decoded_weights() {
    let blocks = json!({"quant_method": "fp8", "fmt": "e4m3", "activation_scheme": "dynamic",
                        "weight_block_size": [32, 128], "modules_to_not_convert": [NOT_CONVERTED]});
    agrees("llama3", blocks, &|tensors, module, size| {
        fp8(tensors, module, size, ([32, 128], "weight_scale_inv"))
    });
    let weights = json!({"num_bits": 8, "type": "float", "strategy": "channel"});
    let channels = json!({"quant_method": "compressed-tensors", "format": "float-quantized",
                          "ignore": ["re:.*layers.1.mlp.down_proj", "lm_head"],
                          "config_groups": {"group_0": {"targets": ["Linear"], "weights": weights}}});
    agrees("qwen2", channels, &|tensors, module, size| {
        fp8(tensors, module, size, ([1, size.1], "weight_scale"))
    });
}

#[test]
fn awq_checkpoints_give_the_logits_of_their_decoded_weights() {
    let config = json!({"quant_method": "awq", "bits": 4, "group_size": GROUP, "zero_point": true,
                        "version": "gemm", "modules_to_not_convert": [NOT_CONVERTED]});
    agrees("llama3", config.clone(), &awq);
    agrees("qwen2", config, &awq);
}

#[test]
fn gptq_checkpoints_give_the_logits_of_their_decoded_weights() {
    for (family, form) in [
        ("qwen2", (4, true, true)),
        ("llama3", (4, false, false)),
        ("qwen2", (8, true, false)),
        ("llama3", (8, false, true)),
    ] {
        let (bits, less_one, act_order) = form;
        let format = if less_one { "gptq" } else { "gptq_v2" };
        let config = json!({"quant_method": "gptq", "bits": bits, "group_size": GROUP,
                            "desc_act": act_order, "checkpoint_format": format});
        agrees(family, config, &|tensors, module, size| {
            if family == "llama3" {
                // AutoGPTQ writes zero biases for models without biases.
                let zeros = (Dtype::F16, vec![size.0], vec![0; 2 * size.0]);
                tensors.insert(format!("{module}.bias"), zeros);
            }
            gptq(tensors, module, size, form)
        });
    }
}

#[test]
fn packed_checkpoints_give_the_logits_of_their_decoded_weights() {
    for (family, bits, symmetric) in
        [("llama3", 4, true), ("qwen2", 4, false), ("llama3", 8, false)]
    {
        let weights = json!({"num_bits": bits, "type": "int", "symmetric": symmetric,
                             "strategy": "group", "group_size": GROUP});
        let config = json!({"quant_method": "compressed-tensors", "format": "pack-quantized",
                            "config_groups": {"group_0": {"targets": ["Linear"], "weights": weights}}});
        agrees(family, config, &|tensors, module, size| {
            packed(tensors, module, size, (bits, symmetric))
        });
    }
}

#[test]
fn a_checkpoint_without_a_part_of_a_matrix_is_refused_with_its_name() {
    let config = json!({"quant_method": "awq", "bits": 4, "group_size": GROUP});
    let (quantized, _) = twins("qwen2", &config, &|tensors, module, size| {
        let decoded = awq(tensors, module, size);
        if module == "model.layers.1.self_attn.v_proj" {
            tensors.remove(&format!("{module}.qzeros"));
        }
        decoded
    });
    let files = ModelFiles::HfDir(quantized.path().to_owned());
    let error = Checkpoint::open(&files).err().expect("damaged").to_string();
    assert!(error.contains("model.layers.1.self_attn.v_proj.qzeros is absent"), "{error}");
}

#[test]
fn the_dry_run_takes_the_strip_buffer_for_steps_of_many_rows() {
    let config = json!({"quant_method": "awq", "bits": 4, "group_size": GROUP});
    let (quantized, _) = twins("llama3", &config, &awq);
    let more = |weights, rows| {
        let more = LoadOptions { max_num_batched_tokens: rows, ..options(weights) };
        device_bytes_with(quantized.path(), &more)
    };
    let taken = |weights| more(weights, 70) - more(weights, 64);
    let strip = taken(WeightFormat::Auto) - taken(WeightFormat::Bf16);
    // The largest strip of the emulated GPU has 128 output features of 64 inputs, or 64 output features of 96 inputs.
    assert_eq!(strip, 128 * 64 * 2);
}
