//! First measurement of a device's speed, with a few steps on KV blocks that no sequence owns yet.

use std::sync::Arc;
use tiercel_device::{
    BlockId, Clock, CopyBatch, CopyDirection, CopyId, CopyPair, DeviceInfo, DeviceProfile,
    HostBlockId, QueuedCopier, QueuedRunner, SamplingParams, SeqId, SeqSlice, SeqStart, SliceInput,
    StepBatch, StepError, StepId, TokenId,
};

/// Time budget of the measurement, us. A round runs each measured step once. Rounds are repeated until the time budget
/// is used up. The measured duration of a step is the duration of the fastest of its runs.
const MEASURE_US: u64 = 1_000_000;
/// Smallest number of rounds, however long they take.
const ROUNDS_MIN: usize = 2;
/// Largest number of rounds.
const ROUNDS_MAX: usize = 8;
/// Duration of a one-token step, us, above which a model counts as slow.
const SLOW_STEP_US: u64 = 50_000;
/// Number of one-token steps of which the fastest decides whether a model is slow.
const SLOW_REPEATS: usize = 3;
/// Sizes of the measured steps. Derived targets are multiples of the time of a batch, and the measured batch has about
/// the size of that batch: half of the CPU's default slots, each with at most as many tokens of context as a step may
/// hold. In a smaller batch, a sequence takes less time: with SmolLM2-135M on two cores, each of 8 sequences takes an
/// eighth less time than each of 32.
const SIZES: Sizes =
    Sizes { seqs: 32, context_tokens: 1024, chunk_tokens: 64, chunk_context_tokens: 1024 };
/// Sizes of the measured steps of a slow model. The steps are small, so that the start does not take minutes.
const SIZES_SLOW: Sizes =
    Sizes { seqs: 8, context_tokens: 128, chunk_tokens: 8, chunk_context_tokens: 512 };
/// Number of tokens from one written token of a context to the next, in the writes before the measurement. If a KV
/// block holds fewer tokens, one token is written into each block.
const WRITTEN_EVERY: u32 = 16;
/// Number of repeats of the copy that measures the bandwidth between device pool and host pool.
const COPIES: usize = 8;
/// Maximum number of KV blocks in the copy that measures the bandwidth between device pool and host pool.
const COPY_BLOCKS: u32 = 64;

/// Sizes of the measured steps.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Sizes {
    /// Number of sequences in the batch of decodes.
    seqs: u32,
    /// Length of each sequence's context in the batch of decodes with context, tokens.
    context_tokens: u32,
    /// Length of the prompt chunk, tokens.
    chunk_tokens: u32,
    /// Length of the context before the prompt chunk with context, tokens.
    chunk_context_tokens: u32,
}

/// Limits of a device on the measured steps.
#[derive(Debug, Clone, Copy)]
pub(super) struct StepLimits {
    /// Largest number of sequences that the device knows at a time.
    pub(super) known_seqs: u32,
    /// Largest number of sequences in a step.
    pub(super) seqs: u32,
    /// Largest number of tokens in a step.
    pub(super) tokens: u32,
}

impl Sizes {
    /// Returns these sizes, reduced to what the device can hold and run.
    fn within(self, info: &DeviceInfo, limits: StepLimits) -> Sizes {
        let seqs = self.seqs.min(limits.seqs).min(limits.tokens).min(limits.known_seqs);
        let seqs = seqs.min(info.device_blocks).max(1);
        let per_seq = (info.device_blocks / seqs).saturating_mul(info.block_size);
        let context_tokens = self.context_tokens.min(limits.tokens).min(per_seq.saturating_sub(1));
        let context_tokens = context_tokens.min(info.max_model_len - 1);
        let pool = info.device_blocks.saturating_mul(info.block_size).min(info.max_model_len);
        let chunk_tokens = self.chunk_tokens.min(limits.tokens).min(pool);
        // The chunk's context consists of blocks of the batch of decodes, because only these blocks are written before
        // the measurement.
        let blocks = seqs * (context_tokens + 1).div_ceil(info.block_size);
        let written = blocks.saturating_mul(info.block_size).min(pool);
        let chunk_context_tokens =
            self.chunk_context_tokens.min(written.saturating_sub(chunk_tokens));
        Sizes { seqs, context_tokens, chunk_tokens, chunk_context_tokens }
    }
}

/// Durations of the steps that were measured to know a device's speed, us.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Measured {
    /// Duration of a step of one decode token without context, us.
    one_us: f64,
    /// Duration of a step of one decode token for each of [`Sizes::seqs`] sequences without context, us.
    many_us: f64,
    /// Duration of the same step if each sequence has [`Sizes::context_tokens`] tokens of KV, us.
    deep_us: f64,
    /// Duration of a step with one prompt chunk of [`Sizes::chunk_tokens`] tokens at the beginning of the prompt, us.
    prefill_us: f64,
    /// Duration of a step with a prompt chunk of the same length behind [`Sizes::chunk_context_tokens`] tokens of the
    /// prompt, us.
    prefill_deep_us: f64,
}

