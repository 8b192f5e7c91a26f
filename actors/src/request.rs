//! Types of a request, of the events on its response stream, of its refusal and of the engine's status.

use std::sync::Arc;
use tiercel_config::{EngineSettings, Policy, SloTargets};
use tiercel_device::{SamplingParams, SeqId, StepId, Tier, Timestamp, TokenId, TokenLogprobs};
use tiercel_policy::Weight;
pub use tiercel_policy::accounting::{PartyUsage, TenantUsage, UsageReport};
pub use tiercel_policy::admission::Refusal;
use tiercel_policy::blocks::Salt;
pub use tiercel_policy::pressure::{Level, Resource};
pub use tiercel_policy::scheduler::{
    CostError, Counters, FinishReason, PredictionError, RequestFault, SequenceState, SequenceView,
    Usage,
};
use tiercel_policy::slo::Targets;

/// Request for one sequence: prompt, limits and sampling. An HTTP request with `n = 2` becomes two values of this type.
#[derive(Debug, Clone)]
pub struct Request {
    /// Tier of the request: its importance.
    pub tier: Tier,
    /// Priority of the request within its tier: the lower value is served first. Requests of equal priority are ordered
    /// by the rest of their rank, such as their arrival.
    pub priority: i32,
    /// Salt of the request's tenant: namespace of the prefix cache, unless the request has a namespace of its own.
    pub salt: Salt,
    /// Salt of a namespace within the tenant's part of the prefix cache: the request shares blocks only with requests
    /// of the same namespace. `None` stands for the namespace of the tenant.
    pub cache_salt: Option<Salt>,
    /// Weight of the tenant in the fair queues.
    pub weight: Weight,
    /// Prompt tokens; not empty.
    pub prompt: Arc<[TokenId]>,
    /// Limit of the output, tokens; at least 1.
    pub max_tokens: u32,
    /// Tokens that end the output and are not part of it: those that the request names and, unless it sets
    /// `ignore_eos`, the model's end tokens.
    pub stop_tokens: Arc<[TokenId]>,
    /// Sampling parameters: how output tokens are chosen.
    pub sampling: Arc<SamplingParams>,
    /// Latency targets that the request itself states. They can only loosen targets that its tier has, unless the
    /// request may tighten its targets: then they replace or add any.
    pub targets: SloTargets,
    /// Whether the request may tighten its targets; `None` for what `slo.requests_may_tighten` says.
    pub may_tighten: Option<bool>,
    /// Patience that the request states, ms: the longest wait for its first token. `None` stands for the patience of
    /// its tier.
    pub max_wait_ms: Option<u64>,
    /// Time that the request waited before it was submitted, ms, for example while its prompt was tokenized. This time
    /// counts towards its patience.
    pub waited_ms: u64,
    /// Whether the request is a further choice of a client request of which a choice was submitted before. Its prompt
    /// does not count towards the limit on waiting prompt tokens.
    pub sibling: bool,
    /// Whether the client says that it was refused or turned away before. The claim is believed only as far as clients
    /// of the same tenant were told to come back by now.
    pub returning: bool,
}

impl Request {
    /// Returns the salt that the names of the request's blocks have.
    pub fn salt_of_blocks(&self) -> Salt {
        self.cache_salt.unwrap_or(self.salt)
    }
}

/// Event on the response stream of a request. Exactly one of `Finished` and `Failed` comes last, unless the client
/// cancels or the engine dies first.
#[derive(Debug, Clone, PartialEq)]
pub enum StreamEvent {
    /// The request got one output token.
    Token {
        /// Id of the output token.
        token: TokenId,
        /// Log probabilities of the output token, if the request asked for them.
        logprobs: Option<Box<TokenLogprobs>>,
    },
    /// The output of the request is complete.
    Finished {
        /// Reason why the output is complete: a stop token or string, or its maximum length.
        reason: FinishReason,
        /// Numbers of tokens and preemptions of the request.
        usage: Usage,
    },
    /// The request ended with an error before its output was complete.
    Failed(RequestFault),
}

/// Operator command to a live sequence or to the engine. It takes effect by the next step that is planned.
#[derive(Debug, Clone, PartialEq)]
pub enum Control {
    /// Change the tier of a sequence and its priority within the tier.
    Reprioritize {
        /// Sequence to change.
        seq: SeqId,
        /// New tier of the sequence.
        tier: Tier,
        /// New priority of the sequence within its tier; lower is served first.
        priority: i32,
    },
    /// Stop scheduling the sequence. It keeps its KV blocks until other sequences need them.
    Pause(SeqId),
    /// Schedule a paused sequence again.
    Resume(SeqId),
    /// End the sequence with the error [`RequestFault::Cancelled`].
    Cancel(SeqId),
    /// Switch the engine to another scheduling policy.
    SetPolicy(Policy),
    /// Change settings of scheduling, preemption, shedding, shares, patience, reservations, latency targets and the
    /// limits of the queues, as far as [`tiercel_config::changed`] allows. Live requests keep their patience and their
    /// targets.
    Adjust(Box<EngineSettings>),
}

