//! Candidates of a step: running sequences, and waiting ones that may get blocks, in the order in which they get the
//! step's slots.

use crate::scheduler::candidate::Candidate;
use crate::scheduler::plan::retry::{OPENS_MAX, RetryScope};
use crate::scheduler::plan::view::View;
use crate::scheduler::sequence::Sequence;
use tiercel_config::{StepMix, ToStart};

/// Returns the sequences that the step may include, at most as many as the step has slots: within an effective tier
/// running sequences before waiting ones. Running sequences are in the order of rank. Waiting sequences are in the
/// order of rank too; but if tiers are fair and the last plan was not empty, the waiting sequences that a tier's share
/// pays for are in the order of the tiers' fair queue. If suspects of a failed step are among these sequences, returns
/// the first suspect alone; or, with `leave_out_suspects`, the sequences that are not suspects. The flag is set after a
/// suspect was denied blocks, so that the others make room, and in plans of a narrowed scope. If all are suspects,
/// returns the first suspect if the scope is `All`, and nothing otherwise.
pub(crate) fn eligible<'a>(
    view: &View<'a>,
    scope: RetryScope,
    leave_out_suspects: bool,
) -> Vec<Candidate<'a>> {
    let suspected = |sequence: &Sequence| view.suspects.contains(&sequence.id);
    let candidate = |(rank, sequence)| Candidate::new(rank, sequence);
    let running = view.queue.table.active();
    let running = running.filter(|(_, s)| view.may_step(s)).map(candidate);
    let open_limit = view.retry.open_limit;
    // Consider only the first waiting sequences, as many as one step may open. If some sequences are suspected of
    // having made a step fail, consider all, to find a suspect among them.
    let looked_at = if view.suspects.is_empty() { open_limit } else { usize::MAX };
    // A waiting sequence may be opened only after the steps in flight have sampled their tokens for it.
    let may_open = |s: &Sequence| {
        scope == RetryScope::All && (view.may_start || s.has_started()) && s.kv.in_flight.is_empty()
    };
    // After an empty plan ignore the tiers' fair queue and go by rank: only the first sequence by rank may take blocks
    // of all others.
    let fair = view.basis.rules.tiers_are_fair() && view.retry.empty_plans == 0;
    let by_tier = if fair { view.queue.in_fair_order(looked_at, may_open) } else { Vec::new() };
    let by_rank = (!fair).then(|| view.queue.table.queue());
    let by_rank = by_rank.into_iter().flatten().filter(|(_, s)| may_open(s));
    let mut opens = 0;
    let waiting = by_rank.chain(by_tier).take(looked_at).filter(|(_, sequence)| {
        opens += usize::from(!suspected(sequence));
        opens <= open_limit || suspected(sequence)
    });
    let most = view.basis.rules.scheduling.max_num_seqs as usize;
    if view.suspects.is_empty() {
        return in_slots(view, running, waiting.map(candidate), most);
    }
    let mut candidates = in_slots(view, running, waiting.map(candidate), usize::MAX);
    if let Some(suspect) = candidates.iter().find(|c| suspected(c.sequence)).copied() {
        candidates.retain(|candidate| leave_out_suspects && !suspected(candidate.sequence));
        if candidates.is_empty() && scope == RetryScope::All {
            candidates.push(suspect);
        }
    }
    candidates.truncate(most);
    candidates
}

