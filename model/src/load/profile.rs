//! First measurement of a device's speed, with a few steps on KV blocks that no sequence owns yet.

use std::sync::Arc;
use tiercel_device::{
    BlockId, Clock, CopyBatch, CopyDirection, CopyId, CopyPair, DeviceInfo, DeviceProfile,
    HostBlockId, QueuedCopier, QueuedRunner, SamplingParams, SeqId, SeqSlice, SeqStart, SliceInput,
    StepBatch, StepError, StepId, TokenId,
};

/// Time budget of the measurement, us: rounds of all measured steps are repeated until they have taken this long, but at
/// least [`ROUNDS_MIN`] and at most [`ROUNDS_MAX`] times. Of each step the fastest repeat counts.
const MEASURE_US: u64 = 1_000_000;
const ROUNDS_MIN: usize = 2;
const ROUNDS_MAX: usize = 8;
/// Batch size of the measured decode steps with several sequences. A small batch would not do: on a CPU, each sequence
/// of a batch of 32 takes a seventh more time than one of a batch of 8.
const DECODE_SEQS: u32 = 32;
const DECODE_SEQS_SLOW: u32 = 8;
/// Context of each sequence, tokens, in the decode step that measures the cost of reading KV. Longer contexts would
/// touch KV memory that the server may never need.
const CONTEXT: u32 = 512;
const PREFILL_TOKENS: u32 = 64;
/// Duration of a one-token step, us, above which a model counts as slow. A slow model is measured with a smaller batch
/// and a shorter chunk.
const SLOW_STEP_US: u64 = 50_000;
const PREFILL_TOKENS_SLOW: u32 = 8;
/// Number of repeats of the copy that measures the bandwidth between device pool and host pool.
const COPIES: usize = 8;
/// Maximum number of KV blocks in the copy that measures the bandwidth between device pool and host pool.
const COPY_BLOCKS: u32 = 64;

/// Durations and sizes of the steps that were measured to know a device's speed.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Measured {
    /// Duration of a step of one decode token without context, us.
    one_us: f64,
    /// Duration of a step of `seqs` decode tokens without context, us.
    many_us: f64,
    seqs: u32,
    /// Duration of a step of `seqs` decode tokens, each with `context` tokens of KV, us.
    deep_us: f64,
    context: u32,
    /// Duration of a step of one chunk of `prefill` prompt tokens without context, us.
    prefill_us: f64,
    prefill: u32,
    /// Duration of a step of one chunk of `prefill` prompt tokens after `prefill_context` tokens of context, us.
    prefill_deep_us: f64,
    prefill_context: u32,
}

/// Measures the durations of a few steps on a fresh device and returns its profile. Leaves no sequence behind; the KV
/// blocks that the steps wrote hold garbage, as free blocks may.
pub(super) fn measure_steps(
    runner: &mut impl QueuedRunner,
    info: &DeviceInfo,
    max_seqs: u32,
    max_tokens: u32,
) -> Result<DeviceProfile, StepError> {
    let mut scratch = Scratch { runner, info, clock: Clock::wall(), step: 0 };
    let most = max_seqs.min(max_tokens).min(info.device_blocks).max(1);
    let started = DECODE_SEQS.min(most);
    scratch.start(started)?;
    let one = Shape { seqs: 1, first_pos: 0, tokens: 1 };
    // The first run of a step is not counted, because the first access to memory can make the step ten times slower.
    scratch.time(one)?;
    let slow = scratch.time(one)? > SLOW_STEP_US as f64;
    let (seqs, prefill) = match slow {
        true => (DECODE_SEQS_SLOW, PREFILL_TOKENS_SLOW),
        false => (DECODE_SEQS, PREFILL_TOKENS),
    };
    let seqs = seqs.min(most);
    let per_seq = info.device_blocks / seqs * info.block_size;
    let context = CONTEXT.min(per_seq.saturating_sub(1)).min(info.max_model_len - 1);
    let room = info.device_blocks.saturating_mul(info.block_size).min(info.max_model_len);
    let prefill = prefill.min(max_tokens).min(room);
    let prefill_context = context.min(room - prefill);
    let [one_us, many_us, deep_us, prefill_us, prefill_deep_us] = scratch.fastest([
        one,
        Shape { seqs, ..one },
        Shape { seqs, first_pos: context, tokens: 1 },
        Shape { tokens: prefill, ..one },
        Shape { seqs: 1, first_pos: prefill_context, tokens: prefill },
    ])?;
    let measured = Measured {
        one_us,
        many_us,
        seqs,
        deep_us,
        context,
        prefill_us,
        prefill,
        prefill_deep_us,
        prefill_context,
    };
    scratch.end(started)?;
    tracing::debug!(?measured, "measured the model's first steps");
    Ok(fit(&measured))
}

