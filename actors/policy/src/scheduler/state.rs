//! The scheduler's state and what can be read of it.

use crate::admission::DrainRate;
use crate::protocol::Progress;
use crate::scheduler::cost::{CostError, CostModel};
use crate::scheduler::deadlines::Deadlines;
use crate::scheduler::derivation::Derivation;
use crate::scheduler::order::{FairQueue, LengthPredictor, PredictionError};
use crate::scheduler::pipeline::Pipeline;
use crate::scheduler::plan::MAX_OPENS_PER_STEP;
use crate::scheduler::reservation::Kept;
use crate::scheduler::reserve::Reserve;
use crate::scheduler::roster::Roster;
use crate::scheduler::sequence::Phase;
use crate::scheduler::shares::{Had, TierTurns};
use crate::scheduler::turns::Turns;
use crate::slo::Targets;
use std::collections::BTreeSet;
use tiercel_config::{
    EngineSettings, Policy, PreemptionSettings, SchedulerSettings, SharesSettings, SheddingSettings,
};
use tiercel_device::{DeviceInfo, DeviceProfile, SeqId, Tier, Timestamp};

/// Every live sequence's state, and the cycle of plan, grant, step. See the module's documentation.
#[derive(Debug)]
pub struct Scheduler {
    pub(crate) settings: SchedulerSettings,
    /// Targets in effect.
    pub(crate) slo: Targets,
    pub(crate) derivation: Derivation,
    pub(crate) preemption: PreemptionSettings,
    pub(crate) shedding: SheddingSettings,
    /// Whether sequences of one tenant find each other's blocks.
    pub(crate) share_prefixes: bool,
    pub(crate) limits: Limits,
    /// When the last request of each tier came.
    pub(crate) came_at: [Option<Timestamp>; Tier::ALL.len()],
    /// What is kept for a tier.
    pub(crate) kept: Kept,
    pub(crate) cost: CostModel,
    /// When first tokens must come.
    pub(crate) deadlines: Deadlines,
    /// How far premium streams shall be ahead of their pace.
    pub(crate) reserve: Reserve,
    /// How fast those without a first token get one, by tier.
    pub(crate) drain: [DrainRate; Tier::ALL.len()],
    /// Share of a prompt that is found in the prefix cache, lately.
    pub(crate) hit_share: f64,
    pub(crate) predictor: LengthPredictor,
    pub(crate) fair: FairQueue,
    /// Whose turn it is among the tenants of each tier.
    pub(crate) turns: Turns,
    /// Which share of the device each tier is due.
    pub(crate) shares: SharesSettings,
    /// Whose turn it is among tiers.
    pub(crate) tier_turns: TierTurns,
    /// The device's time that each tier had lately.
    pub(crate) had: Had,
    pub(crate) sequences: Roster,
    pub(crate) pipeline: Pipeline,
    /// Reports for the store that go with the next request.
    pub(crate) progress: Vec<Progress>,
    /// Ended sequences whose blocks the store still counts.
    pub(crate) released: Vec<SeqId>,
    /// Ended sequences whose sampler state the device still keeps.
    pub(crate) device_ends: Vec<SeqId>,
    /// Members of a failed step: each runs alone until it succeeds or is found guilty.
    pub(crate) suspects: BTreeSet<SeqId>,
    /// Whether the last plan was for a suspect alone, and the store had no blocks for it.
    pub(crate) suspect_denied: bool,
    /// Whom the next plan, or the one under way, is for.
    pub(crate) scope: Scope,
    /// Whether the plan under way left somebody out who runs.
    pub(crate) left_out: bool,
    /// Plans that came to nothing, one after the other, since something happened.
    pub(crate) fruitless: u32,
    /// When blocks to mirror were last counted, and what is left of a block.
    pub(crate) mirrored: (Timestamp, f64),
    /// Whether a static batch takes nobody more: one of it has ended.
    pub(crate) batch_closed: bool,
    /// Sequences opened so far.
    pub(crate) opened: u64,
    /// Device blocks that nothing held after the last grant.
    pub(crate) free_blocks: u32,
    /// Whether the last request left a want without blocks.
    pub(crate) shortage: bool,
    /// Most waiting sequences that the next plan asks to open.
    pub(crate) open_limit: usize,
    /// Whether something happened since the last plan that a new one could answer.
    pub(crate) replan: bool,
    pub(crate) counters: Counters,
}

/// Sizes the plan needs of the device.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Limits {
    pub(crate) block_size: u32,
    pub(crate) device_blocks: u32,
    pub(crate) max_model_len: u32,
}

/// Whom a plan is for. What waiting prompts are offered of a step is lost if they are then denied blocks: if
/// the step is empty and somebody was left out who runs, and perhaps holds those very blocks, the next plan is
/// narrower.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Scope {
    All,
    /// Those that hold blocks.
    Running,
    /// Those whose prompts are computed.
    Decodes,
}

/// Totals since the start.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counters {
    /// Steps that succeeded.
    pub steps: u64,
    /// Steps that failed.
    pub failed_steps: u64,
    /// Preemptions with blocks saved in the host tier, by tier.
    pub swaps: [u64; 4],
    /// Preemptions with all blocks dropped, by tier.
    pub recomputes: [u64; 4],
    /// Preemptions that ended the request, by tier.
    pub drops: [u64; 4],
    /// Tokens computed again because a preemption lost them.
    pub recomputed_tokens: u64,
    /// Blocks copied between the tiers, both ways.
    pub copied_blocks: u64,
    /// Sequences in steps: one for each step it was in.
    pub slices: u64,
    /// Prompt tokens looked up in the prefix cache at first starts.
    pub prefix_query_tokens: u64,
    /// Of these, found.
    pub prefix_hit_tokens: u64,
}

