//! Tests of the order of victims, and of the claims on them.

use super::*;
use crate::scheduler::budget::fixtures::{prompt, stream};
use crate::scheduler::queue::priority_key::PriorityKey;
use crate::scheduler::queue::service_class::ServiceClass;
use crate::scheduler::tests::scheduler;
use tiercel_config::{ReservationSettings, ResumeOrder};
use tiercel_device::{BlockId, SeqId};

fn rank(tier: Tier, id: u64) -> Rank {
    let key = PriorityKey { class: ServiceClass::new(tier, tier, false), ..PriorityKey::UNPLACED };
    Rank::new(key, (false, ResumeOrder::Rank), Timestamp(id), SeqId(id))
}

/// Returns the claim of a waiting sequence that may preempt others.
fn opening(rank: Rank, first: bool) -> Claim {
    Claim { rank, opening: true, first, may_preempt_running: true }
}

fn growing(rank: Rank) -> Claim {
    Claim { rank, opening: false, first: false, may_preempt_running: true }
}

/// Returns victims with these guards, under a rule that counts no ranks.
fn guarded(guards: Vec<(Protection, Rank)>) -> Victims {
    Victims { guards, ..Victims::default() }
}

#[test]
fn a_victim_that_may_not_be_taken_protects_all_victims_after_it() {
    let victims = guarded(vec![
        (Protection::Resting, rank(Tier::Premium, 1)),
        (Protection::Usual, rank(Tier::Background, 2)),
        (Protection::Usual, rank(Tier::Standard, 3)),
        (Protection::Limited, rank(Tier::Background, 4)),
        (Protection::Spared, rank(Tier::Background, 5)),
        (Protection::Spared, rank(Tier::Background, 6)),
    ]);
    // A standard sequence may start at the cost of background ones only, so the standard victim is the end of its part.
    assert_eq!(victims.allowed(opening(rank(Tier::Standard, 9), true)), 2);
    assert_eq!(victims.allowed(opening(rank(Tier::Premium, 9), true)), 6);
    // Of the candidates that wait, only the first may take sequences at their limit of preemptions.
    assert_eq!(victims.allowed(opening(rank(Tier::Premium, 9), false)), 3);
}

#[test]
fn a_waiting_sequence_takes_nothing_from_its_own_tier_under_any_rule() {
    let victims = guarded(vec![(Protection::Usual, rank(Tier::Standard, 3))]);
    for first in [false, true] {
        assert_eq!(victims.allowed(opening(rank(Tier::Standard, 1), first)), 0);
    }
    assert_eq!(victims.allowed(growing(rank(Tier::Standard, 5))), 1, "a running one does");
}

#[test]
fn claims_of_one_tier_are_alike_where_neither_the_rule_nor_a_protection_counts_ranks() {
    let (a, b) = (growing(rank(Tier::Standard, 1)), growing(rank(Tier::Standard, 2)));
    let usual = vec![(Protection::Usual, rank(Tier::Standard, 3))];
    let victims = guarded(usual.clone());
    assert!(victims.treats_alike(a, b));
    assert!(!victims.treats_alike(a, growing(rank(Tier::Premium, 2))));
    for other in [
        Claim { opening: true, ..b },
        Claim { first: true, ..b },
        Claim { may_preempt_running: false, ..b },
    ] {
        assert!(!victims.treats_alike(a, other), "{other:?}");
    }
    let by_rank = Victims { by_rank: true, ..guarded(usual) };
    assert!(!by_rank.treats_alike(a, b) && by_rank.treats_alike(a, a));
    assert!(Victims { by_rank: true, ..Victims::default() }.treats_alike(a, b), "no victims");
    for protection in [Protection::Limited, Protection::Spared, Protection::Reserved] {
        let victims = guarded(vec![(protection, rank(Tier::Standard, 3))]);
        assert!(!victims.treats_alike(a, b) && victims.treats_alike(a, a), "{protection:?}");
    }
}

