//! Views of live sequences: what operators are told of a request.

use crate::blocks::Salt;
use crate::scheduler::budget::slack::slack_us;
use crate::scheduler::queue::priority_key::Rank;
use crate::scheduler::queue::sequence_table::rank_of;
use crate::scheduler::sequence::kv::Kv;
use crate::scheduler::sequence::{Phase, Sequence};
use crate::scheduler::state::State;
use tiercel_config::ResumeOrder;
use tiercel_device::{SeqId, StepId, Tier, Timestamp};

/// Place of a live sequence in the order of service; the lower one is served first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct ServiceOrder(Rank);

/// State of a live sequence, as operators see it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum SequenceState {
    /// The sequence waits for its first KV blocks.
    Waiting,
    /// The sequence holds KV blocks, and its prompt is being computed.
    Prefill,
    /// The sequence holds KV blocks and has its first token. After a resume its KV may still be being computed again.
    Decode,
    /// The sequence was preempted, or is being preempted, and waits to resume.
    Preempted,
    /// KV of the preempted sequence is being copied back to the device.
    Resuming,
}

/// KV blocks that a live sequence holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct HeldBlocks {
    /// Number of blocks of the device pool in the block table that the block store sent last. For a preempted sequence,
    /// and until the store sends a table: number of blocks that the sequence retains.
    pub device: u32,
    /// Number of blocks of the host pool that are pinned for the preempted sequence until it has its blocks again.
    pub host: u32,
    /// Whether blocks of the sequence are being copied: out, because it is preempted, or in, because it opens.
    pub copying: bool,
}

/// A live sequence at one moment.
#[derive(Debug, Clone, PartialEq)]
pub struct SequenceView {
    /// Id of the sequence.
    pub seq: SeqId,
    /// Tier of the sequence.
    pub tier: Tier,
    /// Priority within the tier; the lower number is served first.
    pub priority: i32,
    /// Tenant of the sequence.
    pub tenant: Salt,
    /// State of the sequence.
    pub state: SequenceState,
    /// Whether an operator paused the sequence.
    pub paused: bool,
    /// Whether the sequence is on hold because its client reads too slowly.
    pub slow_reader: bool,
    /// Whether the request counts as late: its first token is expected after its deadline, and the request does not
    /// starve.
    pub late: bool,
    /// Place of the sequence in the order of service.
    pub order: ServiceOrder,
    /// Time at which the sequence arrived.
    pub arrival: Timestamp,
    /// Time at which the first output token of the sequence was sampled; `None` before.
    pub first_token_at: Option<Timestamp>,
    /// Step that sampled the first output token; `None` before.
    pub first_token_step: Option<StepId>,
    /// Number of prompt tokens.
    pub prompt_tokens: u32,
    /// Number of tokens whose KV is valid on the device.
    pub computed_tokens: u32,
    /// Number of tokens that had valid KV when the sequence was preempted, if any of their blocks are saved in the host
    /// pool; 0 otherwise, and once the sequence runs again.
    pub saved_tokens: u32,
    /// Number of output tokens so far.
    pub output_tokens: u32,
    /// Largest number of output tokens.
    pub max_tokens: u32,
    /// KV blocks that the sequence holds.
    pub blocks: HeldBlocks,
    /// Number of times that the sequence was preempted.
    pub preemptions: u32,
    /// Time by which the sequence is ahead of its latency target, us: of its TTFT target before the first token, of its
    /// TPOT target afterwards. Negative if it is behind; `None` without the target.
    pub slack_us: Option<i64>,
}

impl State {
    /// Returns a view of a live sequence; `None` if the sequence is unknown.
    pub(crate) fn inspect(&self, seq: SeqId, now: Timestamp) -> Option<SequenceView> {
        let sequence = self.queue.table.get(seq)?;
        let rules = &self.basis.rules;
        Some(view(sequence, (rules.preemption.resume, rules.limits.block_size), now))
    }
}

fn view(
    sequence: &Sequence,
    (resume, block_size): (ResumeOrder, u32),
    now: Timestamp,
) -> SequenceView {
    let Sequence { kv, service, text, .. } = sequence;
    let waits_for_copy = kv.saved && sequence.phase != Phase::Running;
    SequenceView {
        seq: sequence.id,
        tier: sequence.tier,
        priority: service.priority,
        tenant: service.tenant,
        state: state_of(sequence),
        paused: sequence.held_by_operator,
        slow_reader: sequence.held_by_stream,
        late: service.late && sequence.first_token_at.is_none(),
        order: ServiceOrder(rank_of(sequence, resume)),
        arrival: sequence.arrival,
        first_token_at: sequence.first_token_at,
        first_token_step: sequence.first_token_step,
        prompt_tokens: sequence.prompt_len(),
        computed_tokens: kv.computed,
        saved_tokens: if waits_for_copy { kv.computed_before } else { 0 },
        output_tokens: sequence.output_len(),
        max_tokens: text.max_tokens,
        blocks: held_blocks(kv, sequence.phase, block_size),
        preemptions: sequence.preemptions,
        slack_us: slack_us(sequence, now),
    }
}

