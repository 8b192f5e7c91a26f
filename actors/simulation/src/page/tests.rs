//! Tests of the content of a simulation's HTML page, made from hand-written engine events.

use super::story::ROOM;
use super::*;
use crate::trace::{Ending, Event, Slice};
use serde_json::Value;
use tiercel_device::{SeqId, StepId};

const NAME: &str = "</script><script>alert(1)</script>&{{page}}";

fn comparison() -> Comparison {
    let text = "name = 'w'\nseed = 1\nduration_s = 100\ndrain_s = 0\nclass = []";
    let mut workload: Workload = toml::from_str(text).expect("a workload");
    workload.name = NAME.into();
    Comparison {
        version: "1".into(),
        workload,
        load: 1.0,
        profile: "p".into(),
        noise_sigma: 0.0,
        drift: false,
        faults: tiercel_device::MockFaults::default(),
        returning_percent: 0.0,
        policies: Vec::new(),
    }
}

fn section(policy: &str) -> Section {
    Section {
        policy: policy.into(),
        seed: 3,
        workload: NAME.into(),
        profile: "p".into(),
        block_size: 16,
        device_blocks: 100,
        host_blocks: 10,
        end_us: 100_000_000,
    }
}

fn arrived(seq: u64) -> Event {
    Event::Arrived { seq: SeqId(seq), tier: Tier::Premium, prompt: 20, max_tokens: 9 }
}

fn step(slices: &[(u64, bool)]) -> Event {
    let slices = slices.iter().map(|(seq, decode)| Slice {
        seq: SeqId(*seq),
        first_pos: 0,
        tokens: if *decode { 1 } else { 20 },
        sample: Some(u32::from(*decode)),
    });
    Event::StepSubmitted { step: StepId(1), slices: slices.collect() }
}

fn ended(seq: u64) -> Event {
    Event::Ended { seq: SeqId(seq), ending: Ending::Length, tokens: 9, preemptions: 1 }
}

fn planned(device_free: u32) -> Event {
    Event::Planned { step: StepId(1), wants: 1, denied: 0, device_free, host_free: 4 }
}

/// Makes the page of simulation runs with the given events (times in ms). The page shows single requests from 10 s to
/// 20 s.
fn page(runs: &[(&str, &[(u64, Event)])]) -> String {
    let comparison = comparison();
    let mut page = Page::new(&comparison.workload, Some(&(10.0..20.0)));
    for (policy, events) in runs {
        let recorder = page.run(&section(policy));
        for (at_ms, event) in *events {
            recorder.record(Timestamp(at_ms * 1000), event);
        }
    }
    page.html(&comparison).expect("it can be written")
}

fn data(page: &str) -> Value {
    let (_, rest) = page.split_once("id=\"data\">").expect("the data's element");
    let (data, _) = rest.split_once("</script>").expect("its end");
    serde_json::from_str(data).expect("JSON")
}

#[test]
fn a_lane_is_what_a_request_did_within_the_window() {
    let seq = SeqId(2);
    let copied = Event::PreemptCommitted { seq, copied: 2, failed: 0 };
    let events = [
        (1_000, arrived(1)),
        (2_000, ended(1)),
        (9_000, arrived(2)),
        (11_000, step(&[(2, false)])),
        (11_500, Event::FirstToken { seq }),
        (11_500, step(&[(2, true)])),
        (11_600, step(&[(2, true), (7, true)])),
        (12_000, step(&[(7, true)])),
        (12_500, Event::PreemptCopying { seq, blocks: 2 }),
        (13_000, copied),
        (14_000, Event::ResumeCopying { seq, blocks: 2 }),
        (14_500, Event::Resumed { seq, computed: 16, copied: 2, failed: 0 }),
        (14_500, step(&[(2, false)])),
        (15_000, step(&[(2, true)])),
        (16_000, ended(2)),
        (19_000, arrived(3)),
        (21_000, step(&[(3, false)])),
        (22_000, arrived(4)),
    ];
    let data = data(&page(&[("a", &events)]));
    let lanes = data["policies"][0]["lanes"].as_array().expect("lanes");
    let numbers: Vec<u64> = lanes.iter().filter_map(|lane| lane["seq"].as_u64()).collect();
    assert_eq!(numbers, [2, 3], "neither who ended before nor who came after");
    let spans = |lane: usize| {
        let spans = lanes[lane]["spans"].as_array().expect("spans").iter();
        let spans: Vec<u64> = spans.filter_map(Value::as_u64).collect();
        let state = |state: u64| data["states"][state as usize].as_str().unwrap_or("?").to_owned();
        spans.chunks(3).map(|s| (state(s[0]), s[1] / 1000, s[2] / 1000)).collect::<Vec<_>>()
    };
    let expected = [
        ("waiting", 10_000, 11_000),
        ("prefill", 11_000, 11_500),
        ("decode", 11_500, 12_000),
        ("not in the step", 12_000, 12_500),
        ("copying out", 12_500, 13_000),
        ("preempted", 13_000, 14_000),
        ("copying in", 14_000, 14_500),
        ("prefill", 14_500, 15_000),
        ("decode", 15_000, 16_000),
    ];
    assert_eq!(spans(0), expected.map(|(state, from, to)| (state.to_owned(), from, to)));
    assert_eq!(spans(1), [("waiting".to_owned(), 19_000, 20_000)]);
    let lane = &lanes[0];
    assert_eq!((&lane["first_token"], &lane["ended"]), (&11_500_000.into(), &16_000_000.into()));
    assert_eq!((&lane["preemptions"], &lane["ending"]), (&1.into(), &"length".into()));
}

