//! The kernels' sources, and what each is compiled and launched with.

use super::driver::{CudaError, KernelShape};

/// Positions that `attention_rows` sums up at once.
pub const SPAN: usize = 256;
/// Threads of a block of both attention kernels: four warps.
pub(super) const ATTENTION_THREADS: u32 = 128;
/// Keys of a tile of `attention_prefill`.
const TILE_KEYS: usize = 64;

/// A source file, compiled by itself.
#[derive(Debug, Clone, Copy)]
pub struct Unit {
    /// Its name, for messages.
    pub name: &'static str,
    /// The text, all of it.
    pub source: &'static str,
    /// Its kernels.
    pub kernels: &'static [&'static str],
    /// Whether it is compiled for a model's shape.
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

/// Operations on rows, and writing of KV.
pub const ROWS: Unit = Unit {
    name: "rows.cu",
    source: source!("rows.cu"),
    kernels: &["embed", "add_rms_norm", "head_rms_norm", "add_bias", "silu_mul", "gather_rows"],
    shaped: false,
};
/// Rotation and writing of KV.
pub const KV_WRITE: Unit = Unit {
    name: "kv_write.cu",
    source: source!("kv_write.cu"),
    kernels: &["rope_kv_write"],
    shaped: false,
};
/// Sampling.
pub const SAMPLE: Unit =
    Unit { name: "sample.cu", source: source!("sample.cu"), kernels: &["sample"], shaped: false };
/// Attention of single rows.
pub const ATTENTION_ROWS: Unit = Unit {
    name: "attention_rows.cu",
    source: source!("attention_rows.cu"),
    kernels: &["attention_rows", "attention_combine"],
    shaped: true,
};
/// Attention of prompts on tensor cores.
pub const ATTENTION_PREFILL: Unit = Unit {
    name: "attention_prefill.cu",
    source: source!("attention_prefill.cu"),
    kernels: &["attention_prefill"],
    shaped: true,
};

impl KernelShape {
    /// Checks that there are kernels for the shape.
    ///
    /// # Errors
    /// [`CudaError::Shape`].
    pub fn check(self) -> Result<(), CudaError> {
        let KernelShape { head_dim, queries } = self;
        if head_dim == 0 || !head_dim.is_multiple_of(8) || head_dim > 256 {
            let why = format!("heads of {head_dim}, where a multiple of 8 up to 256 is needed");
            return Err(CudaError::Shape(why));
        }
        if queries == 0 || queries > 64 {
            let why =
                format!("{queries} query heads for each key head, where 1 to 64 are possible");
            return Err(CudaError::Shape(why));
        }
        Ok(())
    }

    /// Whether `attention_prefill` has the shape: its tiles are 16 wide, and two rows of 128 fill the registers.
    pub fn has_tiles(self) -> bool {
        self.head_dim.is_multiple_of(16) && self.head_dim <= 128
    }

    /// The units that a model of this shape needs.
    pub fn units(self) -> Vec<Unit> {
        let mut units = vec![ROWS, KV_WRITE, SAMPLE, ATTENTION_ROWS];
        units.extend(self.has_tiles().then_some(ATTENTION_PREFILL));
        units
    }

    /// What a unit is compiled with.
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

    /// Blocks of threads that share the query heads of a key head: each has four at most.
    pub(super) fn query_parts(self) -> usize {
        self.queries.div_ceil(4)
    }

    /// Shared memory of `attention_rows`, bytes: of each key under way its values, its score and its weight.
    pub(super) fn rows_shared_bytes(self) -> u32 {
        let key_lanes = match self.head_dim {
            ..=64 => 8,
            65..=128 => 16,
            _ => 32,
        };
        let streams = ATTENTION_THREADS as usize / key_lanes;
        (streams * (self.head_dim + 2) * 4) as u32
    }

    /// Shared memory of `attention_prefill`, bytes: a tile of keys and one of values.
    pub(super) fn tiles_shared_bytes(self) -> u32 {
        (2 * TILE_KEYS * (self.head_dim + 8) * 2) as u32
    }
}

/// Threads of a block of `sample`.
pub(super) const SAMPLE_THREADS: u32 = 1024;
/// Its shared memory, bytes: counts and sums of 256 bins, a sum for each thread, a number for each warp, and what is found.
pub(super) const SAMPLE_SHARED_BYTES: u32 = 256 * 12 + SAMPLE_THREADS * 8 + 32 * 4 + 16 + 8;

/// Threads of a block that goes along a row of `cols` columns, eight each.
pub(super) fn row_threads(cols: usize) -> u32 {
    (cols / 8).next_multiple_of(32).clamp(32, 256) as u32
}
