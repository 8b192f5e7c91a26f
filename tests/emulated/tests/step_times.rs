//! Tests that the time of a step is that between its events on the device, whatever the host does meanwhile.
#![allow(clippy::unwrap_used, reason = "tests state what must hold")]

use tiercel_device::StepId;
use tiercel_emulated::{EmulatedDriver, LAUNCH_US};
use tiercel_gpu::cuda::{CudaKv, CudaOps, CudaOptions, DevicePtr, Driver};
use tiercel_gpu::{Ops, TensorUse};

#[test]
fn a_step_takes_the_time_of_its_own_launches() {
    let mut driver = EmulatedDriver::new(1 << 28);
    let at = DevicePtr::default();
    let mut kv =
        CudaKv { at, blocks: 8, block_size: 16, layers: 1, kv_heads: 2, head_dim: 16, q8: false };
    kv.at = driver.allocate(8 * kv.block_bytes()).unwrap();
    let options = CudaOptions { exact: false, threads: 1, scratch: None };
    let mut ops = CudaOps::new(driver, kv, 2, options).unwrap();
    let mut gate_up = ops.tensor(2, 16, TensorUse::Activations).unwrap();
    let mut out = ops.tensor(2, 8, TensorUse::Activations).unwrap();
    ops.write(&mut gate_up, &[1.0; 32]).unwrap();
    // A launch that belongs to no step.
    ops.silu_mul(&gate_up, &mut out);
    for (step, launches) in [(1, 3), (2, 1)] {
        ops.begin(StepId(step));
        (0..launches).for_each(|_| ops.silu_mul(&gate_up, &mut out));
        ops.submit();
    }
    // Both steps are in flight. Each took the time of its own launches.
    assert_eq!(ops.step_us(), None, "no step has ended");
    for launches in [3, 1] {
        ops.finish().unwrap();
        assert_eq!(ops.step_us(), Some(launches * LAUNCH_US));
    }
    ops.finish().unwrap();
    assert_eq!(ops.step_us(), None, "no step was in flight");
}
