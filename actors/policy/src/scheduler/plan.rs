//! What the next step would like: who runs, with how many tokens, and who may be preempted for it.

use crate::protocol::{StepRequest, Victim, Want, WantKind};
use crate::scheduler::rank::{Rank, Turn};
use crate::scheduler::sequence::{Phase, Sequence};
use crate::scheduler::state::{Scheduler, Stage};
use tiercel_config::{PreemptionMode, SchedulerSettings};
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
        let (victims, ranks) = self.victims();
        let wants = self.wants(&ranks, now);
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
            victims,
        })
    }

    /// Sequences that may be preempted, first to go first: those that make no progress because their
    /// client does not read or an operator paused them, then by rank from the worst; those preempted
    /// too often already go last. Beside each, its rank (`None`: anybody may take it).
    fn victims(&self) -> (Vec<Victim>, Vec<(Option<Rank>, bool)>) {
        let mut candidates: Vec<(u8, Rank, &Sequence)> = self
            .sequences
            .values()
            .filter(|sequence| sequence.phase == Phase::Running)
            .map(|sequence| {
                let class = if sequence.held() {
                    0
                } else {
                    1 + u8::from(sequence.preemptions >= self.max_preemptions)
                };
                (class, Rank::of(sequence, self.preset.order), sequence)
            })
            .collect();
        candidates.sort_by(|a, b| (a.0, b.1).cmp(&(b.0, a.1)));
        candidates
            .into_iter()
            .map(|(class, rank, sequence)| {
                let victim = Victim { ticket: sequence.ticket(), swap: self.swaps(sequence) };
                (victim, ((class > 0).then_some(rank), class < 2))
            })
            .unzip()
    }

    fn swaps(&self, sequence: &Sequence) -> bool {
        match self.mode {
            PreemptionMode::Swap => true,
            PreemptionMode::Recompute | PreemptionMode::Drop => false,
            PreemptionMode::Auto => self.cost.swap_is_cheaper(sequence.computed),
        }
    }

    /// The step's wants, best first. Decodes are given their token before any prefill, so that a long
    /// prompt never stalls a stream; prefills share what is left in order of rank, and background
    /// prompts only fill up a share of it.
    fn wants(&mut self, victims: &[(Option<Rank>, bool)], now: Timestamp) -> Vec<Want> {
        let others_first = std::mem::take(&mut self.suspect_denied);
        let candidates = self.candidates(others_first);
        let decodes = candidates.iter().filter(|sequence| sequence.decoding()).count() as u32;
        let prefill_budget = self.prefill_budget(&candidates, decodes, now);
        let background_budget = prefill_budget.min(self.background_budget());
        let mut prefill = 0;
        let mut wants = Vec::with_capacity(candidates.len());
        for sequence in candidates {
            let new_tokens = if sequence.decoding() {
                1
            } else {
                let background = sequence.tier == Tier::Background;
                let budget = if background { background_budget } else { prefill_budget };
                self.chunk(sequence).min(budget.saturating_sub(prefill))
            };
            if new_tokens == 0 {
                continue;
            }
            if !sequence.decoding() {
                prefill += new_tokens;
            }
            let first = wants.is_empty();
            wants.push(self.want(sequence, new_tokens, first, victims));
        }
        wants
    }

    /// Who may be in the step: runnable sequences in order of their turn, as many as the step holds.
    /// While a failed step is being investigated, one of its members alone, or if that could not have
    /// blocks (`others_first`), the others once, so that they make room.
    fn candidates(&self, others_first: bool) -> Vec<&Sequence> {
        let mut candidates: Vec<&Sequence> = self
            .sequences
            .values()
            .filter(|s| matches!(s.phase, Phase::Running | Phase::Waiting) && !s.held())
            .collect();
        candidates.sort_by_cached_key(|sequence| Turn::of(sequence, self.preset));
        let suspected = |sequence: &&Sequence| self.suspects.contains(&sequence.id);
        if let Some(suspect) = candidates.iter().copied().find(suspected) {
            if !others_first || candidates.iter().all(suspected) {
                return vec![suspect];
            }
            candidates.retain(|sequence| !suspected(sequence));
        }
        let mut opens = 0;
        candidates.retain(|sequence| {
            opens += usize::from(sequence.phase == Phase::Waiting);
            sequence.phase != Phase::Waiting || opens <= self.open_limit
        });
        candidates.truncate(self.settings.max_num_seqs as usize);
        candidates
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

    /// Tokens of prompts up to which a step is filled with background ones; at least one, so that they
    /// go on when nobody better is there.
    fn background_budget(&self) -> u32 {
        let SchedulerSettings { max_num_batched_tokens, background_prefill_percent, .. } =
            self.settings;
        let share = u64::from(max_num_batched_tokens) * u64::from(background_prefill_percent) / 100;
        if self.preset.pace_background { (share as u32).max(1) } else { u32::MAX }
    }

    /// Tokens of a prefill it would compute if it were alone.
    fn chunk(&self, sequence: &Sequence) -> u32 {
        let left = sequence.len() - sequence.computed;
        match self.settings.long_prefill_token_threshold {
            0 => left,
            threshold => left.min(threshold),
        }
    }

    fn want(
        &self,
        sequence: &Sequence,
        new_tokens: u32,
        first: bool,
        victims: &[(Option<Rank>, bool)],
    ) -> Want {
        let rank = Rank::of(sequence, self.preset.order);
        let opening = sequence.phase == Phase::Waiting;
        let kind = if opening {
            // The best-ranked may use the last block: otherwise a request as large as the pool would
            // wait for ever.
            let keep_free = if first { 0 } else { self.watermark_blocks() };
            WantKind::Open {
                hashes: sequence.findable(self.limits.block_size),
                keep_free,
                must_fit: sequence.len(),
            }
        } else {
            WantKind::Grow
        };
        let allowed = |(victim, willing): &(Option<Rank>, bool)| match victim {
            None => true,
            // Whoever is first may take all that are worse, or sequences that were preempted too often
            // could keep everybody else from running and never run themselves.
            Some(victim) if opening => {
                (*willing || first) && self.preset.preempt_to_start && rank.outranks_by_tier(victim)
            }
            // Its own place in the list is no obstacle: the store never takes the requester.
            Some(victim) => rank <= *victim,
        };
        Want {
            ticket: sequence.ticket(),
            len: sequence.len(),
            new_tokens,
            kind,
            max_victims: victims.iter().take_while(|victim| allowed(victim)).count() as u32,
        }
    }

    fn watermark_blocks(&self) -> u32 {
        (f64::from(self.limits.device_blocks) * self.settings.watermark_percent / 100.0) as u32
    }
}