impl Counters {
    /// A preemption that took effect, with blocks saved in the host tier or not.
    pub(crate) fn count_preemption(&mut self, tier: usize, saved: bool) {
        let by_strategy = if saved { &mut self.swaps } else { &mut self.recomputes };
        by_strategy[tier] += 1;
    }

    /// All preemptions.
    pub fn preemptions(&self) -> u64 {
        [self.swaps, self.recomputes, self.drops].iter().flatten().sum()
    }
}

/// How many sequences are where.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Census {
    /// Waiting for their first start, copies of a cached prefix included, by tier.
    pub waiting: [u32; 4],
    /// Holding blocks and schedulable.
    pub running: u32,
    /// Started before, now without blocks or on the way out or in.
    pub preempted: u32,
}

impl Scheduler {
    /// An empty scheduler for a device.
    pub fn new(settings: &EngineSettings, info: &DeviceInfo, profile: DeviceProfile) -> Scheduler {
        let depth = info.max_steps_in_flight.min(settings.scheduler.steps_in_flight);
        let cost = CostModel::new(profile, info);
        let derivation = Derivation::new(&settings.slo, info);
        Scheduler {
            settings: settings.scheduler,
            slo: derivation.targets(&cost, &settings.scheduler),
            derivation,
            preemption: settings.preemption,
            shedding: settings.shedding,
            share_prefixes: settings.prefix_cache.enabled,
            limits: Limits {
                block_size: info.block_size,
                device_blocks: info.device_blocks,
                max_model_len: info.max_model_len,
            },
            came_at: Default::default(),
            kept: Kept::new(&settings.reservation, info.device_blocks),
            cost,
            deadlines: Deadlines::default(),
            reserve: Reserve::new(settings.slo.assurance()),
            drain: Default::default(),
            hit_share: 0.0,
            predictor: LengthPredictor::new(),
            fair: FairQueue::default(),
            turns: Turns::default(),
            shares: settings.shares,
            tier_turns: TierTurns::new(&settings.shares),
            had: Had::default(),
            sequences: Roster::new(settings.preemption.resume),
            pipeline: Pipeline::new(depth),
            progress: Vec::new(),
            released: Vec::new(),
            device_ends: Vec::new(),
            suspects: BTreeSet::new(),
            suspect_denied: false,
            scope: Scope::All,
            left_out: false,
            fruitless: 0,
            mirrored: (Timestamp(0), 0.0),
            batch_closed: false,
            opened: 0,
            free_blocks: 0,
            shortage: false,
            open_limit: MAX_OPENS_PER_STEP,
            replan: false,
            counters: Counters::default(),
        }
    }

    /// Switches to the policy as its name stands for it, sizes and prefix cache excepted; the next plan
    /// follows it.
    pub fn set_policy(&mut self, policy: Policy) {
        let preset = policy.preset();
        let SchedulerSettings { max_num_seqs, max_num_batched_tokens, steps_in_flight, .. } =
            self.settings;
        self.settings = SchedulerSettings {
            max_num_seqs,
            max_num_batched_tokens,
            steps_in_flight,
            ..preset.scheduler
        };
        let max_in_transit_mib = self.preemption.max_in_transit_mib;
        self.preemption = PreemptionSettings { max_in_transit_mib, ..preset.preemption };
        self.shedding = preset.shedding;
        self.place_all();
        self.batch_closed = false;
        self.noticed();
    }

    /// How far predicted output lengths were off.
    pub fn prediction_error(&self) -> PredictionError {
        self.predictor.error()
    }

    /// How far predicted step and copy times are off.
    pub fn cost_error(&self) -> CostError {
        self.cost.error()
    }

    /// Whether an event came after the last plan was made, so that another plan may find more to do
    /// even if that one came to nothing.
    pub fn must_replan(&self) -> bool {
        self.replan
    }

    /// Planning a step took so long, from when it was due until the step went to the device, us.
    pub fn planned_in(&mut self, us: u64) {
        self.pipeline.planned_in(us);
    }

    /// Copies of so many blocks took so long, us.
    pub fn copied(&mut self, blocks: u32, duration_us: u64) {
        self.cost.observe_copy(blocks, duration_us);
        self.counters.copied_blocks += u64::from(blocks);
    }

    /// Something happened that another plan could answer.
    pub(crate) fn noticed(&mut self) {
        self.replan = true;
        self.fruitless = 0;
    }

    /// Most sequences in one step.
    pub fn max_num_seqs(&self) -> u32 {
        self.settings.max_num_seqs
    }

    /// Totals since the start.
    pub fn counters(&self) -> Counters {
        self.counters
    }

    /// The phase of a live sequence.
    pub fn phase(&self, seq: SeqId) -> Option<Phase> {
        self.sequences.get(seq).map(|sequence| sequence.phase)
    }

    /// Ids of all live sequences, those that hold blocks first, otherwise oldest first.
    pub fn live(&self) -> impl Iterator<Item = SeqId> + '_ {
        self.sequences.iter().map(|sequence| sequence.id)
    }

    /// Whether no sequence is left and nothing is outstanding.
    pub fn is_drained(&self) -> bool {
        self.sequences.is_empty() && self.released.is_empty() && self.pipeline.is_idle()
    }

    /// Counts sequences by what they do.
    pub fn census(&self) -> Census {
        let mut census = Census::default();
        for sequence in self.sequences.iter() {
            match sequence.phase {
                Phase::Running => census.running += 1,
                Phase::Waiting | Phase::Opening if !sequence.was_open() => {
                    census.waiting[sequence.tier.index()] += 1;
                }
                Phase::Waiting | Phase::Opening | Phase::Preempting => census.preempted += 1,
            }
        }
        census
    }
}
