//! Tests of the files that `tiercel simulate` writes about its runs: traces, which `tiercel trace` shows and compares,
//! and the HTML page.
#![allow(clippy::unwrap_used, reason = "tests state what must hold")]

use serde_json::Value;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use tempfile::TempDir;

/// Workload with too few KV blocks, so that the scheduler preempts. Its name contains HTML markup, which must appear as
/// plain text on the HTML page.
const WORKLOAD: &str = r#"
name = "short </script><b>"
seed = 1
duration_s = 12
drain_s = 0
simulation = { device_blocks = 300, max_num_seqs = 64 }

[[class]]
tier = "premium"
arrival = { poisson = { rate_per_s = 4.0 } }
prompt_tokens = { uniform = { min = 16, max = 400 } }
output_tokens = { log_normal = { mean = 90, sigma = 0.6, min = 16, cap = 300 } }

[[class]]
tier = "background"
arrival = { poisson = { rate_per_s = 4.0 } }
prompt_tokens = { uniform = { min = 16, max = 400 } }
output_tokens = { log_normal = { mean = 90, sigma = 0.6, min = 16, cap = 300 } }
"#;

struct Scene {
    folder: TempDir,
}

impl Scene {
    fn new() -> Scene {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("w.toml"), WORKLOAD).unwrap();
        Scene { folder }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn run(&self, args: &[&str]) -> Output {
        let mut command = Command::new(env!("CARGO_BIN_EXE_tiercel"));
        command.args(args).stdin(Stdio::null()).current_dir(self.folder.path());
        command.output().unwrap()
    }

    fn simulate(&self, seeds: &str, more: &[&str]) {
        let args =
            ["simulate", "--workload", "w.toml", "--policy", "fcfs,tiercel", "--noise", "0.1"];
        let output = self.run(&[&args[..], &["--seeds", seeds], more].concat());
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    }

    /// Returns the event lines that `tiercel trace show` prints, without the header lines of runs.
    fn events(&self, args: &[&str]) -> Vec<String> {
        let output = self.run(&[&["trace", "show"], args].concat());
        assert!(output.status.success(), "{args:?}: {}", String::from_utf8_lossy(&output.stderr));
        let text = String::from_utf8(output.stdout).unwrap();
        text.lines().filter(|line| !line.starts_with('#')).map(str::to_owned).collect()
    }

    /// Runs a `tiercel` command that must fail. Returns its exit code and the one line on stderr that says why.
    fn failure(&self, args: &[&str]) -> (i32, String) {
        let output = self.run(args);
        let stderr = String::from_utf8(output.stderr).unwrap();
        assert_eq!(stderr.lines().count(), 1, "{args:?}: {stderr}");
        (output.status.code().unwrap(), stderr)
    }
}

#[test]
fn a_trace_is_the_same_in_every_process_and_another_seed_has_another() {
    let scene = Scene::new();
    for (seeds, name) in [("3..5", "a"), ("3..5", "b"), ("3..4", "c"), ("4..5", "d")] {
        scene.simulate(seeds, &["--trace", name]);
    }
    let bytes = |name: &str| std::fs::read(scene.path(name)).unwrap();
    assert_eq!(bytes("a"), bytes("b"));
    let equal = scene.run(&["trace", "diff", "a", "b"]);
    let text = String::from_utf8_lossy(&equal.stdout).into_owned();
    assert!(equal.status.success() && text.starts_with("equal: 4 runs, "), "{text}");

    let other = scene.run(&["trace", "diff", "c", "d"]);
    let text = String::from_utf8(other.stdout).unwrap();
    assert_eq!(other.status.code(), Some(1));
    let lines: Vec<&str> = text.lines().collect();
    assert!(lines[0].starts_with("- # run policy=fcfs seed=3 "), "{text}");
    assert!(lines[1].starts_with("+ # run policy=fcfs seed=4 "), "{text}");

    // Compare a trace of two seeds with one of the first seed alone: they must be equal until the first goes on with
    // the second seed, while the second begins the second policy.
    let more = scene.run(&["trace", "diff", "a", "c"]);
    let text = String::from_utf8(more.stdout).unwrap();
    assert_eq!((more.status.code(), text.lines().count()), (Some(1), 8), "{text}");
    assert!(text.contains("\n- # run policy=fcfs seed=4 "), "{text}");
    assert!(text.contains("\n+ # run policy=tiercel seed=3 "), "{text}");
}

