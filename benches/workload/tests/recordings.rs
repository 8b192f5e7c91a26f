//! Tests of recordings of live traffic as files.
#![allow(clippy::unwrap_used, reason = "tests state what must hold")]

use serde_json::{Value, json};
use tiercel_device::MockProfile;
use tiercel_workload::{Recording, TextPiece, Workload, WorkloadError, arrivals};

fn header(sequences: usize) -> Value {
    json!({
        "tiercel_recording": 1, "version": "0", "unix_s": 5, "length_s": 60.0, "sequences": sequences,
        "live_at_begin": 0, "cut": null, "prefixes_cut": false, "steps": 0, "steps_cut": false,
        "step_error_percent": null, "settings_changed": false,
        "targets": {"premium": {"ttft_ms": 200.0}, "background": {}}, "settings": {},
        "profile": MockProfile::named("tiny").unwrap(),
    })
}

fn row(at_us: u64, tier: &str, outcome: &str, output_tokens: u32) -> Value {
    json!({
        "at_us": at_us, "tier": tier, "tenant": 0, "prompt_tokens": 100, "max_tokens": 50,
        "seen": {"outcome": outcome, "output_tokens": output_tokens, "end_us": at_us + 1000},
    })
}

fn read(lines: &[Value]) -> Result<Recording, WorkloadError> {
    // A recording is recognized by the first characters of its header, so the field `tiercel_recording` must come
    // first.
    let text = |line: &Value| match line["tiercel_recording"].as_u64() {
        Some(form) => {
            let mut rest = line.clone();
            rest.as_object_mut().unwrap().remove("tiercel_recording");
            format!("{{\"tiercel_recording\":{form},{}", &rest.to_string()[1..])
        }
        None => line.to_string(),
    };
    let lines: Vec<String> = lines.iter().map(text).collect();
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("r.jsonl");
    std::fs::write(&path, lines.join("\n") + "\n").unwrap();
    let read = Recording::load(&path);
    if let Ok(recording) = &read {
        assert_eq!(Workload::load(&path).unwrap(), recording.workload);
    }
    read
}

fn with(mut row: Value, fields: &Value) -> Value {
    for (name, value) in fields.as_object().unwrap() {
        row[name] = value.clone();
    }
    row
}

#[test]
fn a_recording_is_a_workload_with_a_class_for_each_tier() {
    let rows = [
        row(1_500_000, "background", "length", 50),
        row(2_000_001, "premium", "stop", 9),
        row(2_000_001, "premium", "length", 50),
    ];
    let recording = read(&[vec![header(3)], rows.to_vec()].concat()).unwrap();
    let workload = &recording.workload;
    assert_eq!((workload.duration_s, workload.drain_s), (60.0, 0.0));
    let planned: Vec<_> =
        (0..2).map(|class| arrivals(workload, class).collect::<Vec<_>>()).collect();
    let seen: Vec<_> = planned.iter().flatten().map(|one| (one.at_us, one.output_tokens)).collect();
    // The final stop token counts: it is computed.
    assert_eq!(seen, [(2_000_001, 10), (2_000_001, 50), (1_500_000, 50)]);
    let numbers = planned.iter().flatten().map(|one| one.recorded.as_ref().unwrap().number);
    assert_eq!(numbers.collect::<Vec<_>>(), [1, 2, 0]);
    assert_eq!(workload.classes[0].targets.unwrap().ttft_ms, Some(200.0));
}

#[test]
fn an_output_that_did_not_complete_has_the_mean_length_of_its_tier_but_more_than_it_had() {
    let rows = [
        row(1, "premium", "length", 10),
        row(2, "premium", "length", 20),
        row(3, "premium", "refused", 0),
        row(4, "premium", "left", 30),
        row(5, "premium", "live", 49),
        row(6, "standard", "turned_away", 0),
    ];
    let recording = read(&[vec![header(6)], rows.to_vec()].concat()).unwrap();
    let planned = (0..2).flat_map(|class| arrivals(&recording.workload, class));
    let lengths: Vec<u32> = planned.map(|one| one.output_tokens).collect();
    assert_eq!(lengths, [10, 20, 15, 31, 50, 50], "no standard output completed: max_tokens");
}

