//! Deadlines of first tokens: which requests can still be in time, and which are late.
//!
//! Of the prompts that wait, those are late that must be given up so that as many others as possible are in time. The
//! rule is Moore and Hodgson's (Moore, Management Science 15, 1968): take prompts in the order of their deadlines, and
//! whenever the work of the prompts taken so far does not fit before a deadline, give up the longest of these prompts. The
//! work of better tiers' prompts counts as done first. If several tenants have prompts, the longest prompt of the tenant with
//! the most work is given up.
//!
//! Late requests wait behind all of their tier that can be in time, and before worse tiers. Being late is judged anew
//! before each step, so that an estimate that was wrong costs little, until the deadline has passed. A late request that
//! starves goes first after all (see [`crate::scheduler::starvation`]).

use crate::blocks::Salt;
use crate::scheduler::cost::StepWork;
use crate::scheduler::sequence::Sequence;
use crate::scheduler::starvation::LateRequests;
use crate::scheduler::state::Scheduler;
use std::collections::{BTreeMap, BTreeSet, BinaryHeap};
use tiercel_config::{Budget, Late, Order};
use tiercel_device::{SeqId, Tier, Timestamp};

const TIERS: usize = Tier::ALL.len();
/// Most requests of a tier that are judged before a step, those with the earliest deadlines.
const JUDGED_MAX: usize = 256;
/// Least share of the time that a tier's prompts are expected to have.
const SHARE_MIN: f64 = 0.02;
/// Most of the time that prompts are taken to leave streams without.
const PROMPTS_SHARE_MAX: f64 = 0.7;
/// What the share that a tier's prompts are expected to have is multiplied with. Streams that are ahead let a
/// prompt with a deadline have more than their pace allows; background prompts also make room for those that come
/// later.
const OPTIMISM: [f64; TIERS] = [1.25, 1.25, 1.25, 0.7];
/// Time over which the work of better tiers' prompts is averaged, us: about as long as a tier's requests wait.
const MEMORY_US: [f64; TIERS] = [3e6, 3e6, 3e6, 60e6];

/// A request without a first token, and when that should come.
type Entry = (Tier, Timestamp, SeqId);

/// See the module's documentation.
#[derive(Debug, Clone, Default)]
pub(crate) struct Deadlines {
    /// Deadlines that have not passed, or were not looked at since, in order.
    entries: BTreeSet<Entry>,
    /// Late requests.
    pub(crate) late: LateRequests,
    /// For each tier the share of the time that prompts of each tier took which arrived lately.
    arriving: [[f64; TIERS]; TIERS],
    /// When that was.
    at: Timestamp,
}

impl Deadlines {
    /// A prompt arrives that takes `work_us`.
    fn arrives(&mut self, tier: Tier, work_us: f64, now: Timestamp) {
        for (shares, memory_us) in self.arriving.iter_mut().zip(MEMORY_US) {
            let left = (-(now.since_us(self.at) as f64) / memory_us).exp();
            shares.iter_mut().for_each(|share| *share *= left);
            shares[tier.index()] += work_us / memory_us;
        }
        self.at = now;
    }

    /// Share of the time that prompts of `tiers` take, over the time that counts for `tier`.
    fn taken_by(&self, tiers: &[Tier], tier: Tier, now: Timestamp) -> f64 {
        let left = (-(now.since_us(self.at) as f64) / MEMORY_US[tier.index()]).exp();
        let arriving = &self.arriving[tier.index()];
        tiers.iter().map(|tier| arriving[tier.index()]).sum::<f64>() * left
    }

    fn enter(&mut self, sequence: &Sequence) {
        if let Some(deadline) = sequence.deadline {
            self.entries.insert((sequence.tier, deadline, sequence.id));
        }
        self.late.enter(sequence);
    }

    /// The request has its first token, or needs none any more.
    pub(crate) fn leave(&mut self, sequence: &Sequence) {
        self.forget(sequence);
        self.late.leave(sequence);
    }

    /// The deadline of the request does not count any more.
    pub(crate) fn forget(&mut self, sequence: &Sequence) {
        if let Some(deadline) = sequence.deadline {
            self.entries.remove(&(sequence.tier, deadline, sequence.id));
        }
    }

