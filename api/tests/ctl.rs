//! Tests of `tiercel ctl`, by its text and by its JSON.
#![allow(clippy::unwrap_used, reason = "tests state what must hold")]

use serde_json::Value;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::process::{Command, Output, Stdio};
use tiercel::boot::{Running, start};
use tiercel_config::{DeviceKind, ServerSettings};

const PROFILE: &str = "name = \"slow\"\nstep_base_us = 50000.0\ndecode_token_us = 1.0\nprefill_token_us = 1.0\n\
    kv_token_us = 0.0\nprefill_context_us = 0.0\nprefill_step_us = 0.0\nlink_bytes_per_s = 1e9\n\
    kv_bytes_per_token = 4000\nblock_size = 16\ndevice_blocks = 256\nhost_blocks = 64\nvocab_size = 1000\n\
    max_model_len = 2048\nmax_steps_in_flight = 1\n";

/// Starts a server whose steps take 50 ms, and that runs one request at a time.
fn server() -> Running {
    let mut file = tempfile::Builder::new().suffix(".toml").tempfile().unwrap();
    file.write_all(PROFILE.as_bytes()).unwrap();
    let mut settings = ServerSettings::default();
    settings.device.kind = DeviceKind::Mock(file.path().to_str().unwrap().to_owned());
    settings.http.listen = "127.0.0.1:0".into();
    settings.http.control_listen = "127.0.0.1:0".into();
    settings.engine.scheduler.max_num_seqs = 1;
    start(settings).unwrap().ready().unwrap()
}

/// Sends a streamed background request with the request id `id`, and does not read its answer.
fn send(address: SocketAddr, id: &str) -> TcpStream {
    let body = r#"{"prompt": "Hello", "max_tokens": 900, "ignore_eos": true, "stream": true, "service_tier": "flex"}"#;
    let mut socket = TcpStream::connect(address).unwrap();
    write!(
        socket,
        "POST /v1/completions HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n\
         x-request-id: {id}\r\nconnection: close\r\ncontent-length: {}\r\n\r\n{body}",
        body.len()
    )
    .unwrap();
    socket
}

fn command(server: &Running, args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tiercel"));
    let url = format!("http://{}", server.control_address().unwrap());
    command.arg("ctl").args(args).args(["--url", &url]).env_remove("TIERCEL_API_KEY");
    command
}

fn ctl(server: &Running, args: &[&str]) -> Output {
    command(server, args).output().unwrap()
}