impl Control {
    /// Returns the sequence that the command names, if it names one.
    pub fn seq(&self) -> Option<SeqId> {
        match self {
            Control::Reprioritize { seq, .. }
            | Control::Pause(seq)
            | Control::Resume(seq)
            | Control::Cancel(seq) => Some(*seq),
            Control::SetPolicy(_) | Control::Adjust(_) => None,
        }
    }
}

/// What an operator's command changed.
#[derive(Debug, Clone, PartialEq, actix::MessageResponse)]
pub struct Changed {
    /// Whether the sequence that the command names is live; true for commands that name none.
    pub known: bool,
    /// The sequence before the command; `None` for an unknown sequence and for commands that name none.
    pub before: Option<SequenceView>,
    /// The sequence after the command; `None` also if the command ended it.
    pub after: Option<SequenceView>,
    /// Step that was planned last before the command. The command takes effect in a later step.
    pub step: StepId,
}

/// All live sequences of an engine, each as it was when the snapshot came to it; a snapshot takes a few milliseconds.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Snapshot {
    /// Time at which the snapshot was begun; all times in the snapshot are times of the engine's clock.
    pub at: Timestamp,
    /// Step that was planned last when the snapshot was begun.
    pub step: StepId,
    /// Live sequences, by id.
    pub sequences: Vec<SequenceView>,
    /// Time in which the queue of each tier drains, us, if known.
    pub drain_us: [Option<f64>; Tier::ALL.len()],
}

impl Snapshot {
    /// Returns a sequence of the snapshot.
    pub fn find(&self, seq: SeqId) -> Option<&SequenceView> {
        let place = self.sequences.binary_search_by_key(&seq, |view| view.seq).ok()?;
        self.sequences.get(place)
    }
}

/// What the steps of an engine have computed since its start, and how long the latest ones took. Only the engine of a
/// server counts this.
#[derive(Debug, Clone, PartialEq, Eq, Default, actix::MessageResponse)]
pub struct Work {
    /// Number of prefill tokens of all completed steps: prompt tokens, and tokens computed again after preemptions.
    pub prefill_tokens: u64,
    /// Number of output tokens that all completed steps sampled.
    pub sampled_tokens: u64,
    /// Durations of the latest steps, oldest first, us: from the submission of a step (or from the end of the step
    /// before, if that is later) to its end.
    pub recent_us: Vec<u64>,
}

/// How the sequences ended that were live when a drain of the engine began.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Drained {
    /// Number of sequences whose output was completed.
    pub finished: u32,
    /// Number of sequences that were ended with an error at the deadline of the drain.
    pub ended: u32,
    /// Number of sequences that ended in another way: their client left, they were cancelled, or they failed.
    pub other: u32,
}

/// Status of the engine at one moment, for `/health`, tests and operators.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct EngineStatus {
    /// Number of sequences that wait for their first start, by tier.
    pub waiting: [u32; 4],
    /// Number of sequences that hold blocks and may be in a step.
    pub running: u32,
    /// Number of preempted sequences, including those whose blocks are being copied.
    pub preempted: u32,
    /// Number of requests that hold a permit, of which there are `admission.max_requests`.
    pub places: u32,
    /// Number of requests in the admission queues (accepted, without a first token), by tier.
    pub queued: [u32; 4],
    /// Number of KV blocks in the device pool.
    pub device_blocks: u32,
    /// Number of device blocks that no sequence references.
    pub device_blocks_free: u32,
    /// Number of KV blocks in the host pool.
    pub host_blocks: u32,
    /// Number of host blocks that are not in use.
    pub host_blocks_free: u32,
    /// Pressure levels of the resources (how near each is to its limit), in the order of [`Resource::ALL`].
    pub pressure: [Level; Resource::ALL.len()],
    /// Latency targets in effect.
    pub targets: Targets,
    /// Counters of steps, tokens and preemptions since the start of the engine.
    pub counters: Counters,
    /// Tokens and device time that each tier and each tenant had, and the device time that was due to them.
    pub usage: UsageReport,
    /// Errors of the predicted output lengths of finished requests: number of requests, and sums of the absolute errors
    /// and of the true lengths.
    pub prediction_error: PredictionError,
    /// Mean relative errors of the cost model's predicted times of steps and of copies, lately.
    pub cost_error: CostError,
}
