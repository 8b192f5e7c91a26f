//! Metrics of a simulated run, scraped as Prometheus does, and the alerts that fire over them.

use metrics_exporter_prometheus::PrometheusBuilder;
use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::rc::Rc;
use tiercel_simulation::Experiment;

/// Interval of scrapes, s of simulated time.
const INTERVAL_S: usize = 15;
/// Name of the series that says whether the server answers.
const UP: &str = "up{job=\"tiercel\"}";

/// Series with a value for each scrape; `None` where the series did not exist yet.
#[derive(Default)]
pub(crate) struct Scrapes {
    series: BTreeMap<String, Vec<Option<String>>>,
    count: usize,
}

impl Scrapes {
    /// Runs the experiment and scrapes the metrics that the alerts use.
    pub(crate) fn of(experiment: &Experiment) -> Scrapes {
        let rules = std::fs::read_to_string(rules()).unwrap();
        let scrapes = Rc::new(RefCell::new(Scrapes::default()));
        let recorder = PrometheusBuilder::new().build_recorder();
        let (handle, taken) = (recorder.handle(), scrapes.clone());
        metrics::with_local_recorder(&recorder, || {
            // Progress comes every 5 s of simulated time.
            let calls = Cell::new(0);
            let progress = move |_: f64| {
                handle.run_upkeep();
                calls.set(calls.get() + 1);
                if calls.get() % 3 == 0 {
                    taken.borrow_mut().scrape(&handle.render(), &rules);
                }
            };
            experiment.run(progress).unwrap();
        });
        scrapes.take()
    }

    fn scrape(&mut self, text: &str, rules: &str) {
        let samples = text.lines().filter_map(|line| line.rsplit_once(' '));
        let used = samples.filter(|(series, _)| {
            let name = series.split('{').next().unwrap_or_default();
            !series.starts_with('#') && rules.contains(name)
        });
        for (series, value) in used.chain([(UP, "1")]) {
            let values = self.series.entry(series.to_owned()).or_default();
            values.resize(self.count, None);
            values.push(Some(value.to_owned()));
        }
        self.count += 1;
    }

    /// Returns the scrapes as the input of a promtool test, in which no alert is expected to have fired. The test's
    /// failure lists those that have.
    fn as_test(&self) -> String {
        let mut test = format!(
            "rule_files: [{:?}]\nevaluation_interval: 15s\ntests:\n- interval: 15s\n  input_series:\n",
            rules()
        );
        for (series, values) in &self.series {
            let values = values.iter().map(|value| value.as_deref().unwrap_or("_"));
            let values: Vec<&str> = values.collect();
            writeln!(test, "  - series: '{series}'\n    values: '{}'", values.join(" ")).unwrap();
        }
        let end = self.count * INTERVAL_S;
        test + &format!(
            "  promql_expr_test:\n  - expr: count by (alertname) \
             (max_over_time(ALERTS{{alertstate=\"firing\"}}[{end}s]))\n    eval_time: {end}s\n    exp_samples: []\n"
        )
    }
}

fn rules() -> PathBuf {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../ops/prometheus/alerts.yml");
    path.canonicalize().unwrap()
}

/// Returns the names of the alerts that fire over the scrapes at any time.
pub(crate) fn fired(scrapes: &Scrapes) -> BTreeSet<String> {
    assert!(scrapes.count >= 90 && scrapes.series.len() > 20, "{}", scrapes.series.len());
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("test.yml");
    std::fs::write(&file, scrapes.as_test()).unwrap();
    let output = Command::new("promtool").args(["test", "rules"]).arg(&file).output();
    let output = output.expect("promtool, from Debian's package prometheus");
    let said = [output.stdout, output.stderr].concat();
    let said = String::from_utf8_lossy(&said);
    let names = said.split("alertname=\"").skip(1).filter_map(|rest| rest.split('"').next());
    let names: BTreeSet<String> = names.map(str::to_owned).collect();
    // promtool succeeds if no alert has fired, and otherwise lists them.
    assert_eq!(output.status.success(), names.is_empty(), "{said}");
    names
}
