//! Tests of `tiercel top` in a real terminal (tmux) against a real server.
#![allow(clippy::unwrap_used, reason = "tests state what must hold")]

mod screen;

use screen::Screen;
use serde_json::{Value, json};
use std::process::{Child, Command, Stdio};
use tiercel_tests::{Connection, Program, Response, TestServer};

const PROGRAM: &str = env!("CARGO_BIN_EXE_tiercel-program");

/// Starts a server that runs two requests at a time, in steps of 50 ms.
fn two_at_a_time() -> TestServer {
    TestServer::slow(|settings| settings.engine.scheduler.max_num_seqs = 2)
}

/// Sends `count` long background requests, and waits until they are in the engine.
fn load(server: &TestServer, count: u32) -> Vec<Connection> {
    let body = json!({
        "prompt": "Hello", "max_tokens": 900, "ignore_eos": true, "temperature": 0,
        "service_tier": "flex", "stream": true,
    });
    let send = |number: u32| {
        let mut connection = server.connect();
        let id = format!("job-{number}");
        let headers = [("content-type", "application/json"), ("x-request-id", id.as_str())];
        connection.send_request("POST", "/v1/completions", &headers, body.to_string().as_bytes());
        connection
    };
    let streams = (0..count).map(send).collect();
    server.wait_for("all arrived", |status| status.places == count);
    streams
}

fn top(server: &TestServer) -> Screen {
    let url = format!("http://{}", server.control_address());
    Screen::run(PROGRAM, &["top", "--url", &url])
}

/// Returns the columns of the selected row.
fn selected(text: &str) -> Vec<String> {
    let row = text.lines().find(|line| line.starts_with("> ")).unwrap_or_default();
    row.split_whitespace().skip(1).map(str::to_owned).collect()
}

/// Returns what the engine says about the request with this sequence.
fn asked(server: &TestServer, seq: &str) -> Response {
    server.control().request("GET", &format!("/control/v1/requests/{seq}"), &[], b"")
}

fn row(server: &TestServer, seq: &str) -> Value {
    asked(server, seq).json()["requests"][0].clone()
}

#[test]
#[ignore = "needs tmux; see docs/developer.md"]
fn keys_reach_the_engine_and_cancelling_asks_first() {
    let server = two_at_a_time();
    let streams = load(&server, 6);
    let screen = top(&server);
    let shown = screen.wait_until("six requests", |text| {
        text.contains("REQUESTS 6") && text.contains("6 of 1024") && !selected(text).is_empty()
    });
    for part in ["tokens/s", "KV blocks device [", "premium", "standard", "MET", "? help", "q quit"]
    {
        assert!(shown.contains(part), "{part}:\n{shown}");
    }
    screen.press("Down");
    let shown = screen.wait_until("the second row", |text| selected(text) != selected(&shown));
    let [seq, tier, ..] = &selected(&shown)[..] else { panic!("{shown}") };
    assert_eq!(tier, "background");
    for tier in ["standard", "premium"] {
        screen.press("r");
        screen.wait_until(tier, |text| selected(text).starts_with(&[seq.clone(), tier.into()]));
        assert_eq!(row(&server, seq)["tier"], tier);
    }
    screen.wait_for("reprioritize by");
    screen.press("p");
    screen.wait_for("paused; p resumes it");
    assert_eq!(row(&server, seq)["paused"], true);
    screen.wait_until("paused", |text| selected(text).concat().contains(",paused"));
    screen.press("p");
    screen.wait_for(": resumed");
    assert_eq!(row(&server, seq)["paused"], false);
    screen.press("c");
    screen.wait_for("this cannot be undone");
    assert_eq!(asked(&server, seq).status, 200, "it only asked");
    screen.press("n");
    screen.wait_for("nothing was cancelled");
    assert_eq!(asked(&server, seq).status, 200);
    screen.press("c");
    screen.wait_for("this cannot be undone");
    screen.press("y");
    screen.wait_for(": cancelled");
    assert_eq!(asked(&server, seq).status, 404);
    screen.wait_for("REQUESTS 5");
    screen.press("q");
    screen.ends_with(0);
    drop(streams);
    server.finish();
}

#[test]
#[ignore = "needs tmux; see docs/developer.md"]
fn the_view_filters_orders_helps_and_fits_other_terminals() {
    let server = two_at_a_time();
    let streams = load(&server, 3);
    let screen = top(&server);
    screen.wait_for("REQUESTS 3: all tiers, least slack first");
    screen.press("t");
    screen.wait_for("REQUESTS 0: premium only");
    screen.press("s");
    screen.wait_for("premium only, oldest first");
    (0..3).for_each(|_| screen.press("t"));
    screen.wait_for("REQUESTS 3: all tiers, oldest first");
    screen.press("?");
    screen.wait_for("any key closes this list");
    screen.press("x");
    screen.wait_until("no help", |text| !text.contains("any key closes this list"));
    screen.resize(80, 24);
    screen.wait_until("the short line of keys", |text| {
        text.trim_end().lines().last().is_some_and(|line| line.starts_with("j/k r raise"))
    });
    screen.resize(160, 50);
    screen.wait_for("REQUEST ID");
    screen.resize(40, 10);
    screen.wait_for("tiercel top needs 60x16");
    screen.press("C-c");
    screen.ends_with(0);
    drop(streams);
    server.finish();
}

#[test]
#[ignore = "needs tmux; see docs/developer.md"]
fn a_signal_ends_the_view_and_restores_the_terminal() {
    let server = two_at_a_time();
    let screen = top(&server);
    screen.wait_for("REQUESTS 0");
    assert_eq!(screen.value("alternate_on"), "1");
    let pid = screen.process();
    assert!(Command::new("kill").args(["-TERM", &pid]).status().unwrap().success());
    screen.ends_with(0);
    server.finish();
}

/// A process that ends with its owner.
struct Process(Child);

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
#[ignore = "needs tmux; see docs/developer.md"]
fn a_lost_connection_is_shown_and_comes_back() {
    let server = Program::serve(PROGRAM, &["--device", "mock:tiny"]);
    let url = server.control_url().to_owned();
    let screen = Screen::run(PROGRAM, &["top", "--url", &url]);
    screen.wait_for("ready  0 of 1024 requests");
    drop(server);
    let shown = screen.wait_for("CONNECTION LOST, figures are");
    assert!(shown.contains("! cannot reach the control API"), "{shown}");
    let address = url.trim_start_matches("http://");
    let mut again = Command::new(PROGRAM);
    again.args(["serve", "--device", "mock:tiny", "--listen", "127.0.0.1:0"]);
    again.args(["--control-listen", address]).stderr(Stdio::null());
    let again = Process(again.spawn().unwrap());
    screen.wait_for("ready  0 of 1024 requests");
    // The view reconnects to the event stream a second after the figures are back. Each trace is an event.
    let mut operator = Connection::open(address.parse().unwrap());
    let mut traced =
        || operator.request("GET", "/control/v1/trace?seconds=1", &[], b"").status == 200;
    let heard = (0..20).any(|_| traced() && screen.text().contains("trace by"));
    assert!(heard, "{}", screen.text());
    let asked = operator.post("/control/v1/drain", &json!({}));
    assert_eq!(asked.status, 202);
    // An idle server has drained at once, so the window may show only the end of the drain.
    let drains = |text: &str| text.contains("drain by") || text.contains("drained by");
    screen.wait_until("an event of the drain", drains);
    screen.press("q");
    screen.ends_with(0);
    drop(again);
}
