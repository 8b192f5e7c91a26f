//! When the actors check the invariants of their state.

/// How often an actor checks the invariants of what it owns. A violation is a bug: the actor dies of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Checks {
    /// In debug builds, after every event while the state is small, now and then when looking at all of it
    /// takes long.
    InDebugBuilds,
    /// After every event, whatever the build and the size; and the clock's beat wakes nobody who should have
    /// been woken by an event.
    Always,
}

/// Things that a check may look at after every event.
const SMALL: u64 = 1024;

impl Checks {
    /// Whether to check after event number `event` of a state of `size` things.
    pub(crate) fn are_due(self, event: u64, size: u64) -> bool {
        match self {
            Checks::Always => true,
            Checks::InDebugBuilds => {
                cfg!(debug_assertions) && event.is_multiple_of(1 + size / SMALL)
            }
        }
    }

    /// Whether the scheduler plans on every beat of the clock. It should never need to, which is why that
    /// would hide an event that is not followed by a plan.
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
}
