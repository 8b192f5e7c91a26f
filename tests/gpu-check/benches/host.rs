//! Benchmark of the CPU time to submit a decode step to a GPU: turning the batch into kernel arguments and launches, on
//! a driver that does nothing. A real driver adds the time of its launches; a step that is replayed as a CUDA graph
//! needs one launch.
//!
//! `cargo bench -p tiercel-gpu-check --bench host`

use criterion::{BenchmarkId, Criterion, criterion_group, criterion_main};
use std::sync::Arc;
use tiercel_device::{
    BlockId, CopyDirection, QueuedRunner, SamplingParams, SeqId, SeqSlice, SeqStart, SliceInput,
    StepBatch, StepId,
};
use tiercel_gpu::WeightFormat;
use tiercel_gpu::cuda::{
    CopyDriver, CudaError, CudaKv, CudaOps, CudaOptions, DevicePtr, Driver, HostPlan, KernelShape,
    Launch, PinHost, Product, Work,
};
use tiercel_model::arch::ModelConfig;
use tiercel_model::forward::{Decoder, DecoderLimits};
use tiercel_model::runner::{ModelRunner, RunnerLimits};
use tiercel_model::weights::Weights;

const CONTEXT: u32 = 512;
const BLOCK_SIZE: u32 = 16;
const MOST_SEQS: u32 = 256;
const BLOCKS_EACH: u32 = CONTEXT / BLOCK_SIZE + 1;

/// Configuration of a model with as many layers as Llama 3.1 8B. Its matrices are small, because their size does not
/// change the CPU time of a step's submission.
const MODEL: &str = r#"{"model_type": "llama", "num_attention_heads": 4, "num_key_value_heads": 1,
    "head_dim": 64, "vocab_size": 1024, "hidden_size": 256, "intermediate_size": 512,
    "num_hidden_layers": 32, "max_position_embeddings": 8192, "rms_norm_eps": 1e-5}"#;

/// GPU driver without a GPU: accepts all work and does nothing, so that only the CPU time of submission is measured.
struct Nothing {
    next: u64,
}

impl CopyDriver for Nothing {
    fn begin(&mut self, _: CopyDirection, _: StepId) -> Result<(), CudaError> {
        Ok(())
    }

    fn add(&mut self, _: CopyDirection, _: DevicePtr, _: usize, _: usize) -> Result<(), CudaError> {
        Ok(())
    }

    fn close(&mut self, _: CopyDirection) -> Result<(), CudaError> {
        Ok(())
    }

    fn has_ended(&mut self, _: CopyDirection) -> bool {
        true
    }

    fn end(&mut self, _: CopyDirection) -> Result<u64, CudaError> {
        Ok(0)
    }
}

impl PinHost for Nothing {
    fn pin(&mut self, _: usize) -> Result<(), CudaError> {
        Ok(())
    }
}

impl Driver for Nothing {
    type Copies = Nothing;
    type Host = Nothing;

    fn name(&self) -> String {
        "nothing".to_owned()
    }

    fn free_bytes(&mut self) -> Result<u64, CudaError> {
        Ok(u64::MAX)
    }

    fn host_pool(&mut self, _: HostPlan) -> Result<(Nothing, Nothing), CudaError> {
        Ok((Nothing { next: 0 }, Nothing { next: 0 }))
    }

    fn span(&self) -> usize {
        tiercel_gpu::cuda::SPAN
    }

    fn load(&mut self, _: KernelShape) -> Result<(), CudaError> {
        Ok(())
    }

    fn allocate(&mut self, bytes: usize) -> Result<DevicePtr, CudaError> {
        self.next += (bytes as u64).next_multiple_of(256);
        Ok(DevicePtr(self.next))
    }

    fn clear(&mut self, _: DevicePtr, _: usize) -> Result<(), CudaError> {
        Ok(())
    }

    fn upload(&mut self, _: DevicePtr, _: &[u8]) -> Result<(), CudaError> {
        Ok(())
    }

    fn download(&mut self, _: DevicePtr, _: &mut [u8]) -> Result<(), CudaError> {
        Ok(())
    }

