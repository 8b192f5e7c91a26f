//! Device time that steps have for prompts beside the running streams, and the backlog of prompts that wait for it.

use crate::admission::{Capacity, ShareReport};
use crate::scheduler::basis::Basis;
use crate::scheduler::budget::slack::AIM;
use crate::scheduler::budget::step_budget::blocking_us;
use crate::scheduler::cost::StepWork;
use crate::scheduler::queue::Queue;
use crate::scheduler::queue::arrivals::Traffic;
use crate::scheduler::sequence::Sequence;
use tiercel_device::{Tier, Timestamp};

const TIERS: usize = Tier::ALL.len();

/// Length of the next steps, and the part of each step that is left for prompts.
#[derive(Debug, Clone, Copy)]
pub(crate) struct PrefillTime {
    /// Length of a step, us: as long as the TPOT targets of the streams and the limits on a step allow.
    pub(crate) step_us: f64,
    /// Part of `step_us` that is left for prompts, us.
    pub(crate) prompts_us: f64,
}

impl PrefillTime {
    /// Returns the length of a step with the running streams `streams`, and its part that is left for prompts.
    /// `target_us` is the shortest time per token that any of the streams must keep.
    fn of(streams: &StepWork, target_us: f64, basis: &Basis, traffic: Traffic) -> PrefillTime {
        let bare_us = basis.cost.step_us(streams);
        let room = basis.rules.prefill_room(streams.decode_tokens);
        let longest_us = bare_us + basis.cost.prefill_us(room, 0);
        let longest_us = longest_us.min(blocking_us(basis, traffic)).max(bare_us);
        // A TPOT target that the streams cannot meet even in a step without prompts does not limit the step's length.
        let target_us = if target_us > bare_us { target_us } else { f64::INFINITY };
        let step_us = target_us.clamp(bare_us, longest_us);
        PrefillTime { step_us, prompts_us: step_us - bare_us }
    }

    /// Returns the length of a step with the streams above background that run now, and its part that is left for
    /// prompts.
    pub(crate) fn now(queue: &Queue, basis: &Basis, traffic: Traffic) -> PrefillTime {
        let mut streams = Streams::default();
        let active = queue.table.active().filter(|(_, sequence)| !sequence.held());
        for (_, sequence) in active {
            if sequence.planned_output() > 0 && sequence.decoding() {
                streams.add(sequence);
            }
        }
        PrefillTime::of(&streams.work, streams.target_us, basis, traffic)
    }

    /// Returns the part of a step that its streams leave for prompts, as a share of the step's length, 0 to 1.
    pub(crate) fn share(&self) -> f64 {
        self.prompts_us / self.step_us.max(1.0)
    }
}

/// Work of the running streams of tiers above background, and the shortest time per token that any of them must keep.
struct Streams {
    /// Work of one step that decodes one token of each of these streams.
    work: StepWork,
    /// Shortest time per token that any of the streams aims at (a little below its TPOT target), us; infinite if no
    /// stream has a TPOT target.
    target_us: f64,
}

impl Default for Streams {
    fn default() -> Streams {
        Streams { work: StepWork::default(), target_us: f64::INFINITY }
    }
}

impl Streams {
    fn add(&mut self, stream: &Sequence) {
        if stream.tier < Tier::Background {
            self.work.add_decode(stream.planned_len());
            let tpot_ms = stream.service.targets.tpot_ms.unwrap_or(f64::INFINITY);
            self.target_us = self.target_us.min(tpot_ms * 1000.0 * AIM);
        }
    }
}

/// Returns the report for admission: device time that is available to prompts, and the backlog of prompts. `hit_share`
/// is the share of prompt tokens found in the prefix cache lately. The report has no `shedding` if steps have a fixed
/// size and usage is not counted, because then the available time is unknown.
pub(crate) fn capacity(
    queue: &Queue,
    basis: &Basis,
    (hit_share, shares): (f64, ShareReport),
    now: Timestamp,
) -> Capacity {
    let mut streams = Streams::default();
    let mut backlog_us = [0.0; TIERS];
    for (_, sequence) in queue.table.active().filter(|(_, sequence)| !sequence.held()) {
        let left = sequence.left_to_compute();
        if sequence.planned_output() == 0 {
            backlog_us[sequence.tier_before_ageing().index()] +=
                basis.cost.prefill_us(left, sequence.planned_len() - left);
        } else if sequence.decoding() {
            streams.add(sequence);
        }
    }
    // Assume that the prefix cache holds the same share of the waiting prompts as of recent ones (`hit_share`).
    let token_us = basis.cost.prefill_us(1, 0) * (1.0 - hit_share);
    for (us, tokens) in backlog_us.iter_mut().zip(queue.table.unstarted_tokens()) {
        *us += token_us * tokens as f64;
    }
    let rules = &basis.rules;
    let time = PrefillTime::of(&streams.work, streams.target_us, basis, queue.traffic(now));
    let known = rules.budget_by_slack() || rules.counts_usage();
    Capacity {
        step_us: time.step_us,
        idle_us: basis.cost.step_us(&StepWork::default()),
        prompts_us: time.prompts_us,
        backlog_us,
        queue_us: Tier::ALL.map(|tier| queue.drain[tier.index()].wait_us(now)),
        fair_tenants: rules.tenants_are_fair(),
        fair_tiers: rules.tiers_are_fair(),
        token_us,
        shares,
        shedding: known.then_some(rules.shedding),
    }
}
