//! Who must give way for a want, and how blocks that are on their way are promised.

use super::BlockStore;
use super::sequence::{Phase, Sequence};
use crate::{Preempted, ResumeCosts, Victim};
use std::sync::Arc;
use tiercel_device::{BlockId, SeqId, StepId};

/// What denied wants of a request wait for, so that worse-ranked ones do not eat it.
#[derive(Debug, Default)]
pub(super) struct Ledger {
    /// Blocks of wants that will be satisfied when copies under way have ended. Reserved against every
    /// later want.
    promised: u64,
    /// Blocks of wants that even the blocks on their way and all their victims would not satisfy, while
    /// others hold blocks that they will give back. Reserved against wants that open: those would only be
    /// preempted again, or a stream of small ones would keep a large one out for ever. Wants that
    /// grow go on, or nothing might ever end.
    hoped: u64,
}

/// What a want needs.
#[derive(Debug, Clone, Copy)]
pub(super) struct Need {
    /// Whose want it is; never a victim of its own.
    pub(super) seq: SeqId,
    /// The step.
    pub(super) step: StepId,
    /// Blocks to allocate, or that must at least be there.
    pub(super) blocks: u64,
    /// Blocks that must stay free beyond them.
    pub(super) keep_free: u64,
    /// Free or pending blocks that it holds already for the time of the decision.
    pub(super) held: u64,
    /// Whether it opens.
    pub(super) opens: bool,
    /// How to choose among victims of one group, if not in their order.
    pub(super) by_cost: Option<ResumeCosts>,
}

/// Whether a need is met.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Verdict {
    /// The blocks are free.
    Met,
    /// They will be when this many more blocks have come free, 0 if nothing says when.
    Unmet {
        /// Blocks that copies under way will free.
        pending_blocks: u32,
    },
}

impl BlockStore {
    /// Decides about one want: free blocks first, then blocks already on their way, then as many of the
    /// victims, in order, as are needed; nobody is preempted if that is not enough.
    pub(super) fn settle(
        &mut self,
        need: Need,
        victims: &[Victim],
        ledger: &mut Ledger,
        preempted: &mut Vec<Preempted>,
    ) -> Verdict {
        let reserved = ledger.promised + if need.opens { ledger.hoped } else { 0 };
        let total = need.blocks + need.keep_free + reserved;
        if self.is_met(need, total) {
            return Verdict::Met;
        }
        let supply = u64::from(self.device.free()) + u64::from(self.device.pending());
        if supply < total {
            match self.choose_victims(need, total - supply, victims) {
                Choice::Enough(chosen) => {
                    preempted.extend(chosen.into_iter().map(|victim| Preempted {
                        ticket: victim.ticket,
                        outcome: self.carry_out(victim),
                    }));
                }
                Choice::TooFew => {
                    if self.others_hold_blocks(need.seq) || self.device.pending() > 0 {
                        ledger.hoped += need.blocks + need.held;
                    }
                    return Verdict::Unmet { pending_blocks: 0 };
                }
            }
            if self.is_met(need, total) {
                return Verdict::Met;
            }
        }
        ledger.promised += need.blocks + need.held;
        let missing = total.saturating_sub(u64::from(self.device.free()));
        Verdict::Unmet { pending_blocks: u32::try_from(missing).unwrap_or(u32::MAX) }
    }

    /// A want that opens needs everything to be free now. One that grows needs its own blocks free and
    /// must leave better wants enough of what is free or on its way.
    fn is_met(&self, need: Need, total: u64) -> bool {
        let free = u64::from(self.device.free());
        let pending = u64::from(self.device.pending());
        if need.opens { free >= total } else { free >= need.blocks && free + pending >= total }
    }

    /// Chooses victims, in order, until `shortage` blocks would come free, and marks their tables as
    /// leaving. A victim that frees nothing is passed over, unless another one does only with it.
    fn choose_victims(&mut self, need: Need, shortage: u64, victims: &[Victim]) -> Choice {
        let mut candidates: Vec<(Victim, Arc<[BlockId]>)> = victims
            .iter()
            .filter_map(|victim| Some((*victim, self.table_of_candidate(need, victim)?)))
            .collect();
        let most: u64 = candidates.iter().map(|(_, table)| table.len() as u64).sum();
        if most < shortage {
            return Choice::TooFew;
        }
        if let Some(costs) = need.by_cost {
            for group in candidates.chunk_by_mut(|a, b| a.0.group == b.0.group) {
                group.sort_by(|a, b| {
                    let cost = |victim| self.cost_to_resume(victim, shortage, costs);
                    cost(&a.0).total_cmp(&cost(&b.0))
                });
            }
        }
        let (mut gained, mut chosen) = (0, Vec::new());
        for candidate in candidates {
            gained += self.mark_leaving(&candidate.1);
            chosen.push(candidate);
            if gained >= shortage {
                break;
            }
        }
        if gained < shortage {
            for (_, table) in &chosen {
                self.mark_staying(table);
            }
            return Choice::TooFew;
        }
        let mut needed = Vec::new();
        for (victim, table) in chosen.into_iter().rev() {
            if self.mark_staying(&table) > 0 {
                self.mark_leaving(&table);
                needed.push(victim);
            }
        }
        needed.reverse();
        Choice::Enough(needed)
    }

    /// The table of a victim that may be taken: one that runs, holds blocks, is not the requester and
    /// has not been granted this very step.
    fn table_of_candidate(&self, need: Need, victim: &Victim) -> Option<Arc<[BlockId]>> {
        let sequence = self.sequences.get(&victim.ticket.seq)?;
        let may_go = sequence.phase == Phase::Running
            && !sequence.table.is_empty()
            && victim.ticket.seq != need.seq
            && sequence.last_step != need.step;
        may_go.then(|| Arc::clone(&sequence.table))
    }

    /// What it costs to bring a victim back, us for each block that comes free and is needed; infinite if
    /// none does. Blocks that others hold stay where they are, and what the host has is not copied out.
    fn cost_to_resume(&self, victim: &Victim, shortage: u64, costs: ResumeCosts) -> f64 {
        let Some(sequence) = self.sequences.get(&victim.ticket.seq) else { return f64::INFINITY };
        let (mut freed, mut us) = (0_u64, 0.0);
        for depth in 0..sequence.table.len() {
            if self.device.slot(sequence.table[depth].0).staying == 1 {
                freed += 1;
                us += self.block_cost(sequence, depth, victim.swap, costs);
            }
        }
        us / freed.min(shortage) as f64
    }

    fn block_cost(&self, sequence: &Sequence, depth: usize, swap: bool, costs: ResumeCosts) -> f64 {
        match sequence.names.get(depth) {
            Some(name) if self.host.find(name).is_some() => costs.copy_us,
            Some(_) if swap => 2.0 * costs.copy_us,
            _ => costs.recompute_us,
        }
    }

    fn others_hold_blocks(&self, seq: SeqId) -> bool {
        self.sequences.iter().any(|(id, sequence)| *id != seq && !sequence.table.is_empty())
    }

    fn mark_leaving(&mut self, table: &[BlockId]) -> u64 {
        table.iter().map(|block| u64::from(self.device.leave(block.0))).sum()
    }

    fn mark_staying(&mut self, table: &[BlockId]) -> u64 {
        table.iter().map(|block| u64::from(self.device.stay(block.0))).sum()
    }
}

enum Choice {
    /// These suffice; their tables are marked.
    Enough(Vec<Victim>),
    /// All together do not suffice; nothing is marked.
    TooFew,
}
