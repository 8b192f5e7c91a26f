//! Tests of recorded traffic: every file format, every kind of bad line, time windows, and shares of classes.
#![allow(clippy::unwrap_used, reason = "a test that unwraps fails where it should")]

use std::collections::BTreeSet;
use std::fs::File;
use std::path::Path;
use tempfile::TempDir;
use tiercel_workload::{Arrival, Planned, Workload, WorkloadError, arrivals};

const NATIVE: &str = "at_s,prompt_tokens,output_tokens\n";
const AZURE: &str = "TIMESTAMP,ContextTokens,GeneratedTokens\r\n";
const BURSTGPT: &str = "Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type\n";
const BURSTGPT_3: &str = "Timestamp,Session ID,Elapsed time,Model,Request tokens,Response tokens,\
                          Total tokens,Log Type\n";

struct Scene {
    folder: TempDir,
}

impl Scene {
    /// Makes a temporary folder with a file of recorded traffic that has the given text.
    fn with(trace: &str) -> Scene {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("t"), trace).unwrap();
        Scene { folder }
    }

    fn load(&self, top: &str, classes: &[&str]) -> Result<Workload, WorkloadError> {
        let path = self.folder.path().join("w.toml");
        let class = |arrival: &&str| {
            format!("[[class]]\ntier = \"premium\"\nstart_s = 10\narrival = {arrival}\n")
        };
        let classes: String = classes.iter().map(class).collect();
        let text = format!("name = \"w\"\nseed = 1\nduration_s = 1000\n{top}\n{classes}");
        std::fs::write(&path, text).unwrap();
        Workload::load(&path)
    }

    /// Returns the requests of a class that sends the whole recorded traffic. `more` are TOML fields of the trace
    /// beside its file name.
    fn plan(&self, more: &str) -> Result<Vec<Planned>, WorkloadError> {
        let arrival = format!("{{ trace = {{ file = \"t\"{more} }} }}");
        let workload = self.load("", &[&arrival])?;
        Ok(arrivals(&workload, 0).collect())
    }
}

/// Returns (seconds after the class starts, prompt tokens, output tokens) of each planned request.
fn facts(plan: &[Planned]) -> Vec<(f64, u32, u32)> {
    let fact = |planned: &Planned| {
        (planned.at_us as f64 / 1e6 - 10.0, planned.prompt_tokens, planned.output_tokens)
    };
    plan.iter().map(fact).collect()
}

#[test]
fn every_format_is_read_and_only_the_own_begins_at_zero() {
    let azure_2023 = "2023-11-16 18:15:46.6805900,374,44\r\n2023-11-16 18:15:48.1805900,396,109";
    let azure_2024 = "2024-05-10 23:59:59.500000+00:00,374,44\n2024-05-11 00:00:01+00:00,396,109\n";
    let six = "5,ChatGPT,374,44,418,Conversation log\n6.5,GPT-4,396,109,505,API log\n";
    let eight = "19440110.0,1722ac82,43,GPT-4,374,44,418,Conversation log\n\
                 19440111.5,,2,ChatGPT,396,109,505,API log\n";
    let mooncake = "{\"timestamp\": 3000, \"input_length\": 374, \"output_length\": 44, \"hash_ids\": [0]}\n\
                    {\"timestamp\":4500,\"input_length\":396,\"output_length\":109,\"hash_ids\":[7]}\n";
    for trace in [
        AZURE.to_owned() + azure_2023,
        AZURE.to_owned() + azure_2024,
        BURSTGPT.to_owned() + six,
        BURSTGPT_3.to_owned() + eight,
        mooncake.to_owned(),
    ] {
        let plan = Scene::with(&trace).plan("").unwrap();
        assert_eq!(facts(&plan), [(0.0, 374, 44), (1.5, 396, 109)], "{trace}");
        let names: Vec<_> = plan.iter().map(|planned| planned.blocks.as_deref()).collect();
        let named = trace == mooncake;
        assert_eq!(names, if named { [Some(&[0][..]), Some(&[7][..])] } else { [None, None] });
    }
    let plan = Scene::with(&(NATIVE.to_owned() + "3,10,5\n\n4.25, 7,1\n")).plan("").unwrap();
    assert_eq!(facts(&plan), [(3.0, 10, 5), (4.25, 7, 1)]);
}

