//! Tests of the load client against a server that misbehaves on purpose.
#![allow(clippy::unwrap_used, reason = "a test that unwraps fails where it should")]

mod fake;

use fake::{Fake, Reply, Then, begun, completion, start, streamed, whole};
use serde_json::{Value, json};
use std::sync::Arc;
use tiercel_benches::{BenchError, Limits, PromptForm, Report, Target, run};
use tiercel_device::{Clock, Tier};
use tiercel_workload::{
    Arrival, Class, Closed, Length, Sampling, Targets, Trace, TraceEntry, Workload,
};
use tokio::sync::Notify;

/// Traffic class of `requests` requests that are all due at the start of the run.
fn burst(tier: Tier, requests: usize) -> Class {
    let entry = TraceEntry {
        line: 1,
        at_s: 0.0,
        prompt_tokens: 9,
        output_tokens: 4,
        blocks: None,
        recorded: None,
    };
    Class {
        tier,
        arrival: Arrival::Trace(Trace::of(vec![entry; requests])),
        start_s: 0.0,
        prefix: None,
        prompt_tokens: None,
        output_tokens: None,
        ignore_eos: true,
        sampling: Sampling::default(),
        targets: None,
    }
}

fn closed(tier: Tier, streams: u32) -> Class {
    Class {
        arrival: Arrival::Closed(Closed { streams }),
        prompt_tokens: Some(Length::Fixed(5)),
        output_tokens: Some(Length::Fixed(3)),
        ..burst(tier, 0)
    }
}

fn workload(classes: Vec<Class>) -> Workload {
    Workload {
        name: "test".into(),
        seed: 1,
        duration_s: 30.0,
        warmup_s: 0.0,
        cooldown_s: 0.0,
        drain_s: 30.0,
        simulation: Default::default(),
        trace: None,
        classes,
    }
}

/// Workload that ends after 0.3 s, without time for running requests to finish.
fn brief(classes: Vec<Class>) -> Workload {
    Workload { duration_s: 0.3, drain_s: 0.0, ..workload(classes) }
}

fn target(fake: &Fake) -> Target {
    Target { url: fake.url.clone(), ..Target::default() }
}

async fn report(fake: &Fake, workload: &Workload) -> Report {
    run(workload, &target(fake), |_| {}).await.unwrap()
}

/// Runs one premium request against a fake server that answers with `reply`, checks that it fails, and returns the
/// failure reason.
async fn failure(reply: impl Fn() -> Reply + Send + Sync + 'static) -> String {
    let fake = start(true, move |_, _| std::future::ready(reply())).await;
    let report = report(&fake, &workload(vec![burst(Tier::Premium, 1)])).await;
    assert_eq!((report.total.sent, report.total.failed), (1, 1), "{report:?}");
    report.failures[0].reason.clone()
}

#[tokio::test]
async fn a_stream_is_measured_whatever_pieces_it_comes_in() {
    for (chunk, piece) in [(1, 1), (2, 3), (5, 7), (64, 1), (1000, 11), (10_000, 10_000)] {
        let fake = start(true, move |_, _| {
            let events = completion(&["one", " twö", " 🎉"], (9, 4));
            std::future::ready(streamed(&events, chunk, piece))
        })
        .await;
        let report = report(&fake, &workload(vec![burst(Tier::Premium, 3)])).await;
        let tier = &report.tiers[0];
        assert_eq!((tier.sent, tier.completed), (3, 3), "{:?}", report.failures);
        let counts = [tier.ttft_ms, tier.tpot_ms, tier.e2e_ms, tier.max_gap_ms]
            .map(|summary| summary.map(|summary| summary.count));
        assert_eq!(counts, [Some(3); 4]);
        let tokens = (tier.prompt_tokens_per_s * 30.0, tier.output_tokens_per_s * 30.0);
        assert!((tokens.0 - 27.0).abs() < 1e-6 && (tokens.1 - 12.0).abs() < 1e-6, "{tokens:?}");
        assert_eq!(
            (report.model.as_str(), report.server.as_deref()),
            ("fake-model", Some("fake/1"))
        );
        assert_eq!(report.prompt_form, PromptForm::TokenIds);
    }
}

