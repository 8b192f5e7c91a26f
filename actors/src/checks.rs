//! How often the actors check the invariants of their state.

/// How often an actor checks the invariants of its state. If one is violated, there is a bug, and the actor panics.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Checks {
    /// Check in debug builds only: after every event while the state is small, and after every n-th event when checking
    /// a larger state takes long.
    InDebugBuilds,
    /// Check after every event, in every build and for every size of the state. The scheduler then does not plan on
    /// clock ticks, so that an event that fails to trigger a plan is noticed.
    Always,
}

/// Size of an actor's state, in objects such as blocks, below which its invariants are checked after every event.
const SMALL: u64 = 1024;

impl Checks {
    /// Whether an actor's invariants are due for a check after event number `event`; its state has `size` objects, such
    /// as blocks.
    pub(crate) fn are_due(self, event: u64, size: u64) -> bool {
        match self {
            Checks::Always => true,
            Checks::InDebugBuilds => {
                cfg!(debug_assertions) && event.is_multiple_of(1 + size / SMALL)
            }
        }
    }

    /// Whether the scheduler plans a step on every clock tick. Such a plan should never be needed, because every event
    /// that makes a step possible triggers one; planning on ticks would hide an event that does not.
    pub(crate) fn plan_on_beat(self) -> bool {
        self == Checks::InDebugBuilds
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn large_states_are_checked_now_and_then_unless_always_is_asked_for() {
        let due =
            |checks: Checks, size| (1..=6).filter(|event| checks.are_due(*event, size)).count();
        assert_eq!([due(Checks::Always, 1), due(Checks::Always, 5000)], [6, 6]);
        let debug = usize::from(cfg!(debug_assertions));
        assert_eq!(due(Checks::InDebugBuilds, SMALL - 1), 6 * debug);
        assert_eq!(due(Checks::InDebugBuilds, 2 * SMALL), 2 * debug);
    }

    #[test]
    fn plans_on_ticks_do_not_hide_missing_ones_where_every_event_is_checked() {
        assert!(Checks::InDebugBuilds.plan_on_beat());
        assert!(!Checks::Always.plan_on_beat());
    }
}
