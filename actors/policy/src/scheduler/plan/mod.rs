//! The plan of a step: which sequences run, with how many tokens, and which others may be preempted for them.
//!
//! Objective: as many requests as possible meet their targets, those of higher tiers first; then as many tokens as
//! possible are made. A plan is only a request: the block store grants or denies the blocks.

mod candidates;
#[cfg(test)]
mod fixtures;
mod pausing;
mod prefill;
mod prefill_order;
pub(crate) mod retry;
pub(crate) mod view;
mod wants;

use crate::protocol::{Victim, Want};
use crate::scheduler::budget::step_budget::StepBudget;
use crate::scheduler::memory::victims::Victims;
use crate::scheduler::plan::retry::RetryScope;
use crate::scheduler::plan::view::View;

/// Plan of a step: wants (requests of sequences for KV blocks) and victims, which go to the block store.
#[derive(Debug)]
pub(crate) struct StepPlan {
    /// Wants of the sequences in the step, in the order in which the sequences got the step's slots.
    pub(crate) wants: Vec<Want>,
    /// Sequences that may be preempted for the step, or mirrored to the host, in the order in which they are preempted;
    /// empty if free blocks are enough and mirroring is off.
    pub(crate) victims: Vec<Victim>,
    /// Whether the plan leaves out a running sequence that the step could include.
    pub(crate) skips_running: bool,
}

/// Plans the next step.
///
/// `leave_out_suspects`: while there are suspects of a failed step, plans the sequences that are not suspects.
pub(crate) fn plan_step(view: &View<'_>, scope: RetryScope, leave_out_suspects: bool) -> StepPlan {
    let View { basis, queue, retry, traffic, begins, .. } = *view;
    let settings = &basis.rules.scheduling;

    let mut candidates = candidates::eligible(view, scope, leave_out_suspects);
    let prompts = candidates::separate(&mut candidates, scope, settings.mix);
    let budget = StepBudget::new(&candidates, basis, (traffic, view.reserve), begins);
    // Streams are not paused after an empty plan (one that runs no sequence), because a paused stream may hold the KV
    // blocks that other sequences wait for.
    if let Some(budget) =
        budget.as_ref().filter(|_| settings.pause_background && retry.empty_plans == 0)
    {
        // A stream that is paused for prompts holds its blocks for longer, so this happens only while blocks are ample.
        let ample_blocks = view.memory.ample(basis.rules.limits.device_blocks);
        pausing::pause(&mut candidates, budget, (&basis.cost, ample_blocks), begins);
    }
    // If the retried plan considers only some sequences, prompts get tokens by rank alone: only the first sequence by
    // rank may take blocks of all others, so this sequence must get tokens.
    let by_rank = scope != RetryScope::All;
    prefill::give_tokens(&mut candidates, budget.as_ref(), view, (prompts, by_rank));
    candidates.retain(|candidate| candidate.tokens > 0);

    let mirrors = basis.rules.preemption.mirror_percent > 0;
    let victims = match mirrors || !wants::surely_fit(&candidates, view) {
        true => Victims::new(&queue.table, (basis, &view.memory.reservations), begins),
        false => Victims::default(),
    };
    let wants = wants::wants(&candidates, &victims, view);
    let skips_running = candidates::skip_running(&candidates, view);
    StepPlan { wants, victims: victims.victims, skips_running }
}

#[cfg(test)]
mod tests {
    use crate::scheduler::NewSequence;
    use crate::scheduler::tests::{NOW, all_sample, scheduler, sequence, submit};
    use tiercel_config::Target;
    use tiercel_device::{StepTiming, Tier};

    #[test]
    fn no_stream_is_paused_after_an_empty_plan() {
        let running = |empty_plans| {
            let mut s = scheduler(|e| {
                e.scheduler.pause_background = true;
                e.scheduler.background_prefill_percent = 100;
                e.slo.premium.tpot_ms = Target::Ms(0.1024);
            });
            for (id, tier) in [(1, Tier::Background), (2, Tier::Background), (3, Tier::Premium)] {
                s.enqueue(NewSequence { max_tokens: 900, ..sequence(id, tier, 4) });
            }
            let batch = submit(&mut s);
            let mut done = all_sample(&batch, 1);
            if let Ok(output) = &mut done.result {
                // Report a duration of 0, so that the cost model learns nothing from the step.
                output.timing = StepTiming::default();
            }
            s.step_done(done, NOW);
            s.retry.empty_plans = empty_plans;
            s.plan(NOW).expect("a step").wants.len()
        };
        // Premium aims at 99.7 % of 102.4 us, 102.1 us. The premium stream takes 101 us, and each other stream 1 us
        // more.
        assert_eq!([running(0), running(1)], [2, 3]);
    }

    #[test]
    fn background_streams_are_paused_for_a_prompt_in_time_only_while_blocks_are_ample() {
        let wants = |free_blocks| {
            let mut s = scheduler(|e| {
                e.scheduler.pause_background = true;
                e.slo.premium.ttft_ms = Target::Ms(1.0);
                e.slo.standard.ttft_ms = Target::Ms(100_000.0);
            });
            s.enqueue(NewSequence { max_tokens: 900, ..sequence(1, Tier::Background, 4) });
            let batch = submit(&mut s);
            s.step_done(all_sample(&batch, 1), NOW);
            // Steps take at most 300 us, 30 % of premium's TTFT target.
            s.queue.arrivals.set(Tier::Premium, Some(NOW));
            s.enqueue(sequence(2, Tier::Standard, 400));
            s.memory.free_blocks = free_blocks;
            let plan = s.plan(NOW).expect("a step");
            plan.wants.iter().map(|want| want.ticket.seq.0).collect::<Vec<_>>()
        };
        assert_eq!(wants(0), [2, 1]);
        assert_eq!(wants(100), [2]);
    }
}
