//! The plan of a step: which sequences run, with how many tokens, and which others may be preempted for them.
//!
//! Objective: as many requests as possible meet their targets, those of higher tiers first; then as many tokens as
//! possible are made. A plan is a wish: the block store answers with grants.

mod candidates;
mod pausing;
mod prefill;
pub(crate) mod retry;
pub(crate) mod view;
mod wants;

use crate::protocol::{Victim, Want};
use crate::scheduler::budget::step_budget::StepBudget;
use crate::scheduler::memory::victims::Victims;
use crate::scheduler::plan::retry::RetryScope;
use crate::scheduler::plan::view::View;

/// Plan of a step: what the scheduler asks of the block store.
#[derive(Debug)]
pub(crate) struct StepPlan {
    /// Wants of the sequences in the step, the most important first.
    pub(crate) wants: Vec<Want>,
    /// Sequences that may be preempted for the wants, or mirrored, in the order in which they are preempted; empty if
    /// free blocks are enough.
    pub(crate) victims: Vec<Victim>,
    /// Whether a running sequence is not in the step.
    pub(crate) skips_running: bool,
}

/// Plans the next step.
///
/// `others_first`: while a failed step is investigated, plans the sequences that are not suspects, so that these make
/// room for a suspect.
pub(crate) fn plan_step(view: &View<'_>, scope: RetryScope, others_first: bool) -> StepPlan {
    let View { basis, queue, retry, traffic, begins, .. } = *view;
    let settings = &basis.rules.scheduling;

    let mut candidates = candidates::eligible(view, scope, others_first);
    let prompts = candidates::separate(&mut candidates, scope, settings.mix);
    let budget = StepBudget::new(&candidates, basis, (traffic, view.reserve), begins);
    // After an empty plan no stream is paused: a paused stream may hold the blocks that others wait for.
    if let Some(budget) =
        budget.as_ref().filter(|_| settings.pause_background && retry.empty_plans == 0)
    {
        pausing::pause(&mut candidates, budget, &basis.cost, begins);
    }
    // In a narrow scope rank alone decides: only the first sequence by rank can reach every block.
    let by_rank = scope != RetryScope::All;
    prefill::give_tokens(&mut candidates, budget.as_ref(), (basis, traffic), (prompts, by_rank));
    candidates.retain(|candidate| candidate.tokens > 0);

    let mirrors = basis.rules.preemption.mirror_percent > 0;
    let victims = match mirrors || !wants::surely_fit(&candidates, view) {
        true => Victims::new(&queue.table, basis, begins),
        false => Victims::default(),
    };
    let wants = wants::wants(&candidates, &victims, view);
    let skips_running = candidates::skip_running(&candidates, view);
    StepPlan { wants, victims: victims.victims, skips_running }
}
