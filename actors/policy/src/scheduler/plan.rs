//! What the next step would like: who runs, with how many tokens, and who may be preempted for it.

use crate::protocol::{StepRequest, Victim, Want, WantKind};
use crate::scheduler::prompts::Share;
use crate::scheduler::sequence::Sequence;
use crate::scheduler::state::{Scheduler, Scope};
use crate::scheduler::victims::{Claim, Victims};
use tiercel_config::{
    Allocation, Batching, PreemptionMode, ResumeFrom, SchedulerSettings, ToStart, VictimRule,
};
use tiercel_device::{StepId, Tier, Timestamp};

/// Most sequences asked to open in one step: each costs a look-up of its whole prefix, and a step
/// rarely has room for more.
pub(crate) const MAX_OPENS_PER_STEP: usize = 32;

impl Scheduler {
    /// The request for the next step; `None` if it is not time for it or there is nothing to say. The
    /// answer must be given to [`Scheduler::granted`].
    pub fn plan(&mut self, now: Timestamp) -> Option<StepRequest> {
        if self.next_plan()? > now {
            return None;
        }
        let begins = self.pipeline.begins(now);
        self.replan = false;
        self.age(now);
        self.judge_deadlines(begins);
        self.look_at_lines();
        let (wants, victims) = self.wants_and_victims(begins);
        let news = !self.progress.is_empty() || !self.released.is_empty();
        if wants.is_empty() && !news {
            return None;
        }
        let completed_step = self.pipeline.completed();
        Some(StepRequest {
            step: self.pipeline.reserve(now),
            completed_step,
            progress: std::mem::take(&mut self.progress),
            released: std::mem::take(&mut self.released),
            wants,
            victims,
            costs: self.cost.resume_costs(),
            victims_by_cost: self.preemption.victim == VictimRule::ResumeCost,
            resumes_by_cost: self.preemption.mode == PreemptionMode::Auto,
            gives: self.gives(),
            mirror: self.blocks_to_mirror(now),
            lends: self.kept.lends(),
        })
    }

    /// When the next step may be planned; `None` if something else has to happen first.
    pub fn next_plan(&self) -> Option<Timestamp> {
        // Who made a step fail is found out alone.
        let alone = !self.suspects.is_empty() && !self.pipeline.is_dry();
        self.pipeline.next_plan().filter(|_| !alone)
    }

    /// Every step up to this one has completed, if the store has not been told with a request: copies wait for it.
    pub fn take_completed(&mut self) -> Option<StepId> {
        self.pipeline.take_completed()
    }

    /// The step's wants, best first, and who may be preempted for them, or copied ahead of need: nobody if free
    /// blocks are enough and nothing is copied ahead.
    fn wants_and_victims(&mut self, now: Timestamp) -> (Vec<Want>, Vec<Victim>) {
        let narrow = self.scope != Scope::All;
        let mut others_first = std::mem::take(&mut self.suspect_denied) || narrow;
        if narrow && self.shares(others_first, now).is_empty() {
            // Those it was for are gone or held, or have no place in a step; that is not tried again. Of the whole
            // scope the suspect is first: the others were asked for before the scope was narrowed.
            (self.scope, others_first) = (Scope::All, false);
        }
        let widened = narrow && self.scope == Scope::All;
        let shares = self.shares(others_first, now);
        let unneeded = self.preemption.mirror_percent == 0 && self.surely_fit(&shares);
        let victims = if unneeded { Victims::default() } else { self.victims(now) };
        let wants = self.wants(&shares, &victims, now);
        let left_out = self.leaves_out(&shares) && !widened;
        // While a failed step is investigated most are left out on purpose.
        self.left_out = left_out && (self.suspects.is_empty() || others_first);
        (wants, victims.victims)
    }