#[test]
fn a_page_has_a_bound_and_says_what_is_missing() {
    let mut events: Vec<(u64, Event)> = (1..=600).map(|seq| (9_000, arrived(seq))).collect();
    events.push((9_500, ended(600)));
    let shown = data(&page(&[("a", &events)]));
    let policy = &shown["policies"][0];
    assert_eq!(policy["lanes"].as_array().map(Vec::len), Some(ROOM.lanes));
    assert_eq!(policy["left_out"], 99);
    assert_eq!(policy["cut_us"], Value::Null);
    let page = page(&[("a", &alternating())]);
    let policy = &data(&page)["policies"][0];
    let spans = policy["lanes"].as_array().expect("lanes").iter();
    let spans: usize = spans.filter_map(|lane| Some(lane["spans"].as_array()?.len() / 3)).sum();
    assert!((ROOM.spans..=ROOM.spans + 20).contains(&spans), "{spans}");
    assert!(policy["cut_us"].as_u64().is_some_and(|at| at < 18_000_000), "{}", policy["cut_us"]);
    assert!(page.len() < 2 << 20, "{}", page.len());
}

/// Returns events of two groups of requests that take turns in steps of 1 ms, so that their lanes have more spans than
/// a page may show.
fn alternating() -> Vec<(u64, Event)> {
    let mut events: Vec<(u64, Event)> = (1..=20).map(|seq| (9_000, arrived(seq))).collect();
    let slices = |from: u64| (from..from + 10).map(|seq| (seq, true)).collect::<Vec<_>>();
    let both = [step(&slices(1)), step(&slices(11))];
    let turn = |number: u64| (10_001 + number, both[number as usize % 2].clone());
    events.extend((0..9_000).map(turn));
    events
}

#[test]
fn memory_and_first_tokens_are_added_up() {
    let answered = |seq| Event::FirstToken { seq: SeqId(seq) };
    let first = [
        (1_000, arrived(1)),
        (1_000, planned(70)),
        (1_100, planned(20)),
        (1_100, answered(1)),
        (50_000, Event::PreemptFreed { seq: SeqId(1), blocks: 3, on_host: 0 }),
        (60_000, arrived(2)),
    ];
    let second = [(2_000, arrived(1)), (12_000, answered(1))];
    let data = data(&page(&[("a", &first), ("a", &second), ("b", &second)]));
    assert_eq!(data["policies"].as_array().map(Vec::len), Some(2));
    let whole = &data["policies"][0]["pressure"][0];
    // The chart of memory use divides the run of 100 s into 500 buckets of 200 ms, so 1.0 s is bucket 5 and 50 s is
    // bucket 250.
    assert_eq!((&whole["device"][5], &whole["host"][5]), (&80.into(), &6.into()));
    assert_eq!((&whole["device"][4], &whole["preempted"][250]), (&Value::Null, &1.into()));
    let curve = &data["policies"][0]["curves"][0];
    assert_eq!((&curve["tier"], &curve["requests"]), (&1.into(), &3.into()));
    // TTFTs of 100 ms and 10 s fall into buckets 300 and 500: there are 100 per decade above 0.1 ms.
    assert_eq!(curve["points"], serde_json::json!([[300, 1], [500, 2]]));
    assert_eq!(data["policies"][1]["curves"][0]["requests"], 1);
}

#[test]
fn names_from_files_stay_data_and_nothing_is_loaded() {
    let page = page(&[(NAME, &[])]);
    assert_eq!(data(&page)["workload"], NAME);
    assert_eq!(data(&page)["policies"][0]["name"], NAME);
    assert_eq!(page.matches("<script").count(), 2, "the data and the page's own");
    assert!(!page.contains("alert(1)<"));
    let outside = ["src=", "href=", "url(", "import ", "fetch(", "innerHTML", "insertAdjacentHTML"];
    for word in outside {
        assert!(!page.contains(word), "{word}");
    }
    let only_name = page.replace("http://www.w3.org/2000/svg", "");
    assert!(
        !only_name.contains("http:") && !only_name.contains("https:"),
        "the name of SVG is the only address"
    );
    let policy = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'";
    assert!(page.contains(policy));
}
