//! Tests of trace files in memory: what was written is read back, and any other content is refused.

use super::codec::{Frame, MAGIC, MAX_FRAME_BYTES, VERSION, encode};
use super::*;
use tiercel_device::{CopyId, SeqId, StepId, Tier, Timestamp};

fn section(seed: u64) -> Section {
    Section {
        policy: "fcfs".into(),
        seed,
        workload: "w\n".into(),
        profile: "p".into(),
        block_size: 16,
        device_blocks: 300,
        host_blocks: 7,
        end_us: 1_500_000,
    }
}

/// Returns one event of every kind that a trace can hold.
fn events() -> Vec<Event> {
    let (seq, step, copy) = (SeqId(300), StepId(70_000), CopyId(4));
    let slice = |tokens, sample| Slice { seq, first_pos: 16, tokens, sample };
    let slices = vec![slice(512, None), slice(3, Some(0)), slice(1, Some(5))];
    vec![
        Event::Arrived { seq, tier: Tier::Premium, prompt: 512, max_tokens: 9 },
        Event::Planned { step, wants: 3, denied: 1, device_free: 12, host_free: 7 },
        Event::StepSubmitted { step, slices },
        Event::StepEnded { step, ok: false, duration_us: 12_345 },
        Event::FirstToken { seq },
        Event::PreemptFreed { seq, blocks: 3, on_host: 1 },
        Event::PreemptCopying { seq, blocks: 3 },
        Event::PreemptCommitted { seq, copied: 3, failed: 0 },
        Event::PreemptAborted { seq, copied: 2, failed: 1 },
        Event::ResumeCopying { seq, blocks: 3 },
        Event::Resumed { seq, computed: 48, copied: 3, failed: 0 },
        Event::Ended { seq, ending: Ending::Stop, tokens: 8, preemptions: 2 },
        Event::Command { seq: Some(seq), text: "pause".into(), known: true },
        Event::CopyStarted { copy, out: true, blocks: 3 },
        Event::CopyEnded { copy, ok: true, duration_us: 900 },
        Event::GaveMore { seq, blocks: 2, on_host: 1 },
    ]
}

fn written(seed: u64, events: &[Event]) -> Vec<u8> {
    let mut bytes = Vec::new();
    let writer = TraceWriter::new(&mut bytes);
    writer.section(&section(seed)).expect("room");
    for (number, event) in events.iter().enumerate() {
        writer.record(Timestamp(number as u64 * 1000), event);
    }
    writer.finish().expect("room");
    drop(writer);
    bytes
}

fn read(bytes: &[u8]) -> Result<Vec<Item>, TraceError> {
    let mut reader = TraceReader::new(bytes)?;
    let mut items = Vec::new();
    while let Some(item) = reader.next_item()? {
        items.push(item);
    }
    Ok(items)
}

fn problem(bytes: &[u8]) -> String {
    read(bytes).expect_err("it is damaged").to_string()
}

#[test]
fn every_kind_of_event_is_read_as_it_was_written() {
    let items = read(&written(5, &events())).expect("a trace");
    assert_eq!(items[0], Item::Section(section(5)));
    let kinds: Vec<&str> = events().iter().map(Event::kind).collect();
    assert_eq!(kinds, Event::KINDS, "one event of each kind");
    for (number, (item, event)) in items[1..].iter().zip(events()).enumerate() {
        let at = Timestamp(number as u64 * 1000);
        assert_eq!(*item, Item::Entry(Entry { at, event }));
    }
    assert_eq!(items.len(), 1 + Event::KINDS.len());
}

#[test]
fn events_are_lines() {
    let at = Timestamp(12_000_345);
    let line = |event: usize, only| {
        let entry = Entry { at, event: events().swap_remove(event) };
        let line = entry_line(&entry, only);
        line.split_whitespace().collect::<Vec<_>>().join(" ")
    };
    assert_eq!(line(0, None), "12.000345 arrived seq300 tier=premium prompt=512 max_tokens=9");
    let step = "12.000345 step-submitted step70000 tokens=516 slices=3";
    let slices = "seq300:prefill@16+512 seq300:prefill@16+3>0 seq300:decode@16>5";
    assert_eq!(line(2, None), format!("{step} {slices}"));
    assert_eq!(line(2, Some(SeqId(1))), step);
    assert!(section_line(&section(5)).contains(r"workload=w\n device=p"));
}