#[test]
fn what_was_live_before_only_goes_on_and_does_not_count() {
    let live = with(row(0, "premium", "length", 50), &json!({"before": 20}));
    let waits = with(row(0, "premium", "length", 50), &json!({"before": 0}));
    let recording = read(&[header(2), live, waits]).unwrap();
    let planned: Vec<_> = arrivals(&recording.workload, 0).collect();
    let sent: Vec<_> = planned.iter().map(|one| (one.prompt_tokens, one.output_tokens)).collect();
    assert_eq!(sent, [(1, 30), (100, 50)]);
    assert!(planned.iter().all(|one| !one.counts()));
    let most: Vec<u32> =
        planned.iter().map(|one| one.recorded.as_ref().unwrap().sent_max_tokens()).collect();
    assert_eq!(most, [30, 50]);
}

#[test]
fn prompts_that_begin_alike_have_pieces_of_the_same_text() {
    let like = |number: u32, tokens: u32, prompt: u32| {
        let fields = json!({"begins_like": [number, tokens], "prompt_tokens": prompt});
        with(row(9, "premium", "length", 7), &fields)
    };
    let rows =
        [row(1, "premium", "length", 7), like(0, 64, 120), like(1, 112, 300), like(1, 32, 32)];
    let recording = read(&[vec![header(4)], rows.to_vec()].concat()).unwrap();
    let pieces = |number: usize| recording.requests[number].text.to_vec();
    let piece = |of, from, to, closing| TextPiece { of, from, to, closing };
    assert_eq!(pieces(0), [piece(0, 0, 100, Some(7))]);
    assert_eq!(pieces(1), [piece(0, 0, 64, None), piece(1, 64, 120, Some(7))]);
    let third = [piece(0, 0, 64, None), piece(1, 64, 112, None), piece(2, 112, 300, Some(7))];
    assert_eq!(pieces(2), third);
    assert_eq!(pieces(3), [piece(0, 0, 32, None)]);
}

#[test]
fn a_bad_line_is_named_with_what_is_allowed() {
    let good = row(1, "premium", "length", 5);
    for (field, value, says) in [
        ("prompt_tokens", json!(0), "has the prompt_tokens 0; allowed: 1 to 1000000"),
        ("max_tokens", json!(2_000_000), "has the max_tokens 2000000"),
        ("tier", json!("system"), "has the tier system"),
        ("tier", json!("gold"), "is malformed"),
        ("share", json!(0.0), "has the share 0; allowed: 0.01 to 100"),
        ("at_us", json!(61_000_000), "the end of the recording (at_us)"),
        ("begins_like", json!([0, 16]), "has the begins_like [0,16]"),
        ("text", json!("x"), "unknown field `text`"),
    ] {
        let bad = with(good.clone(), &json!({field: value}));
        let error = read(&[header(1), bad]).unwrap_err().to_string();
        assert!(error.contains("line 2") && error.contains(says), "{error}");
    }
    let error = read(&[header(2), row(5, "premium", "length", 5), good.clone()]).unwrap_err();
    assert!(error.to_string().contains("line 3"), "not in the order of time: {error}");
    for (fields, says) in [
        (json!({"tiercel_recording": 2}), "a recording of form 2; this program reads form 1"),
        (json!({"length_s": 0.0}), "length_s"),
        (json!({"sequences": 7}), "the header states 7 sequences, not 1"),
        (json!({"sequences": 0}), "more than the header states"),
        (json!({"sequences": 200_001}), "more than 200000 sequences"),
    ] {
        let error = read(&[with(header(1), &fields), good.clone()]).unwrap_err().to_string();
        assert!(error.contains(says), "{error}");
    }
    let mut slow = header(1);
    slow["profile"]["block_size"] = json!(0);
    let error = read(&[slow, good]).unwrap_err().to_string();
    assert!(error.contains("bad profile") && error.contains("block_size"), "{error}");
    assert!(read(&[header(0)]).unwrap_err().to_string().contains("nothing arrived"));
}
