//! Weight matrices at work: products with activations, and rows as embeddings.
//!
//! cuBLASLt multiplies by bf16 matrices. A quantized matrix is multiplied in one of two ways. Kernels multiply few rows
//! of activations by the stored numbers. For more rows, the matrix is decoded to bf16 in strips that fit the strip
//! buffer, and each strip is multiplied as a bf16 matrix. If products must be exact, kernels take the place of
//! cuBLASLt. All kernels add up a row in the same order, whatever the number of rows.

use super::driver::{Arg, CudaError, DevicePtr, Driver, Product, Work};
use super::kernels::row_threads;
use super::memory::{CudaMatrix, CudaTensor, Held, Quantized};
use super::multiply::{Form, MULTIPLY_THREADS, TILES, TILES_SHARED_BYTES, tiles_blocks};
use super::ops::{CudaOps, DRAWN};
use crate::{NumberType, RowInput, UNIT};

/// Most rows of activations that are multiplied by the stored numbers of a quantized matrix. On an H100, for a matrix
/// `[8192, 8192]`, the kernels for stored numbers take 127 to 131 us for 128 rows (4-bit and 8-bit integers); decoding
/// and a product in bf16 take 142 to 152 us for 256 rows.
const STORED_ROWS_MAX: usize = 128;
/// Most rows of activations that the kernels for few rows multiply by a bf16 matrix if products must be exact. On an
/// H100, for a matrix `[8192, 8192]`, these kernels take 139 us for 64 rows, and the kernel for many rows takes 139 us
/// for 256 rows. With fewer rows, the kernel for many rows has not been measured.
const EXACT_ROWS_MAX: usize = 64;
/// Output features of a strip are a multiple of this, so that the columns of each strip begin at a multiple of 256
/// bytes in the first row of the result, as cuBLASLt's algorithms expect.
const STRIP_UNIT: usize = 128;

/// Device buffer into which a strip (consecutive rows) of a quantized matrix is decoded to bf16.
#[derive(Debug, Default)]
pub(super) struct Strip {
    at: DevicePtr,
    bytes: usize,
    /// Size of the largest strip of the matrices that are loaded, bytes.
    needed: usize,
}

/// Returns the number of output features of a strip of a matrix `[n, k]`: as many as take at most `most_bytes` bytes in
/// bf16, but not fewer than [`STRIP_UNIT`].
fn strip_features(n: usize, k: usize, most_bytes: usize) -> usize {
    let most = most_bytes / (2 * k) / STRIP_UNIT * STRIP_UNIT;
    most.max(STRIP_UNIT).min(n)
}

impl Strip {
    /// Notes that a quantized matrix `[n, k]` is loaded.
    pub(super) fn needs(&mut self, n: usize, k: usize, most_bytes: usize) {
        self.needed = self.needed.max(strip_features(n, k, most_bytes) * k * 2);
    }

    /// Returns the strip buffer. It is allocated when it is first used, because all matrices are loaded then. If a
    /// larger matrix was loaded later, a larger buffer takes its place, and the first is left until the driver ends.
    fn get<D: Driver>(&mut self, driver: &mut D) -> Result<DevicePtr, CudaError> {
        if self.bytes < self.needed {
            self.at = driver.allocate(self.needed)?;
            self.bytes = self.needed;
        }
        Ok(self.at)
    }
}

impl Quantized {
    /// Returns the first arguments of each kernel that reads the matrix.
    fn args(&self) -> [Arg; 5] {
        let units = |inputs: usize| Arg::U32((inputs / UNIT) as u32);
        [
            Arg::Ptr(self.numbers),
            Arg::Ptr(self.groups),
            units(self.shape.k.next_multiple_of(UNIT)),
            units(self.shape.group),
            Arg::U32(self.shape.n as u32),
        ]
    }
}

