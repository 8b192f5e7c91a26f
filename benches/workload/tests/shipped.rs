//! Tests that the workload files of the project have the expected content, and that invalid workload files are refused
//! with an error that names the field.
#![allow(clippy::unwrap_used, reason = "a test that unwraps fails where it should")]

use std::path::{Path, PathBuf};
use tiercel_device::Tier;
use tiercel_workload::{
    Arrival, Length, Planned, Poisson, Uniform, Workload, WorkloadError, arrivals,
};

fn shipped(name: &str) -> Workload {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../workloads").join(name);
    Workload::load(&path).unwrap_or_else(|error| panic!("{error}"))
}

#[test]
fn every_shipped_workload_is_valid_and_named_like_its_file() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../workloads");
    let mut count = 0;
    for entry in std::fs::read_dir(folder).unwrap() {
        let entry = entry.unwrap();
        if entry.file_type().unwrap().is_dir() {
            // One subfolder holds recorded traffic and no workload, the other the workloads of the next test.
            continue;
        }
        let file = entry.file_name().into_string().unwrap();
        assert_eq!(shipped(&file).name, file.strip_suffix(".toml").unwrap());
        count += 1;
    }
    assert!(count >= 8, "{count} workloads");
}

#[test]
fn workloads_for_a_gpu_are_valid_and_named_like_their_files() {
    for name in ["calibrate", "w2"] {
        assert_eq!(shipped(&format!("gpu/{name}.toml")).name, format!("gpu-{name}"));
    }
}

/// Returns (tier, request rate or number of closed-loop streams, start time in seconds, prompt length, output length)
/// of every traffic class.
fn facts(workload: &Workload) -> Vec<(Tier, f64, f64, Length, Length)> {
    let fact = |class: &tiercel_workload::Class| {
        let amount = match &class.arrival {
            Arrival::Poisson(poisson) => poisson.rate_per_s,
            Arrival::Closed(closed) => f64::from(closed.streams),
            Arrival::Trace(trace) => trace.entries.len() as f64,
            Arrival::Share(share) => *share,
        };
        assert!(class.ignore_eos);
        let lengths = (class.prompt_tokens.unwrap(), class.output_tokens.unwrap());
        (class.tier, amount, class.start_s, lengths.0, lengths.1)
    };
    workload.classes.iter().map(fact).collect()
}

#[test]
fn cpu_overload_is_the_standard_one() {
    let uniform = Length::Uniform(Uniform { min: 64, max: 256 });
    let expected = |rates: f64| {
        vec![
            (Tier::Premium, 0.5 * rates, 3.0, Length::Fixed(128), Length::Fixed(64)),
            (Tier::Standard, 0.3 * rates, 3.0, uniform, Length::Fixed(96)),
            (Tier::Background, 32.0, 0.0, Length::Fixed(256), Length::Fixed(256)),
        ]
    };
    for (name, duration_s, rates) in [
        ("cpu-overload.toml", 60.0, 1.0),
        ("cpu-overload-600.toml", 600.0, 1.0),
        ("cpu-overload-x2.toml", 60.0, 2.0),
        ("cpu-overload-kv-short.toml", 60.0, 1.0),
    ] {
        let workload = shipped(name);
        assert_eq!(facts(&workload), expected(rates), "{name}");
        assert_eq!(workload.duration_s, duration_s, "{name}");
    }
}

#[test]
fn premium_unloaded_is_the_premium_traffic_of_the_overload() {
    let premium = |name| arrivals(&shipped(name), 0).collect::<Vec<Planned>>();
    let unloaded = premium("premium-unloaded.toml");
    assert_eq!(unloaded, premium("cpu-overload-600.toml"));
    assert!((250..=350).contains(&unloaded.len()), "{}", unloaded.len());
}

const GOOD: &str = r#"name = "t"
seed = 1
duration_s = 10
[[class]]
tier = "premium"
arrival = { poisson = { rate_per_s = 2.0 } }
prompt_tokens = { fixed = 8 }
output_tokens = { fixed = 8 }
"#;

fn load(text: &str) -> Result<Workload, WorkloadError> {
    let folder = tempfile::tempdir().unwrap();
    let path: PathBuf = folder.path().join("wrong.toml");
    std::fs::write(&path, text).unwrap();
    std::fs::write(folder.path().join("t.csv"), "at_s,prompt_tokens,output_tokens\n0,1,2\n")
        .unwrap();
    std::fs::write(folder.path().join("bad.csv"), "at_s,prompt_tokens,output_tokens\n0,x,2\n")
        .unwrap();
    Workload::load(&path)
}