    fn begin_step(&mut self, _: usize, _: StepId) -> Result<(), CudaError> {
        Ok(())
    }

    fn send_back(&mut self, _: usize, _: DevicePtr, _: usize) -> Result<(), CudaError> {
        Ok(())
    }

    fn has_arrived(&mut self, _: usize) -> bool {
        true
    }

    fn receive(&mut self, _: usize, _: &mut [u8]) -> Result<(), CudaError> {
        Ok(())
    }

    fn step_us(&mut self, _: usize) -> Result<Option<u64>, CudaError> {
        Ok(None)
    }

    fn launch(&mut self, _: &Launch) -> Result<(), CudaError> {
        Ok(())
    }

    fn multiply(&mut self, _: Product) -> Result<(), CudaError> {
        Ok(())
    }

    fn graph(&mut self, _: &[Work]) -> Result<usize, CudaError> {
        Ok(0)
    }

    fn replay(&mut self, _: usize) -> Result<(), CudaError> {
        Ok(())
    }

    fn forget_graph(&mut self, _: usize) {}

    fn wait(&mut self) -> Result<(), CudaError> {
        Ok(())
    }
}

fn runner(graphs: bool) -> ModelRunner<CudaOps<Nothing>> {
    let config = ModelConfig::from_hf(MODEL.as_bytes()).expect("a well-formed description");
    let blocks = MOST_SEQS * BLOCKS_EACH;
    let kv = CudaKv {
        at: DevicePtr(1 << 40),
        blocks: blocks + 1,
        block_size: BLOCK_SIZE as usize,
        layers: config.layers(),
        kv_heads: config.kv_heads,
        head_dim: config.head_dim,
        q8: false,
    };
    let scratch = graphs.then_some(BlockId(blocks));
    let options = CudaOptions { exact: false, threads: 1, scratch };
    let queries = config.heads / config.kv_heads;
    let mut ops = CudaOps::new(Nothing { next: 0 }, kv, queries, options).expect("a kernel shape");
    let weights =
        Weights::random(&mut ops, &config, WeightFormat::Auto, 1).expect("memory for nothing");
    let limits = DecoderLimits {
        max_batched_tokens: 512,
        max_sampled_rows: MOST_SEQS as usize,
        max_positions: 8192,
    };
    let decoder = Decoder::new(&mut ops, config, weights, limits).expect("memory for nothing");
    let limits = RunnerLimits {
        block_size: BLOCK_SIZE as usize,
        device_blocks: blocks,
        max_sequences: MOST_SEQS as usize,
    };
    ModelRunner::new(ops, decoder, limits)
}

fn decode(seqs: u32) -> StepBatch {
    let slice = |seq: u32| SeqSlice {
        seq: SeqId(seq.into()),
        first_pos: CONTEXT,
        input: SliceInput::Known([1].into_iter().collect()),
        table: (seq * BLOCKS_EACH..(seq + 1) * BLOCKS_EACH).map(BlockId).collect(),
        sample: Some(1),
    };
    let start = |seq: u32| SeqStart {
        seq: SeqId(seq.into()),
        sampling: Arc::new(SamplingParams::greedy()),
        prompt: Arc::from([1]),
    };
    StepBatch {
        id: StepId(1),
        starts: (0..seqs).map(start).collect(),
        ends: Vec::new(),
        slices: (0..seqs).map(slice).collect(),
    }
}

fn host(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("asking for a decode");
    for (name, graphs) in [("launches", false), ("graph", true)] {
        for seqs in [1, 64, 256] {
            let mut runner = runner(graphs);
            let mut batch = decode(seqs);
            // The first eight runs are not measured: they start the sequences and, with graphs, make the CUDA graph
            // that the measured runs replay.
            for _ in 0..8 {
                runner.run(&batch).expect("nothing goes wrong");
                batch.starts.clear();
            }
            group.bench_function(BenchmarkId::new(name, seqs), |bencher| {
                bencher.iter(|| runner.run(&batch).expect("nothing goes wrong"));
            });
        }
    }
    group.finish();
}

criterion_group!(benches, host);
criterion_main!(benches);
