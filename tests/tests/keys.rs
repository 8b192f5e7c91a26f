//! Tests of API keys over HTTP: who is served, and in which tier.
#![allow(clippy::unwrap_used, reason = "tests state what must hold")]

use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;
use tempfile::TempDir;
use tiercel_device::Clock;
use tiercel_tests::{Connection, Response, TestServer};

/// Number of requests after which a change of the keys must show.
const MANY: u32 = 10_000;

/// Returns the lines of a keys file for a key whose secret is its name with `!` behind.
fn entry(name: &str, more: &str) -> String {
    let digits: String =
        Sha256::digest(format!("{name}!")).iter().map(|byte| format!("{byte:02x}")).collect();
    format!("[[key]]\nname = \"{name}\"\nsha256 = \"{digits}\"\n{more}\n")
}

fn start(folder: &TempDir, keys: &[String]) -> TestServer {
    write(folder, keys);
    let file = folder.path().join("keys.toml").to_str().unwrap().to_owned();
    TestServer::mock(|settings| settings.http.keys_file = Some(file))
}

fn write(folder: &TempDir, keys: &[String]) {
    std::fs::write(folder.path().join("keys.toml"), keys.concat()).unwrap();
}

/// Sends a completion request with the key `name`, and returns the response. `asked` holds the fields that ask for a
/// tier.
fn ask(server: &TestServer, route: &str, name: &str, asked: &Value) -> Response {
    let mut body = json!({"max_tokens": 1, "ignore_eos": true});
    match route {
        "/v1/completions" => body["prompt"] = json!("Hello"),
        _ => body["messages"] = json!([{"role": "user", "content": "Hello"}]),
    }
    body.as_object_mut().unwrap().extend(asked.as_object().unwrap().clone());
    let authorization = format!("Bearer {name}!");
    let headers = [("content-type", "application/json"), ("authorization", authorization.as_str())];
    server.connect().request("POST", route, &headers, body.to_string().as_bytes())
}

/// Returns the tier that a request was served in, or the code of its error.
fn outcome(response: &Response) -> String {
    let text = match response.status {
        200 => &response.json()["service_tier"],
        _ => &response.error()["code"],
    };
    text.as_str().unwrap_or("?").to_owned()
}

#[test]
fn each_key_is_served_in_the_tier_that_its_rights_allow() {
    let folder = TempDir::new().unwrap();
    let keys = [
        entry("premium", "highest_tier = \"premium\""),
        entry("quiet", "highest_tier = \"premium\"\ndefault_tier = \"background\""),
        entry("plain", ""),
        entry("strict", "above_highest = \"refuse\""),
        entry("batch", "highest_tier = \"background\""),
        entry("expired", "highest_tier = \"premium\"\nexpires = 2020-01-01"),
    ];
    let server = start(&folder, &keys);
    let asked = [
        json!({"service_tier": "priority"}),
        json!({"service_tier": "default"}),
        json!({"service_tier": "flex"}),
        json!({"service_tier": "auto"}),
        json!({}),
        json!({"priority": -5}),
        json!({"priority": 5}),
    ];
    let none = "invalid_api_key";
    let no = "tier_not_allowed";
    let expected = [
        ("premium", ["priority", "default", "flex", "default", "default", "priority", "flex"]),
        ("quiet", ["priority", "default", "flex", "flex", "flex", "priority", "flex"]),
        ("plain", ["default", "default", "flex", "default", "default", "default", "flex"]),
        ("strict", [no, "default", "flex", "default", "default", no, "flex"]),
        ("batch", ["flex"; 7]),
        ("expired", [none; 7]),
        ("forged", [none; 7]),
    ];
    for route in ["/v1/chat/completions", "/v1/completions"] {
        for (name, outcomes) in expected {
            let served = asked.each_ref().map(|asked| outcome(&ask(&server, route, name, asked)));
            assert_eq!(served, outcomes.map(str::to_owned), "{route} {name}");
        }
    }
    let refused = ask(&server, "/v1/completions", "strict", &asked[0]);
    assert_eq!((refused.status, &refused.error()["param"]), (403, &json!("service_tier")));
    assert_eq!(server.post("/v1/completions", &json!({"prompt": "Hello"})).status, 401, "no key");
    server.finish();
}