#[tokio::test]
async fn requests_say_what_the_workload_says() {
    let fake =
        start(true, |_, _| std::future::ready(streamed(&completion(&["a"], (9, 1)), 100, 100)))
            .await;
    let mut standard = burst(Tier::Standard, 1);
    standard.ignore_eos = false;
    standard.sampling = Sampling { temperature: 0.5, top_p: Some(0.9), top_k: Some(7) };
    let classes = vec![burst(Tier::Premium, 2), standard, burst(Tier::Background, 1)];
    report(&fake, &workload(classes)).await;
    let seen = fake.seen.lock().unwrap();
    let of = |tier: &str| -> Vec<&Value> {
        seen.iter().filter(|body| body["service_tier"] == tier).collect()
    };
    let (premium, standard) = (of("priority"), of("default"));
    assert_eq!((premium.len(), standard.len(), of("flex").len()), (2, 1, 1));
    let mut rest = premium[0].clone();
    let prompt = rest.as_object_mut().unwrap().remove("prompt").unwrap();
    assert_eq!(prompt.as_array().unwrap().len(), 9);
    let ordinary = |id: &Value| (1000..1100).contains(&id.as_u64().unwrap());
    assert!(prompt.as_array().unwrap().iter().all(ordinary));
    assert_ne!(prompt, premium[1]["prompt"], "prompts must not hit a prefix cache");
    let expected = json!({
        "model": "fake-model", "max_tokens": 4, "stream": true,
        "stream_options": {"include_usage": true}, "service_tier": "priority",
        "ignore_eos": true, "temperature": 0.0,
    });
    assert_eq!(rest, expected);
    assert_eq!(standard[0]["ignore_eos"], false);
    assert!(standard[0].get("priority").is_none(), "only if asked to");
    assert_eq!((&standard[0]["top_p"], &standard[0]["top_k"]), (&json!(0.9), &json!(7)));
}

#[tokio::test]
async fn requests_have_the_number_of_their_tier_if_asked_to() {
    let fake =
        start(true, |_, _| std::future::ready(streamed(&completion(&["a"], (9, 1)), 100, 100)))
            .await;
    let classes = [Tier::Premium, Tier::Standard, Tier::Background].map(|tier| burst(tier, 1));
    let target = Target { send_priority: true, ..target(&fake) };
    run(&workload(classes.to_vec()), &target, |_| {}).await.unwrap();
    let seen = fake.seen.lock().unwrap();
    let number_of = |tier: &str| {
        let body = seen.iter().find(|body| body["service_tier"] == tier).unwrap();
        body["priority"].as_u64()
    };
    assert_eq!(["priority", "default", "flex"].map(number_of), [Some(0), Some(1), Some(2)]);
}

#[tokio::test]
async fn a_server_without_tokenize_gets_words() {
    let fake =
        start(false, |_, _| std::future::ready(streamed(&completion(&["a"], (9, 1)), 100, 100)))
            .await;
    let report = report(&fake, &workload(vec![burst(Tier::Premium, 1)])).await;
    assert_eq!((report.prompt_form, report.total.completed), (PromptForm::Words, 1));
    let seen = fake.seen.lock().unwrap();
    assert_eq!(seen[0]["prompt"].as_str().unwrap().split(' ').count(), 9);
}

#[tokio::test]
async fn equal_blocks_of_a_trace_are_sent_as_equal_text_whatever_the_tier() {
    let fake = start(true, |_, _| {
        std::future::ready(streamed(&completion(&["a"], (600, 4)), 10_000, 10_000))
    })
    .await;
    let entry = |line, names: [u64; 2]| TraceEntry {
        line,
        at_s: 0.0,
        prompt_tokens: 600,
        output_tokens: 4,
        blocks: Some(names.to_vec().into()),
        recorded: None,
    };
    let trace = Trace::of((0..6).map(|n| entry(n, [5, 10 + u64::from(n)])).collect());
    let share = |tier, share| Class { arrival: Arrival::Share(share), ..burst(tier, 0) };
    let classes = vec![share(Tier::Premium, 0.5), share(Tier::Background, 0.5)];
    let workload = Workload { trace: Some(trace), ..workload(classes) };
    let report = report(&fake, &workload).await;
    assert_eq!(report.total.completed, 6, "{report:?}");
    let seen = fake.seen.lock().unwrap();
    let prompts: Vec<&[Value]> =
        seen.iter().map(|body| &body["prompt"].as_array().unwrap()[..]).collect();
    assert!(prompts.iter().all(|prompt| prompt.len() == 600 && prompt[..512] == prompts[0][..512]));
    assert!((1..6).all(|n| prompts[n][512..] != prompts[0][512..]));
    let tiers: std::collections::BTreeSet<&str> =
        seen.iter().filter_map(|body| body["service_tier"].as_str()).collect();
    assert_eq!(tiers.len(), 2, "the trace is divided");
}

