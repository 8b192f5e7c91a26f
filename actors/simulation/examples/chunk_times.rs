//! Prints, for the modelled device, how long a step takes for several token budgets, and what it costs to compute a
//! prompt in chunks instead of in one step. The section "A step by its tokens" of `docs/simulation.md` compares the
//! results with those of an article. Start it by `cargo run --release -p tiercel-simulation --example chunk_times`.

use tiercel_device::MockProfile;
use tiercel_policy::scheduler::{CostModel, StepWork};

/// Number of streams that decode in every step, and number of context tokens of each stream.
const STREAMS: u32 = 32;
const CONTEXT: u32 = 1024;
/// Numbers of prompt tokens that a step computes beside the decodes of the streams.
const PREFILLS: [u32; 5] = [0, 128, 256, 512, 1024];
/// Number of tokens of the prompt that is computed in chunks, and the chunk sizes to compare, tokens.
const PROMPT: u32 = 2048;
const CHUNKS: [u32; 6] = [2048, 1024, 512, 256, 128, 64];

struct Device {
    cost: CostModel,
    prefill_step_us: f64,
}

impl Device {
    /// Predicts the time of a step that decodes all streams and computes `prefill` prompt tokens, ms. The first
    /// `computed` tokens of the prompt were computed by earlier steps.
    fn step_ms(&self, prefill: u32, computed: u32) -> f64 {
        let mut work = StepWork::default();
        (0..STREAMS).for_each(|_| work.add_decode(CONTEXT));
        if prefill == 0 {
            return self.cost.step_us(&work) / 1000.0;
        }
        work.add_prefill(prefill, computed);
        (self.cost.step_us(&work) + self.prefill_step_us) / 1000.0
    }
}

fn main() {
    let profile = MockProfile::named("llama70b-h100").expect("it is built in");
    let cost = CostModel::new(profile.device_profile(), &profile.info());
    let device = Device { cost, prefill_step_us: profile.prefill_step_us };
    println!("budget,prefill,step_ms");
    for prefill in PREFILLS {
        println!("{},{prefill},{:.1}", STREAMS + prefill, device.step_ms(prefill, 0));
    }
    println!("chunk,steps,prompt_ms,overhead_percent,longest_step_ms");
    let alone_ms = device.step_ms(0, 0);
    let whole_ms = device.step_ms(PROMPT, 0) - alone_ms;
    for chunk in CHUNKS {
        let starts = (0..PROMPT).step_by(chunk as usize);
        let steps: Vec<f64> = starts.map(|computed| device.step_ms(chunk, computed)).collect();
        let prompt_ms = steps.iter().map(|ms| ms - alone_ms).sum::<f64>();
        let longest_ms = steps.iter().copied().fold(0.0, f64::max);
        let overhead = 100.0 * (prompt_ms / whole_ms - 1.0);
        println!("{chunk},{},{prompt_ms:.1},{overhead:.1},{longest_ms:.0}", steps.len());
    }
}