#[test]
fn a_trace_agrees_with_the_table() {
    let scene = Scene::new();
    scene.simulate("3..4", &["--trace", "t", "--json", "r.json"]);
    let report: Value =
        serde_json::from_slice(&std::fs::read(scene.path("r.json")).unwrap()).unwrap();
    let all = scene.run(&["trace", "show", "t"]).stdout;
    let all = String::from_utf8(all).unwrap();
    let runs: Vec<&str> = all.split("# run ").skip(1).collect();
    assert_eq!(runs.len(), 2);
    for (text, policy) in runs.into_iter().zip(report["policies"].as_array().unwrap()) {
        let count = |mark: &str| text.lines().filter(|line| line.contains(mark)).count() as u64;
        let run = &policy["runs"][0];
        assert!(text.starts_with(&format!("policy={} seed=3", policy["policy"].as_str().unwrap())));
        assert_eq!(count(" arrived "), run["total"]["requests"], "{run}");
        let completed = text.lines().filter(|line| line.contains(" ended "));
        let completed = completed.filter(|line| line.contains(" stop ")).count() as u64;
        assert_eq!(completed, run["total"]["completed"], "{run}");
        assert_eq!(count(" step-ended "), run["steps"], "{run}");
        let preempted = count(" preempt-freed ") + count(" preempt-committed ");
        let a_minute = run["preemptions_per_min"].as_f64().unwrap();
        assert_eq!(preempted as f64, (a_minute * 0.2).round(), "{run}");
        assert!(preempted > 0 && completed > 20, "{run}");
    }
}

#[test]
fn what_is_shown_of_a_trace_can_be_chosen() {
    let scene = Scene::new();
    scene.simulate("3..4", &["--trace", "t"]);
    let all = scene.events(&["t"]);
    let one = scene.events(&["t", "--request", "7"]);
    assert!(one.len() > 20 && one.len() < all.len() / 4, "{}", one.len());
    assert!(
        one.iter().all(|line| line.contains(" seq7 ")
            || line.contains(" seq7:")
            || line.ends_with(" seq7"))
    );
    assert!(one.iter().all(|line| line.matches("seq").count() == 1), "no other's slices");
    for mark in [" arrived ", "prefill@0+", " first-token ", ":decode@", " ended "] {
        assert!(one.iter().any(|line| line.contains(mark)), "no {mark}: {one:#?}");
    }
    let preempted = scene.events(&["t", "--kind", "preempt,ended"]);
    let kinds =
        ["preempt-freed", "preempt-copying", "preempt-committed", "preempt-aborted", "ended"];
    let kind = |line: &String| line.split_whitespace().nth(1).unwrap().to_owned();
    assert!(preempted.iter().map(kind).all(|kind| kinds.contains(&kind.as_str())));
    assert!(preempted.len() > 20 && preempted.len() < all.len());
    let between = scene.events(&["t", "--from", "3.5", "--to", "4"]);
    let at = |line: &String| line.split_whitespace().next().unwrap().parse::<f64>().unwrap();
    assert!(between.iter().map(at).all(|at| (3.5..4.0).contains(&at)) && between.len() > 20);
    let (code, line) = {
        let output = scene.run(&["trace", "show", "t", "--kind", "lunch"]);
        (output.status.code(), String::from_utf8(output.stderr).unwrap())
    };
    assert!(code == Some(2) && line.contains("no such kind; there are: arrived, "), "{line}");
}

