//! Log of a server's last steps: what each computed (tokens of decode and prefill), and how long host and device took.

use crate::request::Work;
use crate::trace::Slice;
use std::collections::VecDeque;
use tiercel_device::{StepBatch, StepDone, StepId, StepRecord, Timestamp};

/// Number of completed steps that the log keeps; older steps are dropped.
pub(crate) const STEPS_KEPT: usize = 4096;
/// Number of latest steps whose durations [`StepLog::work`] returns.
const STEPS_RECENT: usize = 512;
/// Maximum number of steps in flight that the log tracks; no device takes as many.
const UNDER_WAY: usize = 4;

/// Log of the work and the durations of the last 4096 steps.
#[derive(Debug, Default)]
pub struct StepLog {
    kept: VecDeque<StepRecord>,
    /// Steps in flight, oldest first, each with its time of submission; their durations are not known yet.
    under_way: VecDeque<(StepId, Timestamp, StepRecord)>,
    /// Time at which the last step ended; `None` if the engine has been idle since, or if a plan got no blocks.
    last_end: Option<Timestamp>,
    /// Number of prefill tokens of all completed steps, and number of tokens that these steps sampled. Tokens whose
    /// draws were postponed do not count.
    tokens: (u64, u64),
}

impl StepLog {
    /// Records that a step, which was planned in `planning_us` microseconds, was submitted to the device.
    pub(crate) fn submitted(&mut self, batch: &StepBatch, planning_us: u64, now: Timestamp) {
        let alone = self.under_way.is_empty();
        let host_us = self.last_end.filter(|_| alone).map(|end| now.since_us(end));
        let mut record =
            StepRecord { step: batch.id.0, host_us, planning_us, ..StepRecord::default() };
        for slice in &batch.slices {
            let (first, tokens) = (u64::from(slice.first_pos), slice.input.len() as u64);
            let (seq, first_pos, sample) = (slice.seq, slice.first_pos, slice.sample);
            record.sampled += u32::from(sample.is_some());
            if (Slice { seq, first_pos, tokens: tokens as u32, sample }).is_decode() {
                record.decode_tokens += 1;
                record.kv_tokens += first + 1;
            } else {
                record.prefill_tokens += tokens as u32;
                record.prefill_context += tokens * first + tokens * tokens.saturating_sub(1) / 2;
            }
        }
        if self.under_way.len() == UNDER_WAY {
            self.under_way.pop_front();
        }
        self.under_way.push_back((batch.id, now, record));
    }

    /// Records the duration of a step that ended. A failed step is dropped, because its duration is no measurement.
    pub(crate) fn ended(&mut self, done: &StepDone, now: Timestamp) {
        let before = self.last_end.replace(now);
        let Some(at) = self.under_way.iter().position(|(step, ..)| *step == done.id) else {
            return;
        };
        let Some((_, submitted, mut record)) = self.under_way.remove(at) else { return };
        let Ok(output) = &done.result else { return };
        record.ended_at_us = now.0;
        record.device_us = output.timing.forward_us + output.timing.sampling_us;
        record.elapsed_us = now.since_us(before.map_or(submitted, |end| end.max(submitted)));
        self.tokens.0 += u64::from(record.prefill_tokens);
        self.tokens.1 +=
            output.sampled.iter().filter(|(_, sampled)| sampled.is_ok()).count() as u64;
        if self.kept.len() == STEPS_KEPT {
            self.kept.pop_front();
        }
        self.kept.push_back(record);
    }

    /// Records that no further step was submitted, because the engine is idle (every live sequence is on hold, or none
    /// is live) or because the block store granted nothing. If no step is in flight, the time until the next step then
    /// does not count as time that the host took.
    pub(crate) fn idle(&mut self) {
        if self.under_way.is_empty() {
            self.last_end = None;
        }
    }

    /// Returns what the completed steps have computed, and the durations of the latest ones.
    pub(crate) fn work(&self) -> Work {
        let older = self.kept.len().saturating_sub(STEPS_RECENT);
        let recent = self.kept.range(older..).map(|record| record.elapsed_us);
        let (prefill_tokens, sampled_tokens) = self.tokens;
        Work { prefill_tokens, sampled_tokens, recent_us: recent.collect() }
    }

