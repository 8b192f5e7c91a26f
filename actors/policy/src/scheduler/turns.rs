//! Turns of the tenants within a tier, by what they had of the device's time.
//!
//! A fair queue for each tier (see [`FairQueue`]). What a request costs is the time that its prompt and its output add to
//! steps, predicted when it comes and corrected when it has ended. Among tenants that all have requests waiting, the
//! costs of the requests that have started differ by at most the costliest request of each of two of them, and
//! the prompts of the step under way (theorem 1 of the paper named there: what a tenant is ahead of another by its last
//! start, and what that start costs).

use crate::scheduler::order::FairQueue;
use crate::scheduler::sequence::Sequence;
use crate::scheduler::state::Scheduler;
use tiercel_config::Order;
use tiercel_device::Tier;

/// A sequence's turn among tenants.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub(crate) struct Turn {
    /// The level whose tenants it takes turns with.
    pub(crate) level: u8,
    /// Its tag in their queue, us of the device's time.
    pub(crate) tag: f64,
    /// What its tenant was charged for it, us.
    pub(crate) charged_us: f64,
}

/// See the module's documentation.
#[derive(Debug, Clone, Default)]
pub(crate) struct Turns([FairQueue; Tier::ALL.len()]);

impl Turns {
    /// A sequence had its first token.
    pub(crate) fn start(&mut self, sequence: &Sequence) {
        let queue = self.of(sequence);
        queue.left(sequence.tenant);
        // One that was put before others by its priority says nothing of whose turn it is.
        if sequence.priority == 0 {
            queue.start(sequence.turn.tag);
        }
    }

    fn of(&mut self, sequence: &Sequence) -> &mut FairQueue {
        &mut self.0[usize::from(sequence.turn.level)]
    }
}

impl Scheduler {
    /// Gives a sequence its turn among those served as `tier`. One that has started keeps the one it had.
    pub(crate) fn take_turn(&mut self, sequence: &mut Sequence, tier: Tier) {
        let level = tier.index() as u8;
        let Turn { level: before, charged_us, .. } = sequence.turn;
        let known = charged_us > 0.0;
        if sequence.first_token_at.is_some() || (known && before == level) {
            return;
        }
        if known {
            let queue = self.turns.of(sequence);
            queue.left(sequence.tenant);
            queue.correct(sequence.tenant, -charged_us);
        }
        let prompt = sequence.prompt_len();
        // Never nothing: that would be one without a turn.
        let charged_us = self.work_us(prompt, sequence.predicted_tokens, prompt).max(1.0);
        let tag = self.turns.0[tier.index()].arrive(sequence.tenant, charged_us);
        sequence.turn = Turn { level, tag, charged_us };
    }

    /// Whether other tenants take turns with that of a sequence.
    pub(crate) fn others_take_turns(&self, sequence: &Sequence) -> bool {
        let queue = &self.turns.0[usize::from(sequence.turn.level)];
        self.settings.fair_tenants && queue.others_wait(sequence.tenant)
    }

    /// A sequence has ended: its tenant pays for what it had.
    pub(crate) fn charge_what_was_used(&mut self, sequence: &Sequence) {
        let prompt = sequence.prompt_len();
        let computed = sequence.computed.min(prompt);
        let computed = computed.saturating_sub(sequence.cached_tokens.unwrap_or(0));
        let used_us = self.work_us(computed, f64::from(sequence.output_len()), prompt);
        if sequence.first_token_at.is_none() {
            self.turns.of(sequence).left(sequence.tenant);
            self.fair.left(sequence.tenant);
        }
        self.charge_tier(sequence, used_us);
        let queue = self.turns.of(sequence);
        queue.correct(sequence.tenant, used_us - sequence.turn.charged_us);
    }

    /// Time that so many tokens of a prompt and so many of output add to steps, us.
    fn work_us(&self, computed: u32, output: f64, prompt: u32) -> f64 {
        self.cost.prefill_us(computed, 0) + output * self.cost.decode_us(prompt)
    }

    /// Whether prompts go by their tenants' turns where several tenants have some.
    pub(crate) fn tenants_take_turns(&self) -> bool {
        self.settings.fair_tenants && self.settings.order == Order::Tier
    }
}
