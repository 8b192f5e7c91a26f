//! Tests of the ledger: who has which part of a step, and who is due which part.

use super::*;

/// Weights of the tiers: the default `shares.*`.
const WEIGHTS: [f64; TIERS] = [0.0, 50.0, 35.0, 15.0];

fn salt(number: u32) -> Salt {
    let mut salt = [0; 16];
    salt[..4].copy_from_slice(&number.to_le_bytes());
    Salt(salt)
}

/// Returns a ledger with sequences that have work, each of a tier and of a tenant with a weight, and the accounts of
/// the sequences.
fn ledger(working: &[(Tier, u32, f64)]) -> (Ledger, Vec<(Tier, AccountId)>) {
    let mut ledger = Ledger::default();
    let mut enter = |(tier, tenant, weight): &(Tier, u32, f64)| {
        let account = ledger.account_of((salt(*tenant), Weight::new(*weight)), *tier);
        ledger.works(*tier, account);
        (*tier, account)
    };
    let accounts = working.iter().map(&mut enter).collect();
    (ledger, accounts)
}

/// Runs a step of 1,000 us with these sequences and predicted times, and returns the usage after it.
fn step(ledger: &mut Ledger, members: &[((Tier, AccountId), f64)]) -> UsageReport {
    let mut shares = StepShares::default();
    members.iter().for_each(|(of, us)| shares.charge(*of, *us, false));
    ledger.share_out(&mut shares, WEIGHTS, std::iter::empty());
    ledger.stepped(&shares, 1_000, Timestamp(7));
    ledger.report(Timestamp(8))
}

/// Returns the time that each tenant had and was due, us, rounded.
fn times(report: &UsageReport) -> Vec<(Tier, f64, f64)> {
    let time =
        |row: &TenantUsage| (row.tier, row.usage.device_us.round(), row.usage.due_us.round());
    report.tenants.iter().map(time).collect()
}

#[test]
fn the_measured_time_is_divided_by_predicted_work_and_due_by_weight_to_tenants_who_want_more() {
    use Tier::Standard as S;
    let (mut ledger, of) = ledger(&[(S, 1, 1.0), (S, 1, 1.0), (S, 2, 3.0), (S, 2, 3.0)]);
    let report = step(&mut ledger, &[(of[0], 60.0), (of[1], 30.0), (of[2], 10.0)]);
    assert_eq!(times(&report), [(S, 900.0, 250.0), (S, 100.0, 750.0)]);
    let deviations: Vec<f64> = report.tenants.iter().map(|row| row.usage.deviation).collect();
    assert!((deviations[0] - 0.65).abs() < 1e-9 && (deviations[1] + 0.65).abs() < 1e-9);
    assert_eq!(report.tiers[S.index()].deviation, 0.0, "no other tier has work");
}

#[test]
fn no_party_has_a_deviation_while_all_sequences_are_in_the_step() {
    use Tier::{Background, Premium};
    let (mut ledger, of) = ledger(&[(Premium, 1, 1.0), (Background, 2, 1.0), (Background, 3, 9.0)]);
    let report = step(&mut ledger, &[(of[0], 5.0), (of[1], 90.0), (of[2], 5.0)]);
    assert!(report.tiers.iter().all(|tier| tier.deviation == 0.0), "{report:?}");
    assert!(report.tenants.iter().all(|row| row.usage.deviation == 0.0), "{report:?}");
}

#[test]
fn a_tier_that_waits_is_due_its_share_beside_those_that_have_work() {
    use Tier::{Background, Premium, Standard};
    let (mut ledger, of) = ledger(&[(Standard, 1, 1.0), (Background, 1, 1.0)]);
    let report = step(&mut ledger, &[(of[0], 10.0)]);
    let due = |tier: Tier| report.tiers[tier.index()].due_us.round();
    assert_eq!([Premium, Standard, Background].map(due), [0.0, 700.0, 300.0]);
    let tenants = times(&report);
    assert_eq!(tenants, [(Standard, 1000.0, 1000.0), (Background, 0.0, 0.0)], "alone in its tier");
}