#[test]
fn every_bad_row_is_named_by_file_and_line() {
    let good_json = |ms: u32, prompt: u32, ids: &str| {
        format!(
            "{{\"timestamp\":{ms},\"input_length\":{prompt},\"output_length\":1,\"hash_ids\":{ids}}}\n"
        )
    };
    let rows = |header: &str, rows: &str| header.to_owned() + rows;
    let date = "2023-11-16 18:15";
    // Each case is an invalid file of recorded traffic: (text of the file, number of the bad line, text that the error
    // message contains).
    let cases = [
        (
            String::new(),
            1,
            "begins no trace; allowed: at_s,prompt_tokens,output_tokens | TIMESTAMP",
        ),
        ("0,1,1\n".into(), 1, "begins no trace"),
        (rows("TIMESTAMP,NumImages,ContextTokens,GeneratedTokens\n", ""), 1, "begins no trace"),
        (NATIVE.into(), 1, "is followed by no row"),
        // Malformed lines of recorded traffic, in each file format.
        (rows(NATIVE, "0,1,1\n1,1\n"), 3, "has 2 fields"),
        (rows(AZURE, &format!("{date}:46,1,1\nnever,1,1\n")), 3, "has the TIMESTAMP \"never\""),
        (rows(BURSTGPT, "1,x,1,1,2,y\n2,x,a,1,2,y\n"), 3, "has the Request tokens \"a\""),
        (good_json(0, 5, "[1]") + "{\"timestamp\":1}\n", 2, "missing field"),
        (good_json(0, 5, "[1]") + &good_json(0, 513, "[1]"), 2, "has 1 hash_ids"),
        // Recorded requests without prompt or output tokens, in each file format.
        (rows(NATIVE, "0,1,1\n1,0,1\n"), 3, "has 0 prompt and 1 output tokens; allowed: 1 to"),
        (rows(AZURE, &format!("{date}:46,1,0\n")), 2, "or skip_empty = true in the workload"),
        (rows(BURSTGPT, "1,x,7,1,8,y\n2,x,9,0,9,y\n"), 3, "has 9 prompt and 0 output tokens"),
        (good_json(0, 0, "[]"), 1, "has 0 prompt and 1 output tokens"),
        // Recorded requests that are not sorted by time, in each file format.
        (rows(NATIVE, "1,1,1\n\n0.5,1,1\n"), 4, "is earlier than the row before"),
        (rows(AZURE, &format!("{date}:46,1,1\n{date}:45.9,1,1\n")), 3, "is earlier than"),
        (rows(BURSTGPT, "2,x,1,1,2,y\n1,x,1,1,2,y\n"), 3, "is earlier than"),
        (good_json(5, 5, "[1]") + &good_json(4, 5, "[1]"), 2, "is earlier than"),
        // Numbers that are too large, and lines that are too long, in recorded traffic.
        (rows(NATIVE, "0,1000001,1\n"), 2, "has the prompt_tokens \"1000001\"; allowed: 1 to"),
        (rows(AZURE, &format!("{date}:46,1,99999999999\n")), 2, "has the GeneratedTokens"),
        (rows(BURSTGPT, "1,x,1,1000001,2,y\n"), 2, "has the Response tokens \"1000001\""),
        (good_json(0, 1_000_001, "[1]"), 1, "has the input_length 1000001"),
        (rows(NATIVE, &"9".repeat(70_000)), 2, "has more than 65536 bytes"),
    ];
    for (trace, line, says) in cases {
        let scene = Scene::with(&trace);
        let message = scene.plan("").unwrap_err().to_string();
        let place = format!("{}: line {line} ", scene.folder.path().join("t").display());
        let start = &trace[..trace.len().min(200)];
        assert!(message.starts_with(&place) && message.contains(says), "{start:?}: {message}");
    }
}

#[test]
fn rows_of_no_length_can_be_left_out_and_are_counted() {
    let trace = BURSTGPT.to_owned() + "1,x,7,1,8,y\n2,x,9,0,9,y\n3,x,0,0,0,y\n4,x,5,2,7,y\n";
    let scene = Scene::with(&trace);
    assert_eq!(facts(&scene.plan(", skip_empty = true").unwrap()), [(0.0, 7, 1), (3.0, 5, 2)]);
    let arrival = "{ trace = { file = \"t\", skip_empty = true } }";
    let workload = scene.load("", &[arrival]).unwrap();
    assert_eq!(workload.notes()[0], "t: 2 rows without prompt or output tokens left out");
    let nothing = Scene::with(&(BURSTGPT.to_owned() + "1,x,7,0,7,y\n"));
    let message = nothing.plan(", skip_empty = true").unwrap_err().to_string();
    assert!(message.contains("line 2 is the last that was read"), "{message}");
}

