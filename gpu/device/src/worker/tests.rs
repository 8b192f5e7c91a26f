use super::*;
use crate::StepId;
use std::sync::mpsc;

/// Test runner of steps that reports each call of `begin`, `end` and `proceed`. Step 2 panics, step 4 cannot begin, and
/// step 9 waits for earlier steps. `has_ended` returns true from the `looks`-th call on. No step ends before the sender
/// of `submitted` is dropped, so that calls do not depend on how fast the test submits steps.
struct Scripted {
    asked: mpsc::Sender<String>,
    submitted: mpsc::Receiver<()>,
    begun: VecDeque<u64>,
    looks: u32,
}

impl QueuedRunner for Scripted {
    fn waits(&self, batch: &StepBatch) -> bool {
        batch.id == StepId(9)
    }

    fn begin(&mut self, batch: &StepBatch) -> Result<(), StepError> {
        let id = batch.id.0;
        self.asked.send(format!("begin {id}")).expect("the test listens");
        match id {
            2 => panic!("kernel fault"),
            4 => return Err(StepError::Failed("launch".into())),
            _ => self.begun.push_back(id),
        }
        Ok(())
    }

    fn proceed(&mut self) {
        self.asked.send("proceed".to_owned()).expect("the test listens");
    }

    fn has_ended(&mut self) -> bool {
        self.looks = self.looks.saturating_sub(1);
        self.looks == 0
    }

    fn end(&mut self) -> Result<StepOutput, StepError> {
        let id = self.begun.pop_front().expect("a step that was begun");
        self.submitted.recv().expect_err("nothing is sent, the sender is dropped");
        self.asked.send(format!("end {id}")).expect("the test listens");
        Ok(StepOutput::default())
    }
}

fn batch(id: u64) -> StepBatch {
    StepBatch { id: StepId(id), starts: vec![], ends: vec![], slices: vec![] }
}

/// Submits steps with these ids to a test device. Returns the calls that its runner got and the answers to the
/// steps.
fn run(
    depth: usize,
    looks: u32,
    ids: std::ops::RangeInclusive<u64>,
) -> (Vec<String>, Vec<StepDone>) {
    let (asked, heard) = mpsc::channel();
    let (submitting, submitted) = mpsc::channel();
    let runner = Scripted { asked, submitted, begun: VecDeque::new(), looks };
    let mut device = StepThread::start(depth, runner).expect("a thread");
    let (tx, answers) = mpsc::channel();
    for id in ids.clone() {
        loop {
            let tx = tx.clone();
            let done = Box::new(move |done| tx.send(done).expect("the test listens"));
            match device.submit(batch(id), done) {
                Ok(()) => break,
                Err(SubmitError::Full) => std::thread::yield_now(),
                Err(stopped) => panic!("{stopped}"),
            }
        }
    }
    drop(submitting);
    drop(device);
    let answers: Vec<StepDone> = ids.map(|_| answers.recv().expect("an answer")).collect();
    (heard.iter().collect(), answers)
}

#[test]
fn a_panic_in_a_step_becomes_device_lost_and_every_step_is_answered() {
    let (asked, answers) = run(4, u32::MAX, 1..=3);
    assert_eq!(asked, ["begin 1", "begin 2"]);
    for answer in &answers[1..] {
        assert!(matches!(&answer.result, Err(StepError::DeviceLost(why)) if why == "kernel fault"));
    }
}

#[test]
fn one_at_a_time_is_begun_when_the_one_before_has_ended() {
    let (asked, _) = run(1, 1, 5..=6);
    assert_eq!(asked, ["begin 5", "end 5", "begin 6", "end 6"]);
}

#[test]
fn the_second_is_begun_while_the_first_is_under_way_and_ended_after_it() {
    let (asked, answers) = run(2, u32::MAX, 5..=7);
    assert_eq!(
        asked,
        ["begin 5", "begin 6", "end 5", "proceed", "begin 7", "end 6", "proceed", "end 7"]
    );
    assert!(answers.iter().all(|answer| answer.result.is_ok()));
}

#[test]
fn those_before_one_that_would_wait_for_them_are_answered_first() {
    let (asked, _) = run(2, u32::MAX, 8..=10);
    assert_eq!(asked, ["begin 8", "end 8", "begin 9", "begin 10", "end 9", "proceed", "end 10"]);
}

#[test]
fn one_that_does_not_begin_is_answered_in_its_turn() {
    let (asked, answers) = run(2, u32::MAX, 3..=5);
    assert_eq!(asked, ["begin 3", "begin 4", "end 3", "proceed", "begin 5", "proceed", "end 5"]);
    let ids: Vec<(u64, bool)> = answers.iter().map(|a| (a.id.0, a.result.is_ok())).collect();
    assert_eq!(ids, [(3, true), (4, false), (5, true)]);
}

#[test]
fn a_step_proceeds_when_the_answer_to_the_one_before_is_out() {
    let (asked, heard) = mpsc::channel();
    let answered = asked.clone();
    let runner =
        Scripted { asked, submitted: mpsc::channel().1, begun: VecDeque::new(), looks: u32::MAX };
    let mut device = StepThread::start(2, runner).expect("a thread");
    for id in 5..=6 {
        let answered = answered.clone();
        let done =
            move |done: StepDone| answered.send(format!("answer {}", done.id.0)).expect("heard");
        device.submit(batch(id), Box::new(done)).expect("room");
    }
    drop((device, answered));
    let expected = ["begin 5", "begin 6", "end 5", "answer 5", "proceed", "end 6", "answer 6"];
    assert_eq!(heard.iter().collect::<Vec<_>>(), expected);
}

#[test]
fn a_step_that_nothing_follows_is_answered_when_it_has_ended() {
    let (asked, heard) = mpsc::channel();
    let runner = Scripted { asked, submitted: mpsc::channel().1, begun: VecDeque::new(), looks: 3 };
    let mut device = StepThread::start(2, runner).expect("a thread");
    let (tx, answers) = mpsc::channel();
    let done = Box::new(move |done| tx.send(done).expect("the test listens"));
    device.submit(batch(5), done).expect("room");
    assert_eq!(answers.recv().expect("an answer").id, StepId(5));
    drop(device);
    assert_eq!(heard.iter().collect::<Vec<_>>(), ["begin 5", "end 5"]);
}