#[test]
fn a_wrong_file_is_refused_with_its_field_and_what_is_allowed() {
    load(GOOD).unwrap();
    // Each case makes a valid workload file invalid: (text to replace, replacement, text that the error message
    // contains).
    let cases = [
        ("seed = 1\n", "", "seed"),
        ("seed = 1", "sead = 1", "sead"),
        ("duration_s = 10", "duration_s = 0", "duration_s is 0; allowed: above 0"),
        ("duration_s = 10", "duration_s = 10\nwarmup_s = 10", "warmup_s is 10; allowed"),
        ("duration_s = 10", "duration_s = 10\ndrain_s = -1", "drain_s is -1; allowed"),
        ("duration_s = 10", "duration_s = nan", "duration_s is NaN"),
        ("name = \"t\"", "name = \"\"", "name must have 1 to 100"),
        ("premium", "gold", "`premium`, `standard`, `background`"),
        ("premium", "system", "class[0].tier is system"),
        (
            "rate_per_s = 2.0",
            "rate_per_s = 0.0",
            "class[0].arrival.poisson.rate_per_s is 0; allowed",
        ),
        ("rate_per_s = 2.0", "rate_per_s = 1e9", "class[0].arrival.poisson.rate_per_s"),
        (
            "rate_per_s = 2.0",
            "rate_per_s = 2.0, bursts = { factor = 2, length_s = 9, period_s = 9 }",
            "class[0].arrival.poisson.bursts.length_s is 9; allowed",
        ),
        (
            "tier =",
            "prefix = { share = 2, count = 1, zipf = 1, min = 1, max = 2 }\ntier =",
            "class[0].prefix.share is 2; allowed",
        ),
        ("duration_s = 10", "duration_s = 10\ncooldown_s = 10", "cooldown_s is 10; allowed"),
        (
            "duration_s = 10",
            "duration_s = 10\nsimulation = { device_blocks = 0 }",
            "simulation.device_blocks must be 1 to",
        ),
        ("poisson = { rate_per_s = 2.0 }", "uniform = {}", "expected one of"),
        (
            "poisson = { rate_per_s = 2.0 }",
            "closed = { streams = 0 }",
            "class[0].arrival.closed.streams",
        ),
        (
            "poisson = { rate_per_s = 2.0 }",
            "trace = { file = \"t.csv\" }",
            "leave out prompt_tokens",
        ),
        ("poisson = { rate_per_s = 2.0 }", "trace = { file = \"none.csv\" }", "none.csv"),
        ("poisson = { rate_per_s = 2.0 }", "trace = { file = \"bad.csv\" }", "bad.csv: line 2"),
        (
            "prompt_tokens = { fixed = 8 }",
            "",
            "class[0].prompt_tokens is missing; allowed: { fixed",
        ),
        (
            "prompt_tokens = { fixed = 8 }",
            "prompt_tokens = { fixed = 0 }",
            "class[0].prompt_tokens.fixed is 0",
        ),
        ("prompt_tokens = { fixed = 8 }", "prompt_tokens = { fixed = -1 }", "fixed"),
        ("prompt_tokens = { fixed = 8 }", "prompt_tokens = { normal = 8 }", "`log_normal`"),
        (
            "output_tokens = { fixed = 8 }",
            "output_tokens = { log_normal = { mean = 9, p50 = 9, sigma = 1, cap = 10 } }",
            "class[0].output_tokens.log_normal needs either mean or p50",
        ),
        ("tier =", "start_s = 10\ntier =", "class[0].start_s is 10; allowed"),
        (
            "tier =",
            "sampling = { temperature = -1 }\ntier =",
            "class[0].sampling.temperature is -1",
        ),
        ("tier =", "sampling = { top_p = 0 }\ntier =", "class[0].sampling.top_p is 0; allowed"),
        ("tier =", "targets = { ttft_ms = 0 }\ntier =", "class[0].targets.ttft_ms is 0; allowed"),
        (
            "tier =",
            "targets = { ttft_ms = 9, ttft_prompt_tokens = 3, ttft_ms_per_token_fewer = 3 }\ntier =",
            "class[0].targets.ttft_ms_per_token_fewer is 3; allowed: less than ttft_ms / ttft_prompt_tokens",
        ),
    ];
    for (old, new, expected) in cases {
        assert!(GOOD.contains(old), "{old}");
        let message = load(&GOOD.replacen(old, new, 1)).unwrap_err().to_string();
        assert!(message.contains(expected), "{new:?} gave: {message}");
        assert!(message.contains(".toml") || message.contains(".csv"), "no file in: {message}");
    }
}

#[test]
fn limits_on_the_whole_are_checked() {
    let class = GOOD.split_once("[[class]]").unwrap().1;
    let many = GOOD.to_owned() + &format!("[[class]]{class}").repeat(16);
    assert!(load(&many).unwrap_err().to_string().contains("class must appear 1 to 16 times"));
    let none = GOOD.split_once("[[class]]").unwrap().0;
    assert!(load(none).is_err());
    let mut busy = load(GOOD).unwrap();
    busy.duration_s = 86_400.0;
    busy.classes[0].arrival = Arrival::Poisson(Poisson { rate_per_s: 100.0, bursts: None });
    assert!(busy.problem().is_some_and(|(_, problem)| problem.contains("1000000 requests")));
}

#[test]
fn a_trace_is_read_from_beside_the_workload() {
    let lengths = "prompt_tokens = { fixed = 8 }\noutput_tokens = { fixed = 8 }\n";
    let text = GOOD
        .replace(lengths, "")
        .replace("poisson = { rate_per_s = 2.0 }", "trace = { file = \"t.csv\" }");
    let workload = load(&text).unwrap();
    let planned: Vec<Planned> = arrivals(&workload, 0).collect();
    assert_eq!((planned.len(), planned[0].prompt_tokens, planned[0].output_tokens), (1, 1, 2));
}

#[test]
fn a_huge_file_is_refused_unread() {
    let message = load(&"#".repeat(2 << 20)).unwrap_err().to_string();
    assert!(message.contains("larger than"), "{message}");
}
