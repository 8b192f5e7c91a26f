//! Turns of compilations: how many run at once, and when a tenant's next one may begin.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tiercel_device::Clock;
use tiercel_policy::admission::{CompileBudget, CompileBudgets};
use tiercel_policy::blocks::Salt;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Maximum number of quick compilations at once.
pub(super) const QUICK: usize = 2;
/// Budget of each tenant for quick compilations. Most take less than 1 ms, a hostile one takes some 10 ms.
const QUICK_BUDGET: CompileBudget = CompileBudget { share: 0.1, burst_us: 2_000_000 };
/// Maximum number of full compilations at once.
pub(super) const FULL: usize = 1;
/// Budget of each tenant for full compilations. Most take less than 10 ms, a hostile one takes up to 500 ms.
const FULL_BUDGET: CompileBudget = CompileBudget { share: 0.02, burst_us: 1_000_000 };
/// Maximum number of compilations that go on without a turn, because they take too long.
const OVERLONG: usize = 2;
/// Longest time that a request waits for its turn, us.
pub(super) const WAIT_US: u64 = 5_000_000;

/// Turns of all compilations.
pub(super) struct Turns {
    /// Turns of quick compilations.
    pub(super) quick: Lane,
    /// Turns of full compilations.
    pub(super) full: Lane,
}

/// Turns of one kind of compilations.
pub(super) struct Lane {
    clock: Clock,
    pub(super) permits: Arc<Semaphore>,
    overlong: Arc<Semaphore>,
    budgets: Arc<Mutex<CompileBudgets>>,
}

/// Turn of one compilation.
pub(super) struct Turn {
    clock: Clock,
    tenant: Salt,
    /// Budgets in which the tenant is charged.
    budgets: Arc<Mutex<CompileBudgets>>,
    /// Permit to compile, and the processor time that was charged so far, us.
    state: Mutex<(OwnedSemaphorePermit, u64)>,
    overlong: Arc<Semaphore>,
}

/// Reason why a request gets no turn.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum NoTurn {
    /// No turn became free in time.
    Busy,
    /// The tenant's compilations took more processor time than its budget.
    OverBudget {
        /// Time after which the tenant is within its budget, us.
        wait_us: u64,
    },
}

impl Turns {
    pub(super) fn new(clock: &Clock) -> Turns {
        let overlong = Arc::new(Semaphore::new(OVERLONG));
        let lane = |permits, budget| Lane {
            clock: clock.clone(),
            permits: Arc::new(Semaphore::new(permits)),
            overlong: Arc::clone(&overlong),
            budgets: Arc::new(Mutex::new(CompileBudgets::new(budget))),
        };
        Turns { quick: lane(QUICK, QUICK_BUDGET), full: lane(FULL, FULL_BUDGET) }
    }
}

impl Lane {
    /// Waits until the tenant is within its budget, and then for the turn of a compilation.
    pub(super) async fn turn(&self, tenant: Salt) -> Result<Turn, NoTurn> {
        let deadline = self.clock.now() + WAIT_US;
        loop {
            let (left_us, wait_us) = (deadline.since_us(self.clock.now()), self.wait_us(tenant));
            if wait_us > left_us {
                return Err(NoTurn::OverBudget { wait_us });
            }
            self.clock.sleep_us(wait_us).await;
            let permit = Arc::clone(&self.permits).acquire_owned();
            let left_us = deadline.since_us(self.clock.now());
            let Some(Ok(permit)) = self.clock.timeout_us(left_us, permit).await else {
                return Err(NoTurn::Busy);
            };
            // Another compilation of the tenant may have been charged while this one waited for its permit.
            if self.wait_us(tenant) == 0 {
                return Ok(Turn {
                    clock: self.clock.clone(),
                    tenant,
                    budgets: Arc::clone(&self.budgets),
                    state: Mutex::new((permit, 0)),
                    overlong: Arc::clone(&self.overlong),
                });
            }
        }
    }

    fn wait_us(&self, tenant: Salt) -> u64 {
        lock(&self.budgets).wait_us(tenant, self.clock.now())
    }
}

impl Turn {
    /// Charges the tenant for a compilation that has taken `work_us` of processor time, in place of the time that was
    /// charged for this compilation before.
    pub(super) fn charge(&self, work_us: u64) {
        let mut state = lock(&self.state);
        let mut budgets = lock(&self.budgets);
        match work_us.checked_sub(state.1) {
            Some(more_us) => budgets.charge(self.tenant, more_us, self.clock.now()),
            None => budgets.refund(self.tenant, state.1 - work_us),
        }
        state.1 = work_us;
    }

    /// Ends the turn of a compilation that goes on, unless too many go on so. Until the compilation ends, the tenant is
    /// charged `work_us`, so that it begins no other compilation soon.
    pub(super) fn outlast(&self, work_us: u64) {
        self.charge(work_us);
        if let Ok(permit) = Arc::clone(&self.overlong).try_acquire_owned() {
            lock(&self.state).0 = permit;
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures_util::future::poll_immediate;

    const ONE: Salt = Salt([1; 16]);
    const OTHER: Salt = Salt([2; 16]);

    #[test]
    fn only_the_compilations_of_a_tenant_beyond_its_budget_wait() {
        actix_rt::System::new().block_on(async {
            let full = Turns::new(&Clock::wall()).full;
            full.turn(ONE).await.ok().unwrap().charge(1_005_000);
            let mut waiting = Box::pin(full.turn(ONE));
            assert!(poll_immediate(&mut waiting).await.is_none());
            full.turn(OTHER).await.ok().unwrap().charge(4_000_000);
            let refused = full.turn(OTHER).await.err();
            assert!(
                matches!(refused, Some(NoTurn::OverBudget { wait_us: 140_000_000.. })),
                "{refused:?}"
            );
            assert!(waiting.await.is_ok(), "5 ms are made up for within a second");
        });
    }

    #[test]
    fn a_tenant_that_was_charged_while_it_waited_for_its_turn_waits_again() {
        actix_rt::System::new().block_on(async {
            let full = Turns::new(&Clock::wall()).full;
            let first = full.turn(ONE).await.ok().unwrap();
            let mut second = Box::pin(full.turn(ONE));
            assert!(poll_immediate(&mut second).await.is_none(), "one at a time");
            first.charge(3_000_000);
            drop(first);
            assert!(matches!(second.await, Err(NoTurn::OverBudget { .. })));
        });
    }

    #[test]
    fn few_overlong_compilations_leave_their_turns_to_others() {
        actix_rt::System::new().block_on(async {
            let full = Turns::new(&Clock::wall()).full;
            let mut overlong = Vec::new();
            for tenant in 0..=OVERLONG as u8 {
                let turn = full.turn(Salt([tenant; 16])).await.ok().unwrap();
                turn.outlast(10_000_000);
                overlong.push(turn);
            }
            assert!(poll_immediate(full.turn(OTHER)).await.is_some_and(|turn| turn.is_err()));
            let new = Salt([9; 16]);
            assert!(poll_immediate(full.turn(new)).await.is_none(), "the last one kept its turn");
            overlong.pop();
            let turn = full.turn(new).await.ok().unwrap();
            turn.outlast(9_000_000);
            turn.charge(1_000_000);
            drop(turn);
            assert!(full.turn(new).await.is_ok(), "only the time that was used is charged");
        });
    }
}