#[tokio::test]
async fn refusals_are_told_from_failures() {
    let fake = start(true, |number, _| {
        std::future::ready(match number {
            0 => whole(429, "Retry-After: 7\r\n", r#"{"error":{"message":"full"}}"#),
            1 => whole(503, "", "not even JSON"),
            2 => whole(400, "", r#"{"error":{"message":"prompt\ntoo long"}}"#),
            _ => streamed(&completion(&["a", "b"], (9, 4)), 100, 100),
        })
    })
    .await;
    let mut class = burst(Tier::Premium, 4);
    class.targets = Some(Targets { ttft_ms: Some(60_000.0), ..Targets::default() });
    let report = report(&fake, &workload(vec![class])).await;
    let tier = &report.tiers[0];
    assert_eq!((tier.sent, tier.refused, tier.failed, tier.completed), (4, 2, 1, 1));
    assert_eq!(report.failures[0].reason, "HTTP 400: prompt too long");
    let compliance = tier.compliance.unwrap();
    assert_eq!((compliance.requests, compliance.all_met), (4, 1), "refusals are misses");
}

#[tokio::test]
async fn every_way_a_stream_can_break_is_a_failure_with_its_reason() {
    let event = "data: {\"choices\":[{\"text\":\"a\"}]}\n\n";
    let ended = failure(move || streamed(event, 10, 10)).await;
    assert_eq!(ended, "the stream ended before [DONE]");
    let cut = failure(move || begun(event, Then::Close)).await;
    assert!(cut.starts_with("the exchange broke off"), "{cut}");
    let reset = failure(move || begun(event, Then::Reset)).await;
    assert!(reset.starts_with("the exchange broke off"), "{reset}");
    let no_head = failure(|| Reply { pieces: vec![], then: Then::Close }).await;
    assert!(no_head.starts_with("the exchange broke off"), "{no_head}");
    let garbage = failure(|| Reply { pieces: vec![b"SMTP ready\r\n".into()], then: Then::Close });
    assert!(garbage.await.starts_with("the exchange broke off"));
    let error = "data: {\"error\":{\"message\":\"device lost\",\"code\":500}}\n\n";
    assert_eq!(failure(move || streamed(error, 10, 10)).await, "device lost");
    let not_json = failure(|| streamed("data: {oops\n\n", 10, 10)).await;
    assert!(not_json.starts_with("an event is not a chunk"), "{not_json}");
    let endless = failure(|| begun(&format!("data: {}", "x".repeat(300_000)), Then::Hang)).await;
    assert!(endless.contains("more than 262144 bytes"), "{endless}");
}

#[tokio::test]
async fn a_silent_server_times_out_before_and_within_a_stream() {
    for (reply, expected) in [("", "no answer"), ("data: {\"choices\":[]}\n\n", "fell silent")] {
        let fake = start(true, move |_, _| {
            std::future::ready(match reply {
                "" => Reply { pieces: vec![], then: Then::Hang },
                events => begun(events, Then::Hang),
            })
        })
        .await;
        let mut target = target(&fake);
        target.limits.idle_timeout_ms = 100;
        let report = run(&workload(vec![burst(Tier::Premium, 1)]), &target, |_| {}).await.unwrap();
        assert!(report.failures[0].reason.contains(expected), "{:?}", report.failures);
    }
}

#[tokio::test]
async fn requests_that_outlast_the_run_are_unfinished_and_their_wait_counts() {
    let fake = start(true, |number, _| {
        let events = if number == 0 { "data: {\"choices\":[{\"text\":\"a\"}]}\n\n" } else { "" };
        std::future::ready(begun(events, Then::Hang))
    })
    .await;
    let report = report(&fake, &brief(vec![burst(Tier::Premium, 2)])).await;
    let tier = &report.tiers[0];
    assert_eq!((tier.sent, tier.unfinished, tier.failed), (2, 2, 0));
    let ttft = tier.ttft_ms.unwrap();
    assert_eq!(ttft.count, 2);
    assert!(ttft.max >= 300.0, "waited until the end of the run: {ttft:?}");
    assert_eq!(tier.e2e_ms.unwrap().count, 2, "what they waited is a lower bound of this too");
}

#[tokio::test]
async fn the_client_is_bounded_and_says_what_it_could_not_send() {
    let fake = start(true, |_, _| std::future::ready(begun("", Then::Hang))).await;
    let mut target = target(&fake);
    target.limits = Limits { max_in_flight: 1, ..Limits::default() };
    let report = run(&brief(vec![burst(Tier::Premium, 3)]), &target, |_| {}).await.unwrap();
    assert_eq!((report.total.sent, report.total.not_sent), (1, 2));
    assert!(report.table(false).contains("premium: 2 not sent"));
}

#[tokio::test]
async fn a_refused_stream_tries_again_after_a_pause() {
    let fake = start(true, |number, _| {
        std::future::ready(match number {
            0 => whole(429, "Retry-After: 0\r\n", "{}"),
            1 => streamed(&completion(&["a"], (5, 3)), 50, 50),
            _ => begun("", Then::Hang),
        })
    })
    .await;
    let mut workload = brief(vec![closed(Tier::Background, 1)]);
    workload.duration_s = 1.0;
    let report = report(&fake, &workload).await;
    let tier = &report.tiers[0];
    assert_eq!((tier.sent, tier.refused, tier.completed, tier.unfinished), (3, 1, 1, 1));
}

#[tokio::test]
async fn closed_streams_keep_the_load_up_until_open_requests_are_done() {
    let late = Arc::new(Notify::new());
    let fake = start(true, move |_, body| {
        let late = late.clone();
        async move {
            if body["service_tier"] == "priority" {
                // Hold the premium request's answer back until a background request comes after the end of the
                // workload's duration: closed streams must still send while an open-loop request runs.
                Clock::wall().sleep_us(600_000).await;
                late.notified().await;
            } else {
                late.notify_waiters();
                Clock::wall().sleep_us(5_000).await;
            }
            streamed(&completion(&["a"], (5, 1)), 50, 50)
        }
    })
    .await;
    let classes = vec![burst(Tier::Premium, 1), closed(Tier::Background, 2)];
    let workload = Workload { duration_s: 0.3, ..workload(classes) };
    let report = report(&fake, &workload).await;
    assert_eq!((report.tiers[0].completed, report.total.unfinished), (1, 0));
    let sent = fake.seen.lock().unwrap().len() as u64;
    assert!(report.total.sent < sent, "what is sent after the end does not count");
}

#[tokio::test]
async fn a_downgrade_is_seen() {
    let fake = start(true, |_, _| {
        let events = completion(&["a"], (5, 1)).replace("\"x\":1", "\"service_tier\":\"flex\"");
        std::future::ready(streamed(&events, 50, 50))
    })
    .await;
    let classes = vec![burst(Tier::Premium, 1), burst(Tier::Background, 1)];
    let report = report(&fake, &workload(classes)).await;
    assert_eq!((report.tiers[0].other_tier, report.tiers[1].other_tier), (1, 0));
}

#[tokio::test]
async fn a_server_that_is_not_there_is_said_so() {
    let workload = workload(vec![burst(Tier::Premium, 1)]);
    let to = |url: &str| Target { url: url.into(), ..Target::default() };
    let unused = {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        format!("http://{}", listener.local_addr().unwrap())
    };
    let error = run(&workload, &to(&unused), |_| {}).await.unwrap_err();
    assert!(matches!(error, BenchError::Server { .. }), "{error}");
    assert!(error.to_string().contains("is it running"), "{error}");
    for wrong in ["ftp://localhost", "https://no_name!", "http://"] {
        let error = run(&workload, &to(wrong), |_| {}).await.unwrap_err();
        assert!(matches!(error, BenchError::Url { .. }), "{wrong}: {error}");
    }
    let invalid = Workload { duration_s: -1.0, ..workload };
    let error = run(&invalid, &to(&unused), |_| {}).await.unwrap_err();
    assert!(matches!(error, BenchError::Workload { .. }), "{error}");
}

#[tokio::test]
async fn the_report_survives_json_and_its_table_is_aligned() {
    let fake =
        start(true, |_, _| std::future::ready(streamed(&completion(&["a", "b"], (9, 4)), 50, 50)))
            .await;
    let classes = vec![burst(Tier::Premium, 2), burst(Tier::Background, 1)];
    let report = report(&fake, &workload(classes)).await;
    let read: Report = serde_json::from_str(&serde_json::to_string(&report).unwrap()).unwrap();
    assert_eq!((read.tiers.len(), &read.workload.name), (2, &"test".to_owned()));
    assert_eq!(read.total.sent, 3);
    let table = report.table(false);
    let blocks: Vec<&str> = table.split("\n\n").collect();
    assert_eq!(blocks.len(), 3, "{table}");
    for block in &blocks[1..] {
        let widths: Vec<usize> = block.lines().map(|line| line.chars().count()).collect();
        assert!(widths.windows(2).all(|pair| pair[0] == pair[1]), "{table}");
    }
    assert!(!table.contains('\x1b') && report.table(true).contains('\x1b'));
}
