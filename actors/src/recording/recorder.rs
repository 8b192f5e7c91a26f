//! The recorder of an engine: keeps at most one recording, within limits.

use crate::recording::prefixes::{self, PrefixIndex};
use crate::recording::rows::{Asked, Origin, Place, RecordedEnd, RecordedSequence};
use crate::request::{Request, SequenceView, StreamEvent};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tiercel_device::{BySeq, Clock, SeqId, StepRecord, Timestamp};

/// Most steps that a recording keeps; later ones are left out.
pub const MAX_RECORDED_STEPS: usize = 100_000;

/// Limits of a recording.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RecordingLimits {
    /// Most sequences; the recording ends before the next one arrives.
    pub max_sequences: u32,
    /// Longest time, us; the recording has no event of a sequence after it.
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
    /// Whether later steps were left out, because the recording has its most steps ([`MAX_RECORDED_STEPS`]).
    pub steps_cut: bool,
    /// Number of prompts of which block names are missing, because the recording has its most block names.
    pub prefixes_cut: u32,
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
    kept: Mutex<Option<Arc<Recording>>>,
}

impl Recorder {
    pub(crate) fn new(clock: Clock) -> Recorder {
        Recorder { clock, active: AtomicBool::new(false), kept: Mutex::default() }
    }

    /// Begins a recording, in place of an earlier one that has ended. `live` are the sequences that are live now, and
    /// `block_size` the tokens in a block of the prefix cache, if it is on. Returns the time at which the recording
    /// began; `None` if another runs.
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
        *kept = Some(Arc::new(Recording {
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
        }));
        self.active.store(true, Ordering::Relaxed);
        Some(began)
    }

    /// Ends the recording. Returns false if none runs.
    pub fn end(&self) -> bool {
        let mut kept = self.lock();
        let running = self.is_active();
        if let Some(recording) = running_one(&mut kept).filter(|_| running) {
            self.finish(recording, None);
        }
        running
    }

    /// Adds steps that the engine has completed to the recording that began at `began`, and ends the recording if its
    /// time is over. Leaves out steps that the recording has, and steps that began before the recording. Returns
    /// whether that recording runs.
    pub fn add_steps(&self, began: Timestamp, steps: &[StepRecord]) -> bool {
        let mut kept = self.lock();
        let active = self.is_active();
        let recording = running_one(&mut kept).filter(|of| active && of.began == began);
        let Some(recording) = recording else { return false };
        let begun_us = |step: &StepRecord| step.ended_at_us.saturating_sub(step.elapsed_us);
        let newest = recording.newest_step();
        let own = steps.iter().filter(|step| step.step > newest && begun_us(step) >= began.0);
        let room = MAX_RECORDED_STEPS - recording.steps.len();
        let before = recording.steps.len();
        recording.steps.extend(own.clone().take(room));
        recording.steps_cut |= own.count() > recording.steps.len() - before;
        self.us_of(recording).is_some()
    }

    /// Returns the time at which the recording began and the number of the newest step that it has (0 without steps);
    /// `None` if no recording runs.
    pub fn newest_step(&self) -> Option<(Timestamp, u64)> {
        let kept = self.lock();
        let recording = kept.as_ref().filter(|recording| recording.ended.is_none())?;
        Some((recording.began, recording.newest_step()))
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
            steps_cut: recording.steps_cut,
            prefixes_cut: recording.prefixes.cut(),
            elapsed_us: recording
                .ended
                .unwrap_or_else(|| self.clock.now())
                .since_us(recording.began),
            limits: recording.limits,
            cut: recording.cut,
        })
    }

    /// Returns the recording; `None` if there is none, or if it still runs.
    pub fn ended(&self) -> Option<Arc<Recording>> {
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
        let names =
            block_size.map(|size| prefixes::names(request.salt_of_blocks(), &request.prompt, size));
        let mut kept = self.lock();
        let recording = running_one(&mut kept).filter(|_| self.is_active())?;
        let now_us = self.us_of(recording)?;
        if recording.sequences.len() as u32 >= recording.limits.max_sequences {
            self.finish(recording, Some(RecordingCut::Sequences));
            return None;
        }
        let number = recording.sequences.len() as u32;
        let shared = names
            .zip(block_size)
            .and_then(|(names, size)| recording.prefixes.add(&names, number, size));
        let row = RecordedSequence::arrived(now_us, Asked::of(request), origin.cloned(), shared);
        recording.sequences.push(row);
        Some(Place { began: recording.began, number })
    }

    /// Records that the engine has accepted a request as sequence `seq`, or has refused it.
    pub(crate) fn answered(&self, place: Place, accepted: Option<SeqId>) {
        match accepted {
            Some(seq) => {
                self.at(place, |recording, _| _ = recording.live.insert(seq, place.number));
            }
            None => self.ended_early(place, RecordedEnd::Refused),
        }
    }

    /// Records that the client of a request left before the engine's answer.
    pub(crate) fn abandoned(&self, place: Place) {
        self.ended_early(place, RecordedEnd::Left);
    }

    fn ended_early(&self, place: Place, end: RecordedEnd) {
        self.at(place, |recording, now_us| {
            if let Some(row) = recording.sequences.get_mut(place.number as usize) {
                row.end = Some((end, now_us));
            }
        });
    }

    /// Changes the recording that a place belongs to, if that recording runs. `change` gets the time since its begin,
    /// us.
    fn at(&self, place: Place, change: impl FnOnce(&mut Recording, u64)) {
        let mut kept = self.lock();
        let active = self.is_active();
        if let Some(recording) =
            running_one(&mut kept).filter(|of| active && of.began == place.began)
        {
            let Some(now_us) = self.us_of(recording) else { return };
            change(recording, now_us);
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

    /// Records that a sequence counts as refused although the engine had accepted it, because another choice of its
    /// request was refused.
    pub fn refused_with_another(&self, seq: SeqId) {
        if self.is_active() {
            self.change(seq, |row, now_us| row.end = Some((RecordedEnd::Refused, now_us)));
        }
    }

    /// Changes the row of a live sequence, and takes the sequence from the live ones if that ends it.
    fn change(&self, seq: SeqId, change: impl FnOnce(&mut RecordedSequence, u64)) {
        let mut kept = self.lock();
        let Some(recording) = running_one(&mut kept).filter(|_| self.is_active()) else { return };
        let Some(now_us) = self.us_of(recording) else { return };
        let Some(number) = recording.live.get(&seq) else { return };
        let row = &mut recording.sequences[*number as usize];
        change(row, now_us);
        if row.end.is_some() {
            recording.live.remove(&seq);
        }
    }

    /// Returns the time since the begin of a running recording, us. Ends the recording and returns `None` if it has its
    /// longest time.
    fn us_of(&self, recording: &mut Recording) -> Option<u64> {
        let now_us = self.clock.now().since_us(recording.began);
        if now_us < recording.limits.max_us {
            return Some(now_us);
        }
        self.finish(recording, Some(RecordingCut::Time));
        None
    }

    fn finish(&self, recording: &mut Recording, cut: Option<RecordingCut>) {
        // A recording is noticed to be over a little later than it is.
        let end = recording.began + recording.limits.max_us;
        recording.ended = Some(self.clock.now().min(end));
        recording.cut = cut;
        recording.prefixes.clear();
        self.active.store(false, Ordering::Relaxed);
    }

    fn lock(&self) -> MutexGuard<'_, Option<Arc<Recording>>> {
        // Ignore that the mutex is poisoned: each change leaves a recording valid.
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Returns the recording, to be changed. A recording that runs has no other owner; for one that has ended and is being
/// sent to a client, this returns `None`.
fn running_one(kept: &mut Option<Arc<Recording>>) -> Option<&mut Recording> {
    kept.as_mut().and_then(Arc::get_mut)
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

    fn newest_step(&self) -> u64 {
        self.steps.last().map_or(0, |step| step.step)
    }

    /// Whether steps were left out, because the recording had its most steps.
    pub fn steps_cut(&self) -> bool {
        self.steps_cut
    }

    /// Whether the beginnings of later prompts were not kept, because the recording had its most block names.
    pub fn prefixes_cut(&self) -> bool {
        self.prefixes.cut() > 0
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
mod tests;
