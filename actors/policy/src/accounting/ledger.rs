//! The ledger: the accounts of all tiers and tenants.

use super::account::{Account, AccountId, DeviceTime};
use super::due::{Party, due};
use super::report::{TenantUsage, UsageReport};
use super::step_shares::{Share, StepShares};
use crate::Weight;
use crate::blocks::Salt;
use std::collections::BTreeMap;
use tiercel_device::{Tier, Timestamp};

const TIERS: usize = Tier::ALL.len();
/// Most tenants with accounts of their own: the first tenants whose requests are accepted. All further tenants have one
/// account together. The bound keeps the time per step and the number of metrics small.
const TENANTS_MAX: usize = 64;

/// Account of all tenants without an account of their own.
const OTHERS: AccountId = AccountId(0);

/// Accounts of one tenant, or of all tenants without an account of their own.
#[derive(Debug, Clone, Default)]
struct Tenant {
    /// Name space of the tenant's blocks; `None` for the account of all further tenants.
    salt: Option<Salt>,
    /// Weight of the tenant when its last request arrived.
    weight: Weight,
    tiers: [Account; TIERS],
}

/// Sequences and predicted time that a party has in a step.
#[derive(Debug, Clone, Copy, Default)]
struct InStep {
    sequences: u32,
    us: f64,
}

/// Accounts of all tiers and tenants.
#[derive(Debug, Clone)]
pub(crate) struct Ledger {
    tiers: [Account; TIERS],
    /// Accounts by [`AccountId`]: first that of all further tenants, then the tenants in the order of their first
    /// requests.
    tenants: Vec<Tenant>,
    ids: BTreeMap<Salt, AccountId>,
}

impl Default for Ledger {
    fn default() -> Ledger {
        let tenants = vec![Tenant::default()];
        Ledger { tiers: Default::default(), tenants, ids: BTreeMap::new() }
    }
}

impl Ledger {
    /// Returns the account of a tenant that sends a request with the weight `weight`.
    pub(crate) fn account_of(&mut self, (tenant, weight): (Salt, Weight), tier: Tier) -> AccountId {
        if tier == Tier::System {
            return OTHERS;
        }
        if let Some(known) = self.ids.get(&tenant) {
            self.tenants[usize::from(known.0)].weight = weight;
            return *known;
        }
        if self.tenants.len() > TENANTS_MAX {
            return OTHERS;
        }
        let id = AccountId(self.tenants.len() as u8);
        self.ids.insert(tenant, id);
        self.tenants.push(Tenant { salt: Some(tenant), weight, tiers: Default::default() });
        id
    }

    /// Records that a sequence has work: it arrived, is no longer on hold, or came from another tier.
    pub(crate) fn works(&mut self, tier: Tier, account: AccountId) {
        self.each(tier, account, |account| account.working += 1);
    }

    /// Records that a sequence has no work any more: it ended, is on hold, or left the tier.
    pub(crate) fn rests(&mut self, tier: Tier, account: AccountId) {
        self.each(tier, account, |account| account.working = account.working.saturating_sub(1));
    }

    /// Counts the prompt of a sequence that starts, and the part of it that was found in the prefix cache, tokens.
    pub(crate) fn started(&mut self, tier: Tier, account: AccountId, (prompt, cached): (u32, u32)) {
        self.each(tier, account, |account| {
            account.prompt_tokens += u64::from(prompt);
            account.cached_tokens += u64::from(cached);
        });
    }

    /// Counts an output token.
    pub(crate) fn output(&mut self, tier: Tier, account: AccountId) {
        self.each(tier, account, |account| account.output_tokens += 1);
    }

    fn each(&mut self, tier: Tier, account: AccountId, change: impl Fn(&mut Account)) {
        if tier != Tier::System {
            change(&mut self.tiers[tier.index()]);
            change(&mut self.tenants[usize::from(account.0)].tiers[tier.index()]);
        }
    }