/// Runs a command that must succeed, and returns the lines that it prints.
fn lines(server: &Running, args: &[&str]) -> Vec<String> {
    let output = ctl(server, args);
    assert!(output.status.success(), "{args:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap().lines().map(str::to_owned).collect()
}

/// Runs a command that must fail, and returns the line that it prints on stderr.
fn failure(server: &Running, args: &[&str]) -> String {
    let output = ctl(server, args);
    assert_eq!(output.status.code(), Some(1), "{args:?}");
    let text = String::from_utf8(output.stderr).unwrap();
    assert_eq!(text.lines().count(), 1, "{text}");
    text
}

#[test]
fn operators_see_and_change_requests() {
    let server = server();
    let streams = ["first", "second"].map(|id| send(server.address(), id));
    let json =
        |args: &[&str]| -> Value { serde_json::from_str(&lines(&server, args).join("")).unwrap() };
    while json(&["--json", "requests"])["total"] != 2 {}
    let table = lines(&server, &["requests"]);
    assert_eq!(table.len(), 4, "{table:?}");
    assert!(table[0].contains("SEQ") && table[0].contains("REQUEST ID"), "{}", table[0]);
    let waits = table.iter().find(|line| line.contains("waiting")).unwrap();
    let id = waits.split_whitespace().last().unwrap().to_owned();
    assert!(waits.contains("background") && waits.contains("cmpl-"), "{waits}");
    assert_eq!(table[3], "2 requests");

    let mut listener = command(&server, &["events"]).stdout(Stdio::piped()).spawn().unwrap();
    let mut events = BufReader::new(listener.stdout.take().unwrap()).lines();
    // The listener may connect after a change; so pause and resume until it has heard of one.
    let heard = std::thread::spawn(move || events.next().unwrap().unwrap());
    while !heard.is_finished() {
        lines(&server, &["pause", &id]);
        lines(&server, &["resume", &id]);
    }
    let heard = heard.join().unwrap();
    assert!(heard.contains("pause by [local]") || heard.contains("resume by [local]"), "{heard}");
    listener.kill().unwrap();
    listener.wait().unwrap();

    let raised = lines(&server, &["reprioritize", &id, "premium", "--priority", "-2"]);
    assert!(raised[0].contains("background priority 0"), "{raised:?}");
    assert!(raised[0].contains("-> premium priority -2"), "{raised:?}");
    let shown = json(&["--json", "show", &id]);
    assert_eq!(
        (&shown["requests"][0]["tier"], &shown["requests"][0]["priority"]),
        (&"premium".into(), &(-2).into())
    );
    let moments = lines(&server, &["show", &id]);
    for shown in ["queued, background", "paused by an operator", "moved from background to premium"]
    {
        assert!(moments.iter().any(|line| line.contains(shown)), "{shown}: {moments:?}");
    }
    assert!(lines(&server, &["cancel", &id])[0].contains("ended"));
    assert!(
        failure(&server, &["show", "nobody"]).contains("no live request has the id \"nobody\"")
    );
    assert!(
        failure(&server, &["requests", "--state", "asleep"]).contains("must be one of waiting")
    );
    assert!(lines(&server, &["status"])[0].starts_with("ready: "));

    let set = lines(&server, &["policy", "set", "patience.standard_s=60", "scheduler.policy=fcfs"]);
    assert!(set.contains(&"patience.standard_s: 600.0 -> 60.0".to_owned()), "{set:?}");
    assert!(set.contains(&"scheduler.order: tier -> arrival".to_owned()), "{set:?}");
    let shown = lines(&server, &["policy", "get"]);
    assert!(shown.iter().any(|line| line.contains("patience.standard_s") && line.contains("60.0")));
    assert!(
        failure(&server, &["policy", "set", "patience.standrad_s=60"]).contains("did you mean")
    );

    assert_eq!(lines(&server, &["keys"]), ["0 keys"]);
    assert_eq!(json(&["--json", "keys"])["total"], 0);
    let set = lines(&server, &["policy", "set", "slo.premium.ttft_ms=150"]);
    assert_eq!(set[0], "slo.premium.ttft_ms: auto -> 150.0");

    let folder = tempfile::TempDir::new().unwrap();
    let file = folder.path().join("ticket.json");
    assert!(lines(&server, &["snapshot", file.to_str().unwrap()]).is_empty());
    let document: Value = serde_json::from_str(&std::fs::read_to_string(file).unwrap()).unwrap();
    assert_eq!(document["settings"]["scheduler"]["order"], "arrival");
    let printed = || lines(&server, &["snapshot"]).join("\n");
    while serde_json::from_str::<Value>(&printed()).unwrap()["total"] != 1 {}

    let drained = lines(&server, &["drain", "--deadline-s", "2"]);
    assert!(drained[0].starts_with("draining: "), "{drained:?}");
    assert!(drained[1].starts_with("1 requests left, deadline in "), "{drained:?}");
    let ends = "0 requests finished, 1 ended at the deadline, 0 ended otherwise";
    assert_eq!(drained[drained.len() - 2..], [ends, "the server has stopped"]);
    for mut stream in streams {
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        assert!(answer.contains("\"drained\"") || answer.contains("\"cancelled\""), "{answer}");
    }
    // The control listener closes a moment after the event stream ends. Until then, requests fail with another error.
    let closed = (0..200).any(|_| failure(&server, &["requests"]).contains("--url"));
    assert!(closed, "the control listener is open after the end of a drain");
    server.stop().unwrap();
}

#[test]
fn scripts_read_the_answers_of_the_commands_as_json() {
    let server = server();
    let streams = ["first", "second"].map(|id| send(server.address(), id));
    let json = |args: &[&str]| -> Value {
        let printed = lines(&server, &[&["--json"], args].concat());
        assert_eq!(printed.len(), 1, "{args:?}: {printed:?}");
        serde_json::from_str(&printed[0]).unwrap()
    };
    while json(&["requests"])["total"] != 2 {}
    let mut listener =
        command(&server, &["--json", "events"]).stdout(Stdio::piped()).spawn().unwrap();
    let mut heard = BufReader::new(listener.stdout.take().unwrap()).lines();
    let first = std::thread::spawn(move || (heard.next().unwrap().unwrap(), heard));
    let change = |args: &[&str]| {
        let answer = json(args);
        assert!(answer["id"].as_str().unwrap().starts_with("cmpl-"), "{answer}");
        let [change] = answer["changes"].as_array().unwrap().as_slice() else { panic!("{answer}") };
        assert!(change["step"].is_u64() && change["before"]["request_id"] == "second", "{answer}");
        change.clone()
    };
    // The listener may connect after a change; so pause and resume until it has heard of one.
    while !first.is_finished() {
        let paused = change(&["pause", "second"]);
        assert_eq!(
            (&paused["before"]["paused"], &paused["after"]["paused"]),
            (&false.into(), &true.into())
        );
        let resumed = change(&["resume", "second"]);
        assert_eq!(
            (&resumed["before"]["paused"], &resumed["after"]["paused"]),
            (&true.into(), &false.into())
        );
    }
    let (first, heard) = first.join().unwrap();
    let raised = change(&["reprioritize", "second", "standard"]);
    assert_eq!(
        (&raised["before"]["tier"], &raised["after"]["tier"]),
        (&"background".into(), &"standard".into())
    );

    let policy = json(&["policy", "get"]);
    let field = |name: &str| {
        let fields = policy["changeable"].as_array().unwrap().iter();
        fields
            .clone()
            .find(|field| field["name"] == name)
            .unwrap_or_else(|| panic!("{name}"))
            .clone()
    };
    assert_eq!(policy["settings"]["patience"]["standard_s"], 600.0);
    let patience = field("patience.standard_s");
    assert_eq!((&patience["value"], &patience["at_most"]), (&600.0.into(), &Value::Null));
    assert_eq!(field("scheduler.max_num_seqs")["at_most"], 1);
    let set = json(&["policy", "set", "patience.standard_s=60"]);
    let expected: Value =
        serde_json::from_str(r#"{"patience.standard_s": {"before": 600.0, "after": 60.0}}"#)
            .unwrap();
    assert_eq!(set["changed"], expected);
    assert!(
        failure(&server, &["--json", "policy", "set", "scheduler.max_num_seqs=2"])
            .contains("max_num_seqs")
    );
    assert!(change(&["cancel", "second"])["after"].is_null());

    let drained = lines(&server, &["--json", "drain", "--deadline-s", "1"]);
    let drained: Vec<Value> =
        drained.iter().map(|line| serde_json::from_str(line).unwrap()).collect();
    let [begun, .., end, stopped] = drained.as_slice() else { panic!("{drained:?}") };
    assert_eq!((&begun["requests"], &begun["deadline_ms"]), (&1.into(), &1_000.into()));
    assert_eq!(
        (&end["action"], &end["ended"], &stopped["stopped"]),
        (&"drained".into(), &1.into(), &true.into())
    );

    // The event stream ends with the server, and has told of every change in order.
    let heard: Vec<Value> = std::iter::once(first)
        .chain(heard.map_while(Result::ok))
        .map(|line| serde_json::from_str(&line).unwrap())
        .collect();
    assert!(listener.wait().unwrap().success());
    let mut actions: Vec<&str> =
        heard.iter().map(|event| event["action"].as_str().unwrap()).collect();
    actions.retain(|action| !["pause", "resume", "draining"].contains(action));
    assert_eq!(actions, ["reprioritize", "policy", "cancel", "drain", "drained"]);
    assert!(heard.windows(2).all(|pair| pair[0]["number"].as_u64() < pair[1]["number"].as_u64()));
    assert!(
        heard
            .iter()
            .filter(|event| event["action"] != "draining" && event["action"] != "drained")
            .all(|event| event["by"] == "[local]")
    );
    drop(streams);
    server.stop().unwrap();
}

#[test]
fn a_recording_is_written_and_replayed_under_another_policy() {
    let server = server();
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("traffic.jsonl");
    let path = file.to_str().unwrap();
    assert_eq!(lines(&server, &["record", "status"]), ["no recording"]);
    assert!(failure(&server, &["record", "stop", path]).contains("no recording"));
    assert!(!file.exists());
    let started = lines(&server, &["record", "start", "--minutes", "2"]).join("");
    assert!(
        started.starts_with("recording: 0 sequences") && started.contains("120 s"),
        "{started}"
    );
    assert!(failure(&server, &["record", "start"]).contains("stop it first"));
    let streams = ["first", "second"].map(|id| send(server.address(), id));
    let running = || lines(&server, &["record", "status"]).join("");
    while !running().starts_with("recording: 2 sequences (2 live)") {}
    drop(streams);
    while !running().starts_with("recording: 2 sequences (0 live)") {}
    let stopped = lines(&server, &["record", "stop", path]).join("");
    assert!(stopped.starts_with("recorded: 2 sequences (0 live)"), "{stopped}");
    let arguments = ["what-if", "--policy", "fcfs", "--recording", path];
    let table = lines(&server, &arguments).join("\n");
    for part in ["measured", "tiercel (in force)", "fcfs", "background", "note: only"] {
        assert!(table.contains(part), "{part}: {table}");
    }
    let report = lines(&server, &[&["--json"][..], &arguments].concat()).join("");
    let report: Value = serde_json::from_str(&report).unwrap();
    assert_eq!(report["measured"]["total"]["left"], 2, "{report}");
    assert_eq!(report["replays"][1]["policy"], "fcfs");
    for (arguments, says) in [
        (&["what-if", "--policy", "x", "--recording", path][..], "no policy x"),
        (&["what-if", "--policy", "fcfs", "--recording", "/missing"], "/missing"),
        // Mistakes are found before the recording.
        (&["what-if", "--policy", "x"], "no policy x"),
        (&["what-if", "--policy", "fcfs", "--set", "scheduler.max_num_seqs=300"], "batched_tokens"),
    ] {
        let refused = ctl(&server, arguments);
        let text = String::from_utf8(refused.stderr).unwrap();
        assert_eq!((refused.status.code(), text.lines().count()), (Some(2), 1), "{text}");
        assert!(text.contains(says), "{text}");
    }
    server.stop().unwrap();
}

/// Runs what-if with a folder for temporary files until `done` is true for the folder, and ends what-if with a signal.
/// Checks that no file and no process of what-if stays.
fn interrupt(server: &Running, args: &[&str], signal: &str, done: impl Fn(&Path) -> bool) {
    let temporary = tempfile::tempdir().unwrap();
    let mut running = command(server, args);
    let mut running =
        running.env("TMPDIR", temporary.path()).stdout(Stdio::null()).spawn().unwrap();
    while !done(temporary.path()) {
        assert!(running.try_wait().unwrap().is_none(), "it ended by itself");
    }
    let pid = running.id().to_string();
    assert!(Command::new("kill").args([signal, &pid]).status().unwrap().success());
    let code = if signal == "-TERM" { 143 } else { 130 };
    assert_eq!(running.wait().unwrap().code(), Some(code), "{args:?}");
    let left: Vec<_> = std::fs::read_dir(temporary.path()).unwrap().collect();
    assert!(left.is_empty(), "{left:?}");
    // The simulation ends a moment after the command.
    let marker = temporary.path().to_str().unwrap();
    assert!((0..2_000).any(|_| processes_with(marker) == 0), "a simulation is left");
}

/// Returns the number of processes whose initial environment contains `text`.
fn processes_with(text: &str) -> usize {
    let environments = std::fs::read_dir("/proc").unwrap().flatten();
    let environments = environments.filter_map(|of| std::fs::read(of.path().join("environ")).ok());
    environments.filter(|of| String::from_utf8_lossy(of).contains(text)).count()
}

#[test]
fn a_signal_leaves_nothing_of_what_if() {
    let server = server();
    let folder = tempfile::tempdir().unwrap();
    let kept = folder.path().join("kept.jsonl");
    let record =
        ["what-if", "--policy", "fcfs", "--minutes", "5", "--keep", kept.to_str().unwrap()];
    interrupt(&server, &record, "-INT", |_| {
        lines(&server, &["record", "status"]).join("").starts_with("recording:")
    });
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0, "part of a recording is left");
    // The simulation waits for text from a pipe, to which no process writes.
    let pipe = folder.path().join("pipe");
    assert!(Command::new("mkfifo").arg(&pipe).status().unwrap().success());
    let replay = ["what-if", "--policy", "fcfs", "--recording", pipe.to_str().unwrap()];
    interrupt(&server, &replay, "-TERM", |temporary| {
        processes_with(temporary.to_str().unwrap()) == 2
    });
    server.stop().unwrap();
}

#[test]
fn what_if_records_for_itself_and_keeps_the_recording() {
    let server = server();
    let folder = tempfile::tempdir().unwrap();
    let kept = folder.path().join("kept.jsonl");
    let stream = send(server.address(), "first");
    let arguments = ["what-if", "--policy", "fcfs", "--max-sequences", "2", "--keep"];
    let mut running = command(&server, &[&arguments[..], &[kept.to_str().unwrap()]].concat());
    let running = running.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    // The recording ends at its limit, when the third request arrives.
    while !lines(&server, &["record", "status"]).join("").starts_with("recording:") {}
    let more = ["second", "third", "fourth"].map(|id| send(server.address(), id));
    let output = running.wait_with_output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let table = String::from_utf8(output.stdout).unwrap();
    assert!(table.contains("note: the recording ended at its limit (sequences)"), "{table}");
    assert!(std::fs::read_to_string(&kept).unwrap().starts_with("{\"tiercel_recording\":1,"));
    drop((stream, more));
    server.stop().unwrap();
}