    /// Returns the logged steps with a number greater than `step`, oldest first.
    pub(crate) fn after(&self, step: u64) -> Vec<StepRecord> {
        self.kept.iter().filter(|record| record.step > step).copied().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tiercel_device::{
        NotSampled, Sampled, SeqId, SeqSlice, SliceInput, StepError, StepOutput, StepTiming,
    };

    fn slice(seq: u64, first_pos: u32, tokens: u32, sample: Option<u32>) -> SeqSlice {
        let input = SliceInput::Known((0..tokens).collect());
        SeqSlice { seq: SeqId(seq), first_pos, input, table: [].into(), sample }
    }

    fn batch(id: u64, slices: Vec<SeqSlice>) -> StepBatch {
        StepBatch { id: StepId(id), starts: vec![], ends: vec![], slices }
    }

    /// Returns the answer to a step in which sequence 1 got a token, and the mask of sequence 2 was late.
    fn done(id: u64, device_us: u64) -> StepDone {
        let timing = StepTiming { forward_us: device_us, ..StepTiming::default() };
        let token = Sampled { token: 7, logprobs: None };
        let sampled = vec![(SeqId(1), Ok(token)), (SeqId(2), Err(NotSampled::MaskLate))];
        StepDone { id: StepId(id), result: Ok(StepOutput { sampled, timing }) }
    }

    #[test]
    fn a_step_is_told_with_its_work_and_what_host_and_device_took() {
        let mut log = StepLog::default();
        let prompt = slice(1, 0, 10, Some(0));
        log.submitted(&batch(1, vec![prompt]), 0, Timestamp(1_000));
        log.ended(&done(1, 400), Timestamp(1_500));
        log.submitted(
            &batch(2, vec![slice(1, 10, 1, Some(1)), slice(2, 4, 6, None)]),
            150,
            Timestamp(1_700),
        );
        log.ended(&done(2, 300), Timestamp(2_100));
        log.idle();
        log.submitted(&batch(3, vec![slice(1, 11, 1, Some(2))]), 0, Timestamp(9_000));
        log.ended(&done(3, 300), Timestamp(9_400));
        let told = log.after(0);
        let first = StepRecord {
            step: 1,
            prefill_tokens: 10,
            prefill_context: 45,
            sampled: 1,
            ended_at_us: 1_500,
            device_us: 400,
            elapsed_us: 500,
            ..StepRecord::default()
        };
        assert_eq!(told[0], first);
        let mixed = StepRecord {
            step: 2,
            decode_tokens: 1,
            kv_tokens: 11,
            prefill_tokens: 6,
            prefill_context: 24 + 15,
            sampled: 1,
            ended_at_us: 2_100,
            device_us: 300,
            elapsed_us: 400,
            host_us: Some(200),
            planning_us: 150,
        };
        assert_eq!(told[1], mixed);
        assert_eq!((told[2].host_us, told[2].elapsed_us), (None, 400), "it had been idle");
        assert_eq!(log.after(2), [told[2]]);
        let work = log.work();
        assert_eq!((work.prefill_tokens, work.sampled_tokens), (16, 3));
        assert_eq!(work.recent_us, [500, 400, 400]);
    }

    #[test]
    fn a_step_behind_another_counts_from_its_end_and_waits_for_no_host() {
        let mut log = StepLog::default();
        log.submitted(&batch(1, vec![slice(1, 5, 1, Some(1))]), 0, Timestamp(100));
        log.submitted(&batch(2, vec![slice(1, 6, 1, Some(2))]), 0, Timestamp(150));
        log.ended(&done(1, 90), Timestamp(200));
        log.idle();
        log.ended(&done(2, 90), Timestamp(300));
        let told = log.after(0);
        assert_eq!((told[1].elapsed_us, told[1].host_us), (100, None));
    }

    #[test]
    fn only_the_last_steps_are_kept_and_failed_ones_are_not() {
        let mut log = StepLog::default();
        for id in 1..=STEPS_KEPT as u64 + 7 {
            log.submitted(&batch(id, vec![]), 0, Timestamp(id * 10));
            log.ended(&done(id, 5), Timestamp(id * 10 + 5));
        }
        let kept = log.after(0);
        assert_eq!((kept.len(), kept[0].step), (STEPS_KEPT, 8));
        assert_eq!(log.work().recent_us.len(), STEPS_RECENT);
        log.submitted(&batch(9_999, vec![]), 0, Timestamp(0));
        let failed = StepDone { id: StepId(9_999), result: Err(StepError::Failed("x".into())) };
        log.ended(&failed, Timestamp(1));
        assert_eq!(log.after(9_000), []);
    }

    #[test]
    fn the_time_of_the_device_includes_sampling() {
        let mut log = StepLog::default();
        log.submitted(&batch(1, vec![]), 0, Timestamp(100));
        let timing = StepTiming { forward_us: 300, sampling_us: 40, host_us: 5 };
        let result = Ok(StepOutput { sampled: vec![], timing });
        log.ended(&StepDone { id: StepId(1), result }, Timestamp(500));
        assert_eq!(log.after(0)[0].device_us, 340);
    }
}
