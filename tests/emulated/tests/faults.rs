//! Tests of the CUDA op set on an emulated GPU that refuses launches, fails, or has too little memory.
#![allow(clippy::unwrap_used, reason = "tests state what must hold")]

use tiercel_device::StepError;
use tiercel_emulated::{EmulatedDriver, Fault};
use tiercel_gpu::cuda::{CudaKv, CudaOps, CudaOptions, DevicePtr, Driver};
use tiercel_gpu::{Ops, TensorUse};

const MEMORY_BYTES: usize = 1 << 28;
const OPTIONS: CudaOptions = CudaOptions { exact: false, threads: 1, scratch: None };

/// Allocates a KV cache of 8 blocks for a model with one layer and two key heads of width 16.
fn kv(driver: &mut EmulatedDriver) -> CudaKv {
    let at = DevicePtr::default();
    let mut kv =
        CudaKv { at, blocks: 8, block_size: 16, layers: 1, kv_heads: 2, head_dim: 16, q8: false };
    kv.at = driver.allocate(8 * kv.block_bytes()).unwrap();
    kv
}

#[test]
fn a_launch_that_is_not_accepted_fails_the_step_and_no_other() {
    let mut driver = EmulatedDriver::new(MEMORY_BYTES).with_fault(Fault::Launch(0));
    let kv = kv(&mut driver);
    let mut ops = CudaOps::new(driver, kv, 2, OPTIONS).unwrap();
    let mut gate_up = ops.tensor(2, 16, TensorUse::Activations).unwrap();
    let mut out = ops.tensor(2, 8, TensorUse::Activations).unwrap();
    ops.write(&mut gate_up, &[1.0; 32]).unwrap();
    ops.silu_mul(&gate_up, &mut out);
    assert!(ops.read(&out).is_err());
    let failed = ops.finish();
    assert!(
        matches!(&failed, Err(StepError::Failed(why)) if why.contains("silu_mul")),
        "{failed:?}"
    );
    ops.silu_mul(&gate_up, &mut out);
    assert_eq!(ops.finish(), Ok(Vec::new()));
    assert_eq!(ops.read(&out).unwrap()[0], 0.73046875, "of 1: 0.7311 in bf16");
}

#[test]
fn a_device_that_is_lost_is_told_as_such() {
    let mut driver = EmulatedDriver::new(MEMORY_BYTES).with_fault(Fault::Lost(0));
    let kv = kv(&mut driver);
    let mut ops = CudaOps::new(driver, kv, 2, OPTIONS).unwrap();
    let mut gate_up = ops.tensor(2, 16, TensorUse::Activations).unwrap();
    let mut out = ops.tensor(2, 8, TensorUse::Activations).unwrap();
    ops.write(&mut gate_up, &[1.0; 32]).unwrap();
    ops.silu_mul(&gate_up, &mut out);
    assert!(matches!(ops.finish(), Err(StepError::DeviceLost(_))));
}

#[test]
fn too_little_memory_and_shapes_without_kernels_are_told_before_anything_runs() {
    let mut driver = EmulatedDriver::new(1 << 20);
    let held = kv(&mut driver);
    let error = CudaOps::new(driver, held, 2, OPTIONS).err().unwrap().to_string();
    assert!(error.contains("device memory"), "{error}");
    let mut driver = EmulatedDriver::new(MEMORY_BYTES);
    let odd = CudaKv { head_dim: 20, ..kv(&mut driver) };
    let error = CudaOps::new(driver, odd, 2, OPTIONS).err().unwrap().to_string();
    assert!(error.contains("heads of 20") && error.contains("--device cpu"), "{error}");
}
