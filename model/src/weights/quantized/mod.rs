//! Quantized matrices of Hugging Face checkpoints: found, checked against the shapes that their method implies, and
//! decoded to floats or rearranged for a GPU.
//!
//! | file | what it does |
//! |---|---|
//! | `fp8.rs` | FP8 (E4M3) with scales per matrix, row or block |
//! | `awq.rs` | AWQ: integers of 4 bits, packed along the outputs |
//! | `gptq.rs` | GPTQ: integers of 4 or 8 bits, packed along the inputs |
//! | `packed.rs` | integers of 4 or 8 bits as compressed-tensors packs them, along the inputs |
//! | `groups.rs` | groups of inputs, their scales and zero points |
//! | `held.rs` | the form in which a GPU holds these matrices |
//! | `parts.rs` | the tensors of one matrix: looked up, checked, read |
//!
//! A quantized matrix replaces the tensor `NAME.weight` of a module by several tensors, its parts. Other modules of the
//! checkpoint keep a `NAME.weight` of floats, so the file alone says which matrices are quantized.

mod awq;
mod fp8;
mod gptq;
mod groups;
mod held;
mod packed;
mod parts;
#[cfg(test)]
mod tests;

use super::WeightError;
use super::hf_dir::HfDir;
use super::stored::{Content, Stored};
use crate::arch::Quantization;
use awq::Awq;
use fp8::Fp8;
use gptq::Gptq;
use half::bf16;
use packed::Packed;
use parts::Parts;
use safetensors::tensor::Dtype;
use std::num::NonZero;
use std::sync::Mutex;

/// Number of rows that are decoded at once: AWQ packs eight rows in each word.
const TILE_ROWS: usize = 8;
/// Weights for which it pays to start one more thread.
const WEIGHTS_A_THREAD: usize = 1 << 17;
/// Names of the tensors that a quantized matrix can have in place of `weight`, or beside it. The last four are scales
/// and zero points of activations and KV, which Tiercel does not read.
const PARTS: [&str; 14] = [
    "qweight",
    "qzeros",
    "scales",
    "g_idx",
    "weight_packed",
    "weight_shape",
    "weight_g_idx",
    "weight_scale",
    "weight_scale_inv",
    "weight_zero_point",
    "activation_scale",
    "input_scale",
    "input_zero_point",
    "output_scale",
];

/// A quantized matrix `[n, k]`: `n` output features of `k` weights.
pub(crate) struct Quantized<'a> {
    n: usize,
    k: usize,
    method: Method<'a>,
}

