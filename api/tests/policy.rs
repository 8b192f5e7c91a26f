//! Tests of the command `tiercel policy`, and of scheduling policies that are given as files.
#![allow(clippy::unwrap_used, reason = "tests state what must hold")]

use std::path::Path;
use std::process::{Command, Output};

fn run(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_tiercel")).args(args).output().unwrap()
}

fn printed(args: &[&str]) -> String {
    let output = run(args);
    assert!(output.status.success(), "{args:?}: {output:?}");
    String::from_utf8(output.stdout).unwrap()
}

fn refused(args: &[&str]) -> String {
    let output = run(args);
    assert_eq!(output.status.code(), Some(2), "{args:?}: {output:?}");
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert_eq!(stderr.lines().count(), 1, "{stderr}");
    stderr
}

fn shipped(folder: &str) -> Vec<std::path::PathBuf> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../benches").join(folder);
    let files = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    files.filter(|path| path.extension().is_some_and(|extension| extension == "toml")).collect()
}

#[test]
fn policies_are_listed_and_shown() {
    let list = printed(&["policy", "list"]);
    assert_eq!(list.lines().count(), 20, "{list}");
    assert!(list.lines().any(|line| line.starts_with("* tiercel ")), "{list}");
    let shown = printed(&["policy", "show", "vllm-v1"]);
    for line in ["order = \"tier\"", "mode = \"recompute\"", "long_prefill_percent = 4.0"] {
        assert!(shown.lines().any(|found| found == line), "{line} in {shown}");
    }
    assert!(refused(&["policy", "show", "lifo"]).contains("no policy lifo; there are: static, "));
}

#[test]
fn what_is_shown_can_be_given_back_and_means_the_same() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("mine.toml");
    std::fs::write(&file, printed(&["policy", "show", "priority+preempt+slo"])).unwrap();
    let workload =
        concat!(env!("CARGO_MANIFEST_DIR"), "/../benches/workloads/w2-memory-tight.toml");
    let table = |policy: &str| {
        let args = [
            "simulate",
            "--workload",
            workload,
            "--duration",
            "160",
            "--seed",
            "5",
            "--policy",
            policy,
        ];
        // Replace the policy's name in the printed table, which must otherwise be equal for the policy given by name
        // and by file.
        printed(&args).replace("priority+preempt+slo", "mine").replace(' ', "")
    };
    assert_eq!(table("priority+preempt+slo"), table(file.to_str().unwrap()));
}

#[test]
fn a_policy_file_that_is_none_is_refused_in_one_line() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("bad.toml");
    let workload = concat!(env!("CARGO_MANIFEST_DIR"), "/../benches/workloads/w1-mixed.toml");
    for (text, expected) in [
        ("[scheduler]\nvictim = \"rank\"\n", "bad.toml:2: unknown setting scheduler.victim"),
        ("[preemption]\nvictim = \"youngest\"\n", "expected rank, least-progress, latest-arrival"),
        ("[http]\nlisten = \"0.0.0.0:1\"\n", "http.listen is no part of a policy"),
        ("[scheduler]\nmax_num_seqs = 0\n", "a whole number from 1 to 4096"),
    ] {
        std::fs::write(&file, text).unwrap();
        let line =
            refused(&["simulate", "--workload", workload, "--policy", file.to_str().unwrap()]);
        assert!(line.contains(expected), "{expected} in {line}");
    }
}

#[test]
fn every_shipped_policy_can_be_simulated() {
    let workload = concat!(env!("CARGO_MANIFEST_DIR"), "/../benches/workloads/static-four.toml");
    let files = shipped("policies");
    assert!(files.len() > 10, "{files:?}");
    let names: Vec<&str> = files.iter().map(|path| path.to_str().unwrap()).collect();
    let args = ["simulate", "--workload", workload, "--policy", &names.join(",")];
    let table = printed(&[&args[..], &["--set", "scheduler.max_num_seqs=4"]].concat());
    for file in &files {
        assert!(table.contains(file.file_stem().unwrap().to_str().unwrap()), "{file:?} in {table}");
    }
}

#[test]
fn an_old_name_of_a_setting_is_warned_of_once_whatever_the_number_of_policies() {
    let workload = concat!(env!("CARGO_MANIFEST_DIR"), "/../benches/workloads/static-four.toml");
    let set = ["--set", "preemption.victim_gives=needed", "--set", "scheduler.max_num_seqs=4"];
    let with = |policy| {
        let args = ["simulate", "--workload", workload, "--policy", policy];
        let output = run(&[&args[..], &set].concat());
        assert!(output.status.success(), "{output:?}");
        String::from_utf8(output.stderr).unwrap()
    };
    let warned = with("fcfs,tiercel");
    let lines: Vec<&str> = warned.lines().filter(|line| line.contains("victim_")).collect();
    assert_eq!(lines.len(), 1, "{warned}");
    assert!(lines[0].contains("victim_gives is now called preemption.victim_release"), "{warned}");
}
