//! Answers one step request of the scheduler: takes in progress reports and ended sequences, then decides the
//! sequences' requests for KV blocks in the order of the step request.

use super::BlockStore;
use super::sequence::Phase;
use super::victims::{Ledger, Need, Verdict};
use crate::{
    Grant, GrantOutcome, Preempted, Release, ResumeCosts, StepGrant, StepRequest, Victim, Want,
    WantKind,
};
use tiercel_device::StepId;

/// Working state while one step request is answered.
#[derive(Debug, Default)]
pub(super) struct Round {
    pub(super) step: StepId,
    pub(super) ledger: Ledger,
    pub(super) preempted: Vec<Preempted>,
    /// Costs of resuming a sequence, for the choice of victims and for the choice between copying and recomputing when
    /// a sequence opens; `None` where the choice ignores costs.
    pub(super) victim_costs: Option<ResumeCosts>,
    pub(super) resume_costs: Option<ResumeCosts>,
    pub(super) release: Release,
    /// Number of blocks reserved for other tiers that may be used nevertheless: as many as victims hold whose content
    /// is also on the host, because these can be given back at once.
    pub(super) lent: u32,
}

impl BlockStore {
    /// Answers the step request: takes in progress reports and ended sequences, then grants or denies each sequence's
    /// request for KV blocks, preempting the victims that it may.
    pub fn reserve(&mut self, request: &StepRequest) -> StepGrant {
        self.completed(request.completed_step);
        for progress in &request.progress {
            self.advance(progress);
        }
        for seq in &request.released {
            self.release(*seq);
        }
        let mut round = Round {
            step: request.step,
            victim_costs: request.victims_by_cost.then_some(request.costs),
            resume_costs: request.resumes_by_cost.then_some(request.costs),
            release: request.release,
            lent: if request.lends { self.droppable(request) } else { 0 },
            ..Round::default()
        };
        let mut grants = Vec::with_capacity(request.wants.len());
        for want in &request.wants {
            if round.preempted.iter().any(|taken| taken.ticket.seq == want.ticket.seq) {
                continue;
            }
            let allowed = request.victims.len().min(want.max_victims as usize);
            let outcome = self.answer(want, &request.victims[..allowed], &mut round);
            grants.push(Grant { ticket: want.ticket, outcome });
        }
        self.mirror(&request.victims, request.mirror);
        self.mirroring_lag =
            if request.mirrors { self.left_to_mirror(&request.victims) } else { 0 };
        // A sequence whose request for KV blocks was denied may then have been preempted for a later request of the
        // same step. For such a sequence the answer holds the preemption alone, not the denial.
        if !round.preempted.is_empty() {
            grants.retain(|grant| {
                round.preempted.iter().all(|taken| taken.ticket.seq != grant.ticket.seq)
            });
        }
        StepGrant {
            step: request.step,
            grants,
            preempted: round.preempted,
            free_blocks: self.device.free(),
        }
    }

    /// Returns the number of blocks that are also in the host pool and could be discarded at once, of all possible
    /// victims that would be swapped and are not spared. Fewer blocks may come free, because other sequences may share
    /// some of these blocks. Returns 0 if no request must leave blocks to other tiers.
    fn droppable(&self, request: &StepRequest) -> u32 {
        if request.wants.iter().all(|want| want.kept_for_others == 0) {
            return 0;
        }
        let victims = request.victims.iter().filter(|victim| victim.swap && !victim.spared);
        let sequences = victims.filter_map(|victim| self.sequences.get(victim.ticket.seq));
        sequences.map(|sequence| self.mirrored_blocks(sequence)).sum()
    }

    fn answer(&mut self, want: &Want, victims: &[Victim], round: &mut Round) -> GrantOutcome {
        match &want.kind {
            WantKind::Grow => self.grow(want, victims, round),
            WantKind::Open { .. } => self.open(want, victims, round),
        }
    }

    /// Grows the block table of a running sequence to cover the step. A sequence that is not running is denied with
    /// `pending_blocks` 0.
    fn grow(&mut self, want: &Want, victims: &[Victim], round: &mut Round) -> GrantOutcome {
        let seq = want.ticket.seq;
        let Some(sequence) = self.sequences.get_mut(seq).filter(|s| s.phase == Phase::Running)
        else {
            return GrantOutcome::Denied { pending_blocks: 0 };
        };
        let computed = sequence.computed;
        let cover = want.len.min(computed.saturating_add(want.new_tokens));
        let wanted = cover.max(want.reserve).div_ceil(self.config.block_size);
        let missing = wanted.saturating_sub(sequence.table.len() as u32);
        if missing == 0 {
            sequence.last_step = round.step;
            return GrantOutcome::Run { computed, cover, table: sequence.tell_table() };
        }
        let need = Need {
            seq,
            step: round.step,
            blocks: u64::from(missing),
            keep_free: u64::from(want.kept_for_others.saturating_sub(round.lent)),
            held: 0,
            opens: false,
            by_cost: round.victim_costs,
            release: round.release,
        };
        let verdict = self.settle(need, victims, &mut round.ledger, &mut round.preempted);
        if let Verdict::Unmet { pending_blocks } = verdict {
            return GrantOutcome::Denied { pending_blocks };
        }
        let more = self.allocate(missing);
        let sequence = self.sequences.get_mut(seq).expect("a requester is never its own victim");
        sequence.extend_table(&more);
        sequence.last_step = round.step;
        GrantOutcome::Run { computed, cover, table: sequence.tell_table() }
    }

    /// Allocates device blocks, after [`BlockStore::settle`] found that as many are free.
    pub(super) fn allocate(&mut self, blocks: u32) -> Vec<u32> {
        (0..blocks)
            .map(|_| self.device.allocate().expect("the need was met from free blocks"))
            .collect()
    }
}
