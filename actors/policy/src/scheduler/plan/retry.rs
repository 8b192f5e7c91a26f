//! Planning again: which sequences the next plan considers after an empty plan, which led to no step.
//!
//! A plan gives out the tokens of a step before the block store grants blocks, so it must guess which waiting sequences
//! will get some. Tokens that a denied sequence was given are lost to the step. Three rules correct the guess. After a
//! denial, a plan asks to open no more waiting sequences than the last plan could open ([`Retry::open_limit`]). After
//! an empty plan that skipped running sequences, which may hold the very blocks that are short, the next plan considers
//! fewer sequences: only those that hold blocks, then only those with one token left to compute ([`RetryScope`]). And
//! after any empty plan the next plan ignores the tiers' fair queue, pauses no stream, and lets its first sequence
//! ignore the reservations of other tiers: within an effective tier, running sequences come first, then waiting
//! sequences, both by rank, so that the one sequence that may take blocks of all others comes first
//! ([`Retry::empty_plans`]). When none of these rules helps, planning waits for the next event.

/// Most waiting sequences for which one plan requests blocks. Each costs a look-up of its whole prefix in the prefix
/// cache, and a step rarely has room for more.
pub(crate) const OPENS_MAX: usize = 32;
/// Number of successive empty plans after which planning waits for the next event. After the first empty plan,
/// successive empty plans differ only in their scope, in the order of their candidates and in how many sequences they
/// ask to open, so one more would be empty too.
const EMPTY_PLANS_MAX: u32 = 8;

/// Scope of a plan: which sequences it considers; narrowed after an empty plan.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum RetryScope {
    /// The plan considers all sequences.
    All,
    /// The plan considers only sequences that hold blocks.
    Running,
    /// The plan considers only running sequences with one token left to compute: streams, and prompts whose last token
    /// is left.
    Decodes,
}

/// Which sequences the next plan considers, and for how many waiting ones it may request blocks; adjusted by denials
/// and empty plans.
#[derive(Debug)]
pub(crate) struct Retry {
    /// Sequences that the next plan (or the one under way) considers.
    pub(crate) scope: RetryScope,
    /// Whether the plan under way left out a running sequence that the step could include.
    pub(crate) skipped_running: bool,
    /// Number of successive empty plans since the last event. A plan counts if it sent a step request, no
    /// step followed from the request, and none was in flight.
    pub(crate) empty_plans: u32,
    /// Most waiting sequences for which the next plan requests blocks.
    pub(crate) open_limit: usize,
    /// Whether another plan may find more to do: an event came since the last plan, the next plan considers other
    /// sequences, or the first sequence of the next plan may ignore the reservations of other tiers.
    pub(crate) may_replan: bool,
}

impl Retry {
    pub(crate) fn new() -> Retry {
        Retry {
            scope: RetryScope::All,
            skipped_running: false,
            empty_plans: 0,
            open_limit: OPENS_MAX,
            may_replan: false,
        }
    }

    /// Allows another plan after an event to which a plan could respond, such as an arrival or blocks that came free.
    /// Empty plans before the event no longer count.
    pub(crate) fn allow_replan(&mut self) {
        self.may_replan = true;
        self.empty_plans = 0;
    }

    /// Sets how many waiting sequences the next plan may open, if this plan considered all sequences: twice the limit
    /// of this plan (at most [`OPENS_MAX`]) if no waiting sequence was `denied` blocks; otherwise as many as this plan
    /// `opened`, because a denied sequence takes a slot of the step that a running sequence could use. The limit is at
    /// least one, so that waiting sequences are tried again.
    pub(crate) fn limit_opens(&mut self, opened: usize, denied: usize) {
        if self.scope == RetryScope::All {
            self.open_limit = match denied {
                0 => (self.open_limit * 2).min(OPENS_MAX),
                _ => opened.clamp(1, OPENS_MAX),
            };
        }
    }

    /// Chooses which sequences the next plan considers, and whether the next plan follows at once. `empty` says whether
    /// the last plan was empty, and `reserved` whether blocks are reserved for any tier.
    pub(crate) fn planned(&mut self, empty: bool, reserved: bool) {
        let skipped = std::mem::take(&mut self.skipped_running);
        self.empty_plans = if empty { self.empty_plans + 1 } else { 0 };
        self.scope = match self.scope {
            RetryScope::All if skipped && empty => RetryScope::Running,
            RetryScope::Running if skipped && empty => RetryScope::Decodes,
            _ => RetryScope::All,
        };
        // Plan again at once with fewer sequences, because sequences that hold blocks need not wait for the event that
        // waiting sequences wait for.
        self.may_replan |= empty && self.scope != RetryScope::All;
        // Plan again at once if blocks are reserved: the plan after an empty one ignores other tiers' unused
        // reservations for its first sequence, so it may find blocks.
        self.may_replan |= empty && self.empty_plans == 1 && reserved;
        if self.empty_plans >= EMPTY_PLANS_MAX {
            (self.may_replan, self.scope) = (false, RetryScope::All);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_denial_limits_the_openings_to_those_that_succeeded_and_each_success_doubles_them() {
        let mut retry = Retry::new();
        let mut after = |opened, denied| {
            retry.limit_opens(opened, denied);
            retry.open_limit
        };
        assert_eq!(after(3, 1), 3);
        let doubled: Vec<usize> = (0..5).map(|_| after(0, 0)).collect();
        assert_eq!(doubled, [6, 12, 24, OPENS_MAX, OPENS_MAX]);
        assert_eq!(after(0, 5), 1, "one may always try");
        retry.scope = RetryScope::Running;
        retry.limit_opens(7, 0);
        assert_eq!(retry.open_limit, 1, "a plan without waiting sequences says nothing");
    }

    #[test]
    fn plans_narrow_only_after_empty_ones_that_skipped_running_sequences() {
        let next = |scope, skipped_running, empty| {
            let mut retry = Retry { scope, skipped_running, ..Retry::new() };
            retry.planned(empty, false);
            (retry.scope, retry.may_replan)
        };
        let (all, running) = (RetryScope::All, RetryScope::Running);
        assert_eq!(next(all, true, true), (running, true));
        assert_eq!(next(running, true, true), (RetryScope::Decodes, true));
        assert_eq!(next(RetryScope::Decodes, true, true), (all, false));
        for scope in [all, running] {
            assert_eq!(next(scope, true, false), (all, false));
            assert_eq!(next(scope, false, true), (all, false));
        }
    }

    #[test]
    fn only_the_first_empty_plan_beside_reservations_is_followed_by_another_at_once() {
        let mut retry = Retry::new();
        let mut follows = |empty, reserved| {
            retry.may_replan = false;
            retry.planned(empty, reserved);
            (retry.may_replan, retry.empty_plans)
        };
        assert_eq!(follows(true, true), (true, 1));
        assert_eq!(follows(true, true), (false, 2));
        assert_eq!(follows(true, true), (false, 3));
        assert_eq!(follows(false, true), (false, 0));
        assert_eq!(follows(true, false), (false, 1));
    }

    #[test]
    fn planning_waits_for_an_event_after_too_many_empty_plans() {
        let mut retry = Retry::new();
        for count in 1..=EMPTY_PLANS_MAX {
            retry.skipped_running = true;
            retry.planned(true, true);
            assert_eq!(retry.empty_plans, count);
        }
        assert_eq!((retry.may_replan, retry.scope), (false, RetryScope::All));
    }
}
