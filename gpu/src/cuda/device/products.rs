//! Matrix products on the GPU by cuBLASLt, the interface of NVIDIA's library in which the caller chooses an algorithm
//! once and keeps it.
#![expect(unsafe_code, reason = "bindings to cuBLASLt")]

use super::calls::cublaslt::{self as calls, CublasError, Found};
use crate::cuda::{CudaError, DevicePtr, Product};
use cudarc::cublaslt::sys;
use cudarc::driver::sys::CUstream;
use std::collections::HashMap;
use std::ffi::c_void;
use std::ptr::null_mut;

/// Size of the workspace that cuBLASLt algorithms may use, bytes: what NVIDIA recommends for Hopper.
pub(super) const WORKSPACE_BYTES: usize = 32 << 20;
/// Most plans of matrix products that are kept, one per matrix shape and number of rows. At the limit all plans are
/// discarded; each is made again when needed, in about 0.1 ms.
const PLANS_MAX: usize = 65_536;
/// Value of the constant `CUBLAS_OP_T` (transposed operand), which the bindings of cuBLASLt leave out.
static TRANSPOSED: i32 = 1;
/// Shape of a matrix product, which determines its plan.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct Shape {
    /// Number of rows.
    m: usize,
    n: usize,
    k: usize,
    wide: bool,
    stride: usize,
}

/// Plan of a matrix product: cuBLASLt's descriptors of the matrices, and the algorithm.
struct Plan {
    operation: sys::cublasLtMatmulDesc_t,
    w: sys::cublasLtMatrixLayout_t,
    x: sys::cublasLtMatrixLayout_t,
    out: sys::cublasLtMatrixLayout_t,
    algorithm: sys::cublasLtMatmulAlgo_t,
}

/// cuBLASLt handle with the plans of the matrix products that it has computed.
pub(super) struct Products {
    handle: sys::cublasLtHandle_t,
    workspace: DevicePtr,
    plans: HashMap<Shape, Plan>,
}

// SAFETY: cuBLASLt handles and descriptors may be used from any thread, by one thread at a time.
unsafe impl Send for Products {}

impl Products {
    /// Makes a cuBLASLt handle without plans of products. `workspace` is the address of [`WORKSPACE_BYTES`] bytes of
    /// device memory.
    pub(super) fn new(workspace: DevicePtr) -> Result<Products, CudaError> {
        let mut handle = null_mut();
        // SAFETY: cuBLASLt writes one address to a valid address.
        unsafe { calls::cublasLtCreate(&raw mut handle) }.map_err(|error| {
            CudaError::Unavailable(format!("cuBLASLt could not be started: {}", error.words()))
        })?;
        Ok(Products { handle, workspace, plans: HashMap::new() })
    }

