//! HTML page that shows simulation runs: states of single requests over time, use of KV memory, and TTFT curves.
//!
//! | file | one job |
//! |---|---|
//! | `story` | turns the events of a run into the content of the page |
//! | `lanes` | lanes of requests: the states of each over time |
//! | `pressure` | use of KV memory over time, and preemptions |
//! | `curve` | TTFT curves |
//! | `template.html`, `page.css`, `page.js`, `charts.js` | the page, which loads nothing from elsewhere |
//!
//! The size of a page is bounded, however long the run: it holds the requests and spans of one window, and sums of the
//! rest.

mod curve;
pub(crate) mod lanes;
mod pressure;
mod story;
#[cfg(test)]
mod tests;

use crate::comparison::Comparison;
use crate::trace::{Record, Section};
use curve::Curve;
use serde::Serialize;
use std::ops::Range;
use std::rc::Rc;
use story::{Story, Told};
use tiercel_device::{Tier, Timestamp};
use tiercel_workload::{Workload, seconds};

/// Maximum number of policies that one HTML page of a simulation compares.
pub const MAX_PAGE_POLICIES: usize = 8;
/// Default length of the time window in which the page shows the states of single requests, seconds.
const DEFAULT_WINDOW_S: f64 = 20.0;

const TEMPLATE: &str = include_str!("template.html");
const STYLE: &str = include_str!("page.css");
const CHARTS: &str = include_str!("charts.js");
const SCRIPT: &str = include_str!("page.js");

/// HTML page of a comparison of policies, filled while the simulation runs go on.
pub struct Page {
    /// Time window of the runs in which the page shows the states of each single request.
    window: Range<Timestamp>,
    /// Measured window of the workload: requests that arrive within it count in the TTFT curves.
    counted: Range<Timestamp>,
    policies: Vec<Shown>,
}

/// Simulation runs of one policy on the page. The first run is shown in full; all runs count toward the TTFT curves.
struct Shown {
    section: Section,
    first: Rc<Story>,
    all: Curve,
    /// Recorder of the current run, if it is not the policy's first run.
    other: Option<Rc<Story>>,
}

/// Data of the runs, as JSON that the JavaScript of the page reads.
#[derive(Serialize)]
struct Data<'a> {
    workload: &'a str,
    profile: &'a str,
    load: f64,
    noise: f64,
    sizes: Vec<String>,
    seeds: Vec<u64>,
    /// Notes on the workload's recorded traffic, one sentence each.
    notes: Vec<String>,
    end_us: u64,
    window_us: [u64; 2],
    tiers: [&'static str; 4],
    states: [&'static str; lanes::STATES],
    heads: &'a [&'static str],
    rows: Vec<[String; crate::comparison::COLUMNS]>,
    /// Number of TTFT buckets per decade (factor 10) of time; the first bucket begins at 0.1 ms.
    curve_buckets: u32,
    policies: Vec<Policy>,
}

#[derive(Serialize)]
struct Policy {
    name: String,
    seed: u64,
    #[serde(flatten)]
    told: Told,
    curves: curve::Points,
}

impl Page {
    /// Makes an empty page for simulation runs of this workload. `window` is the time, in seconds, in which the states
    /// of single requests are shown; `None` for the first 20 s of the measured window.
    pub fn new(workload: &Workload, window: Option<&Range<f64>>) -> Page {
        let counted = workload.window_s();
        let range = |s: &Range<f64>| Timestamp(seconds(s.start))..Timestamp(seconds(s.end));
        let default = counted.start..counted.start + DEFAULT_WINDOW_S;
        Page {
            window: range(window.unwrap_or(&default)),
            counted: range(&counted),
            policies: Vec::new(),
        }
    }

    /// Begins a simulation run and returns the recorder that passes its events to the page. All runs of a policy must
    /// follow one another.
    pub fn run(&mut self, section: &Section) -> Rc<dyn Record> {
        self.close_run();
        let known = self.policies.last_mut().filter(|last| last.section.policy == section.policy);
        let story = |lanes| Rc::new(Story::new(section, &self.window, &self.counted, lanes));
        match known {
            Some(shown) => {
                let other = story(false);
                shown.other = Some(Rc::clone(&other));
                other
            }
            None => {
                let first = story(true);
                self.policies.push(Shown {
                    section: section.clone(),
                    first: Rc::clone(&first),
                    all: Curve::default(),
                    other: None,
                });
                first
            }
        }
    }

    /// Adds the TTFTs of the run that has just ended to its policy's TTFT curves. First runs are added when the page is
    /// written.
    fn close_run(&mut self) {
        let Some(last) = self.policies.last_mut() else { return };
        if let Some(other) = last.other.take() {
            last.all.merge(&other.curve());
        }
    }

    /// Returns the complete HTML page, which loads no other files.
    ///
    /// # Errors
    /// [`serde_json::Error`] if the data cannot be serialized; simulations contain no such data.
    pub fn html(mut self, comparison: &Comparison) -> Result<String, serde_json::Error> {
        self.close_run();
        let end_us = self.policies.first().map_or(0, |shown| shown.section.end_us);
        let runs = comparison.policies.first();
        let data = Data {
            workload: &comparison.workload.name,
            profile: &comparison.profile,
            load: comparison.load,
            noise: comparison.noise_sigma,
            sizes: comparison.sizes(),
            seeds: runs.map_or(Vec::new(), |first| first.runs.iter().map(|run| run.seed).collect()),
            notes: comparison.workload.notes(),
            end_us,
            window_us: [self.window.start.0.min(end_us), self.window.end.0.min(end_us)],
            tiers: Tier::ALL.map(Tier::name),
            states: lanes::STATE_NAMES,
            heads: &crate::comparison::HEADS,
            rows: comparison.policies.iter().flat_map(|policy| policy.rows()).collect(),
            curve_buckets: curve::BUCKETS_A_DECADE,
            policies: self.policies.into_iter().map(Shown::told).collect(),
        };
        Ok(assemble(&serde_json::to_string(&data)?))
    }
}

impl Shown {
    fn told(mut self) -> Policy {
        self.all.merge(&self.first.curve());
        Policy {
            name: self.section.policy,
            seed: self.section.seed,
            told: self.first.told(),
            curves: self.all.points(),
        }
    }
}

/// Puts style, data and scripts into the HTML template in place of its placeholders. Text from files is only in the
/// data, where it is escaped so that it cannot end the HTML element around it.
fn assemble(data: &str) -> String {
    let data = data.replace('<', "\\u003c").replace('>', "\\u003e").replace('&', "\\u0026");
    let parts =
        [("{{style}}", STYLE), ("{{data}}", &data), ("{{charts}}", CHARTS), ("{{page}}", SCRIPT)];
    let (mut page, mut rest) = (String::new(), TEMPLATE);
    for (mark, part) in parts {
        let (before, after) = rest.split_once(mark).expect("the template has every mark, in order");
        page.push_str(before);
        page.push_str(part);
        rest = after;
    }
    page + rest
}