    /// Requests of a tier, earliest deadline first, as many as are judged.
    fn of(&self, tier: Tier) -> impl Iterator<Item = Entry> + '_ {
        let all = (tier, Timestamp(0), SeqId(0))..=(tier, Timestamp(u64::MAX), SeqId(u64::MAX));
        self.entries.range(all).take(JUDGED_MAX).copied()
    }
}

/// A prompt with a deadline.
#[derive(Debug, Clone, Copy)]
struct Prompt {
    seq: SeqId,
    tenant: Salt,
    /// From now, us; negative if it has passed.
    due_us: f64,
    work_us: f64,
}

/// Prompts that are in time, by tenant: all work, and each one's, longest first.
#[derive(Debug, Default)]
struct InTime(BTreeMap<Salt, (u64, BinaryHeap<(u64, SeqId)>)>);

impl InTime {
    fn take(&mut self, prompt: Prompt) {
        let work_us = prompt.work_us as u64;
        let (all_us, prompts) = self.0.entry(prompt.tenant).or_default();
        *all_us += work_us;
        prompts.push((work_us, prompt.seq));
    }

    /// Gives up the longest of the tenant with the most work.
    fn give_up(&mut self) -> Option<(u64, SeqId)> {
        let (all_us, prompts) = self.0.values_mut().max_by_key(|(all_us, _)| *all_us)?;
        let longest = prompts.pop()?;
        *all_us -= longest.0;
        Some(longest)
    }
}

/// Prompts that are late, if `prompts`, earliest deadline first, have a share of the time after `before_us` of other
/// work; and the work of those in time, us.
fn late(
    prompts: impl Iterator<Item = Prompt>,
    before_us: f64,
    share: f64,
) -> (BTreeSet<SeqId>, f64) {
    let (mut in_time, mut late) = (InTime::default(), BTreeSet::new());
    let mut work_us = 0.0;
    for prompt in prompts {
        in_time.take(prompt);
        work_us += prompt.work_us;
        while (before_us + work_us) / share > prompt.due_us {
            let Some((longest_us, longest)) = in_time.give_up() else { break };
            work_us -= longest_us as f64;
            late.insert(longest);
        }
    }
    (late, work_us.max(0.0))
}

impl Scheduler {
    /// Whether late requests go behind those in time.
    fn judges_deadlines(&self) -> bool {
        self.settings.order == Order::Tier
            && self.settings.budget == Budget::Slack
            && self.shedding.late != Late::Wait
    }

    /// Enters the deadline of a request without a first token.
    pub(crate) fn enter_deadline(&mut self, sequence: &mut Sequence, now: Timestamp) {
        let work_us = self.cost.prefill_us(sequence.prompt_len(), 0);
        self.deadlines.arrives(sequence.tier, work_us, now);
        sequence.deadline = self.deadline(sequence, now);
        self.deadlines.enter(sequence);
    }

    /// Enters the deadline of a request whose tier has changed.
    pub(crate) fn renew_deadline(&mut self, sequence: &mut Sequence) {
        let deadline = self.deadline(sequence, sequence.arrival);
        sequence.deadline = deadline.filter(|_| sequence.first_token_at.is_none());
        self.deadlines.enter(sequence);
    }

    /// When the first token of a request must come: as its target says, and soon enough for the whole output to be in
    /// time.
    fn deadline(&self, sequence: &Sequence, now: Timestamp) -> Option<Timestamp> {
        let of_output = sequence.targets.e2e_ms.map(|ms| {
            let target_us = sequence.targets.tpot_ms.map(|ms| ms * 1000.0);
            let pace_us = target_us.unwrap_or_else(|| self.untargeted_pace_us(sequence.tier, now));
            let us = ms * 1000.0 - sequence.predicted_tokens * pace_us;
            sequence.arrival + us.max(0.0) as u64
        });
        let of_first = sequence.targets.ttft_ms.map(|_| self.first_token_due(sequence));
        // A target for the first token says itself how long that may take.
        of_first.or(of_output)
    }

