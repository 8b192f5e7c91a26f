//! The recorder of an engine: keeps at most one recording, within limits.

use crate::recording::prefixes::{self, PrefixIndex};
use crate::recording::rows::{Asked, Origin, Place, RecordedEnd, RecordedSequence};
use crate::request::{Request, SequenceView, StreamEvent};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use tiercel_device::{BySeq, Clock, SeqId, StepRecord, Timestamp};

/// Most steps that a recording keeps; later ones are left out.
pub const MAX_RECORDED_STEPS: usize = 100_000;

/// Limits of a recording.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RecordingLimits {
    /// Most sequences; the recording ends before the next one arrives.
    pub max_sequences: u32,
    /// Longest time, us; the recording ends then.
    pub max_us: u64,
}

/// Limit that ended a recording.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RecordingCut {
    /// The recording had its most sequences.
    Sequences,
    /// The recording had its longest time.
    Time,
}

/// A recording of the sequences that arrived at an engine within a time, and of its steps.
#[derive(Debug, Clone)]
pub struct Recording {
    limits: RecordingLimits,
    began: Timestamp,
    ended: Option<Timestamp>,
    cut: Option<RecordingCut>,
    live_at_begin: u32,
    /// Tokens in a KV block; `None` if the prefix cache is off, so that no prompt is looked up.
    block_size: Option<u32>,
    sequences: Vec<RecordedSequence>,
    /// Numbers of the recorded sequences that are live.
    live: BySeq<u32>,
    prefixes: PrefixIndex,
    steps: Vec<StepRecord>,
    steps_cut: bool,
}

/// Whether a recording runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RecordingState {
    /// Sequences are being recorded.
    Running,
    /// The recording has ended.
    Ended,
}

/// Facts about the recording that a recorder keeps.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RecordingStatus {
    /// Whether the recording runs.
    pub state: RecordingState,
    /// Number of recorded sequences.
    pub sequences: u32,
    /// Number of recorded sequences that are live, or were when the recording ended.
    pub live: u32,
    /// Number of recorded steps.
    pub steps: u32,
    /// Time for which the recording has run, us.
    pub elapsed_us: u64,
    /// Limits of the recording.
    pub limits: RecordingLimits,
    /// Limit that ended the recording; `None` while it runs, and if it was stopped.
    pub cut: Option<RecordingCut>,
}

/// Recorder of an engine's traffic. It keeps at most one recording: the one that runs, or the last one.
#[derive(Debug)]
pub struct Recorder {
    clock: Clock,
    /// Whether a recording runs; read without the lock, so that an engine that is not recorded spends nothing.
    active: AtomicBool,
    kept: Mutex<Option<Recording>>,
}

impl Recorder {
    pub(crate) fn new(clock: Clock) -> Recorder {
        Recorder { clock, active: AtomicBool::new(false), kept: Mutex::default() }
    }

    /// Begins a recording, in place of an earlier one that has ended. `live` are the sequences that are live now, and
    /// `block_size` the tokens in a block of the prefix cache, if it is on. Returns the time at which the recording began;
    /// `None` if another runs.
    pub fn begin(
        &self,
        limits: RecordingLimits,
        block_size: Option<u32>,
        live: &[SequenceView],
    ) -> Option<Timestamp> {
        let mut kept = self.lock();
        if self.is_active() {
            return None;
        }
        let began = self.clock.now();
        let live = &live[..live.len().min(limits.max_sequences as usize)];
        let numbered = (0..).zip(live).map(|(number, view)| (view.seq, number));
        *kept = Some(Recording {
            limits,
            began,
            ended: None,
            cut: None,
            live_at_begin: live.len() as u32,
            block_size,
            sequences: live.iter().map(RecordedSequence::live).collect(),
            live: numbered.collect(),
            prefixes: PrefixIndex::default(),
            steps: Vec::new(),
            steps_cut: false,
        });
        self.active.store(true, Ordering::Relaxed);
        Some(began)
    }

    /// Ends the recording. Returns false if none runs.
    pub fn end(&self) -> bool {
        let mut kept = self.lock();
        let running = self.is_active();
        if let Some(recording) = kept.as_mut().filter(|_| running) {
            self.finish(recording, None);
        }
        running
    }

