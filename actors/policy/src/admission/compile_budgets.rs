//! Budgets of tenants for compiling large grammars: processor time at a rate, by the algorithm of [`Rate`].
//!
//! A compilation shares the processors with the engine and cannot be stopped, and its time is known only at its end. So
//! a tenant that is within its budget may begin any compilation, and is charged the time afterwards; a tenant beyond
//! its budget waits until the rate has made up for the excess.

use crate::admission::rate::{Gcra, Rate};
use crate::blocks::Salt;
use std::collections::BTreeMap;
use tiercel_device::Timestamp;

/// Budget of a tenant: processor time, ms. Two percent of one processor, and 200 ms at once.
const BUDGET: Rate = Rate { per_min: 1_200 };

/// Budgets of all tenants for compiling large grammars. A tenant whose budget is whole has no entry, so the number of
/// entries is limited by the compilations of the last seconds.
#[derive(Debug, Clone, Default)]
pub struct CompileBudgets(BTreeMap<Salt, Gcra>);

impl CompileBudgets {
    /// Returns the time after which a tenant may begin a compilation, us; 0 if the tenant may begin one now.
    pub fn wait_us(&self, tenant: Salt, now: Timestamp) -> u64 {
        self.0.get(&tenant).map_or(0, |used| used.wait_us(BUDGET, 1, now))
    }

    /// Charges a tenant for a compilation that took `work_us` of processor time.
    pub fn charge(&mut self, tenant: Salt, work_us: u64, now: Timestamp) {
        self.0.retain(|_, used| used.reset_us(now) > 0);
        self.0.entry(tenant).or_default().charge(BUDGET, work_us.div_ceil(1_000), now);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000;
    const ONE: Salt = Salt([1; 16]);
    const OTHER: Salt = Salt([2; 16]);

    #[test]
    fn a_tenant_beyond_its_budget_waits_and_no_other_tenant_does() {
        let (mut budgets, now) = (CompileBudgets::default(), Timestamp(0));
        budgets.charge(ONE, 190 * MS, now);
        assert_eq!(budgets.wait_us(ONE, now), 0, "10 ms of 200 are left");
        budgets.charge(ONE, 500 * MS, now);
        // 491 ms more than the budget, at 20 ms a second.
        assert_eq!(budgets.wait_us(ONE, now) / MS, 24_550);
        assert_eq!(budgets.wait_us(ONE, Timestamp(24_550 * MS)), 0);
        assert_eq!(budgets.wait_us(OTHER, now), 0);
    }

    #[test]
    fn a_tenant_whose_budget_is_whole_again_is_forgotten() {
        let mut budgets = CompileBudgets::default();
        budgets.charge(ONE, 20 * MS, Timestamp(0));
        budgets.charge(OTHER, 1, Timestamp(999 * MS));
        assert_eq!(budgets.0.len(), 2, "20 ms take a second");
        budgets.charge(OTHER, 1, Timestamp(1_001 * MS));
        assert_eq!(budgets.0.keys().collect::<Vec<_>>(), [&OTHER]);
    }
}
