//! Sources of the CUDA kernels, and the options with which each is compiled and launched.

use super::driver::{CudaError, KernelShape};
use super::multiply::{self, Form, MULTIPLY_THREADS};
use super::shapes;

/// Length of an attention span on a GPU, positions: the part of a row's keys that a thread block of `attention_rows`
/// sums up.
pub const SPAN: usize = 256;
/// Threads per thread block of the kernels `attention_rows` and `attention_prefill`.
pub(super) const ATTENTION_THREADS: u32 = 32 * shapes::ATTENTION_WARPS as u32;

/// A source file of CUDA kernels, compiled separately.
#[derive(Debug, Clone, Copy)]
pub struct Unit {
    /// Name of the kernels' source file, for errors, logs and the names of cache files.
    pub name: &'static str,
    /// Full text that is compiled: the shared headers that the kernels need, then the source files of the kernels.
    pub source: &'static str,
    /// Names of the kernels in the source file.
    pub kernels: &'static [&'static str],
    /// Whether the kernels' source is compiled for a model's head width and number of query heads per key head, and for
    /// a format of the KV cache.
    pub shaped: bool,
}

/// The text of the files of `gpu/kernels`, one after the other.
macro_rules! source {
    ($($file:literal),+) => {
        concat!($(include_str!(concat!("../../kernels/", $file)), "\n"),+)
    };
}

/// Source file of the kernels that work on single rows: embedding, norms, bias, activation function, gather; and of the
/// kernel that moves words between host and device.
pub const ROWS: Unit = Unit {
    name: "rows.cu",
    source: source!("device.cuh", "rows.cu"),
    kernels: &[
        "embed",
        "add_rms_norm",
        "head_rms_norm",
        "add_bias",
        "silu_mul",
        "gather_rows",
        "move_words",
    ],
    shaped: false,
};
/// Source file of the kernels of the rotary embedding, which also write keys and values into KV blocks, in bf16 and in
/// 8 bits.
pub const KV_WRITE: Unit = Unit {
    name: "kv_write.cu",
    source: source!("device.cuh", "kv.cuh", "kv_write.cu"),
    kernels: &["rope_kv_write", "rope_kv_write_q8"],
    shaped: false,
};
/// Source file of the kernels that decode and look up quantized weight matrices.
pub const QUANTIZED: Unit = Unit {
    name: "quantized.cu",
    source: source!("device.cuh", "weights.cuh", "quantized.cu"),
    kernels: &["decode_rows", "embed_quantized"],
    shaped: false,
};
/// Source file of the kernels that multiply by quantized and bf16 matrices.
pub const PRODUCTS: Unit = Unit {
    name: "products.cu",
    source: source!("device.cuh", "weights.cuh", "products.cu", "product_tiles.cu"),
    kernels: &multiply::KERNELS,
    shaped: false,
};
/// Source file of the kernel that draws tokens from logits.
pub const SAMPLE: Unit = Unit {
    name: "sample.cu",
    source: source!("device.cuh", "sample.cu"),
    kernels: &["sample"],
    shaped: false,
};
/// Source file of the kernels for the attention of single rows (decode).
pub const ATTENTION_ROWS: Unit = Unit {
    name: "attention_rows.cu",
    source: source!("device.cuh", "kv.cuh", "attention_rows.cu"),
    kernels: &["attention_rows"],
    shaped: true,
};
/// Source file of the kernel for the attention of prompts (prefill), on tensor cores.
pub const ATTENTION_PREFILL: Unit = Unit {
    name: "attention_prefill.cu",
    source: source!("device.cuh", "kv.cuh", "attention_prefill.cu"),
    kernels: &["attention_prefill"],
    shaped: true,
};

impl KernelShape {
    /// Checks that the CUDA kernels support the model's attention shape.
    ///
    /// # Errors
    /// [`CudaError::Shape`].
    pub fn check(self) -> Result<(), CudaError> {
        let KernelShape { head_dim, queries, .. } = self;
        if !shapes::supports_width(head_dim) {
            let (unit, most) = (shapes::HEAD_DIM_UNIT, shapes::HEAD_DIM_MAX);
            return Err(CudaError::Shape(format!(
                "heads of {head_dim} elements, where a multiple of {unit} up to {most} is needed"
            )));
        }
        if queries == 0 || queries > shapes::QUERIES_MAX {
            let most = shapes::QUERIES_MAX;
            return Err(CudaError::Shape(format!(
                "{queries} query heads for each key head, where 1 to {most} are possible"
            )));
        }
        Ok(())
    }

    /// Whether the kernel `attention_prefill` supports the attention shape.
    pub fn has_tiles(self) -> bool {
        shapes::has_tiles(self.head_dim)
    }

    /// Returns the source files of kernels that a model of this attention shape needs.
    pub fn units(self) -> Vec<Unit> {
        let mut units = vec![ROWS, QUANTIZED, PRODUCTS, KV_WRITE, SAMPLE, ATTENTION_ROWS];
        units.extend(self.has_tiles().then_some(ATTENTION_PREFILL));
        units
    }

    /// Returns the compiler options of a source file of kernels for this attention shape.
    pub fn options(self, unit: &Unit) -> Vec<String> {
        if !unit.shaped {
            return Vec::new();
        }
        let definitions = shapes::definitions(self.head_dim, self.queries, self.q8, SPAN);
        let options = definitions.into_iter().map(|(name, value)| format!("-D{name}={value}"));
        options.chain(["-DKERNEL(name)=name".to_owned()]).collect()
    }