    /// Adds steps that the engine has completed to the recording that began at `began`, and ends it if its time is over.
    /// Returns whether that recording runs.
    pub fn add_steps(&self, began: Timestamp, steps: &[StepRecord]) -> bool {
        let mut kept = self.lock();
        let recording = kept.as_mut().filter(|recording| recording.began == began);
        let Some(recording) = recording.filter(|_| self.is_active()) else { return false };
        let begun_us = |step: &StepRecord| step.ended_at_us.saturating_sub(step.elapsed_us);
        let own = steps.iter().filter(|step| begun_us(step) >= began.0);
        let room = MAX_RECORDED_STEPS - recording.steps.len();
        let before = recording.steps.len();
        recording.steps.extend(own.clone().take(room));
        recording.steps_cut |= own.count() > recording.steps.len() - before;
        if self.clock.now().since_us(recording.began) >= recording.limits.max_us {
            self.finish(recording, Some(RecordingCut::Time));
        }
        self.is_active()
    }

    /// Returns facts about the recording; `None` if there is none.
    pub fn status(&self) -> Option<RecordingStatus> {
        let kept = self.lock();
        let recording = kept.as_ref()?;
        Some(RecordingStatus {
            state: match recording.ended {
                None => RecordingState::Running,
                Some(_) => RecordingState::Ended,
            },
            sequences: recording.sequences.len() as u32,
            live: recording.live.len() as u32,
            steps: recording.steps.len() as u32,
            elapsed_us: recording
                .ended
                .unwrap_or_else(|| self.clock.now())
                .since_us(recording.began),
            limits: recording.limits,
            cut: recording.cut,
        })
    }

    /// Returns a copy of the recording; `None` if there is none, or if it still runs.
    pub fn ended(&self) -> Option<Recording> {
        self.lock().as_ref().filter(|recording| recording.ended.is_some()).cloned()
    }

    /// Whether a recording runs.
    pub(crate) fn is_active(&self) -> bool {
        self.active.load(Ordering::Relaxed)
    }

    /// Records that a request arrives. Returns its place in the recording, if one runs and has room.
    pub(crate) fn arrived(&self, request: &Request, origin: Option<&Origin>) -> Option<Place> {
        if !self.is_active() {
            return None;
        }
        let block_size = self.lock().as_ref()?.block_size;
        // Compute the names of the prompt's blocks without the lock.
        let names = block_size.map(|size| prefixes::names(request.salt, &request.prompt, size));
        let mut kept = self.lock();
        let recording = kept.as_mut().filter(|_| self.is_active())?;
        if recording.sequences.len() as u32 >= recording.limits.max_sequences {
            self.finish(recording, Some(RecordingCut::Sequences));
            return None;
        }
        let number = recording.sequences.len() as u32;
        let shared = names
            .zip(block_size)
            .and_then(|(names, size)| recording.prefixes.add(&names, number, size));
        let arrival_us = self.clock.now().since_us(recording.began);
        let row =
            RecordedSequence::arrived(arrival_us, Asked::of(request), origin.cloned(), shared);
        recording.sequences.push(row);
        Some(Place { began: recording.began, number })
    }

    /// Records that the engine has accepted a request as sequence `seq`, or has refused it.
    pub(crate) fn answered(&self, place: Place, accepted: Option<SeqId>) {
        let mut kept = self.lock();
        let recording = kept.as_mut().filter(|_| self.is_active());
        let Some(recording) = recording.filter(|recording| recording.began == place.began) else {
            return;
        };
        match accepted {
            Some(seq) => _ = recording.live.insert(seq, place.number),
            None => {
                let now_us = self.clock.now().since_us(recording.began);
                if let Some(row) = recording.sequences.get_mut(place.number as usize) {
                    row.end = Some((RecordedEnd::Refused, now_us));
                }
            }
        }
    }

    /// Records an event that the reader of a sequence's response stream has taken; `None` if the engine has stopped.
    pub(crate) fn taken(&self, seq: SeqId, event: Option<&StreamEvent>) {
        if !self.is_active() {
            return;
        }
        self.change(seq, |row, now_us| match event {
            Some(StreamEvent::Token { .. }) => row.token(now_us),
            Some(StreamEvent::Finished { reason, usage }) => row.finished(*reason, usage, now_us),
            Some(StreamEvent::Failed(fault)) => row.end = Some((RecordedEnd::of(fault), now_us)),
            None => row.end = Some((RecordedEnd::Failed, now_us)),
        });
    }

