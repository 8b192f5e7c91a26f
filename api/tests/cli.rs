//! Tests of the `tiercel` binary's command line: help, exit codes, error lines, signals.
#![allow(clippy::unwrap_used, reason = "tests state what must hold")]

mod command;

use command::{failure, run, tiercel};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Child, ChildStderr, Command, Stdio};

const WORKLOAD: &str = "
name = \"smoke\"
seed = 1
duration_s = 1

[[class]]
tier = \"premium\"
arrival = { closed = { streams = 2 } }
prompt_tokens = { fixed = 16 }
output_tokens = { fixed = 8 }
ignore_eos = true
";

#[test]
fn top_without_a_terminal_says_so_on_one_line() {
    let (code, line) = failure(&["top"]);
    assert_eq!(code, 2, "{line}");
    assert!(line.contains("draws on a terminal") && line.contains("tiercel ctl status"), "{line}");
}

#[test]
fn help_teaches_with_examples() {
    let help = |args: &[&str]| {
        let output = run(args);
        assert!(output.status.success());
        String::from_utf8(output.stdout).unwrap()
    };
    let all = help(&["--help"]);
    for word in ["serve", "pull", "bench", "simulate", "Examples:"] {
        assert!(all.contains(word), "no {word}: {all}");
    }
    let serve = help(&["serve", "--help"]);
    for flag in [
        "--model",
        "--device",
        "--listen",
        "--config",
        "--policy",
        "--weights",
        "--kv-type",
        "--kv-cache-mib",
        "--host-kv-mib",
        "--block-size",
        "--max-num-seqs",
        "--max-num-batched-tokens",
        "--max-model-len",
        "--preemption-mode",
        "--threads",
        "--set",
        "curl -N",
    ] {
        assert!(serve.contains(flag), "no {flag}: {serve}");
    }
    assert!(help(&["bench", "--help"]).contains("--workload"));
    assert!(help(&["pull", "--help"]).contains("hf:ORG/NAME"));
    assert!(help(&["--version"]).starts_with("tiercel "));
}

#[test]
fn bad_usage_exits_with_2() {
    for args in [
        &[][..],
        &["fly"],
        &["serve", "--no-such-flag"],
        &["serve", "--policy", "lifo"],
        &["serve", "--weights", "q3"],
        &["bench", "--url", "http://127.0.0.1:1"],
    ] {
        let output = run(args);
        assert_eq!(output.status.code(), Some(2), "{args:?}");
        assert!(!output.stderr.is_empty(), "{args:?}");
    }
    let (code, line) = failure(&["serve", "--max-num-seqs", "0"]);
    assert_eq!(code, 2);
    assert!(line.contains("--max-num-seqs") && line.contains("1 to 4096"), "{line}");
    let (code, line) = failure(&["serve", "--set", "scheduler.polcy=fcfs"]);
    assert_eq!(code, 2);
    assert!(line.contains("did you mean scheduler.policy?"), "{line}");
    let (code, line) = failure(&["serve", "--device", "gpu"]);
    assert_eq!(
        (code, line.contains("auto, cpu, cuda, cuda:N or mock:PROFILE")),
        (2, true),
        "{line}"
    );
}

#[test]
fn a_bad_settings_file_is_named_with_its_line() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("t.toml");
    std::fs::write(&path, "[http]\nlisten = \"127.0.0.1:0\"\nlissten = 1\n").unwrap();
    let (code, line) = failure(&["serve", "--config", path.to_str().unwrap()]);
    assert_eq!(code, 2);
    assert!(
        line.contains("t.toml:3: unknown setting http.lissten; did you mean http.listen?"),
        "{line}"
    );
    let (code, line) = failure(&["serve", "--config", "/nowhere/t.toml"]);
    assert_eq!((code, line.contains("/nowhere/t.toml")), (2, true), "{line}");
}

#[test]
fn a_bad_variable_is_named() {
    let output = tiercel(&["serve"]).env("TIERCEL_KV_TYPE", "f8").output().unwrap();
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(2));
    assert!(stderr.contains("TIERCEL_KV_TYPE: kv.type = \"f8\""), "{stderr}");
}

