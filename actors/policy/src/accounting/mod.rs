//! Accounting: the tokens and the device time that each tier and each tenant had, and the device time that was due to
//! them.
//!
//! **Had.** The measured time of a step is divided among its members in proportion to the time that the cost model
//! predicts for each of them, so the time that all members had adds up to the time of all completed steps. The time of
//! failed steps is in no account.
//!
//! **Due.** The due time is the weighted max-min fair share of a step, whatever the policy and the form of shedding:
//!
//! - A party is a tier, or a tenant in a tier. A party *wants more* than it had if one of its sequences could be in the
//!   step (it is not on hold, and a step in flight does not end it) and is not. The count of these sequences may be off
//!   by one sequence for one step when a sequence is put on hold, is cancelled or moves to another tier.
//! - A tier is due a part of the step's time, and a tenant a part of the time that its tier had in the step. The parts
//!   are divided by weights: those of tiers are `shares.*`, those of tenants are the weights of their API keys.
//! - A party that does not want more is due the time that it had, if that time is less than its part by weight. The
//!   rest is divided among the others by their weights. So if no party wants more, each is due what it had.
//!
//! The **deviation** is the time that a party had in the last minute less the time that it was due, as a share of the
//! device time of that minute: 0.2 stands for 20 points more than its due, -0.2 for 20 points less. The warm-up request
//! of the system tier is left out of all accounts.
//!
//! The work for a step grows with its members, and at most with the square of the number of tenants that have accounts
//! (at most 64). The sequences that wait add no work.

mod account;
mod due;
mod ledger;
mod report;
mod step_shares;

pub(crate) use account::AccountId;
pub(crate) use ledger::Ledger;
pub use report::{PartyUsage, TenantUsage, UsageReport};
pub(crate) use step_shares::StepShares;
