//! The binary: help, exit codes, error lines, signals.
#![allow(clippy::unwrap_used, reason = "tests state what must hold")]

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Child, ChildStderr, Command, Output, Stdio};

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

fn tiercel(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tiercel"));
    for (name, _) in std::env::vars_os() {
        if name.to_string_lossy().starts_with("TIERCEL_") {
            command.env_remove(name);
        }
    }
    command.args(args).stdin(Stdio::null());
    command
}

fn run(args: &[&str]) -> Output {
    tiercel(args).output().unwrap()
}

/// Runs what must fail and returns the exit code and the one line that says why.
fn failure(args: &[&str]) -> (i32, String) {
    let output = run(args);
    let stderr = String::from_utf8(output.stderr).unwrap();
    let lines: Vec<&str> = stderr.lines().filter(|line| line.starts_with("tiercel: ")).collect();
    assert_eq!(lines.len(), 1, "{args:?}: {stderr}");
    assert_eq!(stderr.lines().last(), Some(lines[0]), "{args:?}: {stderr}");
    assert_eq!(output.stdout, b"", "{args:?}");
    (output.status.code().unwrap(), lines[0].to_owned())
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
    assert_eq!((code, line.contains("auto, cpu or mock:PROFILE")), (2, true), "{line}");
}

#[test]
fn what_cannot_be_simulated_is_named() {
    let workload = Path::new(env!("CARGO_MANIFEST_DIR")).join("../benches/workloads/w1-mixed.toml");
    let workload = workload.to_str().unwrap();
    for (flag, value, says) in [
        ("--policy", "fcfs,lifo", "no policy lifo; there are: static, request-level, "),
        ("--seeds", "5..5", "expected A..B with A below B"),
        ("--seeds", "0..5000", "at most 1000 seeds"),
        ("--profile", "tpu", "llama70b-h100, tiny"),
        ("--load", "0", "--load is 0; allowed: above 0"),
        ("--noise", "-1", "--noise is -1; allowed: 0 to 2"),
        ("--duration", "100", "cooldown_s is 90; allowed: 0 to less than duration_s - warmup_s"),
        ("--set", "scheduler.max_num_seq=3", "scheduler.max_num_seqs"),
        ("--set", "scheduler.policy=fcfs", "give --policy instead"),
        ("--set", "slo.premium.ttft_ms=3", "targets are the workload's"),
        ("--set", "http.listen=[::]:1", "no setting of the engine"),
        ("--json", "/nonexistent/r.json", "cannot write /nonexistent/r.json"),
        ("--faults", "/nonexistent/f.toml", "cannot read the faults file /nonexistent/f.toml"),
        ("--fuzz", "10", "cannot be used with"),
    ] {
        let output = run(&["simulate", "--workload", workload, &format!("{flag}={value}")]);
        let stderr = String::from_utf8(output.stderr).unwrap();
        assert!(!output.status.success() && stderr.contains(says), "{flag} {value}: {stderr}");
        assert_eq!(output.stdout, b"", "{flag} {value}");
    }
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
    assert_eq!((code, line.contains("nonsense")), (1, true), "{line}");
}

/// A served mock device.
struct Served {
    process: Child,
    log: BufReader<ChildStderr>,
    address: SocketAddr,
}

fn signal(process: &Child, name: &str) {
    // The shell has `kill` built in; the program of that name is not on every machine.
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

    /// Begins a stream and reads until its first token is there.
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
        // It has ended, unless the test failed before.
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
        // Fetches for ever, and tells who it is once it has begun.
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
        // Answered or reset: either way it is over.
        let _ = socket.read_to_end(&mut Vec::new());
    }
    served.signal("TERM");
    let mut log = String::new();
    served.log.read_to_string(&mut log).unwrap();
    assert!(log.contains("shutting down") && log.lines().count() < 10, "{log}");
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

#[test]
fn fuzzing_is_the_same_in_every_process_and_needs_no_workload() {
    let fuzz = |arguments: &[&str]| {
        let output = run(&[&["simulate"], arguments].concat());
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap()
    };
    let first = fuzz(&["--fuzz", "12", "--seed", "5"]);
    assert!(first.starts_with("12 scenarios: ") && first.contains(" preemptions, "), "{first}");
    assert_eq!(fuzz(&["--fuzz", "12", "--seed", "5"]), first);
    assert_ne!(fuzz(&["--fuzz", "12"]), first);
    let single = fuzz(&["--fuzz", "1", "--seed", "5"]);
    assert!(single.starts_with("seed 5: ") && single.contains("\n1 scenarios: "), "{single}");
    let (code, line) = failure(&["simulate", "--fuzz", "0"]);
    assert_eq!((code, line.contains("--fuzz is 0; allowed: 1 to ")), (2, true), "{line}");
    let (code, line) = failure(&["simulate", "--fuzz", "2", "--seed", "18446744073709551615"]);
    assert_eq!((code, line.contains("--seed")), (2, true), "{line}");
}