#[test]
fn only_the_first_of_a_plan_takes_blocks_that_a_reservation_covers() {
    let settings =
        ReservationSettings { standard_blocks_percent: 30.0, ..ReservationSettings::default() };
    let reservations = Reservations::new(&settings, 100);
    let mut s = scheduler(|_| ());
    for id in [1, 2] {
        let mut runs = stream(id, Tier::Standard, (9, 3), 50);
        runs.service.key.class = ServiceClass::new(Tier::Standard, Tier::Standard, false);
        runs.kv.block_table =
            (id as u32 * 20..id as u32 * 20 + 20).map(BlockId).collect::<Vec<_>>().into();
        s.queue.table.insert(runs);
    }
    // Of the 30 reserved blocks, the first stream holds 20, and both together hold 40.
    let victims = Victims::new(&s.queue.table, (&s.basis, &reservations), Timestamp(0));
    let order: Vec<u64> = victims.victims.iter().map(|victim| victim.ticket.seq.0).collect();
    assert_eq!(order, [2, 1]);
    let premium = growing(rank(Tier::Premium, 9));
    assert_eq!(victims.allowed(premium), 1);
    assert_eq!(victims.allowed(Claim { first: true, ..premium }), 2);
}

/// Returns the position of a standard sequence among the victims under a rule.
fn position_by(victim: VictimRule, sequence: &Sequence) -> VictimKey {
    let mut s = scheduler(|_| ());
    s.basis.rules.preemption.victim = victim;
    let protection = protection(sequence, &s.basis.rules, false);
    position(sequence, (rank(Tier::Standard, 1), protection), victim, Timestamp(0))
}

#[test]
fn resting_sequences_go_by_tier_under_every_rule() {
    let mut resting = stream(7, Tier::Standard, (9, 3), 50);
    resting.held_by_stream = true;
    for rule in [VictimRule::LatestArrival, VictimRule::ReverseFifo, VictimRule::LeastProgress] {
        let expected = (Protection::Resting, Reverse(Tier::Standard), 0);
        assert_eq!(position_by(rule, &resting), expected, "{rule:?}");
    }
}

#[test]
fn of_two_late_arrivals_a_microsecond_decides_and_of_two_openings_their_numbers() {
    let of = |id, opened_number| {
        let mut sequence = stream(id, Tier::Standard, (9, 3), 50);
        sequence.kv.opened_number = opened_number;
        sequence
    };
    let late = 1_000_000_000_000;
    let by_arrival = |id| position_by(VictimRule::LatestArrival, &of(id, 1));
    assert!(by_arrival(late + 1) < by_arrival(late));
    let by_opening = |number| position_by(VictimRule::ReverseFifo, &of(1, number));
    assert!(by_opening(late + 1) < by_opening(late));
}

#[test]
fn the_fewest_output_tokens_count_before_the_fewest_preemptions() {
    let of = |output, preemptions| {
        let mut sequence = stream(1, Tier::Standard, (9, output), 50);
        sequence.preemptions = preemptions;
        position_by(VictimRule::LeastProgress, &sequence)
    };
    assert!(of(1, 5) < of(2, 0));
    assert!(of(2, 1) < of(2, 3));
}

#[test]
fn the_output_that_may_still_come_counts_to_the_last_token() {
    let of = |left: u32| {
        let mut sequence = stream(1, Tier::Standard, (9, 3), 50);
        sequence.text.max_tokens = 3 + left;
        position_by(VictimRule::LongestRemaining, &sequence)
    };
    assert!(of(100_001) < of(100_000));
    assert!(of(1) < of(0));
}

#[test]
fn a_running_victim_that_is_to_be_dropped_is_not_copied() {
    let runs = stream(1, Tier::Standard, (9, 3), 50);
    let mut waits = prompt(2, Tier::Standard, 9, 0);
    waits.phase = Phase::Waiting;
    let copied = |at_limit| {
        let mut s = scheduler(|_| ());
        let preemption = &mut s.basis.rules.preemption;
        (preemption.mode, preemption.max_per_request) = (PreemptionMode::Swap, 0);
        preemption.at_limit = at_limit;
        [swaps(&runs, &s.basis), swaps(&waits, &s.basis)]
    };
    assert_eq!(copied(AtLimit::Drop), [false, true]);
    assert_eq!(copied(AtLimit::Spare), [true, true]);
}
