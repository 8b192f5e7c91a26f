//! What operators' questions take from the engine.

use crate::{background, command, send, wait_for};
use serde_json::json;
use std::collections::BTreeSet;
use tiercel_device::Clock;
use tiercel_tests::{Connection, Program, TestServer};

/// Shortest time between the snapshots that listings share, us.
const SNAPSHOTS_APART_US: u64 = 250_000;

#[test]
fn all_questions_of_operators_share_one_snapshot_for_a_quarter_of_a_second() {
    let server = TestServer::slow(|_| ());
    let streams: Vec<Connection> =
        (0..4).map(|n| send(&server, &format!("r-{n}"), &background(400))).collect();
    wait_for(&server, 4);
    let ask = |method: &str, path: &str| {
        let body = if method == "POST" { "{}" } else { "" };
        let headers = [("content-type", "application/json")];
        let path = format!("/control/v1/{path}");
        let answer = server.control().request(method, &path, &headers, body.as_bytes());
        assert!(answer.status < 300, "{path}: {}", answer.text());
    };
    let taken = || server.engine_snapshot().at.0;
    let (clock, mut snapshots) = (Clock::wall(), BTreeSet::from([taken()]));
    while clock.now().0 < 3 * SNAPSHOTS_APART_US {
        for (method, path) in [
            ("GET", "requests/r-1"),
            ("GET", "snapshot"),
            ("POST", "recording"),
            ("POST", "recording/stop"),
            ("GET", "requests"),
        ] {
            ask(method, path);
            snapshots.insert(taken());
        }
    }
    ask("GET", "trace?seconds=1");
    snapshots.insert(taken());
    let snapshots: Vec<u64> = snapshots.into_iter().collect();
    assert!(snapshots.len() >= 2, "listings are made anew");
    for pair in snapshots.windows(2) {
        assert!(pair[1] - pair[0] >= SNAPSHOTS_APART_US, "{snapshots:?}");
    }
    drop(streams);
    server.finish();
}

#[test]
fn a_request_that_is_shown_is_as_it_is_now() {
    let server = TestServer::slow(|_| ());
    let streams: Vec<Connection> =
        ["same", "same"].iter().map(|id| send(&server, id, &background(400))).collect();
    wait_for(&server, 2);
    let shown = || server.control().request("GET", "/control/v1/requests/same", &[], b"").json();
    assert_eq!((&shown()["total"], shown()["requests"].as_array().unwrap().len()), (&json!(2), 2));
    let seq = shown()["requests"][1]["seq"].to_string();
    for tier in ["premium", "standard", "background", "premium"] {
        assert_eq!(command(&server, &seq, "reprioritize", &json!({"tier": tier})).status, 200);
        assert_eq!(shown()["requests"][1]["tier"], tier);
    }
    drop(streams);
    server.finish();
}

#[test]
#[cfg(target_os = "linux")]
fn the_thread_that_answers_operators_gives_way() {
    let server = Program::serve(env!("CARGO_BIN_EXE_tiercel-program"), &["--device", "mock:tiny"]);
    assert!(server.ctl(&["status"]).status.success());
    let nice = |thread: &std::path::Path| -> i32 {
        let stat = std::fs::read_to_string(thread.join("stat")).unwrap();
        // The name of the thread, which may have spaces, ends with the last bracket; the nice value is the 17th field
        // after.
        stat.rsplit_once(')').unwrap().1.split_whitespace().nth(16).unwrap().parse().unwrap()
    };
    let process = format!("/proc/{}", server.id());
    let own = nice(std::path::Path::new(&process));
    let threads = std::fs::read_dir(format!("{process}/task")).unwrap();
    let below = threads.filter(|thread| nice(&thread.as_ref().unwrap().path()) > own).count();
    assert_eq!(below, 1, "one thread answers operators");
}
