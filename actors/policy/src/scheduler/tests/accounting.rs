//! Tests of what the scheduler enters into the accounts of tiers and tenants.

use super::{NOW, all_sample, scheduler, sequence, step, submit};
use crate::Weight;
use crate::accounting::{PartyUsage, UsageReport};
use crate::blocks::Salt;
use crate::scheduler::{Hold, NewSequence, State};
use tiercel_device::{SeqId, Tier};

/// Returns a standard request of a tenant.
fn of_tenant(id: u64, tenant: u8) -> NewSequence {
    NewSequence { salt: Salt([tenant; 16]), ..sequence(id, Tier::Standard, 20) }
}

fn usage(s: &State) -> UsageReport {
    s.check().expect("the ledger agrees with the sequences");
    s.usage_report(NOW)
}

fn of(report: &UsageReport, tenant: u8) -> PartyUsage {
    let row = report.tenants.iter().find(|row| row.tenant == Some(Salt([tenant; 16])));
    row.expect("the tenant has an account").usage
}

#[test]
fn a_tenant_that_waits_is_due_time_by_its_weight() {
    let mut s = scheduler(|settings| settings.scheduler.max_num_seqs = 1);
    s.enqueue(of_tenant(1, 1));
    s.enqueue(NewSequence { weight: Weight::new(3.0), ..of_tenant(2, 2) });
    step(&mut s);
    let report = usage(&s);
    let [first, second] = [1, 2].map(|tenant| of(&report, tenant));
    let all_us = first.device_us + second.device_us;
    assert!(all_us > 0.0 && second.device_us == 0.0, "{report:?}");
    assert!((first.due_us - all_us / 4.0).abs() < 1e-9, "{report:?}");
    assert!((second.deviation + 0.75).abs() < 1e-9, "{report:?}");
    assert_eq!(report.tiers[Tier::Standard.index()].device_us, all_us);
    assert_eq!((first.prompt_tokens, first.output_tokens, second.prompt_tokens), (20, 1, 0));
}

#[test]
fn a_request_on_hold_is_due_nothing_and_one_that_moves_counts_in_its_new_tier() {
    let mut s = scheduler(|_| ());
    s.enqueue(of_tenant(1, 1));
    s.enqueue(of_tenant(2, 2));
    let working = |s: &State| {
        let report = usage(s);
        Tier::ALL.map(|tier| report.tiers[tier.index()].working)
    };
    assert_eq!(working(&s), [0, 0, 2, 0]);
    s.set_hold(SeqId(2), Hold::Operator, true);
    s.set_hold(SeqId(2), Hold::Stream, true);
    assert_eq!(working(&s), [0, 0, 1, 0]);
    assert!(s.reprioritize(SeqId(2), Tier::Premium, 0));
    assert_eq!(working(&s), [0, 0, 1, 0], "it is on hold yet");
    step(&mut s);
    assert_eq!(of(&usage(&s), 1).deviation, 0.0);
    s.set_hold(SeqId(2), Hold::Operator, false);
    assert_eq!(working(&s), [0, 0, 1, 0], "its reader holds it yet");
    s.set_hold(SeqId(2), Hold::Stream, false);
    assert_eq!(working(&s), [0, 1, 1, 0]);
    assert!(s.reprioritize(SeqId(2), Tier::Background, 0));
    assert_eq!(working(&s), [0, 0, 1, 1]);
    s.cancel(SeqId(2)).expect("it is live");
    assert_eq!(working(&s), [0, 0, 1, 0]);
}

#[test]
fn requests_that_all_run_want_nothing_more() {
    let mut s = scheduler(|_| ());
    s.enqueue(of_tenant(1, 1));
    s.enqueue(of_tenant(2, 2));
    let batch = submit(&mut s);
    assert_eq!(batch.slices.len(), 2);
    s.step_done(all_sample(&batch, 1), NOW);
    let report = usage(&s);
    assert_eq!(report.tenants.len(), 2);
    assert!(report.tenants.iter().all(|row| row.usage.deviation.abs() < 1e-12), "{report:?}");
}
