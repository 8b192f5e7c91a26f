//! Tests that the recorded events of a simulation run agree with the counters and request records of the same run.

use super::{Entry, Event, Record, Slice};
use crate::experiment::Experiment;
use crate::record::Ending;
use crate::traffic::Seen;
use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::rc::Rc;
use tiercel_actors::Counters;
use tiercel_config::{EngineSettings, Policy, PreemptionMode, VictimRelease};
use tiercel_device::{MockFaults, MockProfile, SeqId, StepId, Timestamp};
use tiercel_workload::Workload;

/// Recorder that keeps every event of a run in memory, for short runs.
#[derive(Default)]
struct Kept(RefCell<Vec<Entry>>);

impl Record for Kept {
    fn record(&self, at: Timestamp, event: &Event) {
        self.0.borrow_mut().push(Entry { at, event: event.clone() });
    }
}

struct Run {
    entries: Vec<Entry>,
    seen: Seen,
    counters: Counters,
}

impl Run {
    /// Simulates 20 s of a workload on a device with much too few KV blocks, so that there are many preemptions.
    fn short_of_memory(mode: PreemptionMode, release: VictimRelease) -> Run {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../benches/workloads");
        let workload = Workload::load(&folder.join("w2-memory-tight.toml")).expect("it is shipped");
        let mut settings = EngineSettings::default();
        settings.use_policy(Policy::PriorityPreempt);
        settings.preemption.mode = mode;
        settings.preemption.victim_release = release;
        let mut experiment = Experiment {
            workload: Workload { duration_s: 20.0, warmup_s: 0.0, cooldown_s: 0.0, ..workload },
            profile: MockProfile::named("llama70b-tp8-a100").expect("built in"),
            settings,
            noise_sigma: 0.1,
            drift: None,
            faults: MockFaults::default(),
            returning: 0.0,
        };
        experiment.workload.simulation.device_blocks = Some(700);
        let kept = Rc::new(Kept::default());
        let recorders = [Rc::clone(&kept) as Rc<dyn Record>];
        let (seen, totals) = experiment.observe(|_| {}, &recorders).expect("a result");
        Run { entries: kept.0.take(), seen, counters: totals.counters }
    }

    fn count(&self, of: impl Fn(&Event) -> bool) -> u64 {
        self.entries.iter().filter(|entry| of(&entry.event)).count() as u64
    }

    /// Counts the output tokens that successful steps sampled, except for sequences that ended while their step ran.
    fn sampled(&self) -> u64 {
        let (mut all, mut in_steps) = (0, BTreeMap::<StepId, BTreeSet<SeqId>>::new());
        for entry in &self.entries {
            match &entry.event {
                Event::StepSubmitted { step, slices } => {
                    let samples = slices.iter().filter(|slice| slice.sample.is_some());
                    in_steps.insert(*step, samples.map(|slice| slice.seq).collect());
                }
                Event::StepEnded { step, ok: true, .. } => {
                    all += in_steps.remove(step).map_or(0, |seqs| seqs.len() as u64);
                }
                Event::Ended { seq, .. } => {
                    in_steps.values_mut().for_each(|seqs| _ = seqs.remove(seq));
                }
                _ => {}
            }
        }
        all
    }

    fn first_token(&self, seq: SeqId) -> Option<Timestamp> {
        let found = self.entries.iter().find(|entry| entry.event == Event::FirstToken { seq });
        found.map(|entry| entry.at)
    }
}

#[test]
fn requests_steps_and_tokens_are_those_of_the_outcome() {
    let run = Run::short_of_memory(PreemptionMode::Auto, VictimRelease::All);
    let records = &run.seen.records;
    assert_eq!(run.count(|e| matches!(e, Event::Arrived { .. })), records.len() as u64);
    assert_eq!(run.count(|e| matches!(e, Event::StepEnded { ok: true, .. })), run.counters.steps);
    let completed = records.iter().filter(|r| r.ending == Ending::Completed).count() as u64;
    let complete = |e: &Event| matches!(e, Event::Ended { ending, .. } if ending.is_complete());
    assert_eq!(run.count(complete), completed);
    assert!(completed > 50, "{completed}");
    assert_eq!(run.sampled(), records.iter().map(|r| u64::from(r.tokens)).sum::<u64>());
    for (number, record) in records.iter().enumerate() {
        assert_eq!(run.first_token(SeqId(number as u64 + 1)), record.first, "{record:?}");
    }
}

#[test]
fn preemptions_and_resumes_are_those_of_the_counters() {
    let modes = [PreemptionMode::Swap, PreemptionMode::Recompute];
    let all = modes.map(|mode| (mode, VictimRelease::All));
    for (mode, release) in all.into_iter().chain(modes.map(|mode| (mode, VictimRelease::Needed))) {
        let run = Run::short_of_memory(mode, release);
        let gave_more = run.count(|event| matches!(event, Event::GaveMore { .. }));
        assert_eq!(gave_more > 0, release == VictimRelease::Needed, "{mode:?}: {gave_more}");
        let saved = run.count(|event| match event {
            Event::PreemptFreed { on_host, .. } => *on_host > 0,
            Event::PreemptCommitted { copied, .. } => *copied > 0,
            _ => false,
        });
        let preemptions = run.count(|event| {
            matches!(event, Event::PreemptFreed { .. } | Event::PreemptCommitted { .. })
        });
        assert_eq!(saved, run.counters.swaps.iter().sum::<u64>(), "{mode:?}");
        assert_eq!(preemptions, run.counters.preemptions(), "{mode:?}");
        assert!(preemptions > 10, "{mode:?}: memory was not short");
        let copies = run.count(|event| matches!(event, Event::CopyStarted { .. }));
        assert_eq!(copies > 0, mode == PreemptionMode::Swap, "{copies} copies");
        assert_eq!(lost_and_found(&run.entries), run.counters.recomputed_tokens, "{mode:?}");
    }
}

/// Counts the recomputed tokens: those that were computed, lost in a preemption and not found again at the resume.
fn lost_and_found(entries: &[Entry]) -> u64 {
    let mut computed = BTreeMap::<SeqId, u32>::new();
    let mut lost = BTreeMap::<SeqId, u32>::new();
    let mut in_steps = BTreeMap::new();
    let mut again = 0;
    for entry in entries {
        match &entry.event {
            Event::StepSubmitted { step, slices } => {
                in_steps.insert(step, slices);
            }
            Event::StepEnded { step, ok: true, .. } => {
                let after = |slice: &Slice| (slice.seq, slice.first_pos + slice.tokens);
                computed.extend(in_steps[step].iter().map(after));
            }
            Event::PreemptFreed { seq, .. } | Event::PreemptCommitted { seq, .. } => {
                lost.insert(*seq, computed.remove(seq).unwrap_or(0));
            }
            Event::Resumed { seq, computed: found, .. } => {
                let lost = lost.remove(seq).unwrap_or(0);
                again += u64::from(lost.saturating_sub(*found));
                computed.insert(*seq, *found);
            }
            _ => {}
        }
    }
    again
}