#[test]
fn the_log_of_a_server_warns_of_variables_that_are_no_settings_and_of_old_names() {
    let mut serve =
        tiercel(&["serve", "--listen", "127.0.0.1:0", "--model", "/nowhere/model.gguf"]);
    serve.args(["--set", "http.head_wait_ms=1000"]);
    let output = serve.env("TIERCEL_KV_TIPE", "f16").output().unwrap();
    let stderr = String::from_utf8(output.stderr).unwrap();
    let warned = |of: &str| stderr.lines().any(|line| line.contains("WARN") && line.contains(of));
    assert!(warned("TIERCEL_KV_TIPE"), "{stderr}");
    assert!(warned("http.head_wait_ms is now called"), "{stderr}");
}

#[test]
fn a_bad_log_filter_is_told_in_one_line() {
    let mut pull = tiercel(&["pull", "/nowhere/model.gguf"]);
    let output = pull.env("TIERCEL_LOG", "info,=,nonsense=loud").output().unwrap();
    let stderr = String::from_utf8(output.stderr).unwrap();
    let told = stderr.lines().filter(|line| line.contains("TIERCEL_LOG")).count();
    assert_eq!((told, stderr.lines().count()), (1, 2), "{stderr}");
}

#[test]
fn what_cannot_be_served_is_one_line_and_exit_1() {
    let any_port = ["--listen", "127.0.0.1:0"];
    let serve = |args: &[&str]| failure(&[&["serve"], &any_port[..], args].concat());
    let (code, line) = serve(&["--model", "/nowhere/model.gguf"]);
    assert_eq!((code, line.contains("/nowhere/model.gguf")), (1, true), "{line}");
    let (code, line) = serve(&["--device", "mock:abacus"]);
    assert_eq!((code, line.contains("tiny")), (1, true), "{line}");
    let (code, line) = serve(&["--device", "mock:tiny", "--model", "m.gguf"]);
    assert_eq!((code, line.contains("--model")), (1, true), "{line}");
    let (code, line) = serve(&["--device", "mock:tiny", "--block-size", "32"]);
    assert_eq!((code, line.contains("--block-size 32")), (1, true), "{line}");
    let (code, line) = failure(&["pull", "/nowhere/model.gguf"]);
    assert_eq!((code, line.contains("/nowhere/model.gguf")), (1, true), "{line}");
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("not.gguf");
    std::fs::write(&file, b"GGUF but not really").unwrap();
    let (code, line) = serve(&["--model", file.to_str().unwrap()]);
    assert_eq!((code, line.contains("not.gguf")), (1, true), "{line}");
}

#[test]
fn a_port_in_use_fails_before_anything_is_loaded() {
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    let (code, line) = failure(&["serve", "--device", "mock:tiny", "--listen", &address]);
    assert_eq!(code, 1);
    assert!(line.contains(&address) && line.contains("--listen"), "{line}");
    let (code, line) = failure(&["serve", "--device", "mock:tiny", "--listen", "nonsense"]);
    assert_eq!((code, line.contains("did you mean nonsense:8080?")), (2, true), "{line}");
}

/// Test process `tiercel serve` with a mock device, its log and its address.
struct Served {
    process: Child,
    log: BufReader<ChildStderr>,
    address: SocketAddr,
}

fn signal(process: &Child, name: &str) {
    // Send the signal through the shell, which has `kill` built in; not every machine has a program named `kill`.
    let kill = format!("kill -{name} {}", process.id());
    assert!(Command::new("sh").args(["-c", &kill]).status().unwrap().success());
}

impl Served {
    fn start(args: &[&str]) -> Served {
        let all = [&["serve", "--device", "mock:tiny", "--listen", "127.0.0.1:0"], args].concat();
        let mut process = tiercel(&all).stderr(Stdio::piped()).spawn().unwrap();
        let mut log = BufReader::new(process.stderr.take().unwrap());
        let mut text = String::new();
        while !text.contains(" ready") {
            let mut line = String::new();
            assert!(log.read_line(&mut line).unwrap() > 0, "it ended: {text}");
            text += &line;
        }
        assert!(!text.contains('\u{1b}'), "no colours into a pipe: {text}");
        let address = text.split("address=").nth(1).unwrap();
        let address = address.split_whitespace().next().unwrap().parse().unwrap();
        Served { process, log, address }
    }

