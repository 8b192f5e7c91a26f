//! Wants: the blocks that each candidate asks of the block store for the step.

use crate::protocol::{Want, WantKind};
use crate::scheduler::candidate::Candidate;
use crate::scheduler::memory::victims::{Claim, Victims};
use crate::scheduler::plan::view::View;
use crate::scheduler::rules::Rules;
use crate::scheduler::sequence::Sequence;
use tiercel_config::{ResumeFrom, ToStart};
use tiercel_device::{Tier, Timestamp};

/// Whether the blocks that were free after the last grant are enough for all candidates, whatever the block store finds
/// for them in the prefix cache. Since that grant, blocks have only come free.
pub(crate) fn surely_fit(candidates: &[Candidate<'_>], view: &View<'_>) -> bool {
    let rules = &view.basis.rules;
    let (mut blocks, mut watermark) = (0, 0);
    for candidate in candidates {
        if candidate.waits {
            watermark = watermark.max(rules.watermark_blocks(candidate.sequence.tier));
        }
        blocks += u64::from(blocks_asked(candidate, rules));
    }
    let reservations = &view.memory.reservations;
    let unused = reservations.unused(&view.queue.table, rules.limits);
    let reserved = reservations.most_for_others(candidates, &unused, rules.limits);
    let free = u64::from(view.memory.free_blocks);
    blocks + u64::from(watermark) + u64::from(reserved) <= free
}

/// Returns the most blocks that a candidate may need, whatever the block store finds for it in the prefix cache.
fn blocks_asked(candidate: &Candidate<'_>, rules: &Rules) -> u32 {
    let Candidate { sequence, tokens, len, waits, .. } = *candidate;
    let covered = if waits { len } else { len.min(sequence.planned_computed() + tokens) };
    let reserve = rules.allocated_up_front(sequence.longest());
    let needed = covered.max(reserve).div_ceil(rules.limits.block_size);
    needed.saturating_sub(sequence.kv.table.len() as u32)
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
        // Neighbours mostly have equal claims, so the number of victims need not be counted again.
        let max_victims = match last {
            Some((before, count)) if victims.treats_alike(before, claim) => count,
            _ => victims.allowed(claim),
        };
        last = Some((claim, max_victims));
        // After an empty plan the first candidate ignores unused reservations, so that the next plan cannot be empty
        // for the same reason.
        let ignores = wants.is_empty() && view.retry.empty_plans > 0;
        let kept_for_others = match ignores {
            true => 0,
            false => reservations.for_others(candidate.sequence, &unused, rules.limits),
        };
        wants.push(Want { max_victims, kept_for_others, ..want(candidate, claim, rules) });
        // Candidates after this one need not leave free the blocks that this one takes of its own tier's reservation.
        let own = &mut unused[candidate.sequence.tier.index()];
        *own = own.saturating_sub(blocks_asked(candidate, rules));
    }
    wants
}

fn claim(candidate: &Candidate<'_>, first: bool, rules: &Rules, now: Timestamp) -> Claim {
    let Candidate { sequence, rank, waits: opening, .. } = *candidate;
    let by_force = match opening {
        true => may_start_by_force(sequence, rules, now),
        false => rules.preemption.background_takes || sequence.tier != Tier::Background,
    };
    Claim { rank, opening, first, by_force }
}

/// Whether a waiting sequence may preempt running ones in order to open.
fn may_start_by_force(sequence: &Sequence, rules: &Rules, now: Timestamp) -> bool {
    let waited_us = now.since_us(sequence.arrival);
    rules.preemption.to_start == ToStart::LowerTier
        && waited_us >= u64::from(rules.preemption.delay_ms) * 1000
}

/// Returns the want of a candidate, without the number of its victims and the reservations of other tiers.
fn want(candidate: &Candidate<'_>, claim: Claim, rules: &Rules) -> Want {
    let Candidate { sequence, tokens, len, .. } = *candidate;
    let reserve = rules.allocated_up_front(sequence.longest());
    let kind = if claim.opening {
        // The first candidate may use the last block: otherwise a request as large as the pool would wait for ever. A
        // candidate that may preempt others shall take free blocks first.
        let high = sequence.tier_before_ageing() < Tier::Background;
        let may_take_all = claim.first || (claim.by_force && high);
        let keep_free = if may_take_all { 0 } else { rules.watermark_blocks(sequence.tier) };
        let checked = if rules.scheduling.full_sequence_check { len } else { 0 };
        let own_copies = rules.preemption.resume_from == ResumeFrom::OwnCopies;
        WantKind::Open {
            hashes: sequence.text.findable(rules.limits.block_size),
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
        new_tokens: sequence.planned_computed() - sequence.kv.computed + tokens,
        reserve,
        kept_for_others: 0,
        kind,
        max_victims: 0,
    }
}