    /// Who is in the step and with how many tokens, best first.
    fn shares(&self, others_first: bool, now: Timestamp) -> Vec<Share<'_>> {
        let mut shares = self.candidates(others_first);
        self.share_out(&mut shares, now);
        shares.retain(|share| share.tokens > 0);
        shares
    }

    /// Whether somebody who runs is not in the step.
    fn leaves_out(&self, shares: &[Share<'_>]) -> bool {
        let running = shares.iter().filter(|share| !share.waits);
        running.count() < self.sequences.active().filter(|(_, s)| self.may_step(s)).count()
    }

    /// Whether the blocks that were free after the last grant are enough for all of them, whatever the store finds:
    /// since then blocks have only come free.
    fn surely_fit(&self, shares: &[Share<'_>]) -> bool {
        let (mut blocks, mut keep_free) = (0, 0);
        for share in shares {
            if share.waits {
                keep_free = keep_free.max(self.watermark_blocks(share.sequence.tier));
            }
            blocks += u64::from(self.blocks_asked(share));
        }
        let kept = self.most_kept(shares, &self.kept_unused());
        blocks + u64::from(keep_free) + u64::from(kept) <= u64::from(self.free_blocks)
    }

    /// Blocks that a candidate may need, whatever the store finds for it.
    fn blocks_asked(&self, share: &Share<'_>) -> u32 {
        let Share { sequence, tokens, len, waits, .. } = *share;
        let covered = if waits { len } else { len.min(sequence.planned_computed() + tokens) };
        let needed = covered.max(self.reserve(sequence)).div_ceil(self.limits.block_size);
        needed.saturating_sub(sequence.table.len() as u32)
    }

    fn wants(&self, shares: &[Share<'_>], victims: &Victims, now: Timestamp) -> Vec<Want> {
        let mut wants = Vec::with_capacity(shares.len());
        let mut unused = self.kept_unused();
        let mut last = None;
        for share in shares {
            let claim = self.claim(share, wants.is_empty(), now);
            // Neighbours mostly have the same claim.
            let max_victims = match last {
                Some((before, count)) if victims.treats_alike(before, claim) => count,
                _ => victims.allowed(claim),
            };
            last = Some((claim, max_victims));
            // What came to nothing must not come to nothing again for what nobody uses.
            let stuck = wants.is_empty() && self.fruitless > 0;
            let kept_for_others =
                if stuck { 0 } else { self.kept_for_others(share.sequence, &unused) };
            wants.push(Want { max_victims, kept_for_others, ..self.want(share, claim) });
            // What it takes of its own no longer has to be left by those after it.
            let own = &mut unused[share.sequence.tier.index()];
            *own = own.saturating_sub(self.blocks_asked(share));
        }
        wants
    }

    fn may_step(&self, sequence: &Sequence) -> bool {
        sequence.runnable(self.limits.max_model_len)
    }

    /// Who may be in the step: runnable sequences in order of their turn, as many as the step holds.
    /// While a failed step is being investigated, one of its members alone, or if that could not have
    /// blocks (`others_first`), the others once, so that they make room.
    fn candidates(&self, others_first: bool) -> Vec<Share<'_>> {
        let suspected = |sequence: &Sequence| self.suspects.contains(&sequence.id);
        let share = |(rank, sequence)| Share::of(rank, sequence);
        let running = self.sequences.active();
        let running = running.filter(|(_, s)| self.may_step(s)).map(share);
        let (starts, mut opens) = (self.starts(), 0);
        let all = self.scope == Scope::All;
        // While nobody is suspected, the rest of the queue need not be looked at.
        let looked_at = if self.suspects.is_empty() { self.open_limit } else { usize::MAX };
        // The tokens it had sampled before its blocks were taken come first.
        let may_open = |s: &Sequence| all && (starts || s.was_open()) && s.ahead.is_empty();
        // After a plan that came to nothing the best-ranked is first again: only it can reach everybody's blocks.
        let divides = self.divides() && self.fruitless == 0;
        let divided = if divides { self.divided(looked_at, may_open) } else { Vec::new() };
        let in_order = (!divides).then(|| self.sequences.queue());
        let in_order = in_order.into_iter().flatten().filter(|(_, s)| may_open(s));
        let waiting = in_order.chain(divided);
        let waiting = waiting.take(looked_at).filter(|(_, sequence)| {
            opens += usize::from(!suspected(sequence));
            opens <= self.open_limit || suspected(sequence)
        });
        let most = self.settings.max_num_seqs as usize;
        if self.suspects.is_empty() {
            return self.in_turn(running, waiting.map(share), most);
        }
        let mut shares = self.in_turn(running, waiting.map(share), usize::MAX);
        if let Some(suspect) = shares.iter().find(|share| suspected(share.sequence)).copied() {
            shares.retain(|share| others_first && !suspected(share.sequence));
            if shares.is_empty() && self.scope == Scope::All {
                shares.push(suspect);
            }
        }
        shares.truncate(most);
        shares
    }

    /// The first `most` of those that run and those that wait, each in order of rank. Within a level what
    /// runs goes before what waits, so that starting a sequence never pushes an equal out of the step; without
    /// preemption that holds across levels.
    fn in_turn<'a>(
        &self,
        running: impl Iterator<Item = Share<'a>>,
        waiting: impl Iterator<Item = Share<'a>>,
        most: usize,
    ) -> Vec<Share<'a>> {
        let (mut running, mut waiting) = (running.peekable(), waiting.peekable());
        let mut places = self.places(most);
        let mut shares =
            Vec::with_capacity(most.min(self.sequences.active_len() + MAX_OPENS_PER_STEP));
        while shares.len() < most {
            let waits = match (running.peek(), waiting.peek()) {
                (Some(runs), Some(waits)) => {
                    self.preemption.to_start == ToStart::LowerTier
                        && waits.rank.outranks_by_level(&runs.rank)
                }
                (None, _) => true,
                (Some(_), None) => false,
            };
            let next = if waits { waiting.next() } else { running.next() };
            let Some(next) = next else { break };
            if places.take(next.sequence.tier) {
                shares.push(next);
            }
        }
        shares
    }

    /// Whether sequences may start that never ran. A static batch takes them until the first of it has
    /// ended.
    fn starts(&self) -> bool {
        self.settings.batching == Batching::Continuous || !self.batch_closed
    }

    /// Waiting sequences asked to open in the next plan, after one that opened some and denied others.
    /// One that is denied holds a place of the step that a running sequence could use, so after a
    /// denial only as many are asked as could open, and at least the first.
    pub(crate) fn adjust_open_limit(&mut self, opened: usize, denied: usize) {
        self.open_limit = match denied {
            0 => (self.open_limit * 2).min(MAX_OPENS_PER_STEP),
            _ => opened.clamp(1, MAX_OPENS_PER_STEP),
        };
    }

    fn claim(&self, share: &Share<'_>, first: bool, now: Timestamp) -> Claim {
        let Share { sequence, rank, waits: opening, .. } = *share;
        let by_force = match opening {
            true => self.may_start_by_force(sequence, now),
            false => self.preemption.background_takes || sequence.tier != Tier::Background,
        };
        Claim { rank, opening, first, by_force }
    }

    /// Positions its table shall cover from now on, beyond what a step needs.
    fn reserve(&self, sequence: &Sequence) -> u32 {
        match self.settings.allocation {
            Allocation::OnDemand => 0,
            Allocation::UpFront => sequence.longest().min(self.limits.max_model_len),
        }
    }

    /// What it asks of the store, except whom it may preempt.
    fn want(&self, share: &Share<'_>, claim: Claim) -> Want {
        let Share { sequence, tokens, len, .. } = *share;
        let reserve = self.reserve(sequence);
        let kind = if claim.opening {
            // The best-ranked may use the last block: otherwise a request as large as the pool would
            // wait for ever. Who may take blocks from others had better take free ones first.
            let better = sequence.tier < Tier::Background && !sequence.promised_nothing;
            let may_take_all = claim.first || (claim.by_force && better);
            let keep_free = if may_take_all { 0 } else { self.watermark_blocks(sequence.tier) };
            let checked = if self.settings.full_sequence_check { len } else { 0 };
            let own_copies = self.preemption.resume_from == ResumeFrom::OwnCopies;
            WantKind::Open {
                hashes: sequence.findable(self.limits.block_size),
                keep_free,
                must_fit: checked.max(reserve),
                own_only: own_copies && sequence.was_open(),
            }
        } else {
            WantKind::Grow
        };
        Want {
            ticket: sequence.ticket(),
            len,
            new_tokens: sequence.planned_computed() - sequence.computed + tokens,
            reserve,
            kept_for_others: 0,
            kind,
            max_victims: 0,
        }
    }

    fn watermark_blocks(&self, tier: Tier) -> u32 {
        let SchedulerSettings { watermark_percent, background_watermark_percent, .. } =
            self.settings;
        let percent = match tier {
            Tier::Background => watermark_percent.max(background_watermark_percent),
            _ => watermark_percent,
        };
        (f64::from(self.limits.device_blocks) * percent / 100.0) as u32
    }
}