/// Measures the durations of a few steps on a fresh device and returns its profile. Leaves no sequence behind; the KV
/// blocks that the steps wrote hold garbage, as free blocks may.
pub(super) fn measure_steps(
    runner: &mut impl QueuedRunner,
    info: &DeviceInfo,
    limits: StepLimits,
) -> Result<DeviceProfile, StepError> {
    let mut scratch = Scratch { runner, info, clock: Clock::wall(), step: 0 };
    let started = SIZES.within(info, limits).seqs;
    scratch.start(started)?;
    let sizes = if scratch.is_slow()? { SIZES_SLOW } else { SIZES }.within(info, limits);
    scratch.write_contexts(&sizes)?;
    let measured = scratch.measure(&sizes)?;
    scratch.end(started)?;
    tracing::debug!(?measured, ?sizes, "measured the model's first steps");
    Ok(fit(&measured, &sizes))
}

/// Fits the cost coefficients of a device profile to the durations of the measured steps. No coefficient is negative.
fn fit(m: &Measured, sizes: &Sizes) -> DeviceProfile {
    let extra = f64::from(sizes.seqs.max(2) - 1);
    let decode_token_us = if sizes.seqs > 1 {
        ((m.many_us - m.one_us) / extra).clamp(0.0, m.one_us)
    } else {
        m.one_us
    };
    let step_base_us = (m.one_us - decode_token_us).max(0.0);
    let read = f64::from(sizes.seqs) * f64::from(sizes.context_tokens.max(1));
    let pairs = f64::from(sizes.chunk_tokens) * f64::from(sizes.chunk_context_tokens.max(1));
    DeviceProfile {
        step_base_us,
        decode_token_us,
        prefill_token_us: ((m.prefill_us - step_base_us) / f64::from(sizes.chunk_tokens)).max(0.0),
        kv_token_us: ((m.deep_us - m.many_us) / read).max(0.0),
        prefill_context_us: ((m.prefill_deep_us - m.prefill_us) / pairs).max(0.0),
        link_bytes_per_s: 0.0,
    }
}

/// Shape of a measured step.
#[derive(Debug, Clone, Copy)]
struct Shape {
    /// Number of sequences; the step has one slice of each.
    seqs: u32,
    /// Position of the first token of each slice in its sequence, which is the length of the sequence's context.
    first_pos: u32,
    /// Number of tokens of each slice.
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