/// Fits the cost coefficients of a device profile to the durations of the measured steps. No coefficient is negative.
fn fit(m: &Measured) -> DeviceProfile {
    let extra = f64::from(m.seqs.max(2) - 1);
    let decode_token_us =
        if m.seqs > 1 { ((m.many_us - m.one_us) / extra).clamp(0.0, m.one_us) } else { m.one_us };
    let step_base_us = (m.one_us - decode_token_us).max(0.0);
    let read = f64::from(m.seqs) * f64::from(m.context.max(1));
    let pairs = f64::from(m.prefill) * f64::from(m.prefill_context.max(1));
    DeviceProfile {
        step_base_us,
        decode_token_us,
        prefill_token_us: ((m.prefill_us - step_base_us) / f64::from(m.prefill)).max(0.0),
        kv_token_us: ((m.deep_us - m.many_us) / read).max(0.0),
        prefill_context_us: ((m.prefill_deep_us - m.prefill_us) / pairs).max(0.0),
        link_bytes_per_s: 0.0,
    }
}

/// Shape of a measured step: `seqs` slices of `tokens` tokens each, from position `first_pos`.
#[derive(Debug, Clone, Copy)]
struct Shape {
    seqs: u32,
    first_pos: u32,
    tokens: u32,
}

struct Scratch<'a, R> {
    runner: &'a mut R,
    info: &'a DeviceInfo,
    clock: Clock,
    step: u64,
}

impl<R: QueuedRunner> Scratch<'_, R> {
    fn run(&mut self, mut batch: StepBatch) -> Result<(), StepError> {
        self.step += 1;
        batch.id = StepId(self.step);
        let output = self.runner.run(&batch)?;
        let fault = output.sampled.into_iter().find_map(|(_, result)| result.err());
        fault.map_or(Ok(()), |fault| Err(StepError::Failed(fault.to_string())))
    }

    fn start(&mut self, seqs: u32) -> Result<(), StepError> {
        let sampling = Arc::new(SamplingParams::greedy());
        let prompt: Arc<[TokenId]> = [0].into();
        let start = |seq| SeqStart { seq, sampling: sampling.clone(), prompt: prompt.clone() };
        self.run(StepBatch { starts: scratch_ids(seqs).map(start).collect(), ..empty() })
    }

    fn end(&mut self, seqs: u32) -> Result<(), StepError> {
        self.run(StepBatch { ends: scratch_ids(seqs).collect(), ..empty() })
    }

    /// Returns the durations of steps of these shapes, us: of each the fastest of several repeats. The repeats go round:
    /// all steps see the same moments of a machine whose speed changes, so that their differences mean something.
    fn fastest<const N: usize>(&mut self, shapes: [Shape; N]) -> Result<[f64; N], StepError> {
        for shape in shapes {
            self.time(shape)?;
        }
        let mut fastest = [f64::INFINITY; N];
        let start = self.clock.now();
        for round in 0..ROUNDS_MAX {
            if round >= ROUNDS_MIN && self.clock.now().since_us(start) > MEASURE_US {
                break;
            }
            for (time, shape) in fastest.iter_mut().zip(shapes) {
                *time = time.min(self.time(shape)?);
            }
        }
        Ok(fastest)
    }

    /// Returns the duration of one step of this shape, us.
    fn time(&mut self, shape: Shape) -> Result<f64, StepError> {
        let batch = self.batch(shape);
        let start = self.clock.now();
        self.run(batch)?;
        Ok(self.clock.now().since_us(start) as f64)
    }

    fn batch(&self, Shape { seqs, first_pos, tokens }: Shape) -> StepBatch {
        let blocks = (first_pos + tokens).div_ceil(self.info.block_size);
        let vocab = self.info.vocab_size;
        let slice = |(number, seq): (u32, SeqId)| SeqSlice {
            seq,
            first_pos,
            input: SliceInput::Known((0..tokens).map(|i| (number + i) * 31 % vocab).collect()),
            table: (number * blocks..(number + 1) * blocks).map(BlockId).collect(),
            sample: (tokens == 1).then_some(0),
        };
        StepBatch { slices: (0..).zip(scratch_ids(seqs)).map(slice).collect(), ..empty() }
    }
}

fn empty() -> StepBatch {
    StepBatch { id: StepId(0), starts: vec![], ends: vec![], slices: vec![] }
}

/// Returns ids for the sequences of the measured steps, counted down from the largest id. The engine counts its ids up
/// from the smallest, and the measured sequences end before the engine starts.
fn scratch_ids(seqs: u32) -> impl Iterator<Item = SeqId> {
    (0..u64::from(seqs)).map(|number| SeqId(u64::MAX - number))
}