#[test]
fn files_and_rows_have_a_bound() {
    let scene = Scene::with("");
    let file = File::options().write(true).open(scene.folder.path().join("t")).unwrap();
    file.set_len((2 << 30) + 1).unwrap();
    let message = scene.plan("").unwrap_err().to_string();
    assert!(message.contains("larger than 2147483648 bytes"), "{message}");
    let rows = Scene::with(&(NATIVE.to_owned() + &"0,1,1\n".repeat(1_000_001)));
    let message = rows.plan("").unwrap_err().to_string();
    assert!(message.contains("t: line 1000002 is more than the window may hold"), "{message}");
    let folder = Scene::with("");
    let message = folder.load("", &["{ trace = { file = \"..\" } }"]).unwrap_err().to_string();
    assert!(message.contains("cannot read") && message.contains("not a file"), "{message}");
}

#[test]
fn a_window_is_cut_out_and_times_are_stretched() {
    let trace = BURSTGPT.to_owned()
        + "100,x,1,1,2,y\n103,x,2,1,3,y\n104.5,x,3,1,4,y\n106,x,4,1,5,y\n107,x,5,1,6,y\n108,bad\n";
    let scene = Scene::with(&trace);
    let window = ", from_s = 3, length_s = 4";
    let plan = scene.plan(window).unwrap();
    assert_eq!(facts(&plan), [(0.0, 2, 1), (1.5, 3, 1), (3.0, 4, 1)], "and line 7 is not read");
    let slow = scene.plan(&format!("{window}, time_factor = 2")).unwrap();
    assert_eq!(facts(&slow), [(0.0, 2, 1), (3.0, 3, 1), (6.0, 4, 1)]);
    assert!(scene.plan("").is_err(), "without a window it is");
    let message = scene.plan(", from_s = 7.5, length_s = 0.1").unwrap_err().to_string();
    assert!(message.contains("line 7 has 2 fields"), "{message}");
    let message = scene.plan(", from_s = 1, length_s = 1").unwrap_err().to_string();
    let says = "line 3 is the last that was read, at 3.000 s of the trace, and the window";
    assert!(message.contains(says), "{message}");
}

#[test]
fn a_load_is_a_faster_trace() {
    let scene = Scene::with(&(NATIVE.to_owned() + "0,1,1\n10,2,1\n990,3,1\n"));
    let own = "{ trace = { file = \"t\", time_factor = 0.5 } }";
    let workload = scene.load("trace = { file = \"t\" }", &[own, "{ share = 1 }"]).unwrap();
    assert_eq!(
        workload.notes(),
        ["t: the last request is due at 505.0 s, the measured window ends at 1000 s"]
    );
    let faster = workload.at_load(2.0);
    let times = |class| facts(&arrivals(&faster, class).collect::<Vec<_>>());
    assert_eq!(times(0), [(0.0, 1, 1), (2.5, 2, 1), (247.5, 3, 1)]);
    assert_eq!(times(1), [(0.0, 1, 1), (5.0, 2, 1), (495.0, 3, 1)]);
    assert_eq!(faster.notes().len(), 2);
}

/// Returns for every class the prompt lengths of its requests. In the test's recorded traffic a prompt's length is its
/// line number, so the lengths say which class sends which line.
fn drawn(workload: &Workload) -> Vec<BTreeSet<u32>> {
    let lines = |class| arrivals(workload, class).map(|planned| planned.prompt_tokens).collect();
    (0..workload.classes.len()).map(lines).collect()
}

#[test]
fn shares_divide_a_trace_by_the_seed_alone() {
    const ROWS: u32 = 20_000;
    let row = |line: u32| format!("{},{line},1\n", f64::from(line) / 100.0);
    let scene = Scene::with(&(NATIVE.to_owned() + &(2..ROWS + 2).map(row).collect::<String>()));
    let shares = ["{ share = 0.25 }", "{ share = 0.45 }", "{ share = 0.3 }"];
    let workload = scene.load("trace = { file = \"t\" }", &shares).unwrap();
    let classes = drawn(&workload);
    for (class, share) in classes.iter().zip([0.25, 0.45, 0.3]) {
        let expected = f64::from(ROWS) * share;
        let deviation = (expected * (1.0 - share)).sqrt();
        assert!((class.len() as f64 - expected).abs() < 4.0 * deviation, "{}", class.len());
    }
    let together: BTreeSet<u32> = classes.iter().flatten().copied().collect();
    assert_eq!(together.len(), ROWS as usize, "every row has a class");
    assert_eq!(classes.iter().map(BTreeSet::len).sum::<usize>(), ROWS as usize, "and only one");

    assert_eq!(drawn(&workload), classes);
    let another = Workload { seed: 2, ..workload.clone() };
    assert_ne!(drawn(&another), classes);
    let window = "trace = { file = \"t\", from_s = 50, length_s = 50, time_factor = 3 }";
    let cut = drawn(&scene.load(window, &shares).unwrap());
    assert!(cut.iter().zip(&classes).all(|(part, whole)| part.is_subset(whole)));
    assert_eq!(cut.iter().map(BTreeSet::len).sum::<usize>(), 5000);
    // A class that sends a share alone sends the same requests of the recorded traffic as beside other classes.
    let thinned = scene.load("trace = { file = \"t\" }", &shares[..1]).unwrap();
    assert_eq!(drawn(&thinned)[0], classes[0]);
}