    /// Whether the model is slow: whether a one-token step takes longer than [`SLOW_STEP_US`].
    fn is_slow(&mut self) -> Result<bool, StepError> {
        let one = Shape { seqs: 1, first_pos: 0, tokens: 1 };
        self.time(one)?;
        for _ in 0..SLOW_REPEATS {
            if self.time(one)? <= SLOW_STEP_US as f64 {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Writes tokens into each KV block that the measured steps will read. On a CPU, memory that was never written is
    /// not there yet: the system maps one page of zeros for all of it, and to read this page takes half the time.
    fn write_contexts(&mut self, sizes: &Sizes) -> Result<(), StepError> {
        let deep = Shape { seqs: sizes.seqs, first_pos: sizes.context_tokens, tokens: 1 };
        let distance = self.info.block_size.min(WRITTEN_EVERY);
        for first_pos in (0..sizes.context_tokens).step_by(distance as usize) {
            let mut batch = self.batch(deep);
            for slice in &mut batch.slices {
                (slice.first_pos, slice.sample) = (first_pos, None);
            }
            self.run(batch)?;
        }
        Ok(())
    }

    /// Returns the durations of the measured steps: of each the fastest of several repeats. The repeats go round, so
    /// that a moment in which the machine is slow makes all steps slower, and not one of them.
    fn measure(&mut self, sizes: &Sizes) -> Result<Measured, StepError> {
        let one = Shape { seqs: 1, first_pos: 0, tokens: 1 };
        let many = Shape { seqs: sizes.seqs, ..one };
        let prefill = Shape { tokens: sizes.chunk_tokens, ..one };
        let shapes = [
            one,
            many,
            Shape { first_pos: sizes.context_tokens, ..many },
            prefill,
            Shape { first_pos: sizes.chunk_context_tokens, ..prefill },
        ];
        // A first run is not counted, because the first access to memory can make a step ten times slower.
        for shape in shapes {
            self.time(shape)?;
        }
        let mut fastest = [f64::INFINITY; 5];
        let start = self.clock.now();
        for round in 0..ROUNDS_MAX {
            if round >= ROUNDS_MIN && self.clock.now().since_us(start) > MEASURE_US {
                break;
            }
            for (fastest, shape) in fastest.iter_mut().zip(shapes) {
                *fastest = fastest.min(self.time(shape)?);
            }
        }
        let [one_us, many_us, deep_us, prefill_us, prefill_deep_us] = fastest;
        Ok(Measured { one_us, many_us, deep_us, prefill_us, prefill_deep_us })
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
    use std::collections::HashSet;
    use tiercel_device::StepOutput;

    const TEST_SIZES: Sizes =
        Sizes { seqs: 32, context_tokens: 1000, chunk_tokens: 64, chunk_context_tokens: 500 };

    #[test]
    fn fit_recovers_a_linear_device() {
        let (base, decode, prefill, kv, pair) = (2_000.0, 50.0, 120.0, 0.25, 0.01);
        let measured = Measured {
            one_us: base + decode,
            many_us: base + 32.0 * decode,
            deep_us: base + 32.0 * decode + 32.0 * 1000.0 * kv,
            prefill_us: base + 64.0 * prefill,
            prefill_deep_us: base + 64.0 * prefill + 64.0 * 500.0 * pair,
        };
        let profile = fit(&measured, &TEST_SIZES);
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
            deep_us: 80.0,
            prefill_us: 50.0,
            prefill_deep_us: 40.0,
        };
        let profile = fit(&measured, &Sizes { chunk_context_tokens: 0, ..TEST_SIZES });
        assert!(profile.decode_token_us >= 0.0 && profile.step_base_us >= 0.0);
        assert!(profile.prefill_token_us >= 0.0 && profile.kv_token_us >= 0.0);
        assert!(profile.prefill_context_us >= 0.0);
    }

    /// Fake runner that asserts that the steps of the speed measurement stay within the limits of the device, and that
    /// no step reads a KV block that was never written.
    struct Checked {
        info: DeviceInfo,
        limits: StepLimits,
        live: HashSet<SeqId>,
        written: HashSet<BlockId>,
        /// Duration of each step, us.
        step_us: u64,
        /// Largest number of tokens in a step so far.
        largest_step_tokens: u32,
    }

    impl QueuedRunner for Checked {
        fn begin(&mut self, batch: &StepBatch) -> Result<(), StepError> {
            let clock = Clock::wall();
            let start = clock.now();
            while clock.now().since_us(start) < self.step_us {}
            self.live.retain(|seq| !batch.ends.contains(seq));
            self.live.extend(batch.starts.iter().map(|start| start.seq));
            assert!(self.live.len() <= self.limits.known_seqs as usize);
            assert!(batch.slices.len() <= self.limits.seqs as usize);
            let mut seen = HashSet::new();
            let mut tokens = 0;
            for slice in &batch.slices {
                tokens += slice.input.len() as u32;
                let end = slice.first_pos + slice.input.len() as u32;
                assert!(self.live.contains(&slice.seq) && end <= self.info.max_model_len);
                assert!(slice.table.len() as u32 * self.info.block_size >= end);
                for block in slice.table.iter() {
                    assert!(block.0 < self.info.device_blocks && seen.insert(*block));
                }
                let (first, last) =
                    (slice.first_pos / self.info.block_size, (end - 1) / self.info.block_size);
                let of_slice = &slice.table[..=last as usize];
                self.written.extend(&of_slice[first as usize..]);
                // Slices that only write are no measured steps.
                if slice.sample.is_some() || slice.input.len() > 1 {
                    assert!(of_slice.iter().all(|block| self.written.contains(block)), "{slice:?}");
                }
            }
            assert!(tokens <= self.limits.tokens);
            self.largest_step_tokens = self.largest_step_tokens.max(tokens);
            Ok(())
        }

        fn has_ended(&mut self) -> bool {
            true
        }

        fn end(&mut self) -> Result<StepOutput, StepError> {
            Ok(StepOutput::default())
        }
    }

    fn checked(device_blocks: u32, block_size: u32, max_model_len: u32) -> Checked {
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
        let limits = StepLimits { known_seqs: 1040, seqs: 64, tokens: 256 };
        let (live, written) = Default::default();
        Checked { info, limits, live, written, step_us: 0, largest_step_tokens: 0 }
    }

    fn measure(mut runner: Checked) -> Checked {
        let (info, limits) = (runner.info.clone(), runner.limits);
        measure_steps(&mut runner, &info, limits).expect("within limits");
        assert!(runner.live.is_empty());
        runner
    }

    #[test]
    fn even_the_smallest_device_is_measured_within_its_limits() {
        for (device_blocks, block_size, max_model_len) in
            [(1, 1, 1), (1, 16, 4), (7, 16, 8192), (40, 16, 8192), (4096, 16, 8192)]
        {
            for (known_seqs, seqs, tokens) in [(1040, 64, 256), (17, 64, 256), (1040, 1, 1)] {
                let mut runner = checked(device_blocks, block_size, max_model_len);
                runner.limits = StepLimits { known_seqs, seqs, tokens };
                measure(runner);
            }
        }
    }

    #[test]
    fn a_slow_model_is_measured_with_small_steps() {
        assert_eq!(measure(checked(4096, 16, 8192)).largest_step_tokens, 64);
        let mut runner = checked(4096, 16, 8192);
        runner.step_us = SLOW_STEP_US + 1_000;
        assert_eq!(measure(runner).largest_step_tokens, 8);
    }
}