    /// Starts a matrix product on a CUDA stream, after all work requested on it before.
    pub(super) fn multiply(&mut self, p: Product, stream: CUstream) -> Result<(), CudaError> {
        let failed = |error: CublasError| CudaError::Launch {
            kernel: format!("the product of [{}, {}] and [{}, {}]ᵀ", p.m, p.k, p.n, p.k),
            why: error.words(),
        };
        let shape = Shape { m: p.m, n: p.n, k: p.k, wide: p.wide, stride: p.stride };
        if !self.plans.contains_key(&shape) {
            if self.plans.len() >= PLANS_MAX {
                self.plans.clear();
            }
            let plan = self.plan(shape).map_err(failed)?;
            self.plans.insert(shape, plan);
        }
        let plan = &self.plans[&shape];
        let (one, zero) = (1.0_f32, 0.0_f32);
        // SAFETY: the descriptors of the product's plan live as long as the plan; the caller's matrices have the plan's
        // sizes and strides and, like the workspace, live as long as the driver. `out` is both C and D: with a factor
        // of zero C is not read.
        unsafe {
            calls::cublasLtMatmul(
                self.handle,
                plan.operation,
                (&raw const one).cast(),
                p.w.0 as *const c_void,
                plan.w,
                p.x.0 as *const c_void,
                plan.x,
                (&raw const zero).cast(),
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

    /// Makes the plan of a matrix product and chooses its algorithm: the fastest by cuBLASLt's estimate.
    fn plan(&self, shape: Shape) -> Result<Plan, CublasError> {
        let mut plan = Plan::new(shape)?;
        let mut preference = null_mut();
        // SAFETY: cuBLASLt writes one address to a valid address.
        unsafe { calls::cublasLtMatmulPreferenceCreate(&raw mut preference) }?;
        let found = self.fastest(&plan, preference);
        // SAFETY: the preference for algorithms was made by this function, and this is its last use.
        unsafe { calls::cublasLtMatmulPreferenceDestroy(preference) }?;
        plan.algorithm = found?;
        Ok(plan)
    }

    /// Returns the fastest algorithm for a plan by cuBLASLt's estimate, or [`CublasError::NOTHING_FITS`].
    fn fastest(
        &self,
        plan: &Plan,
        preference: sys::cublasLtMatmulPreference_t,
    ) -> Result<sys::cublasLtMatmulAlgo_t, CublasError> {
        use sys::cublasLtMatmulPreferenceAttributes_t::{
            CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES as WORKSPACE,
            CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK as REDUCTION,
        };
        use sys::cublasLtReductionScheme_t::CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE as IN_F32;
        // Excludes algorithms that round partial sums to bf16 before adding them.
        let reduction = IN_F32 as u32;
        let mut found = Found::EMPTY;
        let mut count = 0;
        // SAFETY: the preference for algorithms was just made and the plan's descriptors live; each attribute is read
        // from a value of its type; at most one result is written, to memory for one result, which `Found` has the size
        // and alignment of.
        unsafe {
            let set = |which, value: *const c_void, size| {
                calls::cublasLtMatmulPreferenceSetAttribute(preference, which, value, size)
            };
            let workspace = WORKSPACE_BYTES;
            set(WORKSPACE, (&raw const workspace).cast(), size_of_val(&workspace))?;
            set(REDUCTION, (&raw const reduction).cast(), size_of_val(&reduction))?;
            calls::cublasLtMatmulAlgoGetHeuristic(
                self.handle,
                plan.operation,
                plan.w,
                plan.x,
                plan.out,
                plan.out,
                preference,
                1,
                (&raw mut found).cast(),
                &raw mut count,
            )?;
        }
        if count < 1 || found.status != 0 {
            return Err(CublasError::NOTHING_FITS);
        }
        Ok(found.algorithm)
    }
}

impl Plan {
    /// Makes the descriptors of a matrix product, without an algorithm. cuBLASLt matrices are column-major, so it
    /// computes out ᵀ[n, m] = (w ᵀ[k, n])ᵀ · x ᵀ[k, m].
    fn new(Shape { m, n, k, wide, stride }: Shape) -> Result<Plan, CublasError> {
        use sys::cudaDataType::{CUDA_R_16BF as BF16, CUDA_R_32F as F32};
        let nothing = null_mut();
        let algorithm = sys::cublasLtMatmulAlgo_t { data: [0; 8] };
        // If a later descriptor cannot be made, dropping the plan destroys the earlier ones.
        let mut plan =
            Plan { operation: null_mut(), w: nothing, x: nothing, out: nothing, algorithm };
        let compute = sys::cublasComputeType_t::CUBLAS_COMPUTE_32F;
        let transposed = sys::cublasLtMatmulDescAttributes_t::CUBLASLT_MATMUL_DESC_TRANSA;
        let (m, n, k) = (m as u64, n as u64, k as u64);
        let result = if wide { F32 } else { BF16 };
        // SAFETY: cuBLASLt writes the address of each descriptor to a valid address; the attribute is read from a value
        // of its type.
        unsafe {
            calls::cublasLtMatmulDescCreate(&raw mut plan.operation, compute, F32)?;
            let value = (&raw const TRANSPOSED).cast();
            let bytes = size_of_val(&TRANSPOSED);
            calls::cublasLtMatmulDescSetAttribute(plan.operation, transposed, value, bytes)?;
            calls::cublasLtMatrixLayoutCreate(&raw mut plan.w, BF16, k, n, k as i64)?;
            calls::cublasLtMatrixLayoutCreate(&raw mut plan.x, BF16, k, m, k as i64)?;
            calls::cublasLtMatrixLayoutCreate(&raw mut plan.out, result, n, m, stride as i64)?;
        }
        Ok(plan)
    }
}

impl Drop for Plan {
    fn drop(&mut self) {
        // SAFETY: each descriptor that is not null was made in `Plan::new`, and this is its last use; cuBLASLt copies
        // the data that a running product needs.
        unsafe {
            if !self.operation.is_null() {
                let _ = calls::cublasLtMatmulDescDestroy(self.operation);
            }
            for layout in [self.w, self.x, self.out] {
                if !layout.is_null() {
                    let _ = calls::cublasLtMatrixLayoutDestroy(layout);
                }
            }
        }
    }
}

impl Drop for Products {
    fn drop(&mut self) {
        self.plans.clear();
        // SAFETY: `Products::new` created the cuBLASLt handle, and nothing uses the handle after this call.
        let _ = unsafe { calls::cublasLtDestroy(self.handle) };
    }
}
