//! Wants: the KV blocks that each candidate requests of the block store for the step.

use crate::protocol::{Want, WantKind};
use crate::scheduler::candidate::Candidate;
use crate::scheduler::memory::victims::{Claim, Victims};
use crate::scheduler::plan::view::View;
use crate::scheduler::queue::arrivals::Traffic;
use crate::scheduler::rules::Rules;
use crate::scheduler::sequence::Sequence;
use tiercel_config::{ResumeFrom, ToStart};
use tiercel_device::{Tier, Timestamp};

/// Whether free blocks surely suffice for all candidates, even without prefix-cache hits, so that no victims are
/// needed. Uses the number of free blocks in the block store's last answer, which has only grown since.
pub(crate) fn surely_fit(candidates: &[Candidate<'_>], view: &View<'_>) -> bool {
    let rules = &view.basis.rules;
    let (mut blocks, mut watermark) = (0, 0);
    for candidate in candidates {
        if candidate.waits {
            watermark =
                watermark.max(rules.watermark_blocks(candidate.sequence.tier, view.traffic));
        }
        blocks += u64::from(blocks_asked(candidate, rules));
    }
    let reservations = &view.memory.reservations;
    let unused = reservations.unused(&view.queue.table, rules.limits);
    let reserved = reservations.most_kept_for_others(candidates, &unused, rules.limits);
    let free = u64::from(view.memory.free_blocks);
    blocks + u64::from(watermark) + u64::from(reserved) <= free
}

/// Returns the number of blocks that a candidate needs for the step beside those that it holds, without prefix-cache
/// hits.
fn blocks_asked(candidate: &Candidate<'_>, rules: &Rules) -> u32 {
    let Candidate { sequence, tokens, len, waits, .. } = *candidate;
    let covered = if waits { len } else { len.min(sequence.planned_computed() + tokens) };
    let allocated_tokens = rules.allocated_up_front(sequence.longest());
    let needed = covered.max(allocated_tokens).div_ceil(rules.limits.block_size);
    needed.saturating_sub(sequence.kv.block_table.len() as u32)
}

/// Returns the wants of all candidates, in the order of the candidates.
pub(crate) fn wants(candidates: &[Candidate<'_>], victims: &Victims, view: &View<'_>) -> Vec<Want> {
    let rules = &view.basis.rules;
    let reservations = &view.memory.reservations;
    let mut wants = Vec::with_capacity(candidates.len());
    let mut unused = reservations.unused(&view.queue.table, rules.limits);
    let mut last = None;
    for candidate in candidates {
        let claim = claim(candidate, wants.is_empty(), rules, view.begins);
        // Reuse the number of victims of the previous candidate if it may preempt the same ones, as most adjacent
        // candidates may.
        let max_victims = match last {
            Some((before, count)) if victims.treats_alike(before, claim) => count,
            _ => victims.allowed(claim),
        };
        last = Some((claim, max_victims));
        // After an empty plan the first candidate ignores reservations of other tiers, so that the plan cannot be empty
        // because of them again.
        let ignores = wants.is_empty() && view.retry.empty_plans > 0;
        let kept_for_others = match ignores {
            true => 0,
            false => reservations.kept_for_others(candidate.sequence, &unused, rules.limits),
        };
        wants.push(Want {
            max_victims,
            kept_for_others,
            ..want(candidate, claim, (rules, view.traffic))
        });
        // Subtract the blocks that this candidate takes of its own tier's reservation: the candidates after it need not
        // leave them free.
        let own = &mut unused[candidate.sequence.tier.index()];
        *own = own.saturating_sub(blocks_asked(candidate, rules));
    }
    wants
}

fn claim(candidate: &Candidate<'_>, first: bool, rules: &Rules, begins: Timestamp) -> Claim {
    let Candidate { sequence, rank, waits: opening, .. } = *candidate;
    let may_preempt_running = match opening {
        true => may_preempt_to_start(sequence, rules, begins),
        false => rules.preemption.background_takes || sequence.tier != Tier::Background,
    };
    Claim { rank, opening, first, may_preempt_running }
}

/// Whether a waiting sequence may preempt running ones to get its blocks.
fn may_preempt_to_start(sequence: &Sequence, rules: &Rules, begins: Timestamp) -> bool {
    let waited_us = begins.since_us(sequence.arrival);
    rules.preemption.to_start == ToStart::LowerTier
        && waited_us >= u64::from(rules.preemption.delay_ms) * 1000
}

/// Returns a candidate's want; the number of its victims and the reservations of other tiers are filled in later.
fn want(candidate: &Candidate<'_>, claim: Claim, (rules, traffic): (&Rules, Traffic)) -> Want {
    let Candidate { sequence, tokens, len, .. } = *candidate;
    let allocated_tokens = rules.allocated_up_front(sequence.longest());
    let kind = if claim.opening {
        // The watermark is 0 for the first candidate, because a request as large as the pool would otherwise wait for
        // ever. The watermark is also 0 for a candidate above background that may preempt running sequences, because
        // this candidate should use free blocks before it preempts sequences.
        let high = sequence.tier_before_ageing() < Tier::Background;
        let may_take_all = claim.first || (claim.may_preempt_running && high);
        let keep_free =
            if may_take_all { 0 } else { rules.watermark_blocks(sequence.tier, traffic) };
        let checked = if rules.scheduling.full_sequence_check { len } else { 0 };
        let own_copies = rules.preemption.resume_from == ResumeFrom::OwnCopies;
        WantKind::Open {
            hashes: sequence.text.findable(rules.limits.block_size),
            keep_free,
            must_fit: checked.max(allocated_tokens),
            own_only: own_copies && sequence.has_started(),
        }
    } else {
        WantKind::Grow
    };
    Want {
        ticket: sequence.ticket(),
        len,
        new_tokens: sequence.planned_computed() - sequence.kv.computed + tokens,
        reserve: allocated_tokens,
        kept_for_others: 0,
        kind,
        max_victims: 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scheduler::budget::fixtures::prompt;
    use crate::scheduler::memory::reservation::Reservations;
    use crate::scheduler::plan::fixtures::{candidates, view};
    use crate::scheduler::sequence::Phase;
    use crate::scheduler::state::State;
    use crate::scheduler::tests::{NOW, scheduler};
    use tiercel_config::{Reservation, ReservationSettings};

    /// Creates a scheduler on a device of 100 blocks of 4 tokens, 10 of which are reserved for premium.
    fn state() -> State {
        let mut s = scheduler(|_| ());
        let settings = ReservationSettings {
            kind: Reservation::Hard,
            premium_blocks_percent: 10.0,
            ..ReservationSettings::default()
        };
        s.memory.reservations = Reservations::new(&settings, 100);
        s
    }

    fn waiting(id: u64, tokens: u32) -> Sequence {
        let mut sequence = prompt(id, Tier::Background, tokens, 0);
        sequence.phase = Phase::Waiting;
        sequence
    }

    #[test]
    fn blocks_watermark_and_reservations_of_others_must_all_be_free() {
        let mut s = state();
        let sequences = [waiting(1, 5), waiting(2, 9)];
        let fit = |s: &mut State, free_blocks| {
            s.memory.free_blocks = free_blocks;
            surely_fit(&candidates(&sequences), &view(s))
        };
        // The candidates need 2 and 3 blocks. Beside these, 3 blocks must stay free for the watermark of 3 %, and 10
        // blocks for premium's reservation.
        assert!(fit(&mut s, 18) && !fit(&mut s, 17));
        // While requests of higher tiers come, background has a watermark of its own, here 5 %.
        s.basis.rules.scheduling.background_watermark_percent = 5.0;
        s.queue.arrivals.set(Tier::Standard, Some(NOW));
        assert!(fit(&mut s, 20) && !fit(&mut s, 19));
    }

    #[test]
    fn only_the_first_candidate_after_an_empty_plan_ignores_reservations() {
        let sequences = [waiting(1, 5), waiting(2, 9)];
        let kept = |empty_plans| {
            let mut s = state();
            s.retry.empty_plans = empty_plans;
            let wants = wants(&candidates(&sequences), &Victims::default(), &view(&s));
            wants.iter().map(|want| want.kept_for_others).collect::<Vec<_>>()
        };
        assert_eq!([0, 1, 2].map(kept), [[10, 10], [0, 10], [0, 10]]);
    }

    #[test]
    fn only_a_resumed_sequence_is_kept_to_its_own_copies_and_only_if_the_setting_says_so() {
        let own_only = |resume_from, has_started: bool| {
            let mut s = state();
            s.basis.rules.preemption.resume_from = resume_from;
            let mut sequence = waiting(1, 5);
            sequence.kv.cached_tokens = has_started.then_some(0);
            let sequences = [sequence];
            let wants = wants(&candidates(&sequences), &Victims::default(), &view(&s));
            match wants[0].kind {
                WantKind::Open { own_only, .. } => own_only,
                WantKind::Grow => panic!("the sequence waits"),
            }
        };
        assert!(own_only(ResumeFrom::OwnCopies, true) && !own_only(ResumeFrom::OwnCopies, false));
        assert!(!own_only(ResumeFrom::Cache, true) && !own_only(ResumeFrom::Cache, false));
    }
}
