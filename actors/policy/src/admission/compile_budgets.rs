//! Budgets of tenants for compiling grammars: a share of one processor's time, with a burst.
//!
//! A compilation shares the processors with the engine and cannot be stopped, and the time of a compilation is known
//! only at the end. So a tenant within its budget may begin any compilation. It is charged the time at the end. If the
//! compilation outlasts its time limit, the tenant is charged that limit at once, and the end corrects the charge. A
//! tenant beyond its budget waits until the excess has been refilled, at the rate of the tenant's share.

use crate::blocks::Salt;
use std::collections::BTreeMap;
use tiercel_device::Timestamp;

/// Budget of each tenant.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct CompileBudget {
    /// Share of one processor, in lasting use.
    pub share: f64,
    /// Processor time that may be used at once, us.
    pub burst_us: u64,
}

/// Budgets of all tenants. A tenant's use is kept as the time at which its budget is whole again if nothing more is
/// charged. An entry whose budget is whole again is dropped at the next charge of any tenant, so the number of entries
/// is limited by the compilations of the last minutes.
#[derive(Debug, Clone)]
pub struct CompileBudgets {
    budget: CompileBudget,
    whole_at: BTreeMap<Salt, Timestamp>,
}

impl CompileBudgets {
    /// Creates whole budgets.
    pub fn new(budget: CompileBudget) -> CompileBudgets {
        CompileBudgets { budget, whole_at: BTreeMap::new() }
    }

    /// Returns the time after which a tenant may begin a compilation, us; 0 if the tenant may begin one now.
    pub fn wait_us(&self, tenant: Salt, now: Timestamp) -> u64 {
        let whole_in_us = self.whole_at.get(&tenant).map_or(0, |at| at.since_us(now));
        whole_in_us.saturating_sub(self.wall_us(self.budget.burst_us))
    }

    /// Charges a tenant for `work_us` of processor time.
    pub fn charge(&mut self, tenant: Salt, work_us: u64, now: Timestamp) {
        self.whole_at.retain(|_, at| *at > now);
        let wall_us = self.wall_us(work_us);
        let at = self.whole_at.entry(tenant).or_insert(now);
        *at = *at + wall_us;
    }

    /// Gives `work_us` of processor time back that were charged and not used.
    pub fn refund(&mut self, tenant: Salt, work_us: u64) {
        let wall_us = self.wall_us(work_us);
        if let Some(at) = self.whole_at.get_mut(&tenant) {
            at.0 = at.0.saturating_sub(wall_us);
        }
    }

    /// Returns the time in which a tenant's share amounts to `work_us` of processor time, us.
    fn wall_us(&self, work_us: u64) -> u64 {
        (work_us as f64 / self.budget.share) as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000;
    const ONE: Salt = Salt([1; 16]);
    const OTHER: Salt = Salt([2; 16]);

    fn budgets() -> CompileBudgets {
        CompileBudgets::new(CompileBudget { share: 0.02, burst_us: 200 * MS })
    }

    #[test]
    fn a_tenant_beyond_its_budget_waits_and_no_other_tenant_does() {
        let (mut budgets, now) = (budgets(), Timestamp(0));
        budgets.charge(ONE, 190 * MS, now);
        assert_eq!(budgets.wait_us(ONE, now), 0, "10 ms of 200 are left");
        budgets.charge(ONE, 500 * MS, now);
        // 490 ms more than the budget, at 20 ms a second.
        assert_eq!(budgets.wait_us(ONE, now) / MS, 24_500);
        assert_eq!(budgets.wait_us(ONE, Timestamp(24_500 * MS)), 0);
        assert_eq!(budgets.wait_us(OTHER, now), 0);
    }

    #[test]
    fn time_that_was_not_used_is_given_back() {
        let (mut budgets, now) = (budgets(), Timestamp(0));
        budgets.charge(ONE, 500 * MS, now);
        budgets.refund(ONE, 290 * MS);
        assert_eq!(budgets.wait_us(ONE, now) / MS, 500, "210 ms are charged");
        budgets.refund(OTHER, 290 * MS);
        assert_eq!(budgets.wait_us(OTHER, now), 0);
    }

    #[test]
    fn a_tenant_whose_budget_is_whole_again_is_forgotten() {
        let mut budgets = budgets();
        budgets.charge(ONE, 20 * MS, Timestamp(0));
        budgets.charge(OTHER, MS, Timestamp(999 * MS));
        assert_eq!(budgets.whole_at.len(), 2, "20 ms take a second");
        budgets.charge(OTHER, MS, Timestamp(1_001 * MS));
        assert_eq!(budgets.whole_at.keys().collect::<Vec<_>>(), [&OTHER]);
    }
}
