//! Shares of one step: which part of its time each tenant and each tier has, and is due.

use super::account::AccountId;
use tiercel_device::Tier;

/// Part of a step's time that a party has and that it is due, 0 to 1 of the whole step.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(super) struct Share {
    pub(super) had: f64,
    pub(super) due: f64,
}

/// Predicted time that one sequence adds to a step.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Charge {
    pub(super) tier: Tier,
    pub(super) account: AccountId,
    /// Predicted time that the sequence adds to the step, us.
    pub(super) us: f64,
    /// Whether the step ends the sequence, unless it fails.
    pub(super) last: bool,
}

/// Shares of a step: the time that each of its sequences adds to it, and what follows for tenants and tiers.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct StepShares {
    /// Charges of the sequences in the step, except those of the system tier.
    pub(super) charges: Vec<Charge>,
    /// Predicted time that sequences of the system tier add to the step, us.
    pub(super) system_us: f64,
    pub(super) tiers: [Share; Tier::ALL.len()],
    pub(super) tenants: Vec<(Tier, AccountId, Share)>,
}

impl StepShares {
    /// Adds the predicted time of a sequence, us. `last` says whether the step ends the sequence, unless it fails.
    pub(crate) fn charge(&mut self, (tier, account): (Tier, AccountId), us: f64, last: bool) {
        match tier {
            Tier::System => self.system_us += us,
            _ => self.charges.push(Charge { tier, account, us, last }),
        }
    }

    /// Returns the sequences that the step ends, unless it fails, as their tiers and accounts.
    pub(super) fn ending(&self) -> impl Iterator<Item = (Tier, AccountId)> + '_ {
        let last = self.charges.iter().filter(|charge| charge.last);
        last.map(|charge| (charge.tier, charge.account))
    }
}
