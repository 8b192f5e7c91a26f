//! The order in which the prompts of a step get tokens.

use crate::scheduler::basis::Basis;
use crate::scheduler::budget::slack::ttft_deadline;
use crate::scheduler::candidate::Candidate;
use crate::scheduler::cost::CostModel;
use crate::scheduler::rules::Rules;
use crate::scheduler::sequence::{Phase, Sequence};
use tiercel_config::PrefillOrder;
use tiercel_device::{Tier, Timestamp};

const TIERS: usize = Tier::ALL.len();
/// The order by rank replaces the order of deadlines only if each prompt would meet its TTFT target even if the work of
/// all prompts took this many times as long as predicted. With a smaller factor fewer requests are in time than in the
/// order of deadlines, because requests that arrive later need the time too.
const RANK_MARGIN: f64 = 3.0;

/// Sort key of the prompts of a step: effective tier, `false` if blocks were denied (these prompts go first), whether
/// the request is late, and a number. The number is the deadline, us; the number of tokens left to compute; the start
/// tag in the fair queue of the tier's tenants; or, while tiers share the time for prompts, the serial number of the
/// time at which the sequence got its blocks.
type PrefillKey = (Tier, bool, bool, u64);

/// Returns the order in which the prompts of the step get tokens: `scheduler.prefill_order`, with one exception. In the
/// order of deadlines the longest prompts wait, because derived TTFT targets grow with the prompt, and late prompts go
/// by the number of tokens left to compute. This wait pays only if other prompts need the time. So the order is by rank
/// if the setting is `deadline`, only one tier has requests, no prompt of the step was denied blocks, and each would
/// meet its TTFT target in the order of rank with the margin [`RANK_MARGIN`]. If several tiers have requests, the order
/// stays by deadline, because later requests of higher tiers may need the time. `share` is the share of the device's
/// time that prompts get.
pub(super) fn order_in_force(
    candidates: &[Candidate<'_>],
    basis: &Basis,
    (share, one_tier): (f64, bool),
    begins: Timestamp,
) -> PrefillOrder {
    let stated = basis.rules.scheduling.prefill_order;
    let may_relax = stated == PrefillOrder::Deadline && one_tier;
    match may_relax && rank_is_in_time(candidates, &basis.cost, share, begins) {
        true => PrefillOrder::Rank,
        false => stated,
    }
}

/// Whether no prompt was denied blocks and, in the order of rank, each prompt would meet its TTFT target even if all
/// work up to the end of the prompt took [`RANK_MARGIN`] times as long as predicted.
fn rank_is_in_time(
    candidates: &[Candidate<'_>],
    cost: &CostModel,
    share: f64,
    begins: Timestamp,
) -> bool {
    let mut work_us = 0.0;
    let prompts = candidates.iter().filter(|candidate| !candidate.one_token_left);
    prompts.map(|prompt| prompt.sequence).all(|sequence| {
        // A prompt that was denied blocks goes first in the order of deadlines: see `prefill_key`.
        if sequence.kv.denied_at.is_some() {
            return false;
        }
        let left = sequence.left_to_compute();
        work_us += cost.prefill_us(left, sequence.planned_len() - left);
        let until_deadline_us = ttft_deadline(sequence).0 as f64 - begins.0 as f64;
        RANK_MARGIN * work_us <= share * until_deadline_us
    })
}

/// Returns the indices of the prompts among the candidates, in the order in which prompts get tokens: in the order of
/// the candidates if `order` is `Rank`.
pub(super) fn in_order(
    candidates: &[Candidate<'_>],
    (rules, order): (&Rules, PrefillOrder),
    tiers_share: bool,
) -> Vec<usize> {
    let mut prompts: Vec<usize> =
        (0..candidates.len()).filter(|at| !candidates[*at].one_token_left).collect();
    if order != PrefillOrder::Rank {
        let sequences = prompts.iter().map(|at| candidates[*at].sequence);
        let fair = tiers_with_several_tenants(sequences, rules);
        // The sort is stable: prompts with equal keys stay in the order of the candidates.
        prompts.sort_by_key(|at| match candidates[*at].sequence {
            sequence if tiers_share && sequence.service.key.class.payer().is_some() => {
                opening_key(sequence)
            }
            sequence => prefill_key(sequence, fair, order),
        });
    }
    prompts
}

/// Whether the step has prompts with different payers, so that tiers share the time for these prompts.
pub(super) fn several_tiers_share(candidates: &[Candidate<'_>]) -> bool {
    let prompts = candidates.iter().filter(|candidate| !candidate.one_token_left);
    let mut payers = prompts.filter_map(|prompt| prompt.sequence.service.key.class.payer());
    let first = payers.next();
    payers.any(|payer| Some(payer) != first)
}

/// Returns, for each effective tier, whether several tenants have prompts in the step; these prompts go in the order of
/// the tenants' fair queue.
fn tiers_with_several_tenants<'a>(
    prompts: impl Iterator<Item = &'a Sequence>,
    rules: &Rules,
) -> [bool; TIERS] {
    let mut several = [false; TIERS];
    let mut first = [None; TIERS];
    for prompt in prompts.filter(|_| rules.tenants_are_fair()) {
        let tier = prompt.service.key.class.tier().index();
        let tenant = prompt.service.tenant;
        several[tier] |= *first[tier].get_or_insert(tenant) != tenant;
    }
    several
}

/// Returns the sort key of a prompt among the prompts of a step. A prompt that was denied blocks goes first of its
/// effective tier: victims may have been preempted for it, whose blocks came free only now.
fn prefill_key(sequence: &Sequence, fair: [bool; TIERS], order: PrefillOrder) -> PrefillKey {
    let key = &sequence.service.key;
    let number = match order {
        PrefillOrder::Rank => 0,
        _ if fair[key.class.tier().index()] => sequence.service.tenant_tag.start as u64,
        PrefillOrder::Deadline if sequence.service.late => u64::from(sequence.left_to_compute()),
        PrefillOrder::Deadline => ttft_deadline(sequence).0,
        PrefillOrder::Shortest => u64::from(sequence.left_to_compute()),
    };
    (key.class.tier(), sequence.kv.denied_at.is_none(), key.late, number)
}

/// Returns the sort key of a prompt with a payer while the step has prompts of several payers: prompts that were denied
/// blocks first, then by when the sequence got its blocks, which the tiers' fair queue decided; waiting sequences last.
fn opening_key(sequence: &Sequence) -> PrefillKey {
    let waits = sequence.phase == Phase::Waiting;
    let number = if waits { u64::MAX } else { sequence.kv.opened_number };
    (sequence.service.key.class.tier(), sequence.kv.denied_at.is_none(), false, number)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::blocks::Salt;
    use crate::scheduler::budget::fixtures::{cost, prompt};
    use crate::scheduler::plan::fixtures::candidates;
    use crate::scheduler::queue::service_class::ServiceClass;
    use crate::scheduler::tests::{NOW, scheduler};

    /// Creates a prompt with `tokens` tokens left to compute, of a service class of the standard tier, that arrived at
    /// `id` us and has a TTFT target of `ttft_ms`.
    fn standard(id: u64, tokens: u32, ttft_ms: f64) -> Sequence {
        let mut sequence = prompt(id, Tier::Standard, tokens, 0);
        sequence.service.key.class = ServiceClass::new(Tier::Standard, Tier::Standard, false);
        sequence.service.targets.ttft_ms = Some(ttft_ms);
        sequence
    }

    #[test]
    fn prompts_in_time_go_by_deadline_late_ones_by_length_and_denied_ones_first() {
        let key =
            |sequence: &Sequence| prefill_key(sequence, [false; TIERS], PrefillOrder::Deadline);
        let mut sequence = standard(3, 40, 5.0);
        assert_eq!(key(&sequence), (Tier::Standard, true, false, 5_003));
        sequence.service.late = true;
        sequence.service.key.late = true;
        assert_eq!(key(&sequence), (Tier::Standard, true, true, 40));
        sequence.kv.denied_at = Some(NOW);
        assert_eq!(key(&sequence), (Tier::Standard, false, true, 40));
        sequence.service.tenant_tag.start = 77.5;
        let several = [false, false, true, false];
        let by_tenant = prefill_key(&sequence, several, PrefillOrder::Deadline);
        assert_eq!(by_tenant, (Tier::Standard, false, true, 77));
    }

    #[test]
    fn best_effort_prompts_go_by_when_they_got_their_blocks_denied_ones_first_and_waiting_ones_last()
     {
        let mut sequence = standard(3, 40, 5.0);
        sequence.kv.opened_number = 7;
        sequence.service.key.late = true;
        assert_eq!(opening_key(&sequence), (Tier::Standard, true, false, 7));
        sequence.kv.denied_at = Some(NOW);
        assert_eq!(opening_key(&sequence), (Tier::Standard, false, false, 7));
        sequence.phase = Phase::Waiting;
        assert_eq!(opening_key(&sequence), (Tier::Standard, false, false, u64::MAX));
    }

    #[test]
    fn a_tier_has_several_tenants_only_if_two_of_its_prompts_differ() {
        let of = |tier, tenant| {
            let mut sequence = prompt(1, tier, 10, 0);
            sequence.service.key.class = ServiceClass::new(tier, tier, false);
            sequence.service.tenant = Salt([tenant; 16]);
            sequence
        };
        let prompts = [
            of(Tier::Standard, 1),
            of(Tier::Premium, 1),
            of(Tier::Standard, 1),
            of(Tier::Premium, 2),
            of(Tier::Background, 3),
        ];
        let s = scheduler(|_| ());
        let several = tiers_with_several_tenants(prompts.iter(), &s.basis.rules);
        assert_eq!(several, [false, true, false, false]);
    }

    #[test]
    fn prompts_go_by_rank_if_nothing_else_counts() {
        let s = scheduler(|_| ());
        let mut prompts = [standard(1, 10, 9.0), standard(2, 10, 5.0)];
        let by = |prompts: &[Sequence], order| {
            in_order(&candidates(prompts), (&s.basis.rules, order), false)
        };
        assert_eq!(by(&prompts, PrefillOrder::Deadline), [1, 0], "the earlier deadline");
        assert_eq!(by(&prompts, PrefillOrder::Rank), [0, 1]);
        prompts[1].kv.denied_at = Some(NOW);
        assert_eq!(
            by(&prompts, PrefillOrder::Rank),
            [0, 1],
            "even if the second was denied blocks"
        );
    }

    #[test]
    fn best_effort_prompts_go_by_their_opening_only_while_several_tiers_share_the_time() {
        let s = scheduler(|_| ());
        let of = |left, opened_number, shared| {
            let mut sequence = prompt(1, Tier::Standard, left, 0);
            sequence.service.key.class =
                ServiceClass::new(Tier::Standard, Tier::Background, shared);
            sequence.kv.opened_number = opened_number;
            sequence
        };
        let order = |shared, tiers_share| {
            let prompts = [of(10, 2, shared), of(20, 1, shared)];
            let order = PrefillOrder::Shortest;
            in_order(&candidates(&prompts), (&s.basis.rules, order), tiers_share)
        };
        assert_eq!(order(true, true), [1, 0], "the first that got its blocks");
        assert_eq!(order(true, false), [0, 1], "the shortest");
        assert_eq!(order(false, true), [0, 1], "prompts that no share pays for");
    }

    #[test]
    fn the_rank_counts_while_one_tier_alone_has_ample_time_for_each_prompt() {
        let mut s = scheduler(|_| ());
        s.basis.cost = cost();
        // The work of 10 tokens is 91.25 us. Prompts have a quarter of the device's time, so with a margin of 3 the
        // first prompt must have 1,095 us left, and the second 2,190 us.
        let order = |s: &crate::scheduler::State, second_ms, one_tier| {
            let prompts = [standard(1, 10, 1.1), standard(1, 10, second_ms)];
            order_in_force(&candidates(&prompts), &s.basis, (0.25, one_tier), Timestamp(1))
        };
        assert_eq!(order(&s, 2.19, true), PrefillOrder::Rank);
        assert_eq!(order(&s, 2.189, true), PrefillOrder::Deadline);
        assert_eq!(order(&s, 2.19, false), PrefillOrder::Deadline);
        let mut denied = [standard(1, 10, 1.1)];
        denied[0].kv.denied_at = Some(NOW);
        let counts = order_in_force(&candidates(&denied), &s.basis, (0.25, true), Timestamp(1));
        assert_eq!(counts, PrefillOrder::Deadline, "victims may have been preempted for it");
        s.basis.rules.scheduling.prefill_order = PrefillOrder::Shortest;
        assert_eq!(order(&s, 2.19, true), PrefillOrder::Shortest);
    }
}
