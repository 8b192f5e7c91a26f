//! Table of the settings that each policy's name stands for.

use super::{Policy, Preset};
use crate::policy::{
    AgeingCap, Allocation, AtLimit, Batching, Budget, Order, PreemptionMode, PreemptionSettings,
    PrefillOrder, ResumeFrom, ResumeOrder, SchedulerSettings, StepMix, ToStart, VictimRelease,
    VictimRule,
};
use crate::{Late, SheddingForm, SheddingSettings};

/// Preset of first come, first served. The other presets are written as differences from it.
const PLAIN: Preset = Preset {
    about: "First come, first served; tiers are ignored.",
    scheduler: SchedulerSettings {
        policy: Policy::Fcfs,
        max_num_seqs: 64,
        max_num_batched_tokens: 256,
        steps_in_flight: 2,
        max_prefill_tokens: 0,
        order: Order::Arrival,
        batching: Batching::Continuous,
        mix: StepMix::Mixed,
        budget: Budget::Fixed,
        chunked_prefill: true,
        chunk_alignment: 0,
        long_prefill_token_threshold: 0,
        long_prefill_percent: 0.0,
        max_partial_prefills: 0,
        background_prefill_percent: 100,
        prefill_order: PrefillOrder::Rank,
        pause_background: false,
        fair_tenants: false,
        fair_tiers: false,
        allocation: Allocation::OnDemand,
        full_sequence_check: true,
        watermark_percent: 3.0,
        background_watermark_percent: 0.0,
        ageing_s: 0.0,
        ageing_cap: AgeingCap::Standard,
    },
    max_num_seqs: None,
    max_num_batched_tokens: None,
    prefix_cache: None,
    preemption: PreemptionSettings {
        mode: PreemptionMode::Auto,
        to_start: ToStart::Never,
        victim: VictimRule::Rank,
        victim_release: VictimRelease::All,
        victim_release_blocks: 16,
        premium_yields: true,
        background_takes: true,
        min_tokens: 0,
        delay_ms: 0,
        max_per_request: 8,
        at_limit: AtLimit::Spare,
        resume: ResumeOrder::Rank,
        resume_from: ResumeFrom::Cache,
        mirror_percent: 0,
        max_in_transit_mib: 256,
    },
    shedding: SheddingSettings {
        form: SheddingForm::Forecast,
        load_percent: 80.0,
        late: Late::Wait,
    },
};

const RECOMPUTE: PreemptionSettings =
    PreemptionSettings { mode: PreemptionMode::Recompute, ..PLAIN.preemption };
/// Most tokens of a step under policies that do not cut prompts into chunks: large enough for most whole prompts.
const WHOLE_PROMPTS: Option<u32> = Some(8192);

impl Policy {
    /// Returns the settings that the policy's name stands for.
    pub fn preset(self) -> Preset {
        let chosen = match self {
            Policy::Static | Policy::RequestLevel | Policy::Orca => self.of_old(),
            Policy::Sarathi | Policy::Splitfuse | Policy::Adaptive => self.chunked(),
            Policy::VllmV0
            | Policy::VllmV1
            | Policy::Sglang
            | Policy::TrtllmNoEvict
            | Policy::TrtllmMaxUtilization => self.engine(),
            Policy::Fcfs => PLAIN,
            Policy::Sjf => Preset {
                about: "The request with the shortest predicted output first; lengths are predicted from \
                        finished requests.",
                scheduler: SchedulerSettings { order: Order::Shortest, ..PLAIN.scheduler },
                ..PLAIN
            },
            Policy::Priority
            | Policy::PriorityPreempt
            | Policy::PriorityPreemptSlo
            | Policy::Tiercel => self.tiered(),
            Policy::Throughput | Policy::Latency | Policy::Fairness => self.corner(),
        };
        Preset { scheduler: SchedulerSettings { policy: self, ..chosen.scheduler }, ..chosen }
    }