    /// Returns the number of thread blocks among which the query heads of a key head are divided in single-row
    /// attention.
    pub(super) fn query_parts(self) -> usize {
        shapes::query_parts(self.queries)
    }

    /// Returns the shared memory of a thread block of the kernel `attention_rows`, bytes: at first the places of the
    /// span's keys, and of their scales if the KV cache is in 8 bits; then, for each warp and query head, a weighted
    /// sum of values, the largest score and a sum of weights.
    pub(super) fn rows_shared_bytes(self) -> u32 {
        let places = if self.q8 { 2 * SPAN * 8 } else { (SPAN + 1) * 8 };
        let group = self.queries.div_ceil(self.query_parts());
        let sums = shapes::ATTENTION_WARPS * group * (self.head_dim + 2) * 4;
        places.max(sums) as u32
    }

    /// Returns the shared memory of a thread block of the kernel `attention_prefill`, bytes: queries, keys and values
    /// in bf16, and two pointers for each key of two tiles. If the KV cache is in 8 bits, the memory also has the
    /// scales of keys and values in f32, and the stored elements of a tile, with room for eight elements of each thread
    /// that copies a row.
    pub(super) fn tiles_shared_bytes(self) -> u32 {
        let elements = (shapes::TILE + 2 * shapes::TILE_KEYS) * (self.head_dim + 8) * 2;
        let pointers = 2 * shapes::TILE_KEYS * 16;
        let stored = 2 * 4 + (self.head_dim / 8).next_power_of_two() * 8;
        let stored = if self.q8 { shapes::TILE_KEYS * stored } else { 0 };
        (elements + pointers + stored) as u32
    }
}

/// The largest launch of a kernel: of all launches of the kernel that the op set makes for an attention shape, none has
/// more threads or more shared memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LargestLaunch {
    /// Name of the kernel.
    pub kernel: &'static str,
    /// Most threads of a thread block.
    pub threads: u32,
    /// Most dynamic shared memory of a thread block, bytes.
    pub shared_bytes: u32,
    /// Number of thread blocks that must fit on a multiprocessor at once, for speed.
    pub resident: u32,
}

impl KernelShape {
    /// Returns the largest launch of each kernel of a source file.
    pub fn largest_launches(self, unit: &Unit) -> Vec<LargestLaunch> {
        let of = |kernel: &&'static str| {
            let form = Form::named(kernel);
            let multiply = form.map(|form| (MULTIPLY_THREADS, form.shared_bytes(), form.resident));
            let (threads, shared_bytes, resident) = match *kernel {
                "add_rms_norm" => (NORM_THREADS_MAX, norm_shared_bytes(NORM_THREADS_MAX), 1),
                "head_rms_norm" => (HEAD_NORM_THREADS, 0, 1),
                multiply::TILES => (MULTIPLY_THREADS, multiply::TILES_SHARED_BYTES, 1),
                "sample" => (SAMPLE_THREADS, SAMPLE_SHARED_BYTES, 1),
                "attention_rows" => {
                    let resident = if self.head_dim > 128 { 2 } else { 3 };
                    (ATTENTION_THREADS, self.rows_shared_bytes(), resident)
                }
                "attention_prefill" => (ATTENTION_THREADS, self.tiles_shared_bytes(), 2),
                _ => multiply.unwrap_or((ROW_THREADS_MAX, 0, 1)),
            };
            LargestLaunch { kernel, threads, shared_bytes, resident }
        };
        unit.kernels.iter().map(of).collect()
    }
}

/// Most threads of a thread block that processes a row.
const ROW_THREADS_MAX: u32 = 256;
/// Most threads of a thread block that norms a row: more than of other kernels, because a row has one thread block.
const NORM_THREADS_MAX: u32 = 512;
/// Threads per thread block of the kernel `head_rms_norm`: a warp for each of four heads.
pub(super) const HEAD_NORM_THREADS: u32 = 128;

/// Returns the shared memory of a thread block of `threads` threads of the kernel `add_rms_norm`, bytes: a number for
/// each warp.
pub(super) fn norm_shared_bytes(threads: u32) -> u32 {
    threads / 32 * 4
}

/// Threads per thread block of the kernel `sample`.
pub(super) const SAMPLE_THREADS: u32 = 1024;
/// Shared memory of a thread block of the kernel `sample`, bytes: counts and sums of 256 bins, a sum for each thread, a
/// number for each warp, and the results of the search.
pub(super) const SAMPLE_SHARED_BYTES: u32 = 256 * 12 + SAMPLE_THREADS * 8 + 32 * 4 + 16 + 8;

/// Returns the number of threads of a thread block that processes a row of `cols` columns, eight columns per thread at
/// a time.
pub(super) fn row_threads(cols: usize) -> u32 {
    (cols / 8).next_multiple_of(32).clamp(32, ROW_THREADS_MAX as usize) as u32
}

/// Returns the number of threads of a thread block that norms a row of `cols` columns, eight columns per thread at a
/// time.
pub(super) fn norm_threads(cols: usize) -> u32 {
    (cols / 8).next_multiple_of(32).clamp(32, NORM_THREADS_MAX as usize) as u32
}