    /// Time a token takes of a stream without a target for its pace, us. While better requests come, it sits out about
    /// every other step; otherwise it is in every step, which all streams share with the prompts that come.
    fn untargeted_pace_us(&self, tier: Tier, now: Timestamp) -> f64 {
        if self.better_came_lately(tier, now) {
            return 2.0 * self.time_for_prompts(now).0;
        }
        let mut streams = StepWork::default();
        for (_, stream) in self.sequences.active().filter(|(_, stream)| stream.decoding()) {
            streams.add_decode(stream.planned_len());
        }
        let prompts = self.deadlines.taken_by(&Tier::ALL, tier, now).min(PROMPTS_SHARE_MAX);
        self.cost.step_us(&streams) / (1.0 - prompts)
    }

    /// Finds out which requests are late before a step that begins at `now`.
    pub(crate) fn judge_deadlines(&mut self, now: Timestamp) {
        if !self.judges_deadlines() {
            return;
        }
        self.advance_starving(now);
        if self.deadlines.entries.is_empty() {
            return;
        }
        let (step_us, share) = self.time_for_prompts(now);
        let mut before_us = 0.0;
        for tier in Tier::ALL {
            let taken = self.deadlines.taken_by(&Tier::ALL[..tier.index()], tier, now);
            let share = (share * OPTIMISM[tier.index()] - taken).max(SHARE_MIN);
            let entries: Vec<Entry> = self.deadlines.of(tier).collect();
            let prompts = entries.iter().filter_map(|(_, deadline, seq)| {
                let sequence = self.sequences.get(*seq)?;
                // One that is held is in nobody's way, and one whose token is being sampled has done its work.
                let waits = !sequence.held() && sequence.planned_output() == 0;
                let due_us = deadline.0 as f64 - now.0 as f64 - step_us;
                let left = sequence.left_to_compute();
                let work_us = self.cost.prefill_us(left, sequence.planned_len() - left);
                waits.then_some(Prompt { seq: *seq, tenant: sequence.tenant, due_us, work_us })
            });
            let (late, work_us) = late(prompts, before_us, share);
            before_us += work_us;
            for (tier, deadline, seq) in entries {
                self.set_late(seq, late.contains(&seq));
                if deadline <= now {
                    self.deadlines.entries.remove(&(tier, deadline, seq));
                }
            }
        }
    }