    fn of_old(self) -> Preset {
        let up_front = SchedulerSettings {
            allocation: Allocation::UpFront,
            chunked_prefill: false,
            watermark_percent: 0.0,
            ..PLAIN.scheduler
        };
        let base = Preset { max_num_batched_tokens: WHOLE_PROMPTS, ..PLAIN };
        match self {
            Policy::Static => Preset {
                about: "Static batching: 32 requests start together, the next 32 when all of these have finished.",
                scheduler: SchedulerSettings { batching: Batching::Static, ..up_front },
                max_num_seqs: Some(32),
                ..base
            },
            Policy::RequestLevel => Preset {
                about: "Request-level scheduling: a request starts when another has ended, its whole prompt alone \
                        in a step, with memory for its longest output.",
                scheduler: SchedulerSettings { mix: StepMix::PromptsAlone, ..up_front },
                ..base
            },
            _ => Preset {
                about: "Orca: scheduling at every step, whole prompts beside decodes, memory for each request's \
                        longest output.",
                scheduler: up_front,
                ..base
            },
        }
    }

    fn chunked(self) -> Preset {
        let scheduler = SchedulerSettings {
            max_partial_prefills: 1,
            watermark_percent: 1.0,
            ..PLAIN.scheduler
        };
        let sized = Preset { max_num_batched_tokens: Some(512), preemption: RECOMPUTE, ..PLAIN };
        let room_for_decodes = Some(768);
        match self {
            Policy::Sarathi => Preset {
                about: "Sarathi-Serve: a step holds decodes, then at most 512 prompt tokens, and leaves at most one \
                        prompt partly computed.",
                scheduler: SchedulerSettings { max_prefill_tokens: 512, ..scheduler },
                max_num_batched_tokens: room_for_decodes,
                ..sized
            },
            Policy::Splitfuse => Preset {
                about: "DeepSpeed-FastGen: steps of 512 tokens: decodes, then chunks of any number of prompts.",
                scheduler: SchedulerSettings { max_partial_prefills: 0, ..scheduler },
                ..sized
            },
            _ => Preset {
                about: "As sarathi, with steps sized by the tightest TPOT slack of a stream, and the prompt with the \
                        fewest tokens left first.",
                scheduler: SchedulerSettings {
                    budget: Budget::Slack,
                    prefill_order: PrefillOrder::Shortest,
                    max_partial_prefills: 0,
                    ..scheduler
                },
                max_num_batched_tokens: Some(2048),
                ..sized
            },
        }
    }

    fn engine(self) -> Preset {
        let by_tier =
            SchedulerSettings { order: Order::Tier, watermark_percent: 1.0, ..PLAIN.scheduler };
        match self {
            Policy::VllmV0 => Preset {
                about: "vLLM's first scheduler: prompts before decodes; the last request to start is preempted \
                        first, by swap, and resumes before new requests start.",
                scheduler: SchedulerSettings {
                    mix: StepMix::PromptsAlone,
                    chunked_prefill: false,
                    order: Order::Arrival,
                    ..by_tier
                },
                max_num_batched_tokens: Some(4096),
                prefix_cache: Some(false),
                preemption: PreemptionSettings {
                    mode: PreemptionMode::Swap,
                    victim: VictimRule::ReverseFifo,
                    resume: ResumeOrder::First,
                    resume_from: ResumeFrom::OwnCopies,
                    ..PLAIN.preemption
                },
                ..PLAIN
            },
            Policy::VllmV1 => Preset {
                about: "vLLM's present scheduler under its priority policy: one token budget for decodes and \
                        prompts; the lowest priority, then the latest arrival, is preempted first, by recompute, and \
                        resumes before new requests start.",
                scheduler: SchedulerSettings {
                    long_prefill_percent: 4.0,
                    max_partial_prefills: 0,
                    ..by_tier
                },
                preemption: PreemptionSettings { resume: ResumeOrder::First, ..RECOMPUTE },
                ..PLAIN
            },
            Policy::Sglang => Preset {
                about: "SGLang: prefix cache, chunked prompts before decodes; the request with the least output is \
                        preempted first (retracted), by recompute.",
                scheduler: SchedulerSettings {
                    order: Order::Arrival,
                    mix: StepMix::PromptsAlone,
                    ..by_tier
                },
                max_num_batched_tokens: Some(2048),
                prefix_cache: Some(true),
                preemption: PreemptionSettings { victim: VictimRule::LeastProgress, ..RECOMPUTE },
                ..PLAIN
            },
            Policy::TrtllmNoEvict => Preset {
                about: "TensorRT-LLM's GUARANTEED_NO_EVICT: requests in the order of tier and priority, memory for \
                        each one's longest output, no preemption.",
                scheduler: SchedulerSettings {
                    allocation: Allocation::UpFront,
                    watermark_percent: 0.0,
                    ..by_tier
                },
                ..PLAIN
            },
            _ => Preset {
                about: "TensorRT-LLM's MAX_UTILIZATION: requests in the order of tier and priority, memory on \
                        demand; the last request to start is preempted first, by recompute.",
                scheduler: SchedulerSettings { watermark_percent: 0.0, ..by_tier },
                preemption: PreemptionSettings { victim: VictimRule::ReverseFifo, ..RECOMPUTE },
                ..PLAIN
            },
        }
    }

