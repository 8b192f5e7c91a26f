//! Tests of timed faults: the effects of a slow step, a failed step, lost copies, a full host pool and a lost device on
//! the client of a stream.

use super::preempted::{long_text, preempt, replies};
use super::{asks, start, streamed, toml};
use serde_json::json;
use tiercel_config::PreemptionMode;
use tiercel_device::Clock;
use tiercel_tests::{TestServer, events};

/// Starts a server on the mock device `tiny` with these faults.
fn faulty(faults: &str) -> TestServer {
    let file = toml(faults);
    let path = file.path().to_str().unwrap().to_owned();
    start(&replies(), |settings| settings.mock.faults_file = Some(path))
}

/// Streams the long text, and checks that the client receives the whole text.
fn long_stream(server: &TestServer) {
    let mut body = asks("Write");
    body["stream"] = json!(true);
    let response = server.post("/v1/chat/completions", &body);
    let (pieces, finish) = streamed(&response.body);
    assert_eq!((pieces.concat(), finish.as_deref()), (long_text(), Some("stop")));
}

/// Returns the error event of an event stream.
fn error_of(body: &[u8]) -> String {
    let found = events(body);
    let error = found.iter().find(|event| event.starts_with("{\"error\""));
    error.expect("an error event").clone()
}

#[test]
fn a_slow_step_makes_the_stream_wait_once() {
    let server = faulty("[[fault]]\nkind = 'slow_step'\nat_step = 30\nslow_ms = 700\n");
    let clock = Clock::wall();
    long_stream(&server);
    assert!(clock.now().0 >= 700_000, "us since the clock was made");
    assert_eq!(server.status().counters.failed_steps, 0);
    server.finish();
}

#[test]
fn a_failed_step_is_computed_again_and_not_seen() {
    let server = faulty("[[fault]]\nkind = 'failed_step'\nat_step = 30\ntimes = 1\n");
    long_stream(&server);
    assert_eq!(server.status().counters.failed_steps, 1);
    server.finish();
}

#[test]
fn a_request_whose_step_fails_twice_ends_with_an_error_alone() {
    let file = toml("[[fault]]\nkind = 'failed_step'\nat_step = 30\ntimes = 2\n");
    let path = file.path().to_str().unwrap().to_owned();
    let server = start(&replies(), |settings| {
        settings.engine.scheduler.steps_in_flight = 1;
        settings.mock.faults_file = Some(path);
    });
    let mut body = asks("Write");
    body["stream"] = json!(true);
    let response = server.post("/v1/chat/completions", &body);
    let error = error_of(&response.body);
    assert!(error.contains("injected"), "{error}");
    long_stream(&server);
    server.finish();
}

#[test]
fn lost_copies_cost_a_preempted_stream_time_and_no_text() {
    let file = toml("[[fault]]\nkind = 'lost_copy'\nat_s = 0\ntimes = 1000\n");
    let path = file.path().to_str().unwrap().to_owned();
    let server = preempt(|settings| {
        settings.engine.preemption.mode = PreemptionMode::Swap;
        settings.mock.faults_file = Some(path);
    });
    assert!(server.status().counters.recomputed_tokens > 0);
    server.finish();
}

#[test]
fn with_a_full_host_pool_a_preempted_stream_is_recomputed() {
    let file = toml("[[fault]]\nkind = 'full_host'\nat_s = 0\ntimes = 1000\n");
    let path = file.path().to_str().unwrap().to_owned();
    let server = preempt(|settings| {
        settings.engine.preemption.mode = PreemptionMode::Swap;
        settings.mock.faults_file = Some(path);
    });
    let counters = server.status().counters;
    assert_eq!(counters.swaps, [0; 4]);
    assert!(counters.recomputed_tokens > 0);
    server.finish();
}

#[test]
fn a_lost_device_ends_the_stream_with_its_cause_and_then_the_server() {
    let server = faulty("[[fault]]\nkind = 'lost_device'\nat_step = 30\n");
    let mut body = asks("Write");
    body["stream"] = json!(true);
    let response = server.post("/v1/chat/completions", &body);
    let (pieces, finish) = streamed(&response.body);
    assert!(long_text().starts_with(&pieces.concat()) && !pieces.is_empty());
    assert_eq!(finish, None);
    let error = error_of(&response.body);
    assert!(error.contains("device_error") && error.contains("injected at step30"), "{error}");
    // Give the server time to notice that the engine has died.
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
    runtime.block_on(Clock::wall().sleep_us(200_000));
    let error = server.stop().expect_err("the device is lost").to_string();
    assert!(error.contains("device lost: injected at step"), "{error}");
}