#[test]
fn no_route_but_the_probes_answers_without_a_key() {
    let folder = TempDir::new().unwrap();
    let server = start(&folder, &[entry("a", "")]);
    for path in ["/v1/models", "/v1/models/mock-tiny", "/debug/steps"] {
        let get = |key: &str| server.connect().request("GET", path, &[("authorization", key)], b"");
        assert_eq!(
            [get("Bearer b!").status, get("").status, get("Bearer a!").status],
            [401, 401, 200],
            "{path}"
        );
    }
    for path in ["/v1/chat/completions", "/v1/completions", "/tokenize", "/detokenize"] {
        assert_eq!(server.post(path, &json!({})).status, 401, "{path}");
    }
    assert_eq!([server.get("/health").status, server.get("/metrics").status], [200, 200]);
    let metrics = server.get("/metrics").text();
    assert!(!metrics.contains("a!"), "no secret in the metrics");
    server.finish();
}

#[test]
fn keys_are_read_again_under_load() {
    let folder = TempDir::new().unwrap();
    let watcher = "role = \"viewer\"";
    let server = start(&folder, &[entry("stays", watcher), entry("leaves", "")]);
    let mut events = server.control();
    let headers = [("authorization", "Bearer stays!")];
    events.send_request("GET", "/control/v1/events", &headers, b"");
    assert_eq!(events.head().unwrap().status, 200);
    let (done, served) = (AtomicBool::new(false), AtomicU32::new(0));
    let status = |name: &str| ask(&server, "/v1/completions", name, &json!({})).status;
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                while !done.load(Ordering::Relaxed) {
                    assert_eq!(status("stays"), 200);
                    served.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
        assert_eq!([status("leaves"), status("comes")], [200, 401]);
        write(&folder, &[entry("stays", watcher), entry("comes", "")]);
        let hangup = || {
            let pid = std::process::id().to_string();
            assert!(Command::new("kill").args(["-HUP", &pid]).status().unwrap().success());
        };
        hangup();
        // Ends with a failed test if the keys are never read again.
        let until = |name: &str| {
            let read = (0..MANY).any(|_| status(name) == 200);
            done.fetch_or(!read, Ordering::Relaxed);
            assert!(read, "{name}");
        };
        until("comes");
        assert_eq!(status("leaves"), 401);
        std::fs::write(folder.path().join("keys.toml"), "[[key]]\nname = \"stays\"").unwrap();
        hangup();
        let before = served.load(Ordering::Relaxed);
        let more = || status("stays") == 200 && served.load(Ordering::Relaxed) > before + 50;
        assert!((0..MANY).any(|_| more()));
        assert_eq!([status("comes"), status("leaves")], [200, 401], "a wrong file changes nothing");
        write(&folder, &[entry("stays", watcher), entry("later", ""), entry("more", "")]);
        hangup();
        until("later");
        assert_eq!(status("comes"), 401);
        done.store(true, Ordering::Relaxed);
    });
    // Each use of a new file is audited; the wrong file is not.
    let mut audited = || {
        let event = loop {
            let chunk = String::from_utf8(events.chunk().unwrap()).unwrap();
            if let Some(data) = chunk.lines().find_map(|line| line.strip_prefix("data: ")) {
                break serde_json::from_str::<Value>(data).unwrap();
            }
        };
        (event["action"].clone(), event["by"].clone(), event["keys"].clone())
    };
    for keys in [2, 3] {
        assert_eq!(audited(), (json!("keys_read"), json!("[server]"), json!(keys)));
    }
    drop(events);
    server.finish();
}