    fn tiered(self) -> Preset {
        let scheduler = SchedulerSettings { order: Order::Tier, ..PLAIN.scheduler };
        let preemption = PreemptionSettings { to_start: ToStart::LowerTier, ..PLAIN.preemption };
        match self {
            Policy::Priority => Preset {
                about: "Higher tiers start first; no request is preempted so that one of a higher tier starts.",
                scheduler,
                ..PLAIN
            },
            Policy::PriorityPreempt => Preset {
                about: "Higher tiers start first and preempt lower ones when KV blocks or slots run out.",
                scheduler,
                preemption,
                ..PLAIN
            },
            Policy::PriorityPreemptSlo => Preset {
                about: "As priority+preempt, with steps sized by the streams' TPOT targets, and ageing: a waiting \
                        request gains a tier.",
                scheduler: SchedulerSettings { budget: Budget::Slack, ageing_s: 30.0, ..scheduler },
                preemption: PreemptionSettings { victim: VictimRule::LeastProgress, ..preemption },
                ..PLAIN
            },
            _ => Preset {
                about: "The default: higher tiers first, preemption, steps sized by the streams' TPOT targets, \
                        background prompts limited to a part of each step.",
                scheduler: SchedulerSettings {
                    budget: Budget::Slack,
                    background_prefill_percent: 25,
                    pause_background: true,
                    fair_tenants: true,
                    fair_tiers: true,
                    prefill_order: PrefillOrder::Deadline,
                    background_watermark_percent: 3.5,
                    ..scheduler
                },
                preemption,
                shedding: SheddingSettings { late: Late::BestEffort, ..PLAIN.shedding },
                ..PLAIN
            },
        }
    }

    fn corner(self) -> Preset {
        let tiercel = Policy::Tiercel.preset();
        match self {
            Policy::Throughput => Preset {
                about: "Most tokens per second: steps of up to 2048 tokens, whatever their length does to the pace \
                        of streams.",
                scheduler: SchedulerSettings { order: Order::Tier, ..PLAIN.scheduler },
                max_num_batched_tokens: Some(2048),
                preemption: PreemptionSettings {
                    to_start: ToStart::LowerTier,
                    victim: VictimRule::ResumeCost,
                    victim_release: VictimRelease::Unshared,
                    ..PLAIN.preemption
                },
                ..PLAIN
            },
            Policy::Latency => Preset {
                about: "Shortest wait of premium requests: they start in the next step, whatever that does to the \
                        pace of its streams.",
                scheduler: SchedulerSettings {
                    budget: Budget::Fixed,
                    background_prefill_percent: 5,
                    pause_background: false,
                    ..tiercel.scheduler
                },
                ..tiercel
            },
            _ => Preset {
                about: "Equal service to all tenants, whatever the tiers of their requests.",
                scheduler: SchedulerSettings { order: Order::Fair, ..PLAIN.scheduler },
                ..PLAIN
            },
        }
    }
}
