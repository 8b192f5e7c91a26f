//! What the next step would like: who runs, with how many tokens, and who may be preempted for it.

use crate::protocol::{StepRequest, Want, WantKind};
use crate::scheduler::prompts::Share;
use crate::scheduler::sequence::{Phase, Sequence};
use crate::scheduler::state::{Scheduler, Scope, Stage};
use crate::scheduler::victims::{Claim, Victims};
use tiercel_config::{Allocation, Batching, ResumeFrom, SchedulerSettings, ToStart};
use tiercel_device::{StepId, Tier, Timestamp};

/// Most sequences asked to open in one step: each costs a look-up of its whole prefix, and a step
/// rarely has room for more.
pub(crate) const MAX_OPENS_PER_STEP: usize = 32;

impl Scheduler {
    /// The request for the next step; `None` if a step is under way or there is nothing to say. The
    /// answer must be given to [`Scheduler::granted`].
    pub fn plan(&mut self, now: Timestamp) -> Option<StepRequest> {
        if !matches!(self.stage, Stage::Idle) {
            return None;
        }
        self.replan = false;
        self.age(now);
        let victims = self.victims(now);
        let others_first = std::mem::take(&mut self.suspect_denied) || self.scope != Scope::All;
        let (mut wants, mut left_out) = self.wants(&victims, others_first, now);
        if wants.is_empty() && self.scope != Scope::All {
            // Those it was for are gone or held, or have no place in a step; that is not tried again.
            self.scope = Scope::All;
            (wants, left_out) = (self.wants(&victims, others_first, now).0, false);
        }
        // While a failed step is investigated most are left out on purpose.
        self.left_out = left_out && (self.suspects.is_empty() || others_first);
        let news = !self.progress.is_empty() || !self.released.is_empty();
        if wants.is_empty() && !news {
            return None;
        }
        let step = StepId(self.last_step.0 + 1);
        self.last_step = step;
        self.stage = Stage::Reserving(step);
        Some(StepRequest {
            step,
            completed_step: self.completed_step,
            progress: std::mem::take(&mut self.progress),
            released: std::mem::take(&mut self.released),
            wants,
            victims: victims.victims,
            by_cost: self.resume_costs(),
            gives: self.gives(),
            mirror: self.blocks_to_mirror(now),
        })
    }

    /// The step's wants, best first, and whether somebody was left out who runs.
    fn wants(&self, victims: &Victims, others_first: bool, now: Timestamp) -> (Vec<Want>, bool) {
        let mut shares = self.candidates(others_first);
        let running = |shares: &[Share<'_>]| {
            let running = shares.iter().filter(|share| share.sequence.phase == Phase::Running);
            running.filter(|share| share.tokens > 0).count()
        };
        self.share_out(&mut shares, now);
        let could_run = self.sequences.active().filter(|(_, s)| s.runnable()).count();
        let left_out = running(&shares) < could_run;
        let mut wants = Vec::with_capacity(shares.len());
        for share in shares.iter().filter(|share| share.tokens > 0) {
            let first = wants.is_empty();
            wants.push(self.want(share, first, victims, now));
        }
        (wants, left_out)
    }

    /// Who may be in the step: runnable sequences in order of their turn, as many as the step holds.
    /// While a failed step is being investigated, one of its members alone, or if that could not have
    /// blocks (`others_first`), the others once, so that they make room.
    fn candidates(&self, others_first: bool) -> Vec<Share<'_>> {
        let suspected = |sequence: &Sequence| self.suspects.contains(&sequence.id);
        let share = |(rank, sequence)| Share { sequence, rank, tokens: 0 };
        let running = self.sequences.active();
        let running = running.filter(|(_, s)| s.runnable()).map(share);
        let (starts, mut opens) = (self.starts(), 0);
        let all = self.scope == Scope::All;
        let waiting = self.sequences.queue().filter(|(_, s)| all && (starts || s.was_open()));
        // While nobody is suspected, the rest of the queue need not be looked at.
        let looked_at = if self.suspects.is_empty() { self.open_limit } else { usize::MAX };
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
        let mut shares = Vec::new();
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
            shares.push(next);
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

    fn want(&self, share: &Share<'_>, first: bool, victims: &Victims, now: Timestamp) -> Want {
        let Share { sequence, rank, tokens } = *share;
        let opening = sequence.phase == Phase::Waiting;
        let longest = sequence.longest().min(self.limits.max_model_len);
        let reserve = match self.settings.allocation {
            Allocation::OnDemand => 0,
            Allocation::UpFront => longest,
        };
        let by_force = match opening {
            true => self.may_start_by_force(sequence, now),
            false => self.preemption.background_takes || sequence.tier != Tier::Background,
        };
        let kind = if opening {
            // The best-ranked may use the last block: otherwise a request as large as the pool would
            // wait for ever. Who may take blocks from others had better take free ones first.
            let may_take_all = first || (by_force && sequence.tier < Tier::Background);
            let keep_free = if may_take_all { 0 } else { self.watermark_blocks(sequence.tier) };
            let checked = if self.settings.full_sequence_check { sequence.len() } else { 0 };
            WantKind::Open {
                hashes: sequence.findable(self.limits.block_size),
                keep_free,
                must_fit: checked.max(reserve),
                own_only: self.preemption.resume_from == ResumeFrom::OwnCopies
                    && sequence.was_open(),
            }
        } else {
            WantKind::Grow
        };
        Want {
            ticket: sequence.ticket(),
            len: sequence.len(),
            new_tokens: tokens,
            reserve,
            kind,
            max_victims: victims.allowed(Claim { rank, opening, first, by_force }),
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