#[test]
fn a_trace_that_was_cut_off_anywhere_is_told_from_a_whole_one() {
    let whole = written(5, &events());
    for length in 0..whole.len() {
        let problem = problem(&whole[..length]);
        let says = if length < MAGIC.len() { "not a trace" } else { "cut off after" };
        assert!(problem.contains(says), "{length}: {problem}");
    }
    let more = [&whole[..], b"x"].concat();
    assert!(problem(&more).contains("bytes after its end"));
}

#[test]
fn no_byte_can_be_changed_into_a_panic() {
    let whole = written(5, &events());
    for at in 0..whole.len() {
        for value in [0, 1, 127, 250, 251, 252, 253, 255] {
            let mut changed = whole.clone();
            changed[at] = value;
            // A trace file with one changed byte may give other records or an error; only a panic would be wrong.
            let _ = read(&changed);
        }
    }
}

#[test]
fn what_is_no_trace_of_this_version_is_refused() {
    let whole = written(5, &events());
    assert!(problem(b"GGUF and more than that").contains("not a trace"));
    let mut newer = whole.clone();
    newer[8..10].copy_from_slice(&(VERSION + 1).to_le_bytes());
    let says = format!("a trace of version {}; this program reads", VERSION + 1);
    assert!(problem(&newer).contains(&says));
    let header = &whole[..10];
    let frame = |bytes: &[u8]| {
        let length = (bytes.len() as u32).to_le_bytes();
        [header, &length, bytes].concat()
    };
    let absurd = [header, &u32::MAX.to_le_bytes()].concat();
    assert!(problem(&absurd).contains("byte 10: a record of absurd length"));
    // The frame holds the event of a step that claims to have 2^64 - 1 slices; the reader must refuse it and not
    // allocate memory for them.
    let slices = [1, 0, 2, 1, 253, 255, 255, 255, 255, 255, 255, 255, 255];
    assert!(problem(&frame(&slices)).contains("byte 10: it holds no record"));
    assert!(problem(&frame(&[])).contains("it holds no record"));
    let mut orphan = header.to_vec();
    let event = Event::FirstToken { seq: SeqId(1) };
    encode(&Frame::Event(Timestamp(0), std::borrow::Cow::Owned(event)), &mut orphan).expect("fits");
    assert!(problem(&orphan).contains("an event before any run"));
    let mut short = header.to_vec();
    encode(&Frame::End(3), &mut short).expect("fits");
    assert!(problem(&short).contains("records are missing"));
}

#[test]
fn a_trace_that_grows_too_large_stops_and_says_so() {
    let mut bytes = Vec::new();
    let writer = TraceWriter::limited(&mut bytes, 100);
    writer.section(&section(1)).expect("room");
    for _ in 0..1_000 {
        writer.record(Timestamp(0), &Event::FirstToken { seq: SeqId(1) });
    }
    assert!(matches!(writer.section(&section(2)), Err(TraceError::TooLarge)));
    drop(writer);
    assert!(bytes.len() < 200, "{}", bytes.len());
    let text = "x".repeat(MAX_FRAME_BYTES);
    let writer = TraceWriter::new(Vec::new());
    writer.record(Timestamp(0), &Event::Command { seq: None, text, known: true });
    assert!(matches!(writer.finish(), Err(TraceError::TooLarge)));
}

#[test]
fn a_difference_is_found_with_what_came_before_it() {
    let compare = |a: &[u8], b: &[u8]| {
        let mut readers = [a, b].map(|bytes| TraceReader::new(bytes).expect("a trace"));
        let [first, second] = &mut readers;
        diff(first, second).expect("readable")
    };
    let whole = written(5, &events());
    assert_eq!(
        compare(&whole, &whole),
        Found::Equal { runs: 1, events: Event::KINDS.len() as u64 }
    );
    let mut others = events();
    others[10] = Event::Resumed { seq: SeqId(300), computed: 32, copied: 2, failed: 1 };
    let Found::Different(found) = compare(&whole, &written(5, &others)) else { panic!("equal") };
    assert_eq!((found.number, found.before.len()), (12, 6));
    let event = |item: Option<Item>| match item {
        Some(Item::Entry(entry)) => entry.event,
        other => panic!("{other:?}"),
    };
    assert_eq!(event(found.first), events()[10]);
    assert_eq!(event(found.second), others[10]);
    assert_eq!(event(found.before.last().cloned()), events()[9]);
    let Found::Different(found) = compare(&whole, &written(5, &others[..3])) else {
        panic!("equal")
    };
    assert_eq!((found.number, found.second), (5, None));
    let Found::Different(found) = compare(&whole, &written(6, &events())) else { panic!("equal") };
    assert_eq!((found.number, found.before.len()), (1, 0));
}
