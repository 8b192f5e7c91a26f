//! Tests of the command `tiercel simulate`: arguments that it refuses, its reports, and that equal seeds give equal
//! results.
#![allow(clippy::unwrap_used, reason = "tests state what must hold")]

mod command;

use command::{failure, run, tiercel};
use std::path::Path;
use std::process::Stdio;

const TIERS: [&str; 2] = ["premium", "background"];
const SHORT_OF_MEMORY: &str = "
name = \"short\"
seed = 1
duration_s = 12
drain_s = 0
simulation = { device_blocks = 300, max_num_seqs = 64 }
";

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
        ("--set", "slo.premium.ttft_ms=3", "latency targets come from the workload"),
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
fn a_simulation_that_its_parent_holds_ends_with_its_standard_input() {
    // So many scenarios that the process is still at work when its standard input ends.
    let mut command = tiercel(&["simulate", "--fuzz", "4000", "--until-stdin-ends"]);
    let command = command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null());
    let mut child = command.spawn().unwrap();
    drop(child.stdin.take());
    assert_eq!(child.wait().unwrap().code(), Some(1), "it went on to its own end");
}

#[test]
fn recorded_traffic_in_every_public_format_is_simulated_and_its_page_made() {
    let folder = tempfile::tempdir().unwrap();
    let [json, html] = ["r.json", "r.html"].map(|name| folder.path().join(name));
    let [json, html] = [&json, &html].map(|path| path.to_str().unwrap());
    let left_out = "traces/burstgpt-synthetic.csv: 7 rows without prompt or output tokens left out";
    for (name, duration, load, note) in [
        ("azure-conversation-sample", "100", "1", None),
        ("azure-conversation-sample", "100", "8", Some("45.0 s, the measured window ends at 70 s")),
        ("burstgpt-sample", "100", "1", Some(left_out)),
        ("mooncake-sample", "300", "1", None),
    ] {
        let workload =
            Path::new(env!("CARGO_MANIFEST_DIR")).join("../benches/workloads").join(name);
        let workload = workload.with_extension("toml");
        let output = run(&[
            "simulate",
            "--workload",
            workload.to_str().unwrap(),
            "--policy",
            "fcfs",
            "--load",
            load,
            "--duration",
            duration,
            "--json",
            json,
            "--html",
            html,
        ]);
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        let table = String::from_utf8(output.stdout).unwrap();
        assert_eq!(table.lines().nth(1).unwrap_or_default().contains("traces/"), note.is_some());
        assert!(note.is_none_or(|note| table.contains(note)), "{table}");
        let page = std::fs::read_to_string(html).unwrap();
        assert!(note.is_none_or(|note| page.contains(note)), "{name}");
        let report: serde_json::Value =
            serde_json::from_slice(&std::fs::read(json).unwrap()).unwrap();
        let run = &report["policies"][0]["runs"][0];
        assert_eq!(run["tiers"].as_array().unwrap().len(), 3, "{name}");
        let found = run["prefix_hit_percent"].as_f64().unwrap();
        assert_eq!(found > 1.0, name == "mooncake-sample", "{name}: {found}");
        assert_eq!(report["workload"]["class"][1]["arrival"]["share"], 0.45);
    }
    let closed =
        Path::new(env!("CARGO_MANIFEST_DIR")).join("../benches/workloads/w4-chunking.toml");
    let (code, line) =
        failure(&["simulate", "--workload", closed.to_str().unwrap(), "--load", "2"]);
    assert!(code == 2 && line.contains("--load needs a class with Poisson arrivals or a trace"));
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
