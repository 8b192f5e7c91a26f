//! The kernels that multiply by quantized and bf16 matrices (`gpu/kernels/products.cu`): their forms, and which form
//! serves how many rows of activations.

use crate::NumberType;

/// Threads per thread block of the kernels `multiply_...` (`MULTIPLY_WARPS` of their source).
pub(super) const MULTIPLY_THREADS: u32 = 32 * WARPS;
const WARPS: u32 = 8;
/// Output features of a band, and rows of activations of a tile.
const BAND: usize = 16;
const TILE: usize = 8;

/// Name of the kernel that multiplies many rows of activations by a bf16 matrix (`gpu/kernels/product_tiles.cu`).
pub(super) const TILES: &str = "multiply_bf16_tiles";
/// Shared memory of a thread block of [`TILES`], bytes: three half chunks. A half chunk holds 64 inputs of [`SIDE`]
/// features and of [`SIDE`] rows, in bf16 (2 bytes a number).
pub(super) const TILES_SHARED_BYTES: u32 = 3 * 2 * SIDE as u32 * 64 * 2;
/// Features and rows of a thread block of [`TILES`].
const SIDE: usize = 128;

/// Returns the thread blocks of [`TILES`] for a product of `m` rows and `n` output features.
pub(super) fn tiles_blocks(m: usize, n: usize) -> (usize, usize) {
    (m.div_ceil(SIDE), n.div_ceil(SIDE))
}

/// Names of all kernels `multiply_...`.
pub(super) const KERNELS: [&str; FORMS.len() + 1] = {
    let mut names = [TILES; FORMS.len() + 1];
    let mut at = 0;
    while at < FORMS.len() {
        names[at] = FORMS[at].kernel;
        at += 1;
    }
    names
};

/// Form of a kernel that multiplies by a matrix: the parameters of its template.
#[derive(Debug, Clone, Copy)]
pub(super) struct Form {
    /// Name of the kernel.
    pub(super) kernel: &'static str,
    /// Number of thread blocks that must fit on a multiprocessor at once, for speed.
    pub(super) resident: u32,
    /// Type of the numbers of the matrix; `None` for bf16.
    numbers: Option<NumberType>,
    /// Bands of output features of a thread block.
    bands: usize,
    /// Tiles of activation rows of a thread block.
    tiles: usize,
    /// Steps of the queue of weights.
    stages: usize,
}

use NumberType::{Fp8, Int4, Int8};
/// Forms of all kernels but [`TILES`], which has no form. Of the forms for a type of matrix, a form for fewer rows
/// comes before a form for more rows.
const FORMS: [Form; 16] = [
    form("multiply_int4_8", Some(Int4), (2, 1, 2), 2),
    form("multiply_int4_16", Some(Int4), (2, 2, 2), 2),
    form("multiply_int4_32", Some(Int4), (2, 4, 2), 2),
    form("multiply_int4_64", Some(Int4), (2, 8, 2), 1),
    form("multiply_int8_8", Some(Int8), (2, 1, 2), 2),
    form("multiply_int8_16", Some(Int8), (2, 2, 2), 2),
    form("multiply_int8_32", Some(Int8), (2, 4, 2), 2),
    form("multiply_int8_64", Some(Int8), (2, 8, 2), 1),
    form("multiply_fp8_8", Some(Fp8), (2, 1, 2), 2),
    form("multiply_fp8_16", Some(Fp8), (2, 2, 2), 2),
    form("multiply_fp8_32", Some(Fp8), (2, 4, 2), 2),
    form("multiply_fp8_64", Some(Fp8), (2, 8, 2), 1),
    form("multiply_bf16_8", None, (1, 1, 2), 2),
    form("multiply_bf16_16", None, (1, 2, 2), 2),
    form("multiply_bf16_32", None, (1, 4, 2), 2),
    form("multiply_bf16_64", None, (1, 8, 2), 1),
];

const fn form(
    kernel: &'static str,
    numbers: Option<NumberType>,
    (bands, tiles, stages): (usize, usize, usize),
    resident: u32,
) -> Form {
    Form { kernel, resident, numbers, bands, tiles, stages }
}

impl Form {
    /// Returns the form whose kernel has this name.
    pub(super) fn named(kernel: &str) -> Option<Form> {
        FORMS.into_iter().find(|form| form.kernel == kernel)
    }

    /// Returns the form that multiplies `m` rows of activations by a matrix of numbers of a type, or of bf16: the one
    /// for the fewest rows that takes all rows at once, or else the one for the most rows.
    pub(super) fn of(numbers: Option<NumberType>, m: usize) -> Form {
        let mut forms = FORMS.into_iter().filter(|form| form.numbers == numbers);
        let all = forms.clone().find(|form| form.rows() >= m);
        all.or_else(|| forms.next_back()).expect("there are forms for each type")
    }

    /// Rows of activations of a thread block.
    pub(super) fn rows(&self) -> usize {
        self.tiles * TILE
    }

    /// Returns the thread blocks of a product of `m` rows and `n` output features: row blocks of the same features are
    /// neighbours.
    pub(super) fn blocks(&self, m: usize, n: usize) -> (usize, usize) {
        (m.div_ceil(self.rows()), n.div_ceil(self.bands * BAND))
    }

    /// Returns the shared memory of a thread block, bytes: the warps' queues of 128 numbers a row and of the words of
    /// their groups, or later the warps' sums of a band.
    pub(super) fn shared_bytes(&self) -> u32 {
        let row_bytes = match self.numbers {
            None => 256,
            Some(Int4) => 64 + 16,
            Some(Int8 | Fp8) => 128 + 16,
        };
        let queues = self.stages * self.bands * BAND * row_bytes;
        let sums = self.rows() * BAND * 4;
        WARPS * queues.max(sums) as u32
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_form_with_the_fewest_rows_is_taken() {
        let rows = |m| Form::of(Some(Int4), m).rows();
        assert_eq!([1, 8, 9, 32, 33, 64, 65, 8192].map(rows), [8, 8, 16, 32, 64, 64, 64, 64]);
        assert_eq!(Form::of(None, 3).kernel, "multiply_bf16_8");
        assert_eq!(Form::of(Some(Fp8), 65).blocks(65, 33), (2, 2));
    }
}
