//! Tests of starvation.

use super::*;
use crate::scheduler::lateness::flow::Flow;
use crate::scheduler::queue::arrivals::Arrivals;
use crate::scheduler::sequence::NewSequence;
use crate::scheduler::state::State;
use crate::scheduler::tests::{scheduler, sequence};
use tiercel_config::Policy;

/// Returns a scheduler with two waiting requests of a tier: number 1, which cannot be in time, and number 2, which
/// arrives `wait_us` after 1 was judged late and can be in time.
fn with_a_late_one(first: NewSequence, better_came: bool, wait_us: u64) -> State {
    let mut s = scheduler(|settings| settings.use_policy(Policy::Tiercel));
    let tier = first.tier;
    let targets = if tier == Tier::Standard {
        &mut s.basis.targets.standard
    } else {
        &mut s.basis.targets.background
    };
    targets.ttft_ms = Some(5.0);
    s.enqueue(first);
    judge(&mut s, Timestamp(10_000));
    assert!(s.queue.table.get(SeqId(1)).expect("it waits").service.late);
    let now = Timestamp(10_000 + wait_us);
    let mut second = sequence(2, tier, 20);
    second.arrival = now;
    s.enqueue(second);
    s.queue.arrivals = Arrivals::default();
    s.queue.arrivals.set(tier, Some(now));
    s.queue.arrivals.set(Tier::Premium, better_came.then_some(now));
    balance(&mut s, tier, now);
    judge(&mut s, now);
    s
}

/// Lets as many requests of a tier come as are served, one a second in the 61 s before `now`.
fn balance(s: &mut State, tier: Tier, now: Timestamp) {
    let flow = &mut s.deadlines.flow[tier.index()];
    *flow = Flow::default();
    for second in (0..=61).rev() {
        let at = Timestamp(now.0.saturating_sub(second * 1_000_000));
        flow.entered(at);
        flow.served(at);
    }
}

fn late_one(tier: Tier) -> NewSequence {
    sequence(1, tier, 900)
}

fn judge(s: &mut State, now: Timestamp) {
    s.deadlines.judge(&mut s.queue, &s.basis, now);
}

fn starves_after_us(s: &State, now: Timestamp) -> Option<u64> {
    let drain_us = s.queue.drain[Tier::Standard.index()].wait_us(now).unwrap_or(0.0);
    starving_after_us(Tier::Standard, drain_us, s.queue.traffic(now), true)
}

fn order(s: &State) -> Vec<u64> {
    s.queue.table.queue().map(|(_, sequence)| sequence.id.0).collect()
}

#[test]
fn a_late_request_of_the_only_tier_goes_first_after_ten_seconds() {
    for tier in [Tier::Standard, Tier::Background] {
        assert_eq!(order(&with_a_late_one(late_one(tier), false, 9_000_000)), [2, 1]);
        assert_eq!(order(&with_a_late_one(late_one(tier), false, 10_000_000)), [1, 2]);
    }
}

#[test]
fn the_servers_own_requests_do_not_count_as_another_tier() {
    let mut s = scheduler(|settings| settings.use_policy(Policy::Tiercel));
    s.enqueue(sequence(1, Tier::System, 1));
    s.cancel(SeqId(1));
    s.enqueue(sequence(2, Tier::Standard, 20));
    assert_eq!(starves_after_us(&s, Timestamp(0)), Some(ALONE_US));
}

#[test]
fn beside_premium_a_late_request_goes_first_after_half_of_the_patience() {
    let [standard, background] = [Tier::Standard, Tier::Background].map(late_one);
    assert_eq!(order(&with_a_late_one(standard.clone(), true, 299_000_000)), [2, 1]);
    assert_eq!(order(&with_a_late_one(standard, true, 300_000_000)), [1, 2]);
    assert_eq!(order(&with_a_late_one(background, true, 599_000_000)), [2, 1]);
}

#[test]
fn beside_premium_no_request_starves_while_more_or_fewer_come_than_are_served() {
    let mut s = with_a_late_one(late_one(Tier::Standard), true, 299_000_000);
    let now = Timestamp(310_010_000);
    let flow = &mut s.deadlines.flow[Tier::Standard.index()];
    (0..10).for_each(|_| flow.served(now));
    judge(&mut s, now);
    assert_eq!(order(&s), [2, 1], "the backlog drains");
    let flow = &mut s.deadlines.flow[Tier::Standard.index()];
    (0..20).for_each(|_| flow.entered(now));
    judge(&mut s, now);
    assert_eq!(order(&s), [2, 1], "the backlog grows");
    let flow = &mut s.deadlines.flow[Tier::Standard.index()];
    (0..10).for_each(|_| flow.served(now));
    judge(&mut s, now);
    assert_eq!(order(&s), [2, 1], "as many come as are served, but not for a minute yet");
    let now = Timestamp(380_010_000);
    balance(&mut s, Tier::Standard, now);
    judge(&mut s, now);
    assert_eq!(order(&s), [1, 2]);
}

