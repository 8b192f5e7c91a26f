//! Attention shapes that the kernels are tested with. A shape is a pair: the width of an attention head in elements, and
//! the number of query heads that share a key head (see `KernelShape`).
//!
//! The build script of `tests/emulated` includes this file, so the file imports nothing.

/// Attention shapes of published models: SmolLM2, Qwen2 0.5B, a model of Phi's width, Llama 3 8B, Qwen2.5 7B, Llama 3
/// 70B, and the widest head that the kernels support. The example `kernel-report` compiles the kernels for these shapes
/// only, because registers and spills matter where a model is served, and a shape takes seconds to compile.
pub const MODEL_SHAPES: [(usize, usize); 7] =
    [(64, 3), (64, 7), (80, 1), (128, 4), (128, 7), (128, 8), (256, 2)];

/// Attention shapes that only tests use: narrow heads, heads of 72 elements, for which `attention_prefill` has no tiles,
/// and other numbers of query heads.
const OTHER_SHAPES: [(usize, usize); 10] =
    [(16, 1), (16, 2), (32, 2), (64, 1), (64, 8), (72, 1), (80, 4), (96, 2), (96, 5), (128, 1)];

/// Returns every attention shape that the emulator compiles and that the checks of attention run.
pub fn tested_shapes() -> impl Iterator<Item = (usize, usize)> {
    MODEL_SHAPES.into_iter().chain(OTHER_SHAPES)
}