    /// Sends a streamed completion request and reads the response until its first token has arrived.
    fn stream(&self, max_tokens: u32) -> TcpStream {
        let body = format!(
            "{{\"prompt\":\"x\",\"stream\":true,\"ignore_eos\":true,\"max_tokens\":{max_tokens}}}"
        );
        let mut socket = TcpStream::connect(self.address).unwrap();
        write!(
            socket,
            "POST /v1/completions HTTP/1.1\r\nhost: t\r\nconnection: close\r\n\
             content-type: application/json\r\ncontent-length: {}\r\n\r\n{body}",
            body.len()
        )
        .unwrap();
        let mut seen = Vec::new();
        while !String::from_utf8_lossy(&seen).contains("data: {") {
            let mut piece = [0; 1024];
            let bytes = socket.read(&mut piece).unwrap();
            assert!(bytes > 0, "{}", String::from_utf8_lossy(&seen));
            seen.extend_from_slice(&piece[..bytes]);
        }
        socket
    }

    fn signal(&self, name: &str) {
        signal(&self.process, name);
    }

    fn read_log_until(&mut self, mark: &str) {
        let mut line = String::new();
        while !line.contains(mark) {
            line.clear();
            assert!(self.log.read_line(&mut line).unwrap() > 0, "no {mark} in the log");
        }
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        // Kill the server process in case the test failed; otherwise it has already ended.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

#[test]
fn sigterm_and_ctrl_c_let_streams_finish_and_exit_0() {
    for signal in ["TERM", "INT"] {
        let mut served = Served::start(&[]);
        let mut stream = served.stream(300);
        served.signal(signal);
        let mut rest = String::new();
        stream.read_to_string(&mut rest).unwrap();
        assert!(rest.contains("data: [DONE]"), "{signal}: {rest}");
        assert_eq!(served.process.wait().unwrap().code(), Some(0), "{signal}");
    }
}

#[test]
fn a_signal_while_fetching_ends_pip_and_leaves_nothing() {
    for (args, code) in [(&["serve", "--listen", "127.0.0.1:0"][..], 0), (&["pull"], 1)] {
        let dir = tempfile::tempdir().unwrap();
        let (python, cache, pid) =
            (dir.path().join("python3"), dir.path().join("cache"), dir.path().join("pid"));
        // Fake Python interpreter whose download never ends. Once the download has begun, the script writes its process
        // id to a file.
        let script = format!(
            "#!/bin/sh\nwhile [ \"$1\" != --dest ]; do shift; done\n\
             echo half > \"$2/half\"; echo $$ > {0}.new; mv {0}.new {0}; exec sleep 600\n",
            pid.display()
        );
        std::fs::write(&python, script).unwrap();
        std::fs::set_permissions(&python, std::fs::Permissions::from_mode(0o755)).unwrap();
        let path = format!("{}:{}", dir.path().display(), std::env::var("PATH").unwrap());
        let mut process = tiercel(args)
            .env("PATH", path)
            .env("TIERCEL_CACHE_DIR", &cache)
            .stderr(Stdio::null())
            .stdout(Stdio::null())
            .spawn()
            .unwrap();
        while !pid.exists() {
            assert_eq!(process.try_wait().unwrap(), None, "{args:?}: it ended");
            std::thread::yield_now();
        }
        signal(&process, "TERM");
        assert_eq!(process.wait().unwrap().code(), Some(code), "{args:?}");
        let pid = std::fs::read_to_string(&pid).unwrap();
        assert!(!Path::new("/proc").join(pid.trim()).exists(), "{args:?}: pip is gone");
        let kept: Vec<_> = std::fs::read_dir(cache.join("models"))
            .unwrap()
            .map(|entry| entry.unwrap().file_name())
            .filter(|name| name != ".lock")
            .collect();
        assert!(kept.is_empty(), "{args:?}: {kept:?}");
    }
}

#[test]
fn what_is_no_http_does_not_fill_the_log() {
    let mut served = Served::start(&[]);
    for _ in 0..50 {
        let mut socket = TcpStream::connect(served.address).unwrap();
        socket.write_all(b"\x16\x03\x01 nonsense\r\n\r\n").unwrap();
        // Wait until the server has answered the malformed request or reset the connection; either is accepted.
        let _ = socket.read_to_end(&mut Vec::new());
    }
    served.signal("TERM");
    let mut log = String::new();
    served.log.read_to_string(&mut log).unwrap();
    assert!(log.contains("shutting down") && log.lines().count() < 15, "{log}");
}

#[test]
fn a_second_signal_exits_at_once() {
    let mut served = Served::start(&[]);
    let _streams: Vec<TcpStream> = (0..8).map(|_| served.stream(2000)).collect();
    served.signal("TERM");
    served.read_log_until("shutting down");
    served.signal("TERM");
    assert_eq!(served.process.wait().unwrap().code(), Some(130));
}

#[test]
fn bench_writes_a_report() {
    let served = Served::start(&[]);
    let dir = tempfile::tempdir().unwrap();
    let (workload, report) = (dir.path().join("w.toml"), dir.path().join("r.json"));
    std::fs::write(&workload, WORKLOAD).unwrap();
    let url = format!("http://{}", served.address);
    let paths = [workload.to_str().unwrap(), report.to_str().unwrap()];
    let output = run(&["bench", "--url", &url, "--workload", paths[0], "--json", paths[1]]);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    assert!(String::from_utf8_lossy(&output.stdout).contains("premium"));
    let json: serde_json::Value = serde_json::from_slice(&std::fs::read(&report).unwrap()).unwrap();
    assert!(json["total"]["completed"].as_u64().unwrap() > 0, "{json}");
    let unreachable =
        ["bench", "--url", "http://127.0.0.1:1", "--workload", paths[0], "--json", paths[1]];
    assert_eq!(failure(&unreachable).0, 1);
    let kept: serde_json::Value = serde_json::from_slice(&std::fs::read(&report).unwrap()).unwrap();
    assert_eq!(kept, json, "a run that never began leaves the report before it alone");
    assert_eq!(std::fs::read_dir(&dir).unwrap().count(), 2, "and nothing else");
    let nowhere = ["bench", "--url", &url, "--workload", paths[0], "--json", "/nowhere/r.json"];
    assert!(failure(&nowhere).1.contains("/nowhere/r.json"));
}

#[test]
fn bench_writes_a_row_for_each_request() {
    let served = Served::start(&[]);
    let dir = tempfile::tempdir().unwrap();
    let [workload, report, rows] =
        ["w.toml", "r.json", "rows.csv"].map(|name| dir.path().join(name));
    std::fs::write(&workload, WORKLOAD).unwrap();
    let url = format!("http://{}", served.address);
    let [workload, report_to, rows_to] =
        [&workload, &report, &rows].map(|path| path.to_str().unwrap());
    let bench = ["bench", "--url", &url, "--workload", workload];
    let output = run(&[&bench[..], &["--json", report_to, "--requests", rows_to]].concat());
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let json: serde_json::Value = serde_json::from_slice(&std::fs::read(&report).unwrap()).unwrap();
    let text = std::fs::read_to_string(&rows).unwrap();
    let mut lines = text.lines();
    assert!(lines.next().unwrap().starts_with("tier,due_s,in_window,outcome,"), "{text}");
    let counted = lines.filter(|line| line.contains(",true,completed,")).count() as u64;
    assert_eq!(Some(counted), json["total"]["completed"].as_u64(), "{text}");
    let nowhere = [&bench[..], &["--requests", "/nowhere/rows.csv"]].concat();
    assert!(failure(&nowhere).1.contains("/nowhere/rows.csv"));
}

#[test]
fn a_bench_without_one_success_fails_and_still_reports() {
    let served = Served::start(&["--set", "http.api_keys=secret"]);
    let dir = tempfile::tempdir().unwrap();
    let (workload, report) = (dir.path().join("w.toml"), dir.path().join("r.json"));
    std::fs::write(&workload, WORKLOAD).unwrap();
    let url = format!("http://{}", served.address);
    let output = run(&[
        "bench",
        "--url",
        &url,
        "--model",
        "mock-tiny",
        "--workload",
        workload.to_str().unwrap(),
        "--json",
        report.to_str().unwrap(),
    ]);
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{stderr}");
    assert!(stderr.contains("no request completed"), "{stderr}");
    let json: serde_json::Value = serde_json::from_slice(&std::fs::read(&report).unwrap()).unwrap();
    assert!(json["total"]["failed"].as_u64().unwrap() > 0, "{json}");
}
