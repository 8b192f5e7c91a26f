//! Prints what preempting a request by swap, by recompute or by drop costs, as predicted by the scheduler's cost model.
//! The section "What a preemption costs" of `docs/simulation.md` compares the results with those of an article. Start
//! it by `cargo run --release -p tiercel-simulation --example preemption_costs`.

use tiercel_device::{Clock, MockDevice, MockOptions, MockProfile};
use tiercel_policy::scheduler::{CostModel, StepWork};
use tiercel_simulation::simulate;

/// Victims of preemption to compare: (prompt tokens, output tokens so far).
const STATES: [(u32, u32); 6] =
    [(512, 10), (512, 100), (2048, 50), (8192, 200), (512, 500), (32_768, 100)];
/// Number of streams that decode in each step while a dropped request, which its client sent again, computes its output
/// anew.
const STREAMS: u32 = 128;

fn main() {
    println!("prompt,output,swap_ms,recompute_ms,drop_ms");
    simulate(async |clock: Clock| {
        let profile = MockProfile::named("llama70b-tp8-a100").expect("it is built in");
        let device = MockDevice::open(MockOptions::new(profile, clock));
        let cost = CostModel::new(device.profile, &device.info);
        for (prompt, output) in STATES {
            let computed = prompt + output;
            let blocks = computed / device.info.block_size;
            let swap_ms = 2.0 * cost.copy_us(blocks) / 1000.0;
            let recompute_ms = cost.recompute_us(computed) / 1000.0;
            // The client of a dropped request sends it again: its prompt is computed anew, and then its output with one
            // step per token.
            let streams = StepWork {
                decode_tokens: STREAMS,
                kv_tokens: u64::from(STREAMS * 512),
                ..StepWork::default()
            };
            let step_ms = cost.step_us(&streams) / 1000.0;
            let drop_ms = cost.recompute_us(prompt) / 1000.0 + f64::from(output) * step_ms;
            println!("{prompt},{output},{swap_ms:.1},{recompute_ms:.1},{drop_ms:.0}");
        }
    });
}