    /// Records that the reader of a sequence's response stream is gone. Changes nothing if the sequence has ended.
    pub(crate) fn left(&self, seq: SeqId) {
        if self.is_active() {
            self.change(seq, |row, now_us| row.end = Some((RecordedEnd::Left, now_us)));
        }
    }

    /// Changes the row of a live sequence, and takes the sequence from the live ones if that ends it.
    fn change(&self, seq: SeqId, change: impl FnOnce(&mut RecordedSequence, u64)) {
        let mut kept = self.lock();
        let Some(recording) = kept.as_mut().filter(|_| self.is_active()) else { return };
        let Some(number) = recording.live.get(&seq) else { return };
        let row = &mut recording.sequences[*number as usize];
        change(row, self.clock.now().since_us(recording.began));
        if row.end.is_some() {
            recording.live.remove(&seq);
        }
    }

    fn finish(&self, recording: &mut Recording, cut: Option<RecordingCut>) {
        recording.ended = Some(self.clock.now());
        recording.cut = cut;
        recording.prefixes.clear();
        self.active.store(false, Ordering::Relaxed);
    }

    fn lock(&self) -> MutexGuard<'_, Option<Recording>> {
        // Ignore that the mutex is poisoned: each change leaves a recording valid.
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Recording {
    /// Returns the recorded sequences, in the order of arrival.
    pub fn sequences(&self) -> &[RecordedSequence] {
        &self.sequences
    }

    /// Returns the recorded steps, oldest first. Their times count from the start of the engine.
    pub fn steps(&self) -> &[StepRecord] {
        &self.steps
    }

    /// Whether steps were left out, because the recording had its most steps.
    pub fn steps_cut(&self) -> bool {
        self.steps_cut
    }

    /// Whether the beginnings of later prompts were not kept, because the recording had its most block names.
    pub fn prefixes_cut(&self) -> bool {
        self.prefixes.is_full()
    }

    /// Returns the number of recorded sequences that were live when the recording began.
    pub fn live_at_begin(&self) -> u32 {
        self.live_at_begin
    }

    /// Returns the limit that ended the recording; `None` if it was stopped.
    pub fn cut(&self) -> Option<RecordingCut> {
        self.cut
    }

    /// Returns the time at which the recording began.
    pub fn began(&self) -> Timestamp {
        self.began
    }

    /// Returns the length of the recording, us.
    pub fn length_us(&self) -> u64 {
        self.ended.map_or(0, |ended| ended.since_us(self.began))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::request::{FinishReason, RequestFault, Usage};
    use std::sync::Arc;
    use tiercel_config::SloTargets;
    use tiercel_device::{SamplingParams, Tier, TokenId};
    use tiercel_policy::Weight;
    use tiercel_policy::blocks::Salt;

    const LIMITS: RecordingLimits = RecordingLimits { max_sequences: 3, max_us: 60_000_000 };

    fn request(prompt: &[TokenId]) -> Request {
        Request {
            tier: Tier::Standard,
            priority: 0,
            salt: Salt([0; 16]),
            weight: Weight::default(),
            prompt: Arc::from(prompt),
            max_tokens: 9,
            stop_tokens: Arc::from([]),
            sampling: Arc::new(SamplingParams::greedy()),
            targets: SloTargets::default(),
            may_tighten: None,
            max_wait_ms: None,
            returning: false,
        }
    }

    fn arrives(recorder: &Recorder, seq: u64) -> Place {
        let place = recorder.arrived(&request(&[1, 2, 3]), None).expect("it is recorded");
        recorder.answered(place, Some(SeqId(seq)));
        place
    }

    fn ends(recorder: &Recorder) -> Vec<Option<RecordedEnd>> {
        recorder.end();
        let recording = recorder.ended().expect("it has ended");
        recording.sequences().iter().map(|row| row.end.map(|(end, _)| end)).collect()
    }

    #[test]
    fn every_end_is_recorded_and_what_goes_on_stays_open() {
        let recorder = Recorder::new(Clock::wall());
        assert!(recorder.arrived(&request(&[1]), None).is_none(), "no recording runs");
        let limits = RecordingLimits { max_sequences: 9, ..LIMITS };
        recorder.begin(limits, Some(2), &[]).expect("none runs");
        assert_eq!(recorder.begin(limits, None, &[]), None, "one runs");
        assert!(recorder.ended().is_none());
        (1..=6).for_each(|seq| _ = arrives(&recorder, seq));
        let refused = recorder.arrived(&request(&[1]), None).expect("it is recorded");
        recorder.answered(refused, None);
        let usage = Usage { completion_tokens: 4, preemptions: 2, ..Usage::default() };
        let finished = |reason| StreamEvent::Finished { reason, usage };
        let token = StreamEvent::Token { token: 5, logprobs: None };
        recorder.taken(SeqId(1), Some(&token));
        recorder.taken(SeqId(1), Some(&finished(FinishReason::Stop)));
        recorder.left(SeqId(1));
        recorder.taken(SeqId(2), Some(&finished(FinishReason::Length)));
        let fault = RequestFault::TurnedAway { retry_after_ms: 5 };
        recorder.taken(SeqId(3), Some(&StreamEvent::Failed(fault)));
        recorder.taken(SeqId(4), Some(&token));
        recorder.left(SeqId(4));
        recorder.taken(SeqId(5), None);
        assert_eq!(recorder.status().map(|status| (status.sequences, status.live)), Some((7, 1)));
        let expected = [
            Some(RecordedEnd::Stop),
            Some(RecordedEnd::Length),
            Some(RecordedEnd::TurnedAway),
            Some(RecordedEnd::Left),
            Some(RecordedEnd::Failed),
            None,
            Some(RecordedEnd::Refused),
        ];
        assert_eq!(ends(&recorder), expected);
        let recording = recorder.ended().expect("it has ended");
        let rows = recording.sequences();
        assert_eq!((rows[0].progress.tokens, rows[0].progress.preemptions), (4, 2));
        assert_eq!(rows[3].progress.tokens, 1);
        assert_eq!(rows[1].shared.map(|shared| (shared.number, shared.tokens)), Some((0, 2)));
    }

    #[test]
    fn a_recording_ends_at_its_sequences_and_at_its_time() {
        let recorder = Recorder::new(Clock::wall());
        recorder.begin(LIMITS, None, &[]).expect("none runs");
        (1..=3).for_each(|seq| _ = arrives(&recorder, seq));
        assert!(recorder.is_active());
        assert!(recorder.arrived(&request(&[1]), None).is_none(), "there is no room");
        let status = recorder.status().expect("a recording");
        assert_eq!((status.state, status.sequences), (RecordingState::Ended, 3));
        assert_eq!(status.cut, Some(RecordingCut::Sequences));
        let limits = RecordingLimits { max_us: 0, ..LIMITS };
        let began = recorder.begin(limits, None, &[]).expect("the other has ended");
        assert!(!recorder.add_steps(began, &[]), "its time is over");
        assert_eq!(recorder.status().and_then(|status| status.cut), Some(RecordingCut::Time));
        assert!(!recorder.end(), "it has ended");
    }

    #[test]
    fn a_sequence_of_an_earlier_recording_changes_no_later_one() {
        let recorder = Recorder::new(Clock::wall());
        let began = recorder.begin(LIMITS, None, &[]).expect("none runs");
        let place = recorder.arrived(&request(&[1]), None).expect("it is recorded");
        arrives(&recorder, 1);
        recorder.end();
        // The clock counts in us, so another recording begins at another time.
        while recorder.clock.now() == began {}
        let later = recorder.begin(LIMITS, None, &[]).expect("the other has ended");
        arrives(&recorder, 2);
        recorder.answered(place, None);
        recorder.left(SeqId(1));
        let step = StepRecord { ended_at_us: u64::MAX, ..StepRecord::default() };
        assert!(!recorder.add_steps(began, &[step]));
        assert!(recorder.add_steps(later, &[step, StepRecord::default()]));
        assert_eq!(recorder.status().map(|status| status.steps), Some(1), "one began before");
        assert_eq!(ends(&recorder), [None]);
    }

    #[test]
    fn steps_beyond_the_limit_are_left_out_and_that_is_told() {
        let recorder = Recorder::new(Clock::wall());
        let began = recorder.begin(LIMITS, None, &[]).expect("none runs");
        let step = StepRecord { ended_at_us: u64::MAX, ..StepRecord::default() };
        recorder.add_steps(began, &vec![step; MAX_RECORDED_STEPS]);
        recorder.add_steps(began, &[step]);
        recorder.end();
        let recording = recorder.ended().expect("it has ended");
        assert_eq!((recording.steps().len(), recording.steps_cut()), (MAX_RECORDED_STEPS, true));
    }
}
