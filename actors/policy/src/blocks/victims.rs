//! Decides whether a sequence's request for KV blocks can be met, chooses which sequences to preempt for it, and sets
//! aside blocks that are about to come free for requests that wait for them.

use super::BlockStore;
use super::sequence::{Phase, Sequence};
use crate::{Preempted, Release, ResumeCosts, Victim};
use std::sync::Arc;
use tiercel_device::{BlockId, SeqId, StepId};

/// Blocks that the denied requests of a step wait for, so that requests of sequences served later do not take them.
#[derive(Debug, Default)]
pub(super) struct Ledger {
    /// Number of KV blocks set aside for denied requests that can be granted once the copies that are queued or running
    /// have ended and freed blocks. No later request of the step may take these blocks.
    promised: u64,
    /// Blocks for denied requests that free blocks, pending blocks and all victims together cannot satisfy, while other
    /// sequences hold blocks that they will give back. They are set aside against later requests that open a sequence:
    /// such a sequence would only be preempted again, or many small sequences would starve a large one. They are not
    /// set aside against running sequences that grow, because otherwise no sequence might ever end.
    hoped: u64,
}

/// Need of one sequence's request for blocks: how many blocks, and rules for taking them from victims.
#[derive(Debug, Clone, Copy)]
pub(super) struct Need {
    /// Sequence that requests the blocks; it is never a victim of its own request.
    pub(super) seq: SeqId,
    /// Step that the blocks are requested for.
    pub(super) step: StepId,
    /// Number of blocks that must be available to the sequence; not all of them need be allocated now.
    pub(super) blocks: u64,
    /// Number of blocks that must stay free beside `blocks` (watermark and reservations of other tiers).
    pub(super) keep_free: u64,
    /// Number of prefix-cache hits that the sequence already holds while its request is decided, and that were free or
    /// pending (about to come free) before.
    pub(super) held: u64,
    /// Whether the request opens a waiting sequence, instead of growing a running one.
    pub(super) opens: bool,
    /// Costs by which victims of one group are ordered, cheapest to resume first; `None` if they are taken in the given
    /// order.
    pub(super) by_cost: Option<ResumeCosts>,
    /// Which part of its block table a preempted victim gives up.
    pub(super) release: Release,
}

/// Decision on a sequence's request for blocks: whether enough blocks are free.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Verdict {
    /// The needed blocks are free, so the request for blocks is granted.
    Met,
    /// The request cannot be met now. It can be met when `pending_blocks` more blocks have come free; 0 if no copy
    /// under way will free enough.
    Unmet {
        /// Number of blocks that must still come free from copies under way before the request for blocks can be met;
        /// 0 if these copies free too few.
        pending_blocks: u32,
    },
}