#[test]
fn a_tenant_that_was_due_time_and_had_none_stays_in_the_report_after_it_leaves() {
    use Tier::Standard as S;
    let (mut ledger, of) = ledger(&[(S, 1, 1.0), (S, 2, 1.0)]);
    step(&mut ledger, &[(of[0], 10.0)]);
    ledger.rests(of[1].0, of[1].1);
    let report = ledger.report(Timestamp(8));
    assert_eq!(times(&report), [(S, 1000.0, 500.0), (S, 0.0, 500.0)]);
    assert!((report.tenants[1].usage.deviation + 0.5).abs() < 1e-9, "{report:?}");
    // A minute later another step runs, of which no time is due to the tenant that left.
    let mut shares = StepShares::default();
    shares.charge(of[0], 10.0, false);
    ledger.share_out(&mut shares, WEIGHTS, std::iter::empty());
    ledger.stepped(&shares, 1_000, Timestamp(60_000_000));
    let report = ledger.report(Timestamp(60_000_001));
    assert_eq!(times(&report), [(S, 2000.0, 1500.0), (S, 0.0, 500.0)]);
    assert_eq!(report.tenants[1].usage.deviation, 0.0);
}

#[test]
fn a_sequence_that_a_step_before_ends_does_not_want_more() {
    use Tier::Standard as S;
    let (mut ledger, of) = ledger(&[(S, 1, 1.0), (S, 2, 1.0), (S, 2, 1.0)]);
    let mut before = StepShares::default();
    before.charge(of[2], 10.0, true);
    before.charge(of[1], 10.0, false);
    let mut shares = StepShares::default();
    shares.charge(of[0], 30.0, false);
    shares.charge(of[1], 10.0, false);
    ledger.share_out(&mut shares, WEIGHTS, std::iter::once(&before));
    ledger.stepped(&shares, 1_000, Timestamp(7));
    assert_eq!(times(&ledger.report(Timestamp(8))), [(S, 750.0, 750.0), (S, 250.0, 250.0)]);
}

#[test]
fn work_on_hold_and_the_system_tier_are_charged_to_no_party() {
    use Tier::{Standard, System};
    let (mut ledger, of) = ledger(&[(Standard, 1, 1.0), (Standard, 2, 1.0), (System, 3, 1.0)]);
    ledger.rests(of[1].0, of[1].1);
    ledger.started(of[2].0, of[2].1, (9, 1));
    ledger.output(of[2].0, of[2].1);
    let report = step(&mut ledger, &[(of[0], 30.0), (of[2], 10.0)]);
    assert_eq!(times(&report), [(Standard, 750.0, 750.0)]);
    assert_eq!(report.tiers[System.index()], Default::default());
}

#[test]
fn tokens_are_counted_by_tenant_and_tier() {
    use Tier::{Premium, Standard};
    let (mut ledger, of) = ledger(&[(Premium, 1, 1.0), (Standard, 1, 1.0)]);
    ledger.started(of[0].0, of[0].1, (100, 30));
    ledger.output(of[0].0, of[0].1);
    ledger.output(of[1].0, of[1].1);
    let report = ledger.report(Timestamp(0));
    let tokens = |row: &TenantUsage| {
        (row.tier, row.usage.prompt_tokens, row.usage.cached_tokens, row.usage.output_tokens)
    };
    let tenants: Vec<_> = report.tenants.iter().map(tokens).collect();
    assert_eq!(tenants, [(Premium, 100, 30, 1), (Standard, 0, 0, 1)]);
    assert_eq!(report.tiers[Premium.index()].prompt_tokens, 100);
}

#[test]
fn tenants_beyond_the_bound_have_one_account_that_is_due_what_it_had() {
    use Tier::Standard as S;
    let tenants: Vec<_> = (0..TENANTS_MAX as u32 + 2).map(|tenant| (S, tenant, 1.0)).collect();
    let (mut ledger, of) = ledger(&tenants);
    let [.., first, second] = of[..] else { panic!("two tenants beyond the bound") };
    assert_eq!(first, second);
    let report = step(&mut ledger, &[(of[0], 10.0), (first, 20.0), (second, 10.0)]);
    assert_eq!(report.tenants.len(), TENANTS_MAX + 1);
    let others = report.tenants.last().expect("there are tenants");
    assert_eq!((others.tenant, others.usage.working), (None, 2));
    assert_eq!((others.usage.device_us.round(), others.usage.due_us.round()), (750.0, 750.0));
    // The other 250 us are due to the 64 tenants that have accounts of their own.
    let due = report.tenants[5].usage.due_us;
    assert!((due - 250.0 / TENANTS_MAX as f64).abs() < 1e-9, "{due}");
}
