//! Writes checkpoints with quantized matrices of random numbers, in the formats of Hugging Face, and their twins with
//! the decoded weights.

use super::{GROUP, NOT_CONVERTED};
use crate::harness::{some_tokens, tiny};
use half::bf16;
use safetensors::SafeTensors;
use safetensors::tensor::{Dtype, TensorView, serialize_to_file};
use serde_json::Value;
use std::collections::BTreeMap;
use std::path::Path;

/// Tensors of a checkpoint by name: type, shape and bytes.
pub(super) type Tensors = BTreeMap<String, (Dtype, Vec<usize>, Vec<u8>)>;
/// Function that quantizes the matrix of a module: called with the name of the module and its dimensions, it adds the
/// parts of a random matrix to the first tensors, and returns the decoded weights, row by row.
pub(super) type Quantize<'a> = &'a dyn Fn(&mut Tensors, &str, (usize, usize)) -> Vec<f32>;

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

pub(super) fn awq(tensors: &mut Tensors, module: &str, (n, k): (usize, usize)) -> Vec<f32> {
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
pub(super) fn gptq(
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
pub(super) fn packed(
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
pub(super) fn fp8(
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
pub(super) fn twins(
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