#[test]
fn what_shakes_a_simulated_device_is_in_the_report_and_in_the_header() {
    let folder = tempfile::tempdir().unwrap();
    let workload = folder.path().join("short.toml");
    std::fs::write(&workload, SHORT_OF_MEMORY.to_owned() + &class_of("premium")).unwrap();
    let json = folder.path().join("r.json");
    let faults = Path::new(env!("CARGO_MANIFEST_DIR")).join("../benches/faults/bad-link.toml");
    let [workload, json, faults] = [&workload, &json, &faults].map(|path| path.to_str().unwrap());
    let common = ["simulate", "--workload", workload, "--policy", "fcfs", "--json", json];
    let output = run(&[&common[..], &["--drift", "--faults", faults]].concat());
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let table = String::from_utf8(output.stdout).unwrap();
    assert!(table.contains(", drift, faults, seeds 1\n"), "{table}");
    let report: serde_json::Value = serde_json::from_slice(&std::fs::read(json).unwrap()).unwrap();
    assert_eq!(report["drift"], true);
    assert_eq!(report["faults"]["copy_fails"], 0.05);
    let calm = run(&common);
    assert_ne!(String::from_utf8(calm.stdout).unwrap(), table);
    let bad = folder.path().join("bad.toml");
    std::fs::write(&bad, "step_fails = 2\n").unwrap();
    let (code, line) =
        failure(&["simulate", "--workload", workload, "--faults", bad.to_str().unwrap()]);
    assert_eq!(code, 2);
    assert!(line.contains("bad.toml: step_fails is 2; allowed: 0 to 1"), "{line}");
}

const TIERS: [&str; 2] = ["premium", "background"];
const SHORT_OF_MEMORY: &str = "
name = \"short\"
seed = 1
duration_s = 12
drain_s = 0
simulation = { device_blocks = 300, max_num_seqs = 64 }
";

fn class_of(tier: &str) -> String {
    format!(
        "
[[class]]
tier = \"{tier}\"
arrival = {{ poisson = {{ rate_per_s = 4.0 }} }}
prompt_tokens = {{ uniform = {{ min = 16, max = 400 }} }}
output_tokens = {{ log_normal = {{ mean = 90, sigma = 0.6, min = 16, cap = 300 }} }}
"
    )
}

#[test]
fn a_simulation_is_the_same_in_every_process() {
    let folder = tempfile::tempdir().unwrap();
    let workload = folder.path().join("short.toml");
    let text = SHORT_OF_MEMORY.to_owned() + &TIERS.map(class_of).concat();
    std::fs::write(&workload, text).unwrap();
    let simulate = |name: &str, seeds: &str| {
        let json = folder.path().join(name);
        let output = run(&[
            "simulate",
            "--workload",
            workload.to_str().unwrap(),
            "--policy",
            "fcfs,tiercel",
            "--seeds",
            seeds,
            "--noise",
            "0.1",
            "--json",
            json.to_str().unwrap(),
        ]);
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        (output.stdout, std::fs::read(json).unwrap())
    };
    let first = simulate("a.json", "3..5");
    assert_eq!(simulate("b.json", "3..5"), first);
    assert_ne!(simulate("c.json", "4..6"), first);
    let report: serde_json::Value = serde_json::from_slice(&first.1).unwrap();
    for (policy, name) in ["fcfs", "tiercel"].into_iter().enumerate() {
        assert_eq!(report["policies"][policy]["policy"], name);
        let run = &report["policies"][policy]["runs"][1];
        assert_eq!(run["seed"], 4);
        assert_eq!(run["tiers"][0]["tier"], "premium");
        assert!(run["total"]["completed"].as_u64().unwrap() > 20, "{run}");
        assert!(run["preemptions_per_min"].as_f64().unwrap() > 0.0, "{run}");
    }
    let table = String::from_utf8(first.0).unwrap();
    assert!(table.contains("TTFT p50") && table.contains("tiercel  premium"), "{table}");
}
