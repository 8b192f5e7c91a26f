//! Chooses the victims of a want, and promises pending blocks to wants that wait for them.

use super::BlockStore;
use super::sequence::{Phase, Sequence};
use crate::{Gives, Preempted, ResumeCosts, Victim};
use std::sync::Arc;
use tiercel_device::{BlockId, SeqId, StepId};

/// Blocks that the denied wants of a step request wait for, so that wants of later rank do not take them.
#[derive(Debug, Default)]
pub(super) struct Ledger {
    /// Blocks of wants that will be satisfied when copies under way have ended. They are reserved against every later
    /// want.
    promised: u64,
    /// Blocks of wants that would not be satisfied even by the pending blocks and all their victims, while other
    /// sequences hold blocks that they will give back. They are reserved against later wants that open: such a sequence
    /// would only be preempted again, or a stream of small ones would keep a large one out for ever. They are not
    /// reserved against wants that grow, because otherwise no sequence might ever end.
    hoped: u64,
}

/// What a want needs: blocks, and rules for taking them from victims.
#[derive(Debug, Clone, Copy)]
pub(super) struct Need {
    /// Sequence of the want; never a victim of its own want.
    pub(super) seq: SeqId,
    /// Step that the want is for.
    pub(super) step: StepId,
    /// Blocks to allocate, or blocks that must at least be available.
    pub(super) blocks: u64,
    /// Blocks that must stay free beyond `blocks`.
    pub(super) keep_free: u64,
    /// Free or pending blocks that the want already holds during the decision.
    pub(super) held: u64,
    /// Whether the want opens a sequence.
    pub(super) opens: bool,
    /// Costs by which victims of one group are chosen; `None` if they are taken in their order.
    pub(super) by_cost: Option<ResumeCosts>,
    /// Part of its block table that a victim gives up.
    pub(super) gives: Gives,
}

/// Whether enough blocks are free, or on their way, for a sequence's request for blocks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Verdict {
    /// The needed blocks are free.
    Met,
    /// The need will be met when `pending_blocks` more blocks have come free; 0 if nothing says when.
    Unmet {
        /// Blocks that must come free from copies under way.
        pending_blocks: u32,
    },
}