#[test]
fn a_key_gets_its_rate_of_requests_and_its_headers_say_what_is_left() {
    let folder = TempDir::new().unwrap();
    let keys = [entry("limited", "requests_per_min = 30"), entry("free", "")];
    let server = start(&folder, &keys);
    let answers: Vec<Response> =
        (0..8).map(|_| ask(&server, "/v1/completions", "limited", &json!({}))).collect();
    let served = answers.iter().take_while(|answer| answer.status == 200).count();
    // A sixth of a minute's requests may come at once; one more comes after each 2 s.
    assert!((5..=7).contains(&served), "{served}");
    assert_eq!(answers[0].header("x-ratelimit-limit-requests"), Some("30"));
    assert_eq!(answers[0].header("x-ratelimit-remaining-requests"), Some("4"));
    assert_eq!(answers[0].header("x-ratelimit-limit-tokens"), None);
    let refused = answers.last().unwrap();
    assert_eq!((refused.status, &refused.error()["code"]), (429, &json!("rate_limit_exceeded")));
    assert_eq!(refused.header("x-ratelimit-remaining-requests"), Some("0"));
    let retry_ms: u64 = refused.header("retry-after-ms").unwrap().parse().unwrap();
    assert!((1..=2_000).contains(&retry_ms), "{retry_ms}");
    let free = ask(&server, "/v1/completions", "free", &json!({}));
    assert_eq!((free.status, free.header("x-ratelimit-limit-requests")), (200, None));
    server.finish();
}

#[test]
fn unused_tokens_are_refunded_at_the_end_of_a_request() {
    let folder = TempDir::new().unwrap();
    let server = start(&folder, &[entry("limited", "tokens_per_min = 6000")]);
    // At most 1000 tokens at once. Each request asks for 900 and ends after one token or so.
    let few = json!({"max_tokens": 900, "stop": ["t"]});
    for n in 0..5 {
        let answer = ask(&server, "/v1/completions", "limited", &few);
        assert_eq!(answer.status, 200, "{n}: {}", answer.text());
    }
    let whole = json!({"max_tokens": 900});
    assert_eq!(ask(&server, "/v1/completions", "limited", &whole).status, 200);
    let refused = ask(&server, "/v1/completions", "limited", &whole);
    assert_eq!((refused.status, &refused.error()["code"]), (429, &json!("rate_limit_exceeded")));
    assert!(refused.error()["message"].as_str().unwrap().contains("6000 tokens per minute"));
    server.finish();
}

#[test]
fn a_key_has_no_more_live_choices_than_it_may_have() {
    let folder = TempDir::new().unwrap();
    let server = start(&folder, &[entry("narrow", "max_live = 2"), entry("wide", "")]);
    let alone = ask(&server, "/v1/completions", "narrow", &json!({"n": 3}));
    assert_eq!((alone.status, &alone.error()["param"]), (400, &json!("n")));
    let mut stream = server.connect();
    let headers = [("content-type", "application/json"), ("authorization", "Bearer narrow!")];
    let body =
        json!({"prompt": "Hello", "max_tokens": 400, "stream": true, "ignore_eos": true, "n": 2});
    stream.send_request("POST", "/v1/completions", &headers, body.to_string().as_bytes());
    assert_eq!(stream.head().unwrap().status, 200);
    let refused = ask(&server, "/v1/completions", "narrow", &json!({}));
    assert_eq!((refused.status, &refused.error()["code"]), (429, &json!("rate_limit_exceeded")));
    let long = json!({"prompt": "Hello ".repeat(100_000)});
    let refused = ask(&server, "/v1/completions", "narrow", &long);
    assert_eq!(refused.status, 429, "the key's limits go before the length of the text");
    let chat = json!({"messages": [{"role": "user", "content": "Hello ".repeat(100_000)}]});
    assert_eq!(ask(&server, "/v1/chat/completions", "narrow", &chat).status, 429);
    assert_eq!(ask(&server, "/v1/completions", "wide", &long).status, 400);
    assert_eq!(ask(&server, "/v1/chat/completions", "wide", &chat).status, 400);
    drop(stream);
    server.wait_until_idle();
    let mut served = ask(&server, "/v1/completions", "narrow", &json!({}));
    for _ in 0..MANY {
        // The server notices that a client has gone, and then frees its places.
        if served.status == 200 {
            break;
        }
        served = ask(&server, "/v1/completions", "narrow", &json!({}));
    }
    assert_eq!(served.status, 200);
    server.finish();
}