    /// Puts a request behind those that can be in time, or among them again.
    pub(crate) fn set_late(&mut self, seq: SeqId, late: bool) {
        if self.sequences.get(seq).is_none_or(|sequence| sequence.late == late) {
            return;
        }
        let Some(mut sequence) = self.sequences.remove(seq) else { return };
        sequence.late = late;
        self.deadlines.late.enter(&sequence);
        self.place(&mut sequence);
        self.sequences.insert(sequence);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scheduler::tests::{grant_all, scheduler, sequence};
    use proptest::prelude::*;
    use tiercel_config::Policy;

    fn prompt(id: u64, tenant: u8, due_us: f64, work_us: f64) -> Prompt {
        Prompt { seq: SeqId(id), tenant: Salt([tenant; 16]), due_us, work_us }
    }

    fn ids(late: &BTreeSet<SeqId>) -> Vec<u64> {
        late.iter().map(|seq| seq.0).collect()
    }

    #[test]
    fn the_longest_prompt_is_given_up_for_the_others() {
        let prompts = [(1, 100.0, 50.0), (2, 200.0, 140.0), (3, 300.0, 90.0), (4, 400.0, 130.0)];
        let prompts = prompts.map(|(id, due, work)| prompt(id, 1, due, work));
        let (late_ones, work_us) = late(prompts.into_iter(), 0.0, 1.0);
        assert_eq!((ids(&late_ones), work_us), (vec![2], 270.0));
        // With half of the time only the two shortest fit.
        let (late_ones, _) = late(prompts.into_iter(), 0.0, 0.5);
        assert_eq!(ids(&late_ones), [2, 4]);
        let (late_ones, _) = late(prompts.into_iter(), 1_000.0, 1.0);
        assert_eq!(ids(&late_ones), [1, 2, 3, 4], "better tiers leave no time");
    }

    #[test]
    fn whoever_asks_for_most_gives_up_first() {
        let modest = prompt(1, 1, 1000.0, 300.0);
        let greedy = (2..=9).map(|id| prompt(id, 2, 1000.0, 150.0));
        let (late_ones, _) = late(std::iter::once(modest).chain(greedy), 0.0, 1.0);
        assert_eq!(late_ones.len(), 4);
        assert!(!late_ones.contains(&SeqId(1)), "{late_ones:?}");
    }

    #[test]
    fn background_alone_is_not_expected_to_sit_out_steps() {
        let time_for_output_us = |better_came| {
            let mut s =
                scheduler(|e| e.slo.background.e2e_ms = tiercel_config::Target::Ms(1_000.0));
            s.came_at[Tier::Premium.index()] = better_came;
            s.enqueue(sequence(1, Tier::Background, 20));
            let sequence = s.sequences.get(SeqId(1)).expect("it waits");
            let deadline = sequence.deadline.expect("it has a target");
            1e6 - deadline.since_us(sequence.arrival) as f64
        };
        let [alone, beside_better] = [None, Some(Timestamp(0))].map(time_for_output_us);
        // An empty step takes 100 us, one full of prompts 420.
        let ratio = beside_better / alone;
        assert!((8.0..8.5).contains(&ratio), "{ratio}");
    }

    proptest! {
        /// No other choice has fewer late ones.
        #[test]
        fn as_few_are_late_as_can_be(
            mut drawn in proptest::collection::vec((1u32..100, 1u32..300), 1..10),
        ) {
            drawn.sort_by_key(|(_, due)| *due);
            let prompts: Vec<Prompt> = (1..).zip(&drawn)
                .map(|(id, (work, due))| prompt(id, 1, f64::from(*due), f64::from(*work)))
                .collect();
            let (late_ones, _) = late(prompts.iter().copied(), 0.0, 1.0);
            let in_time = |chosen: u32| {
                let mut sum_us = 0.0;
                (0..).zip(&prompts).filter(|(at, _)| chosen & (1 << at) != 0).all(|(_, prompt)| {
                    sum_us += prompt.work_us;
                    sum_us <= prompt.due_us
                })
            };
            let best = (0..1u32 << prompts.len()).filter(|chosen| in_time(*chosen));
            let best = best.map(u32::count_ones).max().unwrap_or(0) as usize;
            prop_assert_eq!(prompts.len() - late_ones.len(), best);
        }
    }

    fn late_of(s: &Scheduler, id: u64) -> bool {
        s.sequences.get(SeqId(id)).expect("it waits").late
    }

    #[test]
    fn a_late_request_goes_behind_those_in_time_and_before_worse_tiers() {
        let mut s = scheduler(|settings| settings.use_policy(Policy::Tiercel));
        s.slo.standard.ttft_ms = Some(5.0);
        s.enqueue(sequence(1, Tier::Standard, 900));
        s.enqueue(sequence(2, Tier::Background, 20));
        s.enqueue(sequence(3, Tier::Standard, 20));
        let _ = s.plan(Timestamp(0)).map(|request| s.granted(grant_all(&request)));
        assert!(late_of(&s, 1) && !late_of(&s, 3));
        let order: Vec<u64> = s.sequences.active().map(|(_, sequence)| sequence.id.0).collect();
        let waiting = s.sequences.queue().map(|(_, sequence)| sequence.id.0);
        let order: Vec<u64> = order.into_iter().chain(waiting).collect();
        assert_eq!(order, [3, 1, 2]);
    }

    #[test]
    fn whoever_could_be_in_time_after_all_is() {
        let mut s = scheduler(|settings| settings.use_policy(Policy::Tiercel));
        s.slo.standard.ttft_ms = Some(12.0);
        for id in 1..=2 {
            s.enqueue(sequence(id, Tier::Standard, 900));
        }
        s.judge_deadlines(Timestamp(0));
        assert!(late_of(&s, 1) != late_of(&s, 2));
        let other = if late_of(&s, 1) { 2 } else { 1 };
        s.cancel(SeqId(other));
        s.judge_deadlines(Timestamp(0));
        assert!(!late_of(&s, 3 - other));
        s.judge_deadlines(Timestamp(20_000));
        assert!(late_of(&s, 3 - other) && s.deadlines.entries.is_empty());
    }
}