#[test]
fn a_starving_request_that_changes_tier_starves_no_more() {
    let mut s = with_a_late_one(late_one(Tier::Standard), false, 10_000_000);
    assert!(s.reprioritize(SeqId(1), Tier::Background, 0));
    assert!(s.deadlines.late.is_empty());
}

#[test]
fn under_a_policy_without_deadlines_no_request_stays_late() {
    let mut s = with_a_late_one(late_one(Tier::Standard), false, 9_000_000);
    assert_eq!(order(&s), [2, 1]);
    s.set_policy(Policy::Fcfs);
    assert_eq!(order(&s), [1, 2]);
    assert!(s.deadlines.late.is_empty());
}

#[test]
fn a_lower_tier_does_not_make_a_late_request_wait_longer() {
    let mut s = with_a_late_one(late_one(Tier::Standard), false, 9_000_000);
    let now = Timestamp(10_020_000);
    s.queue.arrivals.set(Tier::Background, Some(now));
    judge(&mut s, now);
    assert_eq!(order(&s), [1, 2]);
}

#[test]
fn a_client_that_came_back_goes_first_at_once() {
    for (tier, better_came) in [(Tier::Standard, false), (Tier::Background, true)] {
        let first = NewSequence { has_retry_credit: true, ..late_one(tier) };
        assert_eq!(order(&with_a_late_one(first, better_came, 1)), [1, 2]);
        assert_eq!(order(&with_a_late_one(late_one(tier), better_came, 1)), [2, 1]);
    }
}

#[test]
fn a_starving_request_is_not_judged_again() {
    let mut s = with_a_late_one(late_one(Tier::Standard), false, 10_000_000);
    judge(&mut s, Timestamp(10_020_000));
    assert_eq!(order(&s)[0], 1);
    s.cancel(SeqId(1));
    assert!(s.deadlines.late.starving.is_empty());
}

#[test]
fn no_request_starves_where_a_plain_server_would_make_all_wait_for_as_long() {
    let mut s = scheduler(|settings| settings.use_policy(Policy::Tiercel));
    let queue = &mut s.queue.drain[Tier::Standard.index()];
    // The queue of 600 waiting requests serves one request in a second, so it drains in ten minutes: no request
    // starves.
    (0..601).for_each(|_| queue.entered(Timestamp(0)));
    queue.served(Timestamp(1_000_000));
    let now = Timestamp(1_000_000);
    assert_eq!(starves_after_us(&s, now), None);
    (0..300).for_each(|_| s.queue.drain[Tier::Standard.index()].gave_up());
    assert_eq!(starves_after_us(&s, now), Some((ALONE_SHARE * 300e6) as u64));
    (0..280).for_each(|_| s.queue.drain[Tier::Standard.index()].gave_up());
    assert_eq!(starves_after_us(&s, now), Some(ALONE_US));
}

/// Returns late standard requests that arrive every microsecond: `few` of tenant 1, then `many` of tenant 2.
fn of_tenants(few: u64, many: u64) -> LateRequests {
    let mut late = LateRequests::default();
    for id in 0..few + many {
        add(&mut late, if id < few { 1 } else { 2 }, id, false);
    }
    late
}

/// Adds late standard request `id` of a tenant, which arrives `id` microseconds after the start.
fn add(late: &mut LateRequests, tenant: u64, id: u64, has_retry_credit: bool) {
    let of_tenant = late.behind.entry(of_tenant(tenant)).or_default();
    of_tenant.requests.insert((!has_retry_credit, Timestamp(id), SeqId(id)));
}

fn of_tenant(tenant: u64) -> TierTenant {
    (Tier::Standard, Salt(u128::from(tenant).to_be_bytes()))
}

fn taken(late: &mut LateRequests, drain_s: f64, now_s: u64) -> Vec<u64> {
    let traffic = Arrivals::default().traffic([0; 4], Timestamp(0));
    let (drain_us, now) = (Some(drain_s * 1e6), Timestamp(now_s * 1_000_000));
    let taken = late.take_starving(Tier::Standard, (drain_us, false), traffic, now);
    // The scheduler takes starving requests off the late ones.
    let late = &mut late.behind;
    late.values_mut().for_each(|late| late.requests.retain(|(.., seq)| !taken.contains(seq)));
    late.retain(|_, late| !late.requests.is_empty());
    taken.into_iter().map(|seq| seq.0).collect()
}

/// Returns late requests of tenants, of whom each has the given number and weight.
fn groups(of: &[(u64, f64)]) -> Vec<Group<LateEntry>> {
    let group = |(count, weight): &(u64, f64)| Group {
        weight: Weight::new(*weight),
        requests: (0..*count).map(|id| (true, Timestamp(id), SeqId(id))).collect(),
    };
    of.iter().map(group).collect()
}

#[test]
fn the_fair_part_of_a_tenant_is_what_equal_shares_serve_before_its_last_request() {
    let groups = groups(&[(1, 1.0), (2, 1.0), (2, 1.0), (5, 1.0)]);
    let groups: Vec<&Group<LateEntry>> = groups.iter().collect();
    assert_eq!(fair_part(1.0, &groups), 4.0 / 10.0);
    assert_eq!(fair_part(2.0, &groups), 7.0 / 10.0);
    assert_eq!(fair_part(5.0, &groups), 1.0);
}