fn held_blocks(kv: &Kv, phase: Phase, block_size: u32) -> HeldBlocks {
    let device = match kv.block_table.len() {
        0 => kv.retained_tokens / block_size,
        blocks => blocks as u32,
    };
    let copying = matches!(phase, Phase::Preempting | Phase::Opening);
    HeldBlocks { device, host: kv.on_host, copying }
}

fn state_of(sequence: &Sequence) -> SequenceState {
    match sequence.phase {
        Phase::Running if sequence.first_token_at.is_some() => SequenceState::Decode,
        Phase::Running => SequenceState::Prefill,
        Phase::Opening if sequence.has_started() => SequenceState::Resuming,
        Phase::Waiting if sequence.has_started() => SequenceState::Preempted,
        Phase::Preempting => SequenceState::Preempted,
        Phase::Waiting | Phase::Opening => SequenceState::Waiting,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scheduler::budget::fixtures::stream;
    use crate::scheduler::tests::{NOW, grant_all, scheduler, sequence};

    #[test]
    fn a_view_shows_a_sequence_before_and_in_its_first_step() {
        let mut s = scheduler(|_| ());
        s.enqueue(sequence(1, Tier::Standard, 20));
        s.enqueue(sequence(2, Tier::Premium, 20));
        let seen = |s: &State| [1, 2].map(|id| s.inspect(SeqId(id), NOW).expect("it is live"));
        let [standard, premium] = seen(&s);
        assert_eq!(standard.state, SequenceState::Waiting);
        assert_eq!(standard.blocks, HeldBlocks::default());
        assert_eq!((standard.prompt_tokens, standard.output_tokens), (20, 0));
        assert!(premium.order < standard.order, "premium is served first");
        let request = s.plan(NOW).expect("both can run");
        s.granted(grant_all(&request));
        let [standard, _] = seen(&s);
        assert_eq!(standard.state, SequenceState::Prefill);
        assert!(standard.blocks.device > 0);
        assert_eq!(s.inspect(SeqId(3), NOW), None);
    }

    #[test]
    fn the_state_follows_from_phase_and_first_token() {
        let mut sequence = stream(1, Tier::Standard, (9, 3), 11_000);
        assert_eq!(state_of(&sequence), SequenceState::Decode);
        sequence.kv.cached_tokens = Some(0);
        for (phase, state) in [
            (Phase::Preempting, SequenceState::Preempted),
            (Phase::Waiting, SequenceState::Preempted),
            (Phase::Opening, SequenceState::Resuming),
        ] {
            sequence.phase = phase;
            assert_eq!(state_of(&sequence), state, "{phase:?}");
            let copying = view(&sequence, (ResumeOrder::First, 4), NOW).blocks.copying;
            assert_eq!(copying, phase != Phase::Waiting, "{phase:?}");
        }
        sequence.kv.cached_tokens = None;
        assert_eq!(state_of(&sequence), SequenceState::Waiting, "copies for a first start");
    }

    #[test]
    fn a_preempted_sequence_holds_what_it_retains_and_what_is_pinned_on_the_host() {
        let mut sequence = stream(1, Tier::Standard, (9, 3), 11_000);
        sequence.kv.close(true, 8);
        sequence.kv.on_host = 3;
        sequence.phase = Phase::Waiting;
        let held = |sequence: &Sequence| view(sequence, (ResumeOrder::First, 4), NOW).blocks;
        assert_eq!(held(&sequence), HeldBlocks { device: 2, host: 3, copying: false });
        sequence.opened(8, 4);
        assert_eq!(held(&sequence), HeldBlocks::default(), "its table comes with the next grant");
    }

    #[test]
    fn saved_tokens_are_shown_until_the_sequence_runs_again() {
        let mut sequence = stream(1, Tier::Standard, (9, 3), 11_000);
        sequence.kv.close(true, 0);
        sequence.phase = Phase::Waiting;
        let seen = |sequence: &Sequence| {
            let view = view(sequence, (ResumeOrder::First, 4), NOW);
            (view.saved_tokens, view.computed_tokens)
        };
        assert_eq!(seen(&sequence), (11, 0));
        sequence.phase = Phase::Running;
        assert_eq!(seen(&sequence).0, 0);
    }
}
