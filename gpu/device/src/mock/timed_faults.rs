//! Faults that a mock device injects at a given step or time.

use crate::{CopyDirection, StepId, Timestamp};
use serde::{Deserialize, Serialize};

/// Maximum number of timed faults of a mock device.
const MAX_FAULTS: usize = 256;

/// Fault that a mock device injects at a given step or time.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MockTimedFault {
    /// Kind of the fault.
    pub kind: MockTimedFaultKind,
    /// Number of the first step that the fault can hit; a fault of copies hits only batches that begin during or after
    /// this step. Exactly one of `at_step` and `at_s` must be set.
    #[serde(default)]
    pub at_step: Option<StepId>,
    /// Time since the start of the engine, s. The fault hits only steps and batches of copies that begin at or after
    /// this time.
    #[serde(default)]
    pub at_s: Option<f64>,
    /// Number of steps or batches of copies that the fault hits.
    #[serde(default = "once")]
    pub times: u32,
    /// Time by which a slow step is longer, ms.
    #[serde(default)]
    pub slow_ms: u64,
}

fn once() -> u32 {
    1
}

/// Effect of a timed fault.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum MockTimedFaultKind {
    /// A step takes `slow_ms` longer.
    SlowStep,
    /// A step fails after its duration has passed.
    FailedStep,
    /// A batch of copies, in either direction, fails after its duration has passed.
    LostCopy,
    /// A batch of copies to the host pool fails at once, as if the host pool had no room for the blocks.
    FullHost,
    /// The device is lost for good: the current step, all later steps and all copies that end later fail.
    LostDevice,
}

impl MockTimedFault {
    /// Returns the first field with a forbidden value: the name of the field, the value, and the allowed values.
    fn problem(&self) -> Option<(&'static str, String, &'static str)> {
        let slow = self.kind == MockTimedFaultKind::SlowStep;
        match (self.at_step, self.at_s) {
            (Some(step), None) if step.0 == 0 => Some(("at_step", step.0.to_string(), "1 and up")),
            (None, Some(s)) if !(0.0..=1e6).contains(&s) => {
                Some(("at_s", s.to_string(), "0 to 1000000"))
            }
            (Some(_), Some(s)) => Some(("at_s", s.to_string(), "either at_step or at_s")),
            (None, None) => Some(("at_step", "missing".to_owned(), "either at_step or at_s")),
            _ if self.times == 0 => Some(("times", "0".to_owned(), "1 and up")),
            _ if slow && !(1..=600_000).contains(&self.slow_ms) => {
                Some(("slow_ms", self.slow_ms.to_string(), "1 to 600000 for a slow_step"))
            }
            _ if !slow && self.slow_ms > 0 => {
                Some(("slow_ms", self.slow_ms.to_string(), "only a slow_step has it"))
            }
            _ => None,
        }
    }

    fn has_come(&self, step: StepId, now: Timestamp) -> bool {
        self.at_step.is_none_or(|at| step >= at)
            && self.at_s.is_none_or(|s| now.0 as f64 >= s * 1e6)
    }
}

/// Returns the first field with a forbidden value in a list of timed faults: the name, the value, and the allowed
/// values.
pub(super) fn problem(faults: &[MockTimedFault]) -> Option<(String, String, &'static str)> {
    if faults.len() > MAX_FAULTS {
        return Some((
            "[[fault]]".to_owned(),
            format!("there {} times", faults.len()),
            "256 times",
        ));
    }
    faults.iter().enumerate().find_map(|(i, fault)| {
        let (field, value, allowed) = fault.problem()?;
        Some((format!("{field} of [[fault]] {}", i + 1), value, allowed))
    })
}

/// Timed faults of a mock device that have not hit as many times as they state.
#[derive(Debug)]
pub(super) struct TimedFaults {
    to_come: Vec<MockTimedFault>,
    /// Number of the step that began last.
    step: StepId,
}

impl TimedFaults {
    pub(super) fn new(faults: &[MockTimedFault]) -> TimedFaults {
        TimedFaults { to_come: faults.to_vec(), step: StepId(0) }
    }

    /// Records that a step begins.
    pub(super) fn begin_step(&mut self, step: StepId) {
        self.step = step;
    }

    /// Whether a fault of this kind hits the step that began last, or a batch of copies that begins now. The hit is
    /// counted.
    pub(super) fn hits(&mut self, kind: MockTimedFaultKind, now: Timestamp) -> bool {
        self.hit(kind, now).is_some()
    }