#[test]
fn the_fair_part_of_a_tenant_of_twice_the_weight_is_smaller() {
    // Six requests of weight 3 take two turns, in which the tenant of weight 1 has two of its four served.
    let groups = groups(&[(6, 3.0), (4, 1.0)]);
    let groups: Vec<&Group<LateEntry>> = groups.iter().collect();
    assert_eq!(fair_part(groups[0].turns(), &groups), 8.0 / 10.0);
    assert_eq!(fair_part(groups[1].turns(), &groups), 1.0);
}

#[test]
fn tenants_have_parts_of_the_starving_by_their_weights() {
    let mut late = of_tenants(100, 100);
    late.behind.get_mut(&of_tenant(1)).expect("it has late requests").weight = Weight::new(3.0);
    let first: Vec<u64> = (0..24).chain(100..108).collect();
    assert_eq!(taken(&mut late, 60.0, 100), first, "24 and 8 of 32");
}

#[test]
fn few_starve_at_a_time() {
    let mut late = of_tenants(100, 0);
    let first: Vec<u64> = (0..STARVING_MAX as u64).collect();
    assert_eq!(taken(&mut late, 60.0, 100), first);
    assert_eq!(taken(&mut late, 60.0, 100), []);
    let mut late = of_tenants(100, 100);
    let half = STARVING_MAX as u64 / 2;
    let first: Vec<u64> = (0..half).chain(100..100 + half).collect();
    assert_eq!(taken(&mut late, 60.0, 100), first, "an equal part for each tenant");
}

#[test]
fn a_tenant_with_few_requests_does_not_wait_for_the_backlog_of_another() {
    // The queue drains in 600 s. Under equal shares the ten late requests of tenant 1 need 600 * 10 * 2 / 1000 = 12 s,
    // so they starve after 10 s; those of tenant 2 need 600 s, so none of them starves.
    let mut late = of_tenants(10, 990);
    assert_eq!(taken(&mut late, 600.0, 9), []);
    assert_eq!(taken(&mut late, 600.0, 11), (0..10).collect::<Vec<u64>>());
    assert_eq!(taken(&mut late, 600.0, 599), []);
}

#[test]
fn many_small_tenants_do_not_stop_a_large_one() {
    // The queue drains in 60 s, so that the 200 late requests of tenant 1 need no longer than 60 s, whatever other
    // tenants have.
    let mut late = of_tenants(200, 0);
    (0..5).for_each(|tenant| add(&mut late, 100 + tenant, 1_000 + tenant, false));
    assert_eq!(taken(&mut late, 60.0, 20), [1_000, 1_001, 1_002, 1_003, 1_004]);
    assert_eq!(taken(&mut late, 60.0, 22), [0, 1, 2, 3, 4], "a sixth of the places");
}

#[test]
fn no_more_than_thirty_two_starve_however_many_tenants_wait() {
    let mut late = LateRequests::default();
    (0..16).for_each(|id| add(&mut late, id / 2, id, false));
    assert_eq!(taken(&mut late, 60.0, 100).len(), 16);
    (0..100).for_each(|id| add(&mut late, 50 + id, 50 + id, false));
    let oldest: Vec<u64> = (50..66).collect();
    assert_eq!(taken(&mut late, 60.0, 100), oldest, "the 16 that starve count");
    assert_eq!(taken(&mut late, 60.0, 100), []);
}

#[test]
fn a_tenant_whose_late_requests_all_starve_still_counts() {
    let mut late = of_tenants(0, 4);
    assert_eq!(taken(&mut late, 60.0, 100), [0, 1, 2, 3]);
    (10..60).for_each(|id| add(&mut late, 1, id, false));
    assert_eq!(taken(&mut late, 60.0, 100).len(), STARVING_MAX / 2);
}

#[test]
fn returning_requests_leave_places_for_those_that_waited_longer() {
    let mut late = of_tenants(20, 0);
    (100..200).for_each(|id| add(&mut late, 1, id, true));
    let oldest: Vec<u64> = (0..20).chain(100..112).collect();
    assert_eq!(taken(&mut late, 60.0, 100), oldest);
}

#[test]
fn a_returning_request_starves_although_the_queue_is_long() {
    let mut late = of_tenants(20, 0);
    add(&mut late, 1, 100, true);
    assert_eq!(taken(&mut late, 301.0, 1_000), [100]);
}

#[test]
fn a_request_that_came_at_time_zero_has_not_returned() {
    let mut late = of_tenants(1, 0);
    assert_eq!(taken(&mut late, 60.0, 5), []);
}

#[test]
fn a_queue_whose_drain_time_is_unknown_counts_as_short() {
    let mut late = of_tenants(1, 0);
    let traffic = Arrivals::default().traffic([0; 4], Timestamp(0));
    let now = Timestamp(ALONE_US + 1);
    assert_eq!(late.take_starving(Tier::Standard, (None, false), traffic, now), [SeqId(0)]);
}