enum Method<'a> {
    Fp8(Fp8<'a>),
    Awq(Awq<'a>),
    Gptq(Gptq<'a>),
    Packed(Packed<'a>),
}

/// Decoder of neighbouring rows of a matrix: called with the number of the first row, a multiple of [`TILE_ROWS`], and
/// with room for at most [`TILE_ROWS`] rows of `k` weights.
type Rows<'a> = Box<dyn Fn(usize, &mut [f32]) + Sync + 'a>;

/// Returns the quantized matrix that stands for the tensor `name` (`NAME.weight`) of a checkpoint, with the shapes of
/// its parts checked. `None` if the tensor is not quantized, or absent.
///
/// # Errors
/// [`WeightError::Quantized`], which names the part that is absent or not as its method implies.
pub(super) fn find<'a>(
    dir: &'a HfDir,
    quantization: &Quantization,
    name: &str,
) -> Result<Option<Stored<'a>>, WeightError> {
    let Some(module) = name.strip_suffix(".weight") else { return Ok(None) };
    let parts = Parts { dir, module };
    let plain = dir.raw(name)?;
    let found = match quantization {
        Quantization::Fp8 { block } => {
            let Some(weight) = plain.filter(|tensor| tensor.dtype == Dtype::F8_E4M3) else {
                return Ok(None);
            };
            let (fp8, [n, k]) = Fp8::find(&parts, &weight, *block)?;
            Quantized { n, k, method: Method::Fp8(fp8) }
        }
        // A module with a plain weight counts as not quantized, whatever other parts the module has.
        _ if plain.is_some() => return Ok(None),
        Quantization::Awq { group } => {
            let Some((awq, [n, k])) = Awq::find(&parts, *group)? else { return Ok(None) };
            Quantized { n, k, method: Method::Awq(awq) }
        }
        Quantization::Gptq(format) => {
            let Some((gptq, [n, k])) = Gptq::find(&parts, *format)? else { return Ok(None) };
            Quantized { n, k, method: Method::Gptq(gptq) }
        }
        Quantization::Packed(format) => {
            let Some((packed, [n, k])) = Packed::find(&parts, *format)? else { return Ok(None) };
            Quantized { n, k, method: Method::Packed(packed) }
        }
    };
    Ok(Some(Stored { shape: vec![found.n, found.k], content: Content::Quantized(found) }))
}

/// Returns the name of the weight (`NAME.weight`) that a tensor is a part of if it is quantized.
pub(super) fn weight_of_part(name: &str) -> Option<String> {
    let (module, part) = name.rsplit_once('.')?;
    PARTS.contains(&part).then(|| format!("{module}.weight"))
}

impl Quantized<'_> {
    /// Decodes the matrix on all cores to `n` rows of `k` weights, in bf16 or f32. A weight is multiplied by its scale
    /// in f32; the product of an integer and an f16 scale is exact.
    ///
    /// # Errors
    /// [`WeightError::Quantized`] if a weight names a group that does not exist.
    pub(super) fn decode(&self, bf16: bool) -> Result<Vec<u8>, WeightError> {
        let (n, k) = (self.n, self.k);
        let row_bytes = k * if bf16 { 2 } else { 4 };
        let rows = self.rows()?;
        let mut out = vec![0_u8; n * row_bytes];
        if out.is_empty() {
            return Ok(out);
        }
        in_tiles(&mut out, row_bytes, k, |first, bytes, values: &mut [f32]| {
            rows(first, values);
            store(values, bf16, bytes);
        });
        Ok(out)
    }

    fn rows(&self) -> Result<Rows<'_>, WeightError> {
        let k = self.k;
        Ok(match &self.method {
            Method::Fp8(fp8) => Box::new(move |first, out| fp8.rows(k, first, out)),
            Method::Awq(awq) => Box::new(move |first, out| awq.rows(k, first, out)),
            Method::Gptq(gptq) => {
                let groups = gptq.groups.of_inputs(k)?;
                Box::new(move |first, out| gptq.rows(&groups, first, out))
            }
            Method::Packed(packed) => {
                let groups = packed.groups.of_inputs(k)?;
                Box::new(move |first, out| packed.rows(&groups, first, out))
            }
        })
    }
}

/// Fills the rows of a matrix on all cores: calls `fill(first, bytes, values)` for each tile of at most [`TILE_ROWS`]
/// rows of `row_bytes` bytes. `first` is the number of the tile's first row, and `values` has room for a number for
/// each of the `k` weights of each row.
fn in_tiles<T: Copy + Default>(
    out: &mut [u8],
    row_bytes: usize,
    k: usize,
    fill: impl Fn(usize, &mut [u8], &mut [T]) + Sync,
) {
    let weights = out.len() / row_bytes.max(1) * k;
    let tiles = Mutex::new(out.chunks_mut(TILE_ROWS * row_bytes.max(1)).enumerate());
    let work = || {
        let mut values = vec![T::default(); TILE_ROWS * k];
        loop {
            let next = tiles.lock().expect("no thread panics while it takes a tile").next();
            let Some((tile, bytes)) = next else { return };
            let rows = bytes.len() / row_bytes;
            fill(tile * TILE_ROWS, bytes, &mut values[..rows * k]);
        }
    };
    let cores = std::thread::available_parallelism().map_or(1, NonZero::get);
    let threads = cores.min(weights / WEIGHTS_A_THREAD + 1);
    std::thread::scope(|scope| {
        for _ in 1..threads {
            scope.spawn(work);
        }
        work();
    });
}

/// Stores weights as bf16 or f32.
fn store(values: &[f32], bf16: bool, out: &mut [u8]) {
    if bf16 {
        for (out, value) in out.chunks_exact_mut(2).zip(values) {
            out.copy_from_slice(&bf16::from_f32(*value).to_le_bytes());
        }
    } else {
        for (out, value) in out.chunks_exact_mut(4).zip(values) {
            out.copy_from_slice(&value.to_le_bytes());
        }
    }
}