    /// Returns the time by which a timed fault lengthens the step that began last, us. The hit is counted.
    pub(super) fn slow_us(&mut self, now: Timestamp) -> u64 {
        self.hit(MockTimedFaultKind::SlowStep, now).map_or(0, |slow_ms| slow_ms * 1_000)
    }

    /// Returns how a timed fault fails a batch of copies that begins now: `Some(true)` at once without copying,
    /// `Some(false)` after the duration of the copies, `None` not at all.
    pub(super) fn fails_copy(&mut self, way: CopyDirection, now: Timestamp) -> Option<bool> {
        if way == CopyDirection::Out && self.hits(MockTimedFaultKind::FullHost, now) {
            return Some(true);
        }
        self.hits(MockTimedFaultKind::LostCopy, now).then_some(false)
    }

    /// Counts a hit of the first due fault of this kind, and returns `slow_ms` of the fault; `None` if no such fault is
    /// due.
    fn hit(&mut self, kind: MockTimedFaultKind, now: Timestamp) -> Option<u64> {
        let step = self.step;
        let due = |fault: &MockTimedFault| fault.kind == kind && fault.has_come(step, now);
        let i = self.to_come.iter().position(due)?;
        let fault = &mut self.to_come[i];
        fault.times -= 1;
        let slow_ms = fault.slow_ms;
        if fault.times == 0 {
            self.to_come.remove(i);
        }
        Some(slow_ms)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use MockTimedFaultKind::{FailedStep, FullHost, LostCopy, SlowStep};

    fn at_step(kind: MockTimedFaultKind, step: u64, times: u32) -> MockTimedFault {
        let slow_ms = if kind == SlowStep { 7 } else { 0 };
        MockTimedFault { kind, at_step: Some(StepId(step)), at_s: None, times, slow_ms }
    }

    #[test]
    fn a_fault_hits_as_many_times_as_it_says_from_its_step_on() {
        let mut faults = TimedFaults::new(&[at_step(FailedStep, 3, 2), at_step(SlowStep, 4, 1)]);
        let hits: Vec<(bool, u64)> = (1..=6)
            .map(|step| {
                faults.begin_step(StepId(step));
                (faults.hits(FailedStep, Timestamp(0)), faults.slow_us(Timestamp(0)))
            })
            .collect();
        let expected = [(false, 0), (false, 0), (true, 0), (true, 7_000), (false, 0), (false, 0)];
        assert_eq!(hits, expected);
    }

    #[test]
    fn a_fault_hits_from_its_time_on() {
        let fault = MockTimedFault { at_step: None, at_s: Some(1.5), ..at_step(FailedStep, 1, 1) };
        let mut faults = TimedFaults::new(&[fault]);
        let hits =
            [0, 1_499_999, 1_500_000, 1_500_001].map(|us| faults.hits(FailedStep, Timestamp(us)));
        assert_eq!(hits, [false, false, true, false]);
    }

    #[test]
    fn a_full_host_fails_only_copies_to_it() {
        let mut faults = TimedFaults::new(&[at_step(FullHost, 1, 2), at_step(LostCopy, 1, 1)]);
        faults.begin_step(StepId(1));
        let ways = [CopyDirection::Out, CopyDirection::In, CopyDirection::In, CopyDirection::Out];
        let failed = ways.map(|way| faults.fails_copy(way, Timestamp(0)));
        assert_eq!(failed, [Some(true), Some(false), None, Some(true)]);
    }

    #[test]
    fn a_fault_that_cannot_be_injected_is_a_problem() {
        let good = at_step(SlowStep, 1, 1);
        assert_eq!(problem(&vec![good.clone(); MAX_FAULTS]), None);
        let field =
            |fault: &MockTimedFault| problem(&[good.clone(), fault.clone()]).expect("a problem").0;
        for (wrong, expected) in [
            (MockTimedFault { at_step: None, ..good.clone() }, "at_step"),
            (MockTimedFault { at_step: Some(StepId(0)), ..good.clone() }, "at_step"),
            (MockTimedFault { at_s: Some(1.0), ..good.clone() }, "at_s"),
            (MockTimedFault { at_step: None, at_s: Some(f64::NAN), ..good.clone() }, "at_s"),
            (MockTimedFault { times: 0, ..good.clone() }, "times"),
            (MockTimedFault { slow_ms: 0, ..good.clone() }, "slow_ms"),
            (MockTimedFault { kind: LostCopy, ..good.clone() }, "slow_ms"),
        ] {
            assert_eq!(field(&wrong), format!("{expected} of [[fault]] 2"));
        }
        assert!(problem(&vec![good; MAX_FAULTS + 1]).is_some());
    }
}