    /// Computes which part of a step's time each tier and each tenant has, and is due. `weights` are the weights of the
    /// tiers, and `before` are the steps in flight before this one, which may end sequences that still count as
    /// working.
    pub(crate) fn share_out<'a>(
        &self,
        step: &mut StepShares,
        weights: [f64; TIERS],
        before: impl Iterator<Item = &'a StepShares>,
    ) {
        let mut by_tenant = vec![[InStep::default(); TIERS]; self.tenants.len()];
        for charge in &step.charges {
            let party = &mut by_tenant[usize::from(charge.account.0)][charge.tier.index()];
            party.sequences += 1;
            party.us += charge.us;
        }
        for (tier, account) in before.flat_map(StepShares::ending) {
            by_tenant[usize::from(account.0)][tier.index()].sequences += 1;
        }
        let whole_us = step.charges.iter().map(|charge| charge.us).sum::<f64>() + step.system_us;
        let unit = if whole_us > 0.0 { 1.0 / whole_us } else { 0.0 };
        let mut tiers = Vec::with_capacity(TIERS);
        for tier in Tier::ALL.into_iter().filter(|tier| *tier != Tier::System) {
            let i = tier.index();
            let in_step = |place: &mut InStep, party: &[InStep; TIERS]| {
                place.sequences += party[i].sequences;
                place.us += party[i].us;
            };
            let mut all = InStep::default();
            by_tenant.iter().for_each(|party| in_step(&mut all, party));
            if self.tiers[i].working > 0 || all.us > 0.0 {
                let had = all.us * unit;
                let wants_more = self.tiers[i].working > all.sequences;
                tiers.push((tier, Party { weight: weights[i], had, wants_more }));
                self.share_tier(step, tier, &by_tenant, unit);
            }
        }
        let parties: Vec<Party> = tiers.iter().map(|(_, party)| *party).collect();
        for ((tier, party), due) in tiers.iter().zip(due(&parties)) {
            step.tiers[tier.index()] = Share { had: party.had, due };
        }
    }

    /// Divides the time that a tier has in a step among its tenants. Tenants without an account of their own are due
    /// what they have.
    fn share_tier(
        &self,
        step: &mut StepShares,
        tier: Tier,
        by_tenant: &[[InStep; TIERS]],
        unit: f64,
    ) {
        let i = tier.index();
        let mut parties = Vec::new();
        for (number, (tenant, in_step)) in self.tenants.iter().zip(by_tenant).enumerate() {
            let (working, InStep { sequences, us }) = (tenant.tiers[i].working, in_step[i]);
            let (id, had) = (AccountId(number as u8), us * unit);
            if id == OTHERS {
                if us > 0.0 {
                    step.tenants.push((tier, id, Share { had, due: had }));
                }
            } else if working > 0 || us > 0.0 {
                let weight = tenant.weight.get();
                parties.push((id, Party { weight, had, wants_more: working > sequences }));
            }
        }
        let of_tenants: Vec<Party> = parties.iter().map(|(_, party)| *party).collect();
        for ((id, party), due) in parties.iter().zip(due(&of_tenants)) {
            step.tenants.push((tier, *id, Share { had: party.had, due }));
        }
    }

    /// Adds the time of a step that took `device_us` and ended at `now` to the accounts.
    pub(crate) fn stepped(&mut self, step: &StepShares, device_us: u64, now: Timestamp) {
        let time = |share: &Share| DeviceTime {
            had_us: share.had * device_us as f64,
            due_us: share.due * device_us as f64,
        };
        for (account, share) in self.tiers.iter_mut().zip(&step.tiers) {
            if *share != Share::default() {
                account.add(time(share), now);
            }
        }
        for (tier, id, share) in &step.tenants {
            self.tenants[usize::from(id.0)].tiers[tier.index()].add(time(share), now);
        }
    }

    /// Returns the usage of all tiers and tenants at `now`.
    pub(crate) fn report(&self, now: Timestamp) -> UsageReport {
        let window_us: f64 = self.tiers.iter().map(|account| account.lately(now).had_us).sum();
        let usage = |account: &Account| account.usage(window_us, now);
        let tiers = self.tiers.each_ref().map(usage);
        let mut tenants = Vec::new();
        for tenant in self.tenants[1..].iter().chain(&self.tenants[..1]) {
            let used = Tier::ALL.into_iter().zip(&tenant.tiers);
            let used = used.filter(|(_, account)| !account.is_unused());
            let row =
                |(tier, account)| TenantUsage { tier, tenant: tenant.salt, usage: usage(account) };
            tenants.extend(used.map(row));
        }
        UsageReport { tiers, tenants }
    }

    /// Returns the number of working sequences of each tenant in each tier, where there are any, for a check against
    /// the sequences themselves.
    pub(crate) fn working(&self) -> BTreeMap<(Tier, AccountId), u32> {
        let mut working = BTreeMap::new();
        for (number, tenant) in self.tenants.iter().enumerate() {
            for (tier, account) in Tier::ALL.into_iter().zip(&tenant.tiers) {
                if account.working > 0 {
                    working.insert((tier, AccountId(number as u8)), account.working);
                }
            }
        }
        working
    }
}

#[cfg(test)]
mod tests;
