//! Matrix products by cuBLASLt, at the level where its algorithm is chosen once and kept.
#![expect(unsafe_code, reason = "bindings to cuBLASLt")]

use crate::cuda::{CudaError, DevicePtr, Product};
use cudarc::cublaslt::result::{self, CublasError};
use cudarc::cublaslt::sys;
use cudarc::driver::sys::CUstream;
use std::collections::HashMap;
use std::ffi::c_void;

/// Scratch memory that algorithms may use, bytes: what NVIDIA recommends for Hopper.
pub(super) const WORKSPACE_BYTES: usize = 32 << 20;
/// Plans kept; a server of any size has fewer, and whoever has more chooses them again.
const PLANS_MAX: usize = 16_384;
/// `CUBLAS_OP_T`, which the bindings of cuBLASLt leave out.
static TRANSPOSED: i32 = 1;
/// Rows for which the algorithm of all row counts is chosen where results must not depend on them.
const PINNED_ROWS: usize = 64;

/// What a plan depends on: rows, output features, input features, and whether the result is f32.
type Shape = (usize, usize, usize, bool);

/// A product that is ready to run.
struct Plan {
    operation: sys::cublasLtMatmulDesc_t,
    w: sys::cublasLtMatrixLayout_t,
    x: sys::cublasLtMatrixLayout_t,
    out: sys::cublasLtMatrixLayout_t,
    algorithm: sys::cublasLtMatmulAlgo_t,
}

/// A cuBLASLt handle with its plans.
pub(super) struct Products {
    handle: sys::cublasLtHandle_t,
    workspace: DevicePtr,
    /// One algorithm for all row counts of a matrix.
    pinned: bool,
    plans: HashMap<Shape, Plan>,
}

// SAFETY: handles may be used from any thread, by one at a time.
unsafe impl Send for Products {}

impl Products {
    /// `workspace` has [`WORKSPACE_BYTES`].
    pub(super) fn new(workspace: DevicePtr, pinned: bool) -> Result<Products, CudaError> {
        let handle = result::create_handle().map_err(|error| {
            CudaError::Unavailable(format!("cuBLASLt could not be started: {error:?}"))
        })?;
        Ok(Products { handle, workspace, pinned, plans: HashMap::new() })
    }

    /// Starts a product in stream order.
    pub(super) fn multiply(&mut self, p: Product, stream: CUstream) -> Result<(), CudaError> {
        let failed = |error: CublasError| CudaError::Launch {
            kernel: format!("the product of [{}, {}] and [{}, {}]ᵀ", p.m, p.k, p.n, p.k),
            why: format!("{error:?}"),
        };
        let shape = (p.m, p.n, p.k, p.wide);
        if !self.plans.contains_key(&shape) {
            if self.plans.len() >= PLANS_MAX {
                self.plans.clear();
            }
            let plan = self.plan(shape).map_err(failed)?;
            self.plans.insert(shape, plan);
        }
        let plan = &self.plans[&shape];
        let (one, zero) = (1.0_f32, 0.0_f32);
        // SAFETY: the plan's descriptors live as long as it; the caller's matrices have the plan's sizes and, like the
        // workspace, live as long as the driver. `out` is both C and D: with a factor of zero C is not read.
        unsafe {
            result::matmul(
                self.handle,
                plan.operation,
                (&raw const one).cast(),
                (&raw const zero).cast(),
                p.w.0 as *const c_void,
                plan.w,
                p.x.0 as *const c_void,
                plan.x,
                p.out.0 as *const c_void,
                plan.out,
                p.out.0 as *mut c_void,
                plan.out,
                &raw const plan.algorithm,
                self.workspace.0 as *mut c_void,
                WORKSPACE_BYTES,
                stream.cast(),
            )
        }
        .map_err(failed)
    }

    /// Chooses how to compute a product. cuBLASLt counts by columns: out ᵀ[n, m] = (w ᵀ[k, n])ᵀ · x ᵀ[k, m].
    fn plan(&self, (m, n, k, wide): Shape) -> Result<Plan, CublasError> {
        use sys::cudaDataType::{CUDA_R_16BF as BF16, CUDA_R_32F as F32};
        let operation =
            result::create_matmul_desc(sys::cublasComputeType_t::CUBLAS_COMPUTE_32F, F32)?;
        // SAFETY: the descriptor was just made; the attribute is read from a value of its type.
        unsafe {
            result::set_matmul_desc_attribute(
                operation,
                sys::cublasLtMatmulDescAttributes_t::CUBLASLT_MATMUL_DESC_TRANSA,
                (&raw const TRANSPOSED).cast(),
                size_of_val(&TRANSPOSED),
            )?;
        }
        let result_type = if wide { F32 } else { BF16 };
        let mut plan = Plan {
            operation,
            w: result::create_matrix_layout(BF16, k as u64, n as u64, k as i64)?,
            x: result::create_matrix_layout(BF16, k as u64, m as u64, k as i64)?,
            out: result::create_matrix_layout(result_type, n as u64, m as u64, n as i64)?,
            algorithm: sys::cublasLtMatmulAlgo_t { data: [0; 8] },
        };
        plan.algorithm = self.algorithm(&plan, (m, n, k, wide))?;
        Ok(plan)
    }

    fn algorithm(
        &self,
        plan: &Plan,
        (m, n, k, wide): Shape,
    ) -> Result<sys::cublasLtMatmulAlgo_t, CublasError> {
        if self.pinned && m != PINNED_ROWS {
            return Ok(self.plan((PINNED_ROWS, n, k, wide))?.algorithm);
        }
        let preference = result::create_matmul_pref()?;
        let bytes = WORKSPACE_BYTES;
        // SAFETY: the preference was just made and the plan's descriptors live; each attribute is read from a value of its
        // type.
        let found = unsafe {
            result::set_matmul_pref_attribute(
                preference,
                sys::cublasLtMatmulPreferenceAttributes_t::CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES,
                (&raw const bytes).cast(),
                size_of_val(&bytes),
            )
            .and_then(|()| {
                if !self.pinned {
                    return Ok(());
                }
                // Sums that are split and put together later may be split elsewhere for other row counts.
                let none = sys::cublasLtReductionScheme_t::CUBLASLT_REDUCTION_SCHEME_NONE as u32;
                result::set_matmul_pref_attribute(
                    preference,
                    sys::cublasLtMatmulPreferenceAttributes_t::CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK,
                    (&raw const none).cast(),
                    size_of_val(&none),
                )
            })
            .and_then(|()| {
                result::get_matmul_algo_heuristic(
                    self.handle,
                    plan.operation,
                    plan.w,
                    plan.x,
                    plan.out,
                    plan.out,
                    preference,
                )
            })
        };
        // SAFETY: made above, this is its last use.
        unsafe { result::destroy_matmul_pref(preference) }?;
        Ok(found?.algo)
    }
}

impl Drop for Plan {
    fn drop(&mut self) {
        // SAFETY: made together in `plan`, and this is their last use; cuBLASLt copies what a running product needs.
        unsafe {
            let _ = result::destroy_matmul_desc(self.operation);
            for layout in [self.w, self.x, self.out] {
                let _ = result::destroy_matrix_layout(layout);
            }
        }
    }
}

impl Drop for Products {
    fn drop(&mut self) {
        self.plans.clear();
        // SAFETY: made in `new`, and this is its last use.
        let _ = unsafe { result::destroy_handle(self.handle) };
    }
}