impl<D: Driver> CudaOps<D> {
    pub(super) fn look_up_rows(
        &mut self,
        table: &CudaMatrix,
        inputs: &[RowInput],
        out: &mut CudaTensor,
    ) {
        assert_eq!((table.k, true), (out.cols, out.wide), "embedding width, output columns");
        out.set_rows(inputs.len());
        let inputs_at = self.put(inputs.iter().map(|input| match *input {
            RowInput::Token(token) => token,
            RowInput::Drawn(row) => DRAWN | row as u32,
        }));
        let (tokens, cols) = ([Arg::Ptr(inputs_at), Arg::Ptr(self.steps.drawn_before())], out.cols);
        let (kernel, args) = match &table.held {
            Held::Bf16(at) => {
                let sizes = [table.n, cols].map(|size| Arg::U32(size as u32));
                ("embed", [&[Arg::Ptr(out.at), Arg::Ptr(*at)], &tokens[..], &sizes].concat())
            }
            Held::Quantized(matrix) => {
                let numbers = Arg::U32(matrix.shape.numbers.code());
                let held = [&[Arg::Ptr(out.at)], &matrix.args()[..], &[numbers]].concat();
                ("embed_quantized", [&held[..], &tokens, &[Arg::U32(cols as u32)]].concat())
            }
        };
        self.launch(kernel, (inputs.len(), 1), row_threads(cols), &args);
    }

    /// Computes `out = x · wᵀ`; `x` has at least one row.
    pub(super) fn multiply(&mut self, w: &CudaMatrix, x: &CudaTensor, out: &CudaTensor) {
        let (m, n, k, wide) = (x.rows, w.n, w.k, out.wide);
        let whole =
            Product { w: DevicePtr::default(), x: x.at, out: out.at, m, n, k, wide, stride: n };
        match &w.held {
            Held::Bf16(at) if self.exact_products && m <= EXACT_ROWS_MAX => {
                self.multiply_by(None, &[Arg::Ptr(*at), Arg::U32(n as u32)], whole);
            }
            Held::Bf16(at) => self.multiply_bf16(Product { w: *at, ..whole }),
            Held::Quantized(matrix) if m <= STORED_ROWS_MAX => {
                self.multiply_by(Some(matrix.shape.numbers), &matrix.args(), whole);
            }
            Held::Quantized(matrix) => self.multiply_strips(matrix, whole),
        }
    }

    /// Multiplies many rows by a bf16 matrix.
    fn multiply_bf16(&mut self, product: Product) {
        if !self.exact_products {
            return self.work(Work::Multiply(product));
        }
        let Product { w, x, out, m, n, k, wide, stride } = product;
        let size = |size: usize| Arg::U32(size as u32);
        let [w, x, out] = [w, x, out].map(Arg::Ptr);
        let args = [w, size(n), x, out, size(m), size(k), size(usize::from(wide)), size(stride)];
        let block = (MULTIPLY_THREADS, TILES_SHARED_BYTES);
        self.launch_shared(TILES, tiles_blocks(m, n), block, &args);
    }

    /// Launches a kernel `multiply_...`, whose first arguments `matrix` describe the matrix.
    fn multiply_by(&mut self, numbers: Option<NumberType>, matrix: &[Arg], product: Product) {
        let Product { x, out, m, n, k, wide, .. } = product;
        let form = Form::of(numbers, m);
        let sizes = [m, k, usize::from(wide)].map(|size| Arg::U32(size as u32));
        let args = [matrix, &[Arg::Ptr(x), Arg::Ptr(out)], &sizes].concat();
        let block = (MULTIPLY_THREADS, form.shared_bytes());
        self.launch_shared(form.kernel, form.blocks(m, n), block, &args);
    }

    fn multiply_strips(&mut self, matrix: &Quantized, product: Product) {
        let (mut buffer, mut strip) = (std::mem::take(&mut self.strip), DevicePtr::default());
        self.attempt(|driver| buffer.get(driver).map(|at| strip = at));
        self.strip = buffer;
        let Product { n, k, wide, .. } = product;
        let at_once = strip_features(n, k, self.driver.strip_bytes());
        for first in (0..n).step_by(at_once) {
            let features = at_once.min(n - first);
            let rest = [matrix.shape.numbers.code(), first as u32, k as u32].map(Arg::U32);
            let args = [&matrix.args()[..], &rest, &[Arg::Ptr(strip)]].concat();
            self.launch("decode_rows", (features, 1), row_threads(k / 2), &args);
            let out = product.out.offset(first * if wide { 4 } else { 2 });
            self.multiply_bf16(Product { w: strip, out, n: features, ..product });
        }
    }
}