#[test]
fn one_of_several_tenants_cannot_take_all_places() {
    let folder = TempDir::new().unwrap();
    write(&folder, &[entry("greedy", ""), entry("modest", "")]);
    let file = folder.path().join("keys.toml").to_str().unwrap().to_owned();
    let server = TestServer::slow(|settings| {
        settings.http.keys_file = Some(file);
        settings.engine.admission.max_requests = 16;
    });
    let alone = ask(&server, "/v1/completions", "greedy", &json!({"n": 13}));
    assert_eq!((alone.status, &alone.error()["param"]), (400, &json!("n")), "12 of 16 at most");
    let headers = [("content-type", "application/json"), ("authorization", "Bearer greedy!")];
    let streams: Vec<_> = (0..2)
        .map(|_| {
            let mut stream = server.connect();
            let body = json!({"prompt": "Hi", "max_tokens": 400, "stream": true, "n": 6, "ignore_eos": true});
            stream.send_request("POST", "/v1/completions", &headers, body.to_string().as_bytes());
            stream
        })
        .collect();
    server.wait_for("12 of 16 places taken", |status| status.places == 12);
    let refused = ask(&server, "/v1/completions", "greedy", &json!({}));
    assert_eq!((refused.status, &refused.error()["code"]), (429, &json!("rate_limit_exceeded")));
    assert!(refused.error()["message"].as_str().unwrap().contains("12 that one tenant"));
    assert_eq!(ask(&server, "/v1/completions", "modest", &json!({})).status, 200);
    for (key, status) in [("greedy", 429), ("modest", 200)] {
        assert_eq!(ask(&server, "/tokenize", key, &json!({})).status, status, "{key}");
        let tokens = json!({"tokens": [1]});
        assert_eq!(ask(&server, "/detokenize", key, &tokens).status, status, "{key}");
    }
    drop(streams);
    server.finish();
}

#[test]
fn a_connection_without_a_key_is_closed_after_its_401() {
    let folder = TempDir::new().unwrap();
    let server = start(&folder, &[entry("a", "")]);
    let mut connection = server.connect();
    let refused = connection.request("GET", "/v1/models", &[], b"");
    assert_eq!((refused.status, refused.header("connection")), (401, Some("close")));
    assert_eq!(connection.rest(), b"", "the server closes the connection");
    server.finish();
}

/// Returns the answer to `GET PATH` on the control API with a key.
fn control(server: &TestServer, name: &str, path: &str) -> Response {
    let authorization = format!("Bearer {name}!");
    server.control().request("GET", path, &[("authorization", authorization.as_str())], b"")
}

/// Time for which clients flood the server with requests, us.
const FLOOD_US: u64 = 10_000_000;
/// Rate of requests of the key `rate` in a flood: 5 a second, and 50 at once. The slowest machine that ran the test
/// answers 38 requests a second.
const RATE_PER_MIN: u64 = 300;
/// Most requests by which the served ones of a flood may differ from the allowed ones: one that the bucket holds in
/// part, and one for the time that passes between a client's clock and the server's.
const RATE_TOLERANCE: f64 = 2.0;
/// Pause between two listings of the live requests, and between two requests of a client whose requests are mostly
/// refused.
const PAUSE: Duration = Duration::from_millis(5);

/// What a client that floods the server saw.
#[derive(Default)]
struct Flood {
    served: u64,
    /// Times of the first request, of the last one that was refused, and of the last answer, us.
    first_us: u64,
    last_refused_us: u64,
    end_us: u64,
}

/// Sends requests with a key as fast as the server answers, each after the answer to the one before, until `FLOOD_US`
/// have passed. Every answer must be 200 or a 429 of the key's limits.
fn flood(server: &TestServer, clock: &Clock, name: &str) -> Flood {
    let mut flood = Flood { first_us: clock.now().0, ..Flood::default() };
    let authorization = format!("Bearer {name}!");
    let headers = [("content-type", "application/json"), ("authorization", authorization.as_str())];
    let body = json!({"prompt": "Hi", "max_tokens": 1, "ignore_eos": true}).to_string();
    let mut connection: Connection = server.connect();
    while flood.end_us < flood.first_us + FLOOD_US {
        let sent_us = clock.now().0;
        let answer = connection.request("POST", "/v1/completions", &headers, body.as_bytes());
        flood.end_us = clock.now().0;
        match answer.status {
            200 => flood.served += 1,
            429 => {
                assert_eq!(answer.error()["code"], "rate_limit_exceeded");
                flood.last_refused_us = sent_us;
            }
            other => panic!("{other}: {}", answer.text()),
        }
    }
    flood
}

