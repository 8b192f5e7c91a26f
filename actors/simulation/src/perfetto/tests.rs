//! Tests of Perfetto files, made from a hand-written capture.
#![allow(clippy::unwrap_used, reason = "tests state what must hold")]

use super::track::Track;
use super::*;
use tiercel_actors::trace::Ending;
use tiercel_device::CopyId;

fn entry(at: u64, event: Event) -> Entry {
    Entry { at: Timestamp(at), event }
}

fn step(at: u64, step: u64, slices: &[(u64, u32, Option<u32>)]) -> [Entry; 2] {
    let step = StepId(step);
    let slices = slices.iter().map(|(seq, tokens, sample)| Slice {
        seq: SeqId(*seq),
        first_pos: 0,
        tokens: *tokens,
        sample: *sample,
    });
    [
        entry(at, Event::StepSubmitted { step, slices: slices.collect() }),
        entry(at + 100, Event::StepEnded { step, ok: true, duration_us: 100 }),
    ]
}

/// Returns a capture in which a premium request preempts a background request.
fn capture() -> Capture {
    let (low, high) = (SeqId(1), SeqId(2));
    let arrived = Event::Arrived { seq: low, tier: Tier::Background, prompt: 40, max_tokens: 9 };
    let newcomer = Event::Arrived { seq: high, tier: Tier::Premium, prompt: 10, max_tokens: 1 };
    let ended = Event::Ended { seq: high, ending: Ending::Length, tokens: 1, preemptions: 0 };
    let mut entries = vec![entry(1_000, arrived)];
    entries.extend(step(1_100, 7, &[(1, 40, Some(0))]));
    entries.push(entry(1_200, Event::FirstToken { seq: low }));
    entries.push(entry(1_250, newcomer));
    entries.push(entry(1_260, Event::PreemptCopying { seq: low, blocks: 3 }));
    entries.push(entry(1_260, Event::CopyStarted { copy: CopyId(1), out: true, blocks: 3 }));
    entries.push(entry(1_290, Event::CopyEnded { copy: CopyId(1), ok: true, duration_us: 25 }));
    entries.push(entry(1_290, Event::PreemptCommitted { seq: low, copied: 3, failed: 0 }));
    entries.push(entry(
        1_300,
        Event::Planned { step: StepId(8), wants: 2, denied: 1, device_free: 4, host_free: 1 },
    ));
    entries.extend(step(1_300, 8, &[(2, 10, Some(0))]));
    entries.push(entry(1_400, ended));
    entries.extend(step(1_500, 9, &[(1, 1, Some(1))]));
    Capture { began: Timestamp(1_000), ended: Timestamp(2_000), phases: vec![], entries, cut: None }
}

fn written(capture: &Capture, named: &Named) -> Value {
    let engine = EngineFacts { device: "mock".into(), device_blocks: 10, host_blocks: 5 };
    serde_json::from_slice(&perfetto(capture, &engine, named).unwrap()).unwrap()
}

/// Returns the trace events of a kind on a track, as name, begin and duration.
fn on(file: &Value, (pid, tid): Track, kind: &str) -> Vec<(String, u64, Option<u64>)> {
    let events = file["traceEvents"].as_array().unwrap().iter();
    let here =
        events.filter(|event| event["ph"] == kind && event["pid"] == pid && event["tid"] == tid);
    here.map(|event| {
        let name = event["name"].as_str().unwrap().to_owned();
        (name, event["ts"].as_u64().unwrap(), event["dur"].as_u64())
    })
    .collect()
}

fn slice(name: &str, from: u64, us: u64) -> (String, u64, Option<u64>) {
    (name.to_owned(), from, Some(us))
}

#[test]
fn steps_copies_and_memory_are_tracks_of_the_engine() {
    let file = written(&capture(), &Named::default());
    let steps = on(&file, (ENGINE, STEPS), "X");
    assert_eq!(
        steps,
        [slice("step 7", 100, 100), slice("step 8", 300, 100), slice("step 9", 500, 100)]
    );
    assert_eq!(on(&file, (ENGINE, COPIES_OUT), "X"), [slice("copy", 265, 25)]);
    let events = file["traceEvents"].as_array().unwrap();
    let counter = events.iter().find(|event| event["ph"] == "C").unwrap();
    assert_eq!(counter["args"], json!({"device": 6, "host": 4}));
    let first = events.iter().find(|event| event["name"] == "step 7").unwrap();
    let contents = json!({"sequences": 1, "decode_tokens": 0, "prefill_tokens": 40});
    assert_eq!(first["args"], contents);
}

#[test]
fn a_preemption_is_seen_on_the_lane_of_its_request() {
    let names = HashMap::from([(SeqId(1), "chatcmpl-1 job".to_owned())]);
    let file = written(&capture(), &Named { names, views: vec![] });
    assert_eq!(
        on(&file, (REQUESTS, 1), "X"),
        [
            slice("waiting", 0, 100),
            slice("prefill", 100, 160),
            slice("copying out", 260, 30),
            slice("preempted", 290, 210),
            slice("decode", 500, 500),
        ]
    );
    assert_eq!(on(&file, (REQUESTS, 1), "i"), [("first token".to_owned(), 200, None)]);
    let ended = ("ended: length".to_owned(), 400, None);
    assert_eq!(on(&file, (REQUESTS, 2), "i"), [ended]);
    let events = file["traceEvents"].as_array().unwrap().iter();
    let named: Vec<&Value> =
        events.filter(|event| event["name"] == "thread_name" && event["pid"] == REQUESTS).collect();
    assert_eq!(named[0]["args"]["name"], "background 1 chatcmpl-1 job");
    assert_eq!(named[1]["args"]["name"], "premium 2");
}

#[test]
fn what_is_missing_is_marked() {
    let mut capture = capture();
    capture.cut = Some(Timestamp(1_450));
    capture.entries.truncate(5);
    let crowd = (10..10 + ROOM.lanes as u64 + 3).map(|seq| {
        let (seq, tier) = (SeqId(seq), Tier::Standard);
        entry(1_260, Event::Arrived { seq, tier, prompt: 1, max_tokens: 1 })
    });
    capture.entries.extend(crowd);
    let file = written(&capture, &Named::default());
    let marks = on(&file, (ENGINE, STEPS), "i");
    assert_eq!(marks, [("CUT: the memory of the capture is full".to_owned(), 450, None)]);
    let facts = &file["otherData"];
    assert_eq!(facts["requests_without_a_lane"], 5);
    assert_eq!(
        (&facts["events_missing_from_s"], &facts["seconds"]),
        (&json!(0.00045), &json!(0.001))
    );
}