#[test]
fn wrong_fields_of_a_trace_are_named() {
    let scene = Scene::with(&(NATIVE.to_owned() + "0,1,1\n"));
    let shared = "trace = { file = \"t\" }";
    // Each case is an invalid workload: (top-level fields, arrival of the class, text that the error message contains).
    let cases = [
        (
            "trace = { file = \"t\", time_factor = 0 }",
            "{ share = 1 }",
            "trace.time_factor is 0; allowed: 0.000001 to",
        ),
        (
            "trace = { file = \"none\", from_s = -1 }",
            "{ share = 1 }",
            "trace.from_s is -1; allowed: 0 to",
        ),
        ("trace = { file = \"none\" }", "{ share = 1 }", "none: No such file"),
        ("trace = { file = \"t\", format = \"azure\" }", "{ share = 1 }", "unknown field `format`"),
        (
            "",
            "{ trace = { file = \"t\", length_s = 0 } }",
            "class[0].arrival.trace.length_s is 0; allowed: above 0",
        ),
        ("", "{ share = 0.5 }", "class[0].arrival.share is of no trace"),
        (shared, "{ share = 0 }", "class[0].arrival.share is 0; allowed: above 0, at most 1"),
        (shared, "{ share = nan }", "class[0].arrival.share is NaN"),
        (
            shared,
            "{ closed = { streams = 1 } }",
            "trace is sent by no class; one needs arrival = { share = 1 }",
        ),
        (
            shared,
            "{ share = 1 }\nprompt_tokens = { fixed = 1 }",
            "class[0].arrival takes its lengths from a trace",
        ),
        (
            shared,
            "{ share = 1 }\nprefix = { share = 1, count = 1, zipf = 1, min = 1, max = 2 }",
            "class[0].prefix is not for a trace",
        ),
    ];
    for (top, arrival, says) in cases {
        let message = scene.load(top, &[arrival]).unwrap_err().to_string();
        assert!(message.contains(says), "{top} {arrival}: {message}");
    }
    let message =
        scene.load(shared, &["{ share = 0.7 }", "{ share = 0.4 }"]).unwrap_err().to_string();
    assert!(
        message.contains("class[1].arrival.share makes the sum of the shares 1.1"),
        "{message}"
    );
    scene.load(shared, &["{ share = 0.7 }", "{ share = 0.2 }", "{ share = 0.1 }"]).unwrap();
}

#[test]
fn the_samples_are_what_their_notes_say() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../workloads");
    for (name, rows, skipped, named) in [
        ("azure-conversation-sample", 1200, 0, false),
        ("burstgpt-sample", 400, 7, false),
        ("mooncake-sample", 400, 0, true),
    ] {
        let path = folder.join(name).with_extension("toml");
        let workload = Workload::load(&path).unwrap();
        assert!(matches!(workload.classes[2].arrival, Arrival::Share(0.3)), "{name}");
        assert_eq!(workload.shares_text(), named, "{name}");
        let text = std::fs::read_to_string(&path).unwrap();
        let (before, after) = text.split_once(", length_s").unwrap();
        let rest = after.split_once(" }\n").unwrap().1;
        let whole = format!("{before}, skip_empty = true }}\n{rest}").replace("traces/", "");
        let whole_path = tempfile::tempdir().unwrap();
        std::fs::write(whole_path.path().join("w.toml"), whole).unwrap();
        for trace in std::fs::read_dir(folder.join("traces")).unwrap() {
            let trace = trace.unwrap();
            std::fs::copy(trace.path(), whole_path.path().join(trace.file_name())).unwrap();
        }
        let whole = Workload::load(&whole_path.path().join("w.toml")).unwrap().trace.unwrap();
        assert_eq!((whole.entries.len() as u64 + whole.skipped, whole.skipped), (rows, skipped));
    }
}