impl BlockStore {
    /// Decides about one want. Uses free blocks first, then pending blocks, then as many of the victims, in order, as
    /// are needed. No sequence is preempted if all of this is not enough.
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
        self.give_up_mirroring();
        if self.is_met(need, total) {
            return Verdict::Met;
        }
        let supply = u64::from(self.device.free()) + u64::from(self.device.pending());
        if supply < total {
            match self.choose_victims(need, total - supply, victims, preempted) {
                Choice::Enough(chosen) => {
                    preempted.extend(chosen.into_iter().map(|(victim, kept)| Preempted {
                        ticket: victim.ticket,
                        outcome: self.carry_out(victim, kept),
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

    /// Whether a need is met now. A want that opens needs all `total` blocks to be free. A want that grows needs its
    /// own blocks to be free, and must leave earlier wants enough free or pending blocks.
    fn is_met(&self, need: Need, total: u64) -> bool {
        let free = u64::from(self.device.free());
        let pending = u64::from(self.device.pending());
        if need.opens { free >= total } else { free >= need.blocks && free + pending >= total }
    }

    /// Chooses victims, in order, until `shortage` blocks would come free, and marks their tables as leaving. A victim
    /// that frees no block is skipped, unless another victim frees blocks only together with it.
    fn choose_victims(
        &mut self,
        need: Need,
        shortage: u64,
        victims: &[Victim],
        preempted: &[Preempted],
    ) -> Choice {
        // The scheduler hears of each victim once per request. A victim of this request can give more in the next
        // request.
        let again = |victim: &&Victim| preempted.iter().any(|p| p.ticket.seq == victim.ticket.seq);
        let mut candidates: Vec<Candidate> = victims
            .iter()
            .filter(|victim| !again(victim))
            .filter_map(|victim| Some((*victim, self.table_of_candidate(need, victim)?)))
            .collect();
        let most: u64 = candidates.iter().map(|(_, table)| table.len() as u64).sum();
        if most < shortage {
            return Choice::TooFew;
        }
        if let Some(costs) = need.by_cost {
            candidates = self.cheapest_first(candidates, need.gives, shortage, costs);
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
        self.give_no_more_than_needed(chosen, gained, shortage, need.gives)
    }

    /// Spares the chosen victims that are not needed for `shortage` blocks, and lets the other victims retain what they
    /// may. The marked tables of the chosen victims give `gained` blocks.
    fn give_no_more_than_needed(
        &mut self,
        chosen: Vec<Candidate>,
        mut gained: u64,
        shortage: u64,
        gives: Gives,
    ) -> Choice {
        let mut needed = Vec::new();
        for (victim, table) in chosen.into_iter().rev() {
            let own = self.mark_staying(&table);
            // A parked victim need not give blocks if the other victims give enough.
            let spared = self.is_parked(victim.ticket.seq) && gained - own >= shortage;
            if own == 0 || spared {
                gained -= own;
            } else {
                self.mark_leaving(&table);
                needed.push((victim, table));
            }
        }
        let (mut spare, mut giving) = (gained - shortage, Vec::new());
        for (victim, table) in needed {
            let kept = self.keep_front(victim.ticket.seq, &table, gives, &mut spare);
            let given = &table[kept as usize..];
            if given.iter().any(|block| self.device.slot(block.0).staying == 0) {
                giving.push((victim, kept));
            } else {
                // Another victim retains the blocks that this victim would give.
                self.mark_staying(given);
            }
        }
        giving.reverse();
        Choice::Enough(giving)
    }

    /// Marks the blocks at the front of a victim's table that the victim need not give up as staying. Returns the
    /// number of these blocks. `spare` counts the blocks that all victims together give beyond the need.
    fn keep_front(&mut self, seq: SeqId, table: &[BlockId], gives: Gives, spare: &mut u64) -> u32 {
        let mut free_to_keep = match gives {
            Gives::All => return 0,
            Gives::Unshared => 0,
            Gives::Needed { unit } => {
                let gained = table.iter().filter(|block| self.device.slot(block.0).staying == 0);
                let gained = gained.count() as u64;
                let least = gained.saturating_sub(*spare).next_multiple_of(u64::from(unit.max(1)));
                gained.saturating_sub(least)
            }
        };
        let named = self.sequences.get(seq).map_or(0, |sequence| sequence.names.len());
        let mut kept = 0;
        for block in table.iter().take(named) {
            // Retaining a block that other sequences hold costs nothing.
            if self.device.slot(block.0).staying == 0 {
                if free_to_keep == 0 {
                    break;
                }
                free_to_keep -= 1;
                *spare = spare.saturating_sub(1);
            }
            self.device.stay(block.0);
            kept += 1;
        }
        kept
    }

    fn is_parked(&self, seq: SeqId) -> bool {
        self.sequences.get(seq).is_some_and(|sequence| sequence.phase == Phase::Parked)
    }

    /// Returns the block table of a victim that may be taken: it runs or is parked, holds blocks, is not the sequence
    /// of the want, and has not been granted this very step.
    fn table_of_candidate(&self, need: Need, victim: &Victim) -> Option<Arc<[BlockId]>> {
        let sequence = self.sequences.get(victim.ticket.seq)?;
        let may_go = matches!(sequence.phase, Phase::Running | Phase::Parked)
            && !sequence.table.is_empty()
            && victim.ticket.seq != need.seq
            && sequence.last_step != need.step;
        may_go.then(|| Arc::clone(&sequence.table))
    }

    /// Orders the candidates of each group by the cost of resuming them, the cheapest first.
    fn cheapest_first(
        &self,
        candidates: Vec<Candidate>,
        gives: Gives,
        shortage: u64,
        costs: ResumeCosts,
    ) -> Vec<Candidate> {
        let partly = matches!(gives, Gives::Needed { .. });
        let cost =
            |candidate: &Candidate| self.cost_to_resume(&candidate.0, partly, shortage, costs);
        let mut priced: Vec<(f64, Candidate)> =
            candidates.into_iter().map(|candidate| (cost(&candidate), candidate)).collect();
        for group in priced.chunk_by_mut(|a, b| a.1.0.group == b.1.0.group) {
            group.sort_by(|a, b| a.0.total_cmp(&b.0));
        }
        priced.into_iter().map(|(_, candidate)| candidate).collect()
    }

    /// Returns the cost of resuming a victim, us for each block that comes free and is needed; infinite if no block
    /// comes free. Blocks that other sequences hold stay where they are, and blocks that the host pool has are not
    /// copied out.
    fn cost_to_resume(
        &self,
        victim: &Victim,
        partly: bool,
        shortage: u64,
        costs: ResumeCosts,
    ) -> f64 {
        let Some(sequence) = self.sequences.get(victim.ticket.seq) else { return f64::INFINITY };
        let (mut freed, mut us) = (0_u64, 0.0);
        for depth in (0..sequence.table.len()).rev() {
            if partly && freed == shortage {
                break;
            }
            if self.device.slot(sequence.table[depth].0).staying == 1 {
                freed += 1;
                us += self.block_cost(sequence, depth, victim.swap, costs);
            }
        }
        match freed.min(shortage) {
            0 => f64::INFINITY,
            useful => us / useful as f64,
        }
    }

    fn block_cost(&self, sequence: &Sequence, depth: usize, swap: bool, costs: ResumeCosts) -> f64 {
        match sequence.names.get(depth) {
            Some(name) if self.host.find(name).is_some() => costs.copy_us,
            Some(_) if swap => 2.0 * costs.copy_us,
            _ => costs.recompute_us(depth..depth + 1),
        }
    }

    fn others_hold_blocks(&self, seq: SeqId) -> bool {
        self.sequences.iter().any(|(id, sequence)| id != seq && !sequence.table.is_empty())
    }

    fn mark_leaving(&mut self, table: &[BlockId]) -> u64 {
        table.iter().map(|block| u64::from(self.device.leave(block.0))).sum()
    }

    fn mark_staying(&mut self, table: &[BlockId]) -> u64 {
        table.iter().map(|block| u64::from(self.device.stay(block.0))).sum()
    }
}

/// A victim that may be taken, and its block table.
type Candidate = (Victim, Arc<[BlockId]>);

enum Choice {
    /// These victims suffice. Each retains the given number of blocks at the front of its table; the rest is marked as
    /// leaving.
    Enough(Vec<(Victim, u32)>),
    /// All victims together do not suffice. No table is marked.
    TooFew,
}