#[test]
fn a_flood_gets_its_rate_and_one_burst_and_harms_no_other_tenant() {
    let folder = TempDir::new().unwrap();
    let keys = [
        entry("rate", &format!("requests_per_min = {RATE_PER_MIN}")),
        entry("narrow", "max_live = 2\nrequests_per_min = 1000000"),
        entry("modest", ""),
        entry("eye", "role = \"viewer\""),
    ];
    let server = start(&folder, &keys);
    let (clock, done) = (Clock::wall(), AtomicBool::new(false));
    let (floods, most_live, modest) = std::thread::scope(|scope| {
        let rate: Vec<_> = (0..2).map(|_| scope.spawn(|| flood(&server, &clock, "rate"))).collect();
        // Four clients of a key that may have two live requests.
        for _ in 0..4 {
            scope.spawn(|| {
                while !done.load(Ordering::Relaxed) {
                    let body = json!({"max_tokens": 50});
                    let answer = ask(&server, "/v1/completions", "narrow", &body);
                    assert!([200, 429].contains(&answer.status), "{}", answer.text());
                    std::thread::park_timeout(PAUSE);
                }
            });
        }
        let most_live = scope.spawn(|| {
            let mut most = 0;
            while !done.load(Ordering::Relaxed) {
                let listing = control(&server, "eye", "/control/v1/requests?tenant=narrow&limit=1");
                most = most.max(listing.json()["total"].as_u64().unwrap());
                let keys = control(&server, "eye", "/control/v1/keys?tenant=narrow").json();
                most = most.max(keys["keys"][0]["live"].as_u64().unwrap());
                std::thread::park_timeout(PAUSE);
            }
            most
        });
        let modest = scope.spawn(|| {
            let mut served = 0;
            while !done.load(Ordering::Relaxed) {
                let answer = ask(&server, "/v1/completions", "modest", &json!({}));
                assert_eq!(answer.status, 200, "{}", answer.text());
                served += 1;
            }
            served
        });
        let floods: Vec<_> = rate.into_iter().map(|thread| thread.join()).collect();
        // Ends the other clients also if a flood has failed.
        done.store(true, Ordering::Relaxed);
        let floods: Vec<Flood> = floods.into_iter().map(Result::unwrap).collect();
        (floods, most_live.join().unwrap(), modest.join().unwrap())
    });
    let served: u64 = floods.iter().map(|flood| flood.served).sum();
    let time = |of: fn(&Flood) -> u64| floods.iter().map(of);
    let begin_us = time(|flood| flood.first_us).min().unwrap();
    let allowed = |until_us: u64| {
        let rate_per_us = RATE_PER_MIN as f64 / 60e6;
        RATE_PER_MIN as f64 / 6.0 + (until_us - begin_us) as f64 * rate_per_us
    };
    // The flood was served all requests that the rate allowed until the last refusal, and no more than the rate allowed
    // until the last answer.
    let most = allowed(time(|flood| flood.end_us).max().unwrap());
    let last_refused_us = time(|flood| flood.last_refused_us).max().unwrap();
    assert!(last_refused_us > 0, "no request was refused: {served} served, {most} allowed");
    let least = allowed(last_refused_us);
    let of = format!("{served} served, {least} to {most} allowed");
    assert!(
        served as f64 >= least - RATE_TOLERANCE && served as f64 <= most + RATE_TOLERANCE,
        "{of}"
    );
    assert!((1..=2).contains(&most_live), "{most_live} of 2 live requests");
    assert!(modest > 0, "{modest}");
    server.finish();
}