/// Merges the running and the waiting candidates, each in the order given, and returns the first `most` that get a slot
/// of the step. Within an effective tier running sequences go before waiting ones, so that opening a sequence never
/// pushes an equal one out of the step. If starting sequences may not preempt, running ones go first across tiers too.
fn in_slots<'a>(
    view: &View<'_>,
    running: impl Iterator<Item = Candidate<'a>>,
    waiting: impl Iterator<Item = Candidate<'a>>,
    most: usize,
) -> Vec<Candidate<'a>> {
    let rules = &view.basis.rules;
    let (mut running, mut waiting) = (running.peekable(), waiting.peekable());
    let mut slots = view.memory.reservations.slots_of(most, rules.scheduling.max_num_seqs);
    let capacity = most.min(view.queue.table.active_len() + OPENS_MAX);
    let mut candidates = Vec::with_capacity(capacity);
    while candidates.len() < most {
        let waits = match (running.peek(), waiting.peek()) {
            (Some(runs), Some(waits)) => {
                rules.preemption.to_start == ToStart::LowerTier
                    && waits.rank.outranks_by_tier(&runs.rank)
            }
            (None, _) => true,
            (Some(_), None) => false,
        };
        let next = if waits { waiting.next() } else { running.next() };
        let Some(next) = next else { break };
        if slots.take(next.sequence.tier) {
            candidates.push(next);
        }
    }
    candidates
}

/// Removes candidates that the scope of a retried plan excludes. If a step may not mix prompts and decodes and there
/// are prompts, keeps the prompts alone, or the decodes alone while victims are being copied out for one of these.
/// Returns whether there were prompts.
pub(crate) fn separate(
    candidates: &mut Vec<Candidate<'_>>,
    scope: RetryScope,
    mix: StepMix,
) -> bool {
    if scope == RetryScope::Decodes {
        candidates.retain(|candidate| candidate.one_token_left);
    }
    let prompts = candidates.iter().any(|candidate| !candidate.one_token_left);
    if mix == StepMix::PromptsAlone && prompts {
        // Keep the decodes instead if victims are being copied out for one of them: a prompt could take the blocks that
        // come free before the decode gets them, again and again.
        let promised = candidates.iter().any(|c| c.one_token_left && c.sequence.kv.promised);
        candidates.retain(|candidate| candidate.one_token_left == promised);
    }
    prompts
}

/// Whether the plan leaves out a running sequence that the step could include.
pub(crate) fn skip_running(candidates: &[Candidate<'_>], view: &View<'_>) -> bool {
    let planned = candidates.iter().filter(|candidate| !candidate.waits).count();
    planned < view.queue.table.active().filter(|(_, s)| view.may_step(s)).count()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scheduler::plan::fixtures::view;
    use crate::scheduler::state::State;
    use crate::scheduler::tests::{NOW, scheduler, sequence};
    use tiercel_config::TierSlo;
    use tiercel_device::{SeqId, Tier};

    fn ids(s: &State, leave_out_suspects: bool) -> Vec<u64> {
        let found = eligible(&view(s), RetryScope::All, leave_out_suspects);
        found.iter().map(|candidate| candidate.sequence.id.0).collect()
    }

    #[test]
    fn beside_suspects_too_a_plan_opens_only_so_many_sequences() {
        let mut s = scheduler(|_| ());
        for id in 1..=6 {
            s.enqueue(sequence(id, Tier::Standard, 4));
        }
        s.retry.open_limit = 2;
        s.suspects.extend([SeqId(1), SeqId(4)].into_iter());
        assert_eq!(ids(&s, true), [2, 3], "others make room first");
        assert_eq!(ids(&s, false), [1], "a suspect runs alone");
    }

    #[test]
    fn after_an_empty_plan_rank_decides_and_not_the_fair_queue_of_the_tiers() {
        let order = |empty_plans| {
            let mut s = scheduler(|settings| {
                settings.slo.premium = TierSlo::default();
                settings.slo.background = TierSlo::default();
            });
            s.enqueue(sequence(1, Tier::Background, 4));
            s.enqueue(sequence(2, Tier::Premium, 4));
            s.queue.tiers.start(Tier::Premium, 1e6);
            s.retry.empty_plans = empty_plans;
            let request = s.plan(NOW).expect("both wait");
            request.wants.iter().map(|want| want.ticket.seq.0).collect::<Vec<_>>()
        };
        assert_eq!(order(0), [1, 2], "premium had its share");
        assert_eq!(order(1), [2, 1]);
    }
}
