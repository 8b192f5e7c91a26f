//! Planning again: which sequences the next plan considers after a plan for which the block store had no blocks.
//!
//! A plan gives out the tokens of a step before the block store grants blocks, so it must guess which waiting sequences
//! will get some. Tokens that a denied sequence was given are lost to the step. Three rules correct the guess. After a
//! denial, a plan asks for no more opens than the last one got ([`Retry::open_limit`]). After an empty plan that
//! skipped running sequences, which may hold the very blocks that are short, the next plan considers a narrower scope:
//! only sequences that hold blocks, then only those that decode ([`RetryScope`]). And after any empty plan nothing but
//! rank decides, so that the sequence that can reach every block comes first ([`Retry::empty_plans`]). When nothing
//! helps, planning waits for the next event.

/// Most sequences that a plan asks to open. Each open costs a look-up of a whole prefix, and a step rarely has room for
/// more.
pub(crate) const OPENS_MAX: usize = 32;
/// Number of successive empty plans after which the next event is waited for. Plans differ in fewer ways, so another
/// one would be empty too.
const EMPTY_PLANS_MAX: u32 = 8;

/// Scope of a plan: the sequences that it considers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum RetryScope {
    /// The plan considers all sequences.
    All,
    /// The plan considers only sequences that hold blocks.
    Running,
    /// The plan considers only sequences that decode.
    Decodes,
}

/// Scope and limits of the next plan, as denials and empty plans made them.
#[derive(Debug)]
pub(crate) struct Retry {
    /// Scope of the next plan, or of the one under way.
    pub(crate) scope: RetryScope,
    /// Whether the plan under way skipped a running sequence.
    pub(crate) skipped_running: bool,
    /// Empty plans since the last event.
    pub(crate) empty_plans: u32,
    /// Most waiting sequences that the next plan asks to open.
    pub(crate) open_limit: usize,
    /// Whether another plan may find more to do: because something happened since the last plan, or because the next
    /// plan considers other sequences.
    pub(crate) again: bool,
}

impl Retry {
    pub(crate) fn new() -> Retry {
        Retry {
            scope: RetryScope::All,
            skipped_running: false,
            empty_plans: 0,
            open_limit: OPENS_MAX,
            again: false,
        }
    }

    /// Records that something happened to which another plan could respond.
    pub(crate) fn noticed(&mut self) {
        self.again = true;
        self.empty_plans = 0;
    }

    /// Adjusts the number of opens of the next plan to the `opened` and `denied` opens of this one. A denied sequence
    /// takes a slot of the step that a running sequence could use.
    pub(crate) fn limit_opens(&mut self, opened: usize, denied: usize) {
        if self.scope == RetryScope::All {
            self.open_limit = match denied {
                0 => (self.open_limit * 2).min(OPENS_MAX),
                _ => opened.clamp(1, OPENS_MAX),
            };
        }
    }

    /// Chooses the scope of the next plan after one that was `empty` or not. `reserved` says whether blocks are
    /// reserved for a tier.
    pub(crate) fn planned(&mut self, empty: bool, reserved: bool) {
        let skipped = std::mem::take(&mut self.skipped_running);
        self.empty_plans = if empty { self.empty_plans + 1 } else { 0 };
        self.scope = match self.scope {
            RetryScope::All if skipped && empty => RetryScope::Running,
            RetryScope::Running if skipped && empty => RetryScope::Decodes,
            _ => RetryScope::All,
        };
        // A plan of a narrower scope does not wait for what the sequences outside of its scope wait for.
        self.again |= empty && self.scope != RetryScope::All;
        // The second plan in a row ignores unused reservations for its first sequence, so it may not be empty.
        self.again |= empty && self.empty_plans == 1 && reserved;
        if self.empty_plans >= EMPTY_PLANS_MAX {
            (self.again, self.scope) = (false, RetryScope::All);
        }
    }
}