impl BlockStore {
    /// Decides one sequence's request for blocks. Uses free blocks first, then cancels mirroring copies that hold
    /// blocks, then waits for pending blocks (about to come free), and only then preempts as many of the victims as are
    /// needed, in order. If all of this is not enough, no sequence is preempted.
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
                    preempted.extend(chosen.into_iter().map(|(victim, retained)| Preempted {
                        ticket: victim.ticket,
                        outcome: self.carry_out(victim, retained),
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

    /// Whether a request for blocks can be met now; `total` includes blocks that must stay free for others. To open a
    /// sequence, `total` blocks must be free. To grow one, its own blocks must be free, and the rest may be free or
    /// pending.
    fn is_met(&self, need: Need, total: u64) -> bool {
        let free = u64::from(self.device.free());
        let pending = u64::from(self.device.pending());
        if need.opens { free >= total } else { free >= need.blocks && free + pending >= total }
    }

    /// Chooses victims in order until `shortage` blocks would come free, and marks their holds on blocks as leaving. A
    /// chosen victim whose preemption frees nothing is dropped again, unless blocks that it shares with another victim
    /// come free only through both.
    fn choose_victims(
        &mut self,
        need: Need,
        shortage: u64,
        victims: &[Victim],
        preempted: &[Preempted],
    ) -> Choice {
        // Skip sequences that were already preempted for this step request, because the answer reports each victim only
        // once. They can give more blocks in the next step request.
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
            candidates = self.cheapest_first(candidates, need.release, shortage, costs);
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
        self.give_no_more_than_needed(chosen, gained, shortage, need.release)
    }

    /// Spares chosen victims that would free nothing, and already preempted ones that are not needed to free `shortage`
    /// blocks, and lets the others retain the part of their table that they need not give. Preempting all chosen
    /// victims would free `gained` blocks.
    fn give_no_more_than_needed(
        &mut self,
        chosen: Vec<Candidate>,
        mut gained: u64,
        shortage: u64,
        release: Release,
    ) -> Choice {
        let mut needed = Vec::new();
        for (victim, table) in chosen.into_iter().rev() {
            let own = self.mark_staying(&table);
            // Spare a sequence that is already preempted if the other victims free enough blocks without its retained
            // ones.
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
            let retained = self.keep_front(victim.ticket.seq, &table, release, &mut spare);
            let given = &table[retained as usize..];
            if given.iter().any(|block| self.device.slot(block.0).staying == 0) {
                giving.push((victim, retained));
            } else {
                // Spare this victim: every block that it would give up is shared with another victim that retains it,
                // so none would come free.
                self.mark_staying(given);
            }
        }
        giving.reverse();
        Choice::Enough(giving)
    }

    /// Lets a victim retain the blocks at the front of its table that it need not give up, and marks its holds on them
    /// as staying. Returns their number. `spare` is the number of blocks that all victims together would free beyond
    /// the need.
    fn keep_front(
        &mut self,
        seq: SeqId,
        table: &[BlockId],
        release: Release,
        spare: &mut u64,
    ) -> u32 {
        let mut free_to_keep = match release {
            Release::All => return 0,
            Release::Unshared => 0,
            Release::Needed { unit } => {
                let gained = table.iter().filter(|block| self.device.slot(block.0).staying == 0);
                let gained = gained.count() as u64;
                let least = gained.saturating_sub(*spare).next_multiple_of(u64::from(unit.max(1)));
                gained.saturating_sub(least)
            }
        };
        let named = self.sequences.get(seq).map_or(0, |sequence| sequence.names.len());
        let mut retained = 0;
        for block in table.iter().take(named) {
            // Retain blocks that running sequences share without counting them, because they would not come free
            // anyway.
            if self.device.slot(block.0).staying == 0 {
                if free_to_keep == 0 {
                    break;
                }
                free_to_keep -= 1;
                *spare = spare.saturating_sub(1);
            }
            self.device.stay(block.0);
            retained += 1;
        }
        retained
    }

    fn is_parked(&self, seq: SeqId) -> bool {
        self.sequences.get(seq).is_some_and(|sequence| sequence.phase == Phase::Parked)
    }

    /// Returns the victim's block table if it may be preempted: it runs or is preempted with retained blocks, is not
    /// the sequence that requests blocks, and was not granted blocks for this very step.
    fn table_of_candidate(&self, need: Need, victim: &Victim) -> Option<Arc<[BlockId]>> {
        let sequence = self.sequences.get(victim.ticket.seq)?;
        let may_go = matches!(sequence.phase, Phase::Running | Phase::Parked)
            && !sequence.table.is_empty()
            && victim.ticket.seq != need.seq
            && sequence.last_step != need.step;
        may_go.then(|| Arc::clone(&sequence.table))
    }

    /// Orders the possible victims of each group by the cost of resuming them, cheapest first.
    fn cheapest_first(
        &self,
        candidates: Vec<Candidate>,
        release: Release,
        shortage: u64,
        costs: ResumeCosts,
    ) -> Vec<Candidate> {
        let partly = matches!(release, Release::Needed { .. });
        let cost =
            |candidate: &Candidate| self.cost_to_resume(&candidate.0, partly, shortage, costs);
        let mut priced: Vec<(f64, Candidate)> =
            candidates.into_iter().map(|candidate| (cost(&candidate), candidate)).collect();
        for group in priced.chunk_by_mut(|a, b| a.1.0.group == b.1.0.group) {
            group.sort_by(|a, b| a.0.total_cmp(&b.0));
        }
        priced.into_iter().map(|(_, candidate)| candidate).collect()
    }

    /// Returns the cost of resuming a victim, us per needed block that its preemption frees; infinite if it frees none.
    /// Blocks that other sequences share stay on the device and cost nothing, and blocks that the host pool already has
    /// need no copy out.
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

/// A sequence that may be preempted, and its block table.
type Candidate = (Victim, Arc<[BlockId]>);

enum Choice {
    /// The chosen victims free enough blocks. The number with each is how many blocks at the front of its table it
    /// retains; its holds on the others are marked as leaving.
    Enough(Vec<(Victim, u32)>),
    /// All possible victims together cannot free enough blocks, so no block table is marked.
    TooFew,
}
