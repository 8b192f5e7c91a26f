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
/// Number of activation rows for which the pinned algorithm of a matrix shape is chosen. The algorithm serves all
/// numbers of rows, so that results do not depend on the number of rows; it must support each number in `OTHER_ROWS`
/// too.
const PINNED_ROWS: usize = 64;
const OTHER_ROWS: [usize; 6] = [1, 2, 17, 256, 2048, 8192];
/// Most cuBLASLt algorithms that are tried as the pinned algorithm of a matrix, best first.
const CANDIDATES: usize = 16;

/// Shape of a matrix product, which determines its plan.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct Shape {
    /// Number of rows; not counted in a key of pinned algorithms, where it is 0.
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
    /// Whether a matrix has one pinned algorithm for all numbers of rows, so that results do not depend on the number
    /// of rows.
    pinned: bool,
    plans: HashMap<Shape, Plan>,
    /// Pinned algorithm of each shape with 0 rows. Empty if algorithms are not pinned.
    algorithms: HashMap<Shape, sys::cublasLtMatmulAlgo_t>,
}

// SAFETY: cuBLASLt handles and descriptors may be used from any thread, by one thread at a time.
unsafe impl Send for Products {}

impl Products {
    /// Makes a cuBLASLt handle without plans of products. `workspace` is the address of [`WORKSPACE_BYTES`] bytes of
    /// device memory.
    pub(super) fn new(workspace: DevicePtr, pinned: bool) -> Result<Products, CudaError> {
        let mut handle = null_mut();
        // SAFETY: cuBLASLt writes one address to a valid address.
        unsafe { calls::cublasLtCreate(&raw mut handle) }.map_err(|error| {
            CudaError::Unavailable(format!("cuBLASLt could not be started: {}", error.words()))
        })?;
        Ok(Products {
            handle,
            workspace,
            pinned,
            plans: HashMap::new(),
            algorithms: HashMap::new(),
        })
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
        // sizes and strides and, like the workspace, live as long as the driver. `out` is both C and D: with a factor of zero C is
        // not read.
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
                self.workspace_bytes(),
                stream.cast(),
            )
        }
        .map_err(failed)
    }

    /// Returns the size of the workspace that a matrix product may use, bytes: 0 for pinned algorithms, because an
    /// algorithm with a workspace may add partial sums there, in an order that depends on the number of thread blocks.
    fn workspace_bytes(&self) -> usize {
        if self.pinned { 0 } else { WORKSPACE_BYTES }
    }

    /// Makes the plan of a matrix product and chooses its algorithm.
    fn plan(&mut self, shape: Shape) -> Result<Plan, CublasError> {
        let mut plan = Plan::new(shape)?;
        plan.algorithm = match self.pinned {
            false => *self.candidates(&plan, 1)?.first().ok_or(CublasError::NOTHING_FITS)?,
            true => self.pinned_algorithm(shape)?,
        };
        Ok(plan)
    }

    /// Returns the pinned algorithm of a matrix shape (the same for all numbers of rows), which is chosen at the first
    /// product with a matrix of this shape.
    fn pinned_algorithm(&mut self, shape: Shape) -> Result<sys::cublasLtMatmulAlgo_t, CublasError> {
        let key = Shape { m: 0, ..shape };
        if let Some(algorithm) = self.algorithms.get(&key) {
            return Ok(*algorithm);
        }
        let others = OTHER_ROWS.map(|m| Plan::new(Shape { m, ..shape }));
        let others: Vec<Plan> = others.into_iter().collect::<Result<_, _>>()?;
        let candidates =
            self.candidates(&Plan::new(Shape { m: PINNED_ROWS, ..shape })?, CANDIDATES)?;
        let does_all = |algorithm: &sys::cublasLtMatmulAlgo_t| {
            others.iter().all(|plan| self.can(plan, algorithm))
        };
        let algorithm = candidates.into_iter().find(does_all).ok_or(CublasError::NOTHING_FITS)?;
        self.algorithms.insert(key, algorithm);
        Ok(algorithm)
    }

    /// Whether a cuBLASLt algorithm can compute a matrix product within the workspace.
    fn can(&self, plan: &Plan, algorithm: &sys::cublasLtMatmulAlgo_t) -> bool {
        let mut found = Found::EMPTY;
        // SAFETY: the plan of the product and so its descriptors live; one result is written to memory for one result,
        // which `Found` has the size and alignment of.
        let checked = unsafe {
            calls::cublasLtMatmulAlgoCheck(
                self.handle,
                plan.operation,
                plan.w,
                plan.x,
                plan.out,
                plan.out,
                algorithm,
                (&raw mut found).cast(),
            )
        };
        checked.is_ok() && found.status == 0 && found.workspace_bytes <= self.workspace_bytes()
    }

    /// Returns at most `most` algorithms for a matrix product, in cuBLASLt's order: the fastest by its estimate first.
    fn candidates(
        &self,
        plan: &Plan,
        most: usize,
    ) -> Result<Vec<sys::cublasLtMatmulAlgo_t>, CublasError> {
        let mut preference = null_mut();
        // SAFETY: cuBLASLt writes one address to a valid address.
        unsafe { calls::cublasLtMatmulPreferenceCreate(&raw mut preference) }?;
        let found = self.candidates_by(plan, most, preference);
        // SAFETY: the preference for algorithms was made by this function, and this is its last use.
        unsafe { calls::cublasLtMatmulPreferenceDestroy(preference) }?;
        found
    }

    fn candidates_by(
        &self,
        plan: &Plan,
        most: usize,
        preference: sys::cublasLtMatmulPreference_t,
    ) -> Result<Vec<sys::cublasLtMatmulAlgo_t>, CublasError> {
        use sys::cublasLtMatmulPreferenceAttributes_t::{
            CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES as WORKSPACE,
            CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK as REDUCTION,
        };
        use sys::cublasLtReductionScheme_t::{
            CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE as IN_F32,
            CUBLASLT_REDUCTION_SCHEME_NONE as NONE,
        };
        let workspace = self.workspace_bytes();
        // Excludes algorithms that round partial sums to bf16 before adding them. If results must not depend on the
        // number of rows, excludes all algorithms that split sums, because the split may differ between numbers of
        // rows.
        let reduction = if self.pinned { NONE as u32 } else { IN_F32 as u32 };
        let mut found = [Found::EMPTY; CANDIDATES];
        let mut count = 0;
        // SAFETY: the preference for algorithms was just made and the plan's descriptors live; each attribute is read
        // from a value of its type; no more results are written than the array holds, whose elements have the size and
        // alignment of cuBLASLt's results.
        unsafe {
            let set = |which, value: *const c_void, size| {
                calls::cublasLtMatmulPreferenceSetAttribute(preference, which, value, size)
            };
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
                most.min(CANDIDATES) as i32,
                found.as_mut_ptr().cast(),
                &raw mut count,
            )?;
        }
        let written = found.iter().take(count.max(0) as usize);
        Ok(written.filter(|one| one.status == 0).map(|one| one.algorithm).collect())
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
        // SAFETY: cuBLASLt writes the address of each descriptor to a valid address; the attribute is read from a value of
        // its type.
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
        // SAFETY: each descriptor that is not null was made in `Plan::new`, and this is its last use; cuBLASLt copies the
        // data that a running product needs.
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
