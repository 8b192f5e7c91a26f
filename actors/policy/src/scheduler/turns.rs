//! Turns of the tenants within a tier, by what they had of the device's time.
//!
//! A fair queue for each tier (see [`FairQueue`]). What a request costs is the time that its prompt and its output add to
//! steps, predicted when it comes and corrected when it has ended. Among tenants that all have requests waiting, the
//! costs of the requests that have started differ by at most the costliest request of each of two of them, and
//! the prompts of the step under way (theorem 1 of the paper named there: what a tenant is ahead of another by its last
//! start, and what that start costs).

use crate::scheduler::order::FairQueue;
use crate::scheduler::sequence::{Sequence, Turn};
use crate::scheduler::state::Scheduler;
use tiercel_config::Order;
use tiercel_device::Tier;

/// See the module's documentation.
#[derive(Debug, Clone, Default)]
pub(crate) struct Turns([FairQueue; Tier::ALL.len()]);

impl Turns {
    /// A request had its first token.
    pub(crate) fn start(&mut self, turn: Turn) {
        self.0[usize::from(turn.level)].start(turn.tag);
    }
}

impl Scheduler {
    /// Gives a sequence its turn among those served as `tier`.
    pub(crate) fn take_turn(&mut self, sequence: &mut Sequence, tier: Tier) {
        let level = tier.index() as u8;
        let Turn { level: before, charged_us, .. } = sequence.turn;
        if charged_us > 0.0 {
            if before == level {
                return;
            }
            self.turns.0[usize::from(before)].correct(sequence.tenant, -charged_us);
        }
        let charged_us =
            self.work_us(sequence.prompt_len(), sequence.predicted_tokens, sequence.prompt_len());
        let tag = self.turns.0[tier.index()].arrive(sequence.tenant, charged_us);
        sequence.turn = Turn { level, tag, charged_us };
    }

    /// Puts a sequence last in its tenant's own line; whether there is another tenant that has one. If there is not,
    /// that says nothing, and nothing is done.
    pub(crate) fn goes_last_of_its_tenant(&mut self, sequence: &mut Sequence) -> bool {
        let Turn { level, charged_us, .. } = sequence.turn;
        let queue = &mut self.turns.0[usize::from(level)];
        if !self.settings.fair_tenants || !queue.others_ask(sequence.tenant) {
            return false;
        }
        queue.correct(sequence.tenant, -charged_us);
        let tag = queue.arrive(sequence.tenant, charged_us);
        sequence.turn.tag = tag;
        true
    }

    /// A sequence has ended: its tenant pays for what it had.
    pub(crate) fn charge_what_was_used(&mut self, sequence: &Sequence) {
        let prompt = sequence.prompt_len();
        let computed = sequence.computed.min(prompt);
        let computed = computed.saturating_sub(sequence.cached_tokens.unwrap_or(0));
        let used_us = self.work_us(computed, f64::from(sequence.output_len()), prompt);
        let Turn { level, charged_us, .. } = sequence.turn;
        self.turns.0[usize::from(level)].correct(sequence.tenant, used_us - charged_us);
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
