//! Sources of the CUDA kernels, and the options with which each is compiled and launched.

use super::driver::{CudaError, KernelShape};

/// Length of an attention span on a GPU, positions: the part of a row's keys that a thread block of `attention_rows`
/// sums up.
pub const SPAN: usize = 256;
/// Threads per thread block of the kernels `attention_rows` and `attention_prefill`: four warps.
pub(super) const ATTENTION_THREADS: u32 = 128;
/// Number of keys that the kernel `attention_prefill` loads into shared memory at a time.
const TILE_KEYS: usize = 64;

/// A source file of CUDA kernels, compiled separately.
#[derive(Debug, Clone, Copy)]
pub struct Unit {
    /// Name of the kernels' source file, for errors, logs and the names of cache files.
    pub name: &'static str,
    /// Full text of the kernels' source file, with the shared header in front.
    pub source: &'static str,
    /// Names of the kernels in the source file.
    pub kernels: &'static [&'static str],
    /// Whether the kernels' source is compiled for a model's head width and number of query heads per key head.
    pub shaped: bool,
}

macro_rules! source {
    ($file:literal) => {
        concat!(
            include_str!("../../kernels/device.cuh"),
            "\n",
            include_str!(concat!("../../kernels/", $file))
        )
    };
}

/// Source file of the kernels that work on single rows: embedding, norms, bias, activation function, gather.
pub const ROWS: Unit = Unit {
    name: "rows.cu",
    source: source!("rows.cu"),
    kernels: &["embed", "add_rms_norm", "head_rms_norm", "add_bias", "silu_mul", "gather_rows"],
    shaped: false,
};
/// Source file of the kernel of the rotary embedding, which also writes keys and values into KV blocks.
pub const KV_WRITE: Unit = Unit {
    name: "kv_write.cu",
    source: source!("kv_write.cu"),
    kernels: &["rope_kv_write"],
    shaped: false,
};
/// Source file of the kernel that draws tokens from logits.
pub const SAMPLE: Unit =
    Unit { name: "sample.cu", source: source!("sample.cu"), kernels: &["sample"], shaped: false };
/// Source file of the kernels for the attention of single rows (decode).
pub const ATTENTION_ROWS: Unit = Unit {
    name: "attention_rows.cu",
    source: source!("attention_rows.cu"),
    kernels: &["attention_rows", "attention_combine"],
    shaped: true,
};
/// Source file of the kernel for the attention of prompts (prefill), on tensor cores.
pub const ATTENTION_PREFILL: Unit = Unit {
    name: "attention_prefill.cu",
    source: source!("attention_prefill.cu"),
    kernels: &["attention_prefill"],
    shaped: true,
};

impl KernelShape {
    /// Checks that the CUDA kernels support the model's attention shape.
    ///
    /// # Errors
    /// [`CudaError::Shape`].
    pub fn check(self) -> Result<(), CudaError> {
        let KernelShape { head_dim, queries } = self;
        if head_dim == 0 || !head_dim.is_multiple_of(8) || head_dim > 256 {
            let why =
                format!("heads of {head_dim} elements, where a multiple of 8 up to 256 is needed");
            return Err(CudaError::Shape(why));
        }
        if queries == 0 || queries > 64 {
            let why =
                format!("{queries} query heads for each key head, where 1 to 64 are possible");
            return Err(CudaError::Shape(why));
        }
        Ok(())
    }

    /// Whether the kernel `attention_prefill` supports the attention shape: its tiles are 16 columns wide, and heads of
    /// width 128 fill the registers.
    pub fn has_tiles(self) -> bool {
        self.head_dim.is_multiple_of(16) && self.head_dim <= 128
    }

    /// Returns the source files of kernels that a model of this attention shape needs.
    pub fn units(self) -> Vec<Unit> {
        let mut units = vec![ROWS, KV_WRITE, SAMPLE, ATTENTION_ROWS];
        units.extend(self.has_tiles().then_some(ATTENTION_PREFILL));
        units
    }

    /// Returns the compiler options of a source file of kernels for this attention shape.
    pub fn options(self, unit: &Unit) -> Vec<String> {
        if !unit.shaped {
            return Vec::new();
        }
        vec![
            format!("-DHEAD_DIM={}", self.head_dim),
            format!("-DQUERIES={}", self.queries),
            format!("-DSPAN={SPAN}"),
            "-DKERNEL(name)=name".to_owned(),
        ]
    }

    /// Returns the number of thread blocks among which the query heads of a key head are divided in single-row
    /// attention; each computes four heads at most.
    pub(super) fn query_parts(self) -> usize {
        self.queries.div_ceil(4)
    }

    /// Returns the shared memory of a thread block of the kernel `attention_rows`, bytes: for each of the keys
    /// processed in parallel, a weighted sum of values, the largest score and a sum of weights.
    pub(super) fn rows_shared_bytes(self) -> u32 {
        let key_lanes = match self.head_dim {
            ..=64 => 8,
            65..=128 => 16,
            _ => 32,
        };
        let streams = ATTENTION_THREADS as usize / key_lanes;
        (streams * (self.head_dim + 2) * 4) as u32
    }

    /// Returns the shared memory of a thread block of the kernel `attention_prefill`, bytes: a tile of keys and a tile
    /// of values.
    pub(super) fn tiles_shared_bytes(self) -> u32 {
        (2 * TILE_KEYS * (self.head_dim + 8) * 2) as u32
    }
}

/// Threads per thread block of the kernel `sample`.
pub(super) const SAMPLE_THREADS: u32 = 1024;
/// Shared memory of a thread block of the kernel `sample`, bytes: counts and sums of 256 bins, a sum for each thread, a
/// number for each warp, and the results of the search.
pub(super) const SAMPLE_SHARED_BYTES: u32 = 256 * 12 + SAMPLE_THREADS * 8 + 32 * 4 + 16 + 8;

/// Returns the number of threads of a thread block that processes a row of `cols` columns, eight columns per thread at
/// a time.
pub(super) fn row_threads(cols: usize) -> u32 {
    (cols / 8).next_multiple_of(32).clamp(32, 256) as u32
}
