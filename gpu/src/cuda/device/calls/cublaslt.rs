//! Calls of cuBLASLt. The functions have the contracts of NVIDIA's "cuBLAS" documentation, section "Using the cuBLASLt
//! API".

use super::calls;
use cudarc::cublaslt::sys::{
    cublasComputeType_t, cublasLtHandle_t, cublasLtMatmulAlgo_t, cublasLtMatmulDesc_t,
    cublasLtMatmulDescAttributes_t, cublasLtMatmulHeuristicResult_t, cublasLtMatmulPreference_t,
    cublasLtMatmulPreferenceAttributes_t, cublasLtMatrixLayout_t, cublasStatus_t, cudaDataType,
    cudaStream_t,
};
use std::ffi::{c_int, c_void};

/// Error of a call of cuBLASLt.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum CublasError {
    /// Status that cuBLASLt returned, a number of `cublasStatus_t` that may be newer than this program.
    Status(u32),
    /// cuBLASLt has no function of this name.
    Absent(&'static str),
}

impl CublasError {
    /// Error if no algorithm supports a matrix product.
    pub(crate) const NOTHING_FITS: CublasError =
        CublasError::Status(cublasStatus_t::CUBLAS_STATUS_NOT_SUPPORTED as u32);

    /// Returns a description of the error: the status as NVIDIA names it, if this program knows it, and its number.
    pub(crate) fn words(self) -> String {
        use cublasStatus_t::*;
        const KNOWN: [cublasStatus_t; 9] = [
            CUBLAS_STATUS_NOT_INITIALIZED,
            CUBLAS_STATUS_ALLOC_FAILED,
            CUBLAS_STATUS_INVALID_VALUE,
            CUBLAS_STATUS_ARCH_MISMATCH,
            CUBLAS_STATUS_MAPPING_ERROR,
            CUBLAS_STATUS_EXECUTION_FAILED,
            CUBLAS_STATUS_INTERNAL_ERROR,
            CUBLAS_STATUS_NOT_SUPPORTED,
            CUBLAS_STATUS_LICENSE_ERROR,
        ];
        let status = match self {
            CublasError::Absent(name) => {
                return format!("libcublasLt has no function {name}; install a newer one");
            }
            CublasError::Status(status) => status,
        };
        match KNOWN.into_iter().find(|known| *known as u32 == status) {
            Some(known) => format!("cuBLASLt's status {status}, {known:?}"),
            None => format!("cuBLASLt's status {status}, which is newer than this program"),
        }
    }
}

/// What cuBLASLt writes about an algorithm: cudarc's `cublasLtMatmulHeuristicResult_t`, with the status as a number.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub(crate) struct Found {
    pub(crate) algorithm: cublasLtMatmulAlgo_t,
    workspace_bytes: usize,
    /// Status of the algorithm for the product, a number of `cublasStatus_t`: 0 if the algorithm can compute it.
    pub(crate) status: u32,
    waves: f32,
    reserved: [c_int; 4],
}

const _: () = assert!(
    size_of::<Found>() == size_of::<cublasLtMatmulHeuristicResult_t>()
        && align_of::<Found>() == align_of::<cublasLtMatmulHeuristicResult_t>()
        && std::mem::offset_of!(Found, status)
            == std::mem::offset_of!(cublasLtMatmulHeuristicResult_t, state)
);

impl Found {
    /// Result in which nothing is written yet.
    pub(crate) const EMPTY: Found = Found {
        algorithm: cublasLtMatmulAlgo_t { data: [0; 8] },
        workspace_bytes: 0,
        status: 0,
        waves: 0.0,
        reserved: [0; 4],
    };
}

calls! {
    cudarc::cublaslt::sys, cublasStatus_t, CublasError;
    fn cublasLtCreate(handle: *mut cublasLtHandle_t);
    fn cublasLtDestroy(handle: cublasLtHandle_t);
    fn cublasLtMatmulDescCreate(
        made: *mut cublasLtMatmulDesc_t, compute: cublasComputeType_t, scale: cudaDataType,
    );
    fn cublasLtMatmulDescSetAttribute(
        operation: cublasLtMatmulDesc_t, which: cublasLtMatmulDescAttributes_t, value: *const c_void, bytes: usize,
    );
    fn cublasLtMatmulDescDestroy(operation: cublasLtMatmulDesc_t);
    fn cublasLtMatrixLayoutCreate(
        made: *mut cublasLtMatrixLayout_t, element: cudaDataType, rows: u64, cols: u64, stride: i64,
    );
    fn cublasLtMatrixLayoutDestroy(layout: cublasLtMatrixLayout_t);
    fn cublasLtMatmulPreferenceCreate(made: *mut cublasLtMatmulPreference_t);
    fn cublasLtMatmulPreferenceSetAttribute(
        preference: cublasLtMatmulPreference_t, which: cublasLtMatmulPreferenceAttributes_t, value: *const c_void,
        bytes: usize,
    );
    fn cublasLtMatmulPreferenceDestroy(preference: cublasLtMatmulPreference_t);
    fn cublasLtMatmulAlgoGetHeuristic(
        handle: cublasLtHandle_t, operation: cublasLtMatmulDesc_t, a: cublasLtMatrixLayout_t,
        b: cublasLtMatrixLayout_t, c: cublasLtMatrixLayout_t, d: cublasLtMatrixLayout_t,
        preference: cublasLtMatmulPreference_t, most: c_int, found: *mut cublasLtMatmulHeuristicResult_t,
        count: *mut c_int,
    );
    fn cublasLtMatmul(
        handle: cublasLtHandle_t, operation: cublasLtMatmulDesc_t, alpha: *const c_void, a: *const c_void,
        a_layout: cublasLtMatrixLayout_t, b: *const c_void, b_layout: cublasLtMatrixLayout_t, beta: *const c_void,
        c: *const c_void, c_layout: cublasLtMatrixLayout_t, d: *mut c_void, d_layout: cublasLtMatrixLayout_t,
        algorithm: *const cublasLtMatmulAlgo_t, workspace: *mut c_void, workspace_bytes: usize, stream: cudaStream_t,
    );
}
pub(crate) use raw::*;
