//! Tests of priority keys, of best effort and of ageing.

use super::*;
use crate::blocks::Salt;
use crate::scheduler::NewSequence;
use crate::scheduler::budget::fixtures::prompt;
use crate::scheduler::state::State;
use crate::scheduler::tests::{scheduler, sequence};
use tiercel_device::Timestamp;

fn of(s: &State, id: u64) -> &Sequence {
    s.queue.table.get(SeqId(id)).expect("the request waits")
}

#[test]
fn a_request_is_charged_its_prompt_and_its_predicted_output_in_tokens() {
    let mut s = scheduler(|_| ());
    for id in 1..=2 {
        s.enqueue(sequence(id, Tier::Standard, 20));
    }
    // Half of the 4 tokens that the output may have are predicted, beside 20 prompt tokens.
    assert_eq!([1, 2].map(|id| of(&s, id).service.token_tag), [0.0, 22.0]);
}

#[test]
fn late_requests_go_by_the_length_of_their_prompts_unless_tenants_share_the_time() {
    let key = |fair_tenants, other: u8| {
        let mut s = scheduler(|settings| settings.scheduler.fair_tenants = fair_tenants);
        for (id, tenant) in [(1, 1), (2, 1), (3, other)] {
            let salt = Salt([tenant; 16]);
            s.enqueue(NewSequence { salt, ..sequence(id, Tier::Standard, 20) });
        }
        s.queue.set_late(SeqId(2), true, &s.basis);
        of(&s, 2).service.key.number
    };
    // The request before it takes 200 us for its prompt and 2 us for its output, so the start tag is 202.
    assert_eq!(key(true, 2), 202);
    assert_eq!([key(true, 1), key(false, 2), key(false, 1)], [20; 3]);
}

#[test]
fn only_a_sequence_at_its_limit_of_preemptions_is_promoted_and_only_if_the_setting_says_so() {
    let promoted = |preemptions, at_limit| {
        let mut s = scheduler(|_| ());
        let preemption = &mut s.basis.rules.preemption;
        (preemption.max_per_request, preemption.at_limit) = (2, at_limit);
        let mut sequence = prompt(1, Tier::Standard, 20, 0);
        sequence.preemptions = preemptions;
        s.queue.key(&sequence, &s.basis.rules).promoted
    };
    assert!(promoted(2, AtLimit::Promote) && !promoted(1, AtLimit::Promote));
    assert!(!promoted(2, AtLimit::Spare) && !promoted(1, AtLimit::Spare));
}

#[test]
fn a_request_of_the_server_itself_is_never_best_effort() {
    let s = scheduler(|_| ());
    let best_effort = |tier| is_best_effort(&prompt(1, tier, 20, 0), &s.basis.rules);
    assert_eq!(Tier::ALL.map(best_effort), [false, true, true, true]);
}

#[test]
fn a_request_gains_a_tier_for_each_span_that_it_waits_and_no_more() {
    let mut s = scheduler(|settings| {
        settings.scheduler.ageing_s = 0.5;
        settings.scheduler.ageing_cap = AgeingCap::Premium;
    });
    s.enqueue(sequence(7, Tier::Background, 20));
    let ages_at = |s: &State| of(s, 7).service.ages_at;
    assert_eq!(ages_at(&s), Some(Timestamp(500_007)));
    s.queue.age(Timestamp(500_007), &s.basis);
    assert_eq!(of(&s, 7).service.key.class.tier(), Tier::Standard);
    assert_eq!(ages_at(&s), Some(Timestamp(1_000_007)));
    s.queue.age(Timestamp(1_000_007), &s.basis);
    assert_eq!(of(&s, 7).service.key.class.tier(), Tier::Premium);
    assert_eq!(ages_at(&s), None, "the cap is reached");
}