#[test]
fn a_file_that_is_no_trace_is_told_in_one_line() {
    let scene = Scene::new();
    scene.simulate("3..4", &["--trace", "t"]);
    let whole = std::fs::read(scene.path("t")).unwrap();
    let half = &whole[..whole.len() / 2];
    let mut newer = whole.clone();
    newer[8] += 1;
    let absurd = [&whole[..10], &[0xff; 4], &whole[14..]].concat();
    let noise: Vec<u8> =
        (0..5000_u32).map(|i| (i.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
    for (bytes, says) in [
        (&b""[..], "not a trace file"),
        (&noise, "not a trace file"),
        (half, "the trace is cut off after"),
        (&newer, "a trace of version 3; this program reads version 2"),
        (&absurd, "a record of absurd length"),
        (&[&whole[..10], &[9, 0, 0, 0], &noise[..9]].concat(), "holds no record"),
    ] {
        std::fs::write(scene.path("bad"), bytes).unwrap();
        for args in [&["trace", "show", "bad"][..], &["trace", "diff", "t", "bad"]] {
            let (code, line) = scene.failure(args);
            assert!(code == 2 && line.contains(says), "{args:?}: {line}");
            assert!(line.starts_with("tiercel: bad: "), "{line}");
        }
    }
    let (code, line) = scene.failure(&["trace", "show", "nowhere"]);
    assert!(code == 2 && line.contains("nowhere"), "{line}");
    let (code, line) = scene.failure(&["trace", "show", "."]);
    assert!(code == 2 && line.contains("directory"), "{line}");
}

#[test]
fn what_cannot_be_recorded_is_told_before_anything_runs() {
    let scene = Scene::new();
    let simulate = ["simulate", "--workload", "w.toml"];
    for (more, says) in [
        (&["--trace", "/nonexistent/t"][..], "cannot write /nonexistent/t"),
        (&["--html", "/nonexistent/h"], "cannot write /nonexistent/h"),
        (&["--html", "h", "--html-window", "5..5"], "expected A..B with A below B"),
        (&["--html", "h", "--html-window", "nan..5"], "expected A..B with A below B"),
        (&["--html-window", "1..5"], "--html <FILE>"),
        (
            &["--html", "h", "--policy", "fcfs,fcfs,fcfs,fcfs,fcfs,fcfs,fcfs,fcfs,fcfs"],
            "at most 8 policies",
        ),
    ] {
        let output = scene.run(&[&simulate[..], more].concat());
        let stderr = String::from_utf8(output.stderr).unwrap();
        assert!(!output.status.success() && stderr.contains(says), "{more:?}: {stderr}");
        assert_eq!(output.stdout, b"", "{more:?}");
    }
    let left = std::fs::read_dir(scene.folder.path()).unwrap().count();
    assert_eq!(left, 1, "nothing but the workload");
}

#[test]
fn a_run_that_fails_leaves_its_trace() {
    let scene = Scene::new();
    std::fs::write(scene.path("long.toml"), WORKLOAD.replace("cap = 300", "cap = 1200")).unwrap();
    let simulate = ["simulate", "--workload", "long.toml", "--profile", "tiny", "--policy", "fcfs"];
    let (code, line) = scene.failure(&[&simulate[..], &["--trace", "t", "--html", "p"]].concat());
    assert_eq!(code, 1);
    assert!(line.contains("outputs of 1200 tokens") && line.contains("the trace up to"), "{line}");
    let shown = String::from_utf8(scene.run(&["trace", "show", "t"]).stdout).unwrap();
    assert!(shown.starts_with("# run policy=fcfs seed=1 "), "{shown}");
    assert!(!scene.path("p").exists() && !scene.path("t.partial").exists());
}

#[test]
fn a_page_holds_every_policy_and_every_request_of_its_window() {
    let scene = Scene::new();
    scene.simulate("3..5", &["--html", "p.html", "--html-window", "2..6", "--trace", "t"]);
    let page = std::fs::read_to_string(scene.path("p.html")).unwrap();
    let (_, rest) = page.split_once("id=\"data\">").unwrap();
    let data: Value = serde_json::from_str(rest.split_once("</script>").unwrap().0).unwrap();
    assert_eq!(data["workload"], "short </script><b>");
    assert_eq!(
        (&data["window_us"][0], &data["window_us"][1]),
        (&2_000_000.into(), &6_000_000.into())
    );
    assert_eq!(data["rows"].as_array().unwrap().len(), 6);
    let until = scene.events(&["t", "--kind", "arrived", "--to", "6"]).len();
    let over = scene.events(&["t", "--kind", "ended", "--to", "2"]).len();
    let mut lanes = 0;
    for policy in data["policies"].as_array().unwrap() {
        lanes += policy["lanes"].as_array().unwrap().len();
    }
    // Compare the number of lanes (requests) on the HTML page with the events of the trace, which holds two seeds of
    // each policy: the page shows only the first seed.
    assert!(lanes * 3 > until - over && lanes < until - over, "{lanes}: {until} - {over}");
}

/// Returns a command that runs the machine's Chromium browser without a window.
fn chromium() -> Command {
    let names = ["chromium", "chromium-browser", "google-chrome"];
    let found = std::env::split_paths(&std::env::var_os("PATH").unwrap())
        .flat_map(|folder| names.map(|name| folder.join(name)))
        .find(|path| path.exists())
        .expect("Chromium is installed");
    let mut command = Command::new(found);
    command.args([
        "--headless",
        "--no-sandbox",
        "--disable-gpu",
        "--enable-logging=stderr",
        "--v=0",
    ]);
    command.args(["--virtual-time-budget=5000", "--window-size=1400,2000", "--dump-dom"]);
    command
}

fn dom(page: &Path) -> String {
    let output = chromium().arg(format!("file://{}", page.display())).output().unwrap();
    let (dom, log) =
        (String::from_utf8(output.stdout).unwrap(), String::from_utf8_lossy(&output.stderr));
    assert!(!log.contains("CONSOLE"), "{log}");
    dom
}

#[test]
#[ignore = "needs Chromium; see docs/developer.md"]
fn a_browser_draws_the_page_without_a_complaint() {
    let scene = Scene::new();
    scene.simulate("3..4", &["--html", "p.html", "--html-window", "2..6"]);
    let dom = dom(&scene.path("p.html"));
    let page = std::fs::read_to_string(scene.path("p.html")).unwrap();
    let (_, rest) = page.split_once("id=\"data\">").unwrap();
    let data: Value = serde_json::from_str(rest.split_once("</script>").unwrap().0).unwrap();
    let policies = data["policies"].as_array().unwrap();
    let lanes: usize =
        policies.iter().map(|policy| policy["lanes"].as_array().unwrap().len()).sum();
    assert!(lanes > 20);
    assert_eq!(dom.matches("data-seq=").count(), lanes);
    assert_eq!(dom.matches("<figure>").count(), 2, "a curve for each tier");
    assert_eq!(dom.matches("class=\"policy\"").count(), 2);
    assert!(dom.contains("Tiercel: short &lt;/script&gt;&lt;b&gt;"));
    assert!(dom.contains("Request ") && dom.contains("preempted"));
}

#[test]
#[ignore = "needs Chromium; see docs/developer.md"]
fn a_page_is_used_without_a_mouse() {
    let scene = Scene::new();
    scene.simulate("3..4", &["--html", "p.html", "--html-window", "2..6"]);
    let script = "<script>
        // Without a screen there are no frames to wait for.
        window.requestAnimationFrame = (act) => setTimeout(act, 0);
        const box = document.querySelector('.lanes');
        const press = (key) => document.activeElement.dispatchEvent(
            new KeyboardEvent('keydown', { key, bubbles: true, cancelable: true }));
        const said = [];
        const say = () => said.push(byId('from-text').textContent + ' ' + byId('to-text').textContent);
        box.querySelector('.lane').focus();
        press('ArrowDown');
        said.push(document.activeElement === box.querySelectorAll('.lane')[1] ? 'second' : 'other');
        said.push(panels[0].detail.textContent.split(',')[0]);
        press('+');
        setTimeout(() => { say(); press('ArrowRight'); }, 200);
        setTimeout(() => { say(); byId('show-run').click(); }, 400);
        setTimeout(() => { say(); byId('tier').value = '1'; byId('tier').dispatchEvent(new Event('change')); }, 600);
        setTimeout(() => {
            const tiers = [...box.querySelectorAll('.lane text')].map((text) => text.textContent.split(' ')[1]);
            said.push([...new Set(tiers)].join());
            document.title = said.join('|');
        }, 800);
        </script></body>";
    let page = std::fs::read_to_string(scene.path("p.html")).unwrap();
    std::fs::write(scene.path("used.html"), page.replace("</body>", script)).unwrap();
    let dom = dom(&scene.path("used.html"));
    let title = dom.split("<title>").nth(1).unwrap().split("</title>").next().unwrap().to_owned();
    let said: Vec<&str> = title.split('|').collect();
    assert_eq!(said[0], "second", "{title}");
    assert!(said[1].starts_with("Request "), "{title}");
    assert_eq!(said[2..], ["2.600 s 5.400 s", "2.880 s 5.680 s", "0.000 s 12.000 s", "premium"]);
}