/// Measures the bandwidth of copies from the device pool to the host pool, bytes per second; 0 without a host pool or
/// if a copy fails. `usable` is the number of host blocks that can be used already.
pub(super) fn measure_link(copier: &mut impl QueuedCopier, info: &DeviceInfo, usable: u32) -> f64 {
    let blocks = COPY_BLOCKS.min(info.device_blocks).min(usable);
    if blocks == 0 {
        return 0.0;
    }
    let pair = |number| CopyPair { device: BlockId(number), host: HostBlockId(number) };
    let pairs = (0..blocks).map(pair).collect();
    let batch = CopyBatch::needed(CopyId(0), CopyDirection::Out, pairs);
    let clock = Clock::wall();
    let mut best_us = u64::MAX;
    // The fastest of the repeated copies counts: the first is slower, because it touches the memory for the first time.
    for _ in 0..COPIES {
        let start = clock.now();
        if let Err(error) = copier.copy(&batch) {
            tracing::warn!(%error, "measuring the speed of copies to the host pool failed");
            return 0.0;
        }
        best_us = best_us.min(clock.now().since_us(start).max(1));
    }
    u64::from(blocks) as f64 * info.block_bytes as f64 * 1e6 / best_us as f64
}

#[cfg(test)]
mod tests {
    use super::*;
    use tiercel_device::StepOutput;

    #[test]
    fn fit_recovers_a_linear_device() {
        let (base, decode, prefill, kv, pair) = (2_000.0, 50.0, 120.0, 0.25, 0.01);
        let measured = Measured {
            one_us: base + decode,
            many_us: base + 32.0 * decode,
            seqs: 32,
            deep_us: base + 32.0 * decode + 32.0 * 1000.0 * kv,
            context: 1000,
            prefill_us: base + 64.0 * prefill,
            prefill: 64,
            prefill_deep_us: base + 64.0 * prefill + 64.0 * 500.0 * pair,
            prefill_context: 500,
        };
        let profile = fit(&measured);
        assert!((profile.step_base_us - base).abs() < 1e-6);
        assert!((profile.decode_token_us - decode).abs() < 1e-6);
        assert!((profile.prefill_token_us - prefill).abs() < 1e-6);
        assert!((profile.kv_token_us - kv).abs() < 1e-6);
        assert!((profile.prefill_context_us - pair).abs() < 1e-6);
    }

    #[test]
    fn fit_of_noise_is_never_negative() {
        let measured = Measured {
            one_us: 100.0,
            many_us: 90.0,
            seqs: 32,
            deep_us: 80.0,
            context: 1000,
            prefill_us: 50.0,
            prefill: 64,
            prefill_deep_us: 40.0,
            prefill_context: 0,
        };
        let profile = fit(&measured);
        assert!(profile.decode_token_us >= 0.0 && profile.step_base_us >= 0.0);
        assert!(profile.prefill_token_us >= 0.0 && profile.kv_token_us >= 0.0);
        assert!(profile.prefill_context_us >= 0.0);
    }

    /// Fake runner that asserts that the steps of the speed measurement stay within the limits of the device.
    struct Checked {
        info: DeviceInfo,
        live: std::collections::HashSet<SeqId>,
    }

    impl QueuedRunner for Checked {
        fn begin(&mut self, batch: &StepBatch) -> Result<(), StepError> {
            self.live.retain(|seq| !batch.ends.contains(seq));
            self.live.extend(batch.starts.iter().map(|start| start.seq));
            let mut seen = std::collections::HashSet::new();
            for slice in &batch.slices {
                let end = slice.first_pos + slice.input.len() as u32;
                assert!(self.live.contains(&slice.seq) && end <= self.info.max_model_len);
                assert!(slice.table.len() as u32 * self.info.block_size >= end);
                for block in slice.table.iter() {
                    assert!(block.0 < self.info.device_blocks && seen.insert(*block));
                }
            }
            Ok(())
        }

        fn has_ended(&mut self) -> bool {
            true
        }

        fn end(&mut self) -> Result<StepOutput, StepError> {
            Ok(StepOutput::default())
        }
    }

    #[test]
    fn even_the_smallest_device_is_measured_within_its_limits() {
        for (device_blocks, block_size, max_model_len, seqs, tokens) in
            [(1, 1, 1, 1, 1), (1, 16, 4, 64, 256), (7, 16, 8192, 64, 256), (4096, 16, 8192, 64, 4)]
        {
            let info = DeviceInfo {
                name: String::new(),
                block_size,
                device_blocks,
                host_blocks: 0,
                block_bytes: 1,
                max_steps_in_flight: 1,
                max_model_len,
                vocab_size: 2,
            };
            let mut runner = Checked { info: info.clone(), live: Default::default() };
            measure_steps(&mut runner, &info, seqs, tokens).expect("within limits");
            assert!(runner.live.is_empty());
        }
    }
}
