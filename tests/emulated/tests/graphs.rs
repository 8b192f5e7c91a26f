//! Tests that the number of CUDA graphs stays limited, however many row layouts decode steps have: at the limit, each
//! new graph replaces the graph that was used longest ago.
#![allow(clippy::unwrap_used, reason = "tests state what must hold")]

use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering};
use tiercel_device::BlockId;
use tiercel_emulated::EmulatedDriver;
use tiercel_gpu::cuda::{CudaKv, CudaOps, CudaOptions, CudaTensor, DevicePtr, Driver};
use tiercel_gpu::{AttentionShape, Ops, SeqRows, TensorUse};

/// Most CUDA graphs that the op set keeps.
const GRAPHS_MAX: usize = 192;
const SHAPE: AttentionShape =
    AttentionShape { heads: 4, kv_heads: 2, head_dim: 16, scale: 0.25, sliding_window: None };

/// An op set with two tensors, for steps of one kernel.
struct Machine {
    ops: CudaOps<EmulatedDriver>,
    gate_up: CudaTensor,
    out: CudaTensor,
}

impl Machine {
    fn new(mut driver: EmulatedDriver) -> Machine {
        let at = DevicePtr::default();
        let mut kv = CudaKv {
            at,
            blocks: 9,
            block_size: 16,
            layers: 1,
            kv_heads: 2,
            head_dim: 16,
            q8: false,
        };
        kv.at = driver.allocate(9 * kv.block_bytes()).unwrap();
        let options = CudaOptions { exact: false, threads: 1, scratch: Some(BlockId(8)) };
        let mut ops = CudaOps::new(driver, kv, 2, options).unwrap();
        let mut tensor = |cols| ops.tensor(1, cols, TensorUse::Activations).unwrap();
        let (gate_up, out) = (tensor(16), tensor(8));
        Machine { ops, gate_up, out }
    }

    /// Runs step number `number`, a decode step of a layout.
    fn step(&mut self, number: usize, layout: usize) {
        let value = number as f32;
        self.ops.write(&mut self.gate_up, &[value; 16]).unwrap();
        let (rows, blocks) = layout_of(layout);
        assert_eq!(self.ops.pad_decode(rows, 256, false), Some((rows, BlockId(8))));
        let seqs: Vec<SeqRows> = (0..rows).map(|row| seq(row..row + 1, blocks)).collect();
        let _batch = self.ops.batch(&seqs, &[SHAPE]);
        self.ops.silu_mul(&self.gate_up, &mut self.out);
        self.ops.submit();
        assert_eq!(self.ops.finish(), Ok(Vec::new()));
        let expected = value / (1.0 + (-value).exp()) * value;
        let found = self.ops.read(&self.out).unwrap()[0];
        assert!((found - expected).abs() <= expected.abs() / 100.0, "{found}, not {expected}");
    }
}

/// Returns the rows of a layout, a number that needs no padding, and the entries of the block table of each row.
fn layout_of(number: usize) -> (usize, usize) {
    let rows = match number % 20 {
        small @ 0..4 => 1 << small,
        middle @ 4..11 => (middle - 2) * 8,
        large => (large - 6) * 16,
    };
    (rows, 1 << (number / 20))
}

fn seq(rows: Range<usize>, blocks: usize) -> SeqRows {
    SeqRows { rows, first_pos: 0, table: (0..blocks as u32).map(|b| BlockId(b % 8)).collect() }
}

#[test]
fn a_full_cache_drops_one_graph_for_a_new_one_and_steps_stay_right() {
    let driver = EmulatedDriver::new(1 << 28);
    let (kept, replayed) = (driver.kept(), driver.replayed());
    let count = |of: &AtomicUsize| of.load(Ordering::Relaxed);
    let mut machine = Machine::new(driver);
    let mut number = 0;
    // Each layout gets a graph for each of the two slots, since a graph names the memory of its slot.
    let mut run = |layout: usize, times: usize| {
        for _ in 0..times {
            number += 1;
            machine.step(number % 5 + 1, layout);
        }
    };
    for layout in 0..GRAPHS_MAX / 2 {
        run(layout, 4);
        assert_eq!(count(&kept), 2 * (layout + 1));
    }
    run(0, 2);
    assert_eq!(count(&replayed), GRAPHS_MAX + 2);
    // Two graphs go for the two of a new layout: those of layout 1, which was used longest ago.
    run(GRAPHS_MAX / 2, 4);
    assert_eq!(count(&kept), GRAPHS_MAX);
    let before = count(&replayed);
    run(0, 2);
    run(2, 2);
    assert_eq!(count(&replayed), before + 4, "their graphs are still there");
    run(1, 2);
    assert_eq!(count(&replayed), before + 4, "the graphs of layout 1 are gone");
}
