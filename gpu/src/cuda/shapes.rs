//! The attention shapes that the CUDA kernels support, how the kernels divide them, and the shapes that tests run. A
//! shape is a pair: the width of an attention head in elements, and the number of query heads that share a key head
//! (see `KernelShape`). No other file has these numbers: the kernels get them as compiler options ([`definitions`]).
//!
//! The build script of `tests/emulated` includes this file, so the file imports nothing.

/// Widths of attention heads are multiples of this, elements: a thread moves eight elements at once.
pub const HEAD_DIM_UNIT: usize = 8;
/// Widest attention head that the kernels support, elements: with it, `attention_rows` takes up to 245 of 255
/// registers.
pub const HEAD_DIM_MAX: usize = 256;
/// Most query heads per key head that the kernels support.
pub const QUERIES_MAX: usize = 64;
/// Widest attention head that the kernel `attention_prefill` supports, elements: wider ones do not fit in registers.
pub const TILED_HEAD_DIM_MAX: usize = 128;
/// Widths of heads that the kernel `attention_prefill` supports are multiples of this, elements: the width of a tile.
pub const TILED_HEAD_DIM_UNIT: usize = 16;

/// Warps per thread block of the kernels `attention_rows` and `attention_prefill`.
pub const ATTENTION_WARPS: usize = 4;
/// Pairs of a row and a query head that a thread block of the kernel `attention_prefill` computes: 32 for each warp.
pub const TILE: usize = 32 * ATTENTION_WARPS;
/// Number of keys that the kernel `attention_prefill` loads into shared memory at a time.
pub const TILE_KEYS: usize = 64;
/// Most query heads that a thread block of the kernel `attention_rows` computes: the columns of a tensor core's tile.
pub const GROUP_MAX: usize = 8;

/// Attention shapes of published models: SmolLM2, Qwen2 0.5B, a model of Phi's width, Llama 3 8B, Qwen2.5 7B, Llama 3
/// 70B, and the widest head that the kernels support. The example `kernel-report` prints the kernels of these shapes,
/// because registers matter where a model is served.
pub const MODEL_SHAPES: [(usize, usize); 7] =
    [(64, 3), (64, 7), (80, 1), (128, 4), (128, 7), (128, 8), (256, 2)];

/// Attention shapes that only tests use: narrow heads, heads of 72 elements, for which `attention_prefill` has no
/// tiles, and other numbers of query heads.
const OTHER_SHAPES: [(usize, usize); 10] =
    [(16, 1), (16, 2), (32, 2), (64, 1), (64, 8), (72, 1), (80, 4), (96, 2), (96, 5), (128, 1)];

/// Returns every attention shape that the emulator compiles and that the checks of attention run.
pub fn tested_shapes() -> impl Iterator<Item = (usize, usize)> {
    MODEL_SHAPES.into_iter().chain(OTHER_SHAPES)
}

/// Whether the kernels support heads of this width.
pub fn supports_width(head_dim: usize) -> bool {
    head_dim > 0 && head_dim.is_multiple_of(HEAD_DIM_UNIT) && head_dim <= HEAD_DIM_MAX
}

/// Whether the kernel `attention_prefill` supports heads of this width.
pub fn has_tiles(head_dim: usize) -> bool {
    supports_width(head_dim)
        && head_dim.is_multiple_of(TILED_HEAD_DIM_UNIT)
        && head_dim <= TILED_HEAD_DIM_MAX
}

/// Returns the number of thread blocks among which the query heads of a key head are divided in the kernel
/// `attention_rows`.
pub fn query_parts(queries: usize) -> usize {
    queries.div_ceil(GROUP_MAX)
}

/// Returns the name of the KV cache's format in the kernels (`gpu/kernels/kv.cuh`): 8 bits or bf16.
pub fn kv_format(q8: bool) -> &'static str {
    if q8 { "KvQ8" } else { "KvBf16" }
}

/// Returns the names and values with which the attention kernels are compiled for a shape and a format of the KV cache.
/// `span` is the length of an attention span, positions.
pub fn definitions(
    head_dim: usize,
    queries: usize,
    q8: bool,
    span: usize,
) -> [(&'static str, String); 8] {
    [
        ("HEAD_DIM", head_dim.to_string()),
        ("QUERIES", queries.to_string()),
        ("KV", kv_format(q8).to_owned()),
        ("SPAN", span.to_string()),
        ("PARTS", query_parts(queries).to_string()),
        ("ATTENTION_WARPS", ATTENTION_WARPS.to_string()),
        ("TILE", TILE.to_string()),
        ("TILE_KEYS", TILE_KEYS.to_string()),
    ]
}
