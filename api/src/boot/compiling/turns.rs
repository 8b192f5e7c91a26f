//! Turns of compilations: how many run at once, and when a tenant's next one may begin.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tiercel_device::Clock;
use tiercel_policy::admission::CompileBudgets;
use tiercel_policy::blocks::Salt;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Maximum number of quick compilations at once.
pub(super) const QUICK: usize = 2;
/// Maximum number of full compilations at once.
pub(super) const FULL: usize = 1;
/// Longest time that a request waits for its turn, us.
pub(super) const WAIT_US: u64 = 5_000_000;

/// Turns of compilations.
pub(super) struct Turns {
    clock: Clock,
    pub(super) quick: Arc<Semaphore>,
    pub(super) full: Arc<Semaphore>,
    budgets: Arc<Mutex<CompileBudgets>>,
}

/// Turn of one compilation, which ends when the value is dropped.
pub(super) struct Turn {
    /// Tenant that is charged for the compilation, and the budgets of all tenants.
    payer: Option<(Salt, Arc<Mutex<CompileBudgets>>)>,
    clock: Clock,
    _permit: OwnedSemaphorePermit,
}

/// Reason why a request gets no turn.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum NoTurn {
    /// Other compilations left no turn in time.
    Busy,
    /// The tenant's compilations took more processor time than its budget.
    OverBudget {
        /// Time after which the tenant is within its budget, us.
        wait_us: u64,
    },
}

impl Turns {
    pub(super) fn new(clock: Clock) -> Turns {
        Turns {
            clock,
            quick: Arc::new(Semaphore::new(QUICK)),
            full: Arc::new(Semaphore::new(FULL)),
            budgets: Arc::default(),
        }
    }

    /// Waits for the turn of a quick compilation.
    pub(super) async fn quick(&self) -> Result<Turn, NoTurn> {
        let turn = Arc::clone(&self.quick).acquire_owned();
        match self.clock.timeout_us(WAIT_US, turn).await {
            Some(Ok(permit)) => {
                Ok(Turn { payer: None, clock: self.clock.clone(), _permit: permit })
            }
            _ => Err(NoTurn::Busy),
        }
    }

    /// Waits until the tenant is within its budget, and then for the turn of a full compilation.
    pub(super) async fn full(&self, tenant: Salt) -> Result<Turn, NoTurn> {
        let deadline = self.clock.now() + WAIT_US;
        loop {
            let now = self.clock.now();
            let (left_us, wait_us) = (deadline.since_us(now), self.wait_us(tenant));
            if wait_us > left_us {
                return Err(NoTurn::OverBudget { wait_us });
            }
            self.clock.sleep_us(wait_us).await;
            let turn = Arc::clone(&self.full).acquire_owned();
            let left_us = deadline.since_us(self.clock.now());
            let Some(Ok(permit)) = self.clock.timeout_us(left_us, turn).await else {
                return Err(NoTurn::Busy);
            };
            // Another compilation of the tenant may have been charged meanwhile. None can be while this turn is held.
            if self.wait_us(tenant) == 0 {
                let payer = Some((tenant, Arc::clone(&self.budgets)));
                return Ok(Turn { payer, clock: self.clock.clone(), _permit: permit });
            }
        }
    }

    fn wait_us(&self, tenant: Salt) -> u64 {
        lock(&self.budgets).wait_us(tenant, self.clock.now())
    }
}

impl Turn {
    /// Whether the turn is one of a full compilation.
    pub(super) fn is_full(&self) -> bool {
        self.payer.is_some()
    }

    /// Charges the compilation's processor time to its tenant if the compilation is a full one, and ends the turn.
    pub(super) fn end(self, work_us: u64) {
        if let Some((tenant, budgets)) = &self.payer {
            lock(budgets).charge(*tenant, work_us, self.clock.now());
        }
    }
}

fn lock(budgets: &Mutex<CompileBudgets>) -> MutexGuard<'_, CompileBudgets> {
    budgets.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures_util::future::poll_immediate;

    const ONE: Salt = Salt([1; 16]);
    const OTHER: Salt = Salt([2; 16]);

    #[test]
    fn only_the_full_compilations_of_a_tenant_beyond_its_budget_wait() {
        actix_rt::System::new().block_on(async {
            let turns = Turns::new(Clock::wall());
            turns.quick().await.ok().unwrap().end(3_000_000);
            turns.full(ONE).await.ok().unwrap().end(205_000);
            let mut waiting = Box::pin(turns.full(ONE));
            assert!(poll_immediate(&mut waiting).await.is_none());
            assert!(turns.quick().await.is_ok());
            turns.full(OTHER).await.ok().unwrap().end(3_000_000);
            let refused = turns.full(OTHER).await.err();
            assert!(
                matches!(refused, Some(NoTurn::OverBudget { wait_us: 120_000_000.. })),
                "{refused:?}"
            );
            assert!(waiting.await.is_ok(), "205 ms are made up for within a second");
        });
    }

    #[test]
    fn a_tenant_that_was_charged_while_it_waited_for_its_turn_waits_again() {
        actix_rt::System::new().block_on(async {
            let turns = Turns::new(Clock::wall());
            let first = turns.full(ONE).await.ok().unwrap();
            let mut second = Box::pin(turns.full(ONE));
            assert!(poll_immediate(&mut second).await.is_none(), "one at a time");
            first.end(1_000_000);
            assert!(matches!(second.await, Err(NoTurn::OverBudget { .. })));
        });
    }
}
