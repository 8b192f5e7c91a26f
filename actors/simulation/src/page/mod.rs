//! One page for a simulation: what each request did, how full memory was, how long first tokens took.
//!
//! | file | one job |
//! |---|---|
//! | `story` | a run's events into what the page shows of it |
//! | `lanes` | requests, and what each was doing when |
//! | `pressure` | how full memory was, and preemptions |
//! | `curve` | times to the first token |
//! | `template.html`, `page.css`, `page.js`, `charts.js` | the page; it loads nothing |
//!
//! A page has a bound whatever the run: requests and spans of one window, and sums of the rest.

mod curve;
mod lanes;
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

/// Most policies side by side on a page.
pub const MAX_PAGE_POLICIES: usize = 8;
/// Length of the window whose requests are shown one by one, unless another is asked for, seconds.
const DEFAULT_WINDOW_S: f64 = 20.0;

const TEMPLATE: &str = include_str!("template.html");
const STYLE: &str = include_str!("page.css");
const CHARTS: &str = include_str!("charts.js");
const SCRIPT: &str = include_str!("page.js");

/// A page being made while its runs go on.
pub struct Page {
    /// Whose requests are shown one by one.
    window: Range<Timestamp>,
    /// Requests that arrive within it count, as in the table.
    counted: Range<Timestamp>,
    policies: Vec<Shown>,
}

/// A policy's runs: the first is told in full, all count toward the curves.
struct Shown {
    section: Section,
    first: Rc<Story>,
    all: Curve,
    /// The run under way, if it is not the first.
    other: Option<Rc<Story>>,
}

/// What the script reads.
#[derive(Serialize)]
struct Data<'a> {
    workload: &'a str,
    profile: &'a str,
    load: f64,
    noise: f64,
    sizes: Vec<String>,
    seeds: Vec<u64>,
    /// Of the workload's traces, a sentence each.
    notes: Vec<String>,
    end_us: u64,
    window_us: [u64; 2],
    tiers: [&'static str; 4],
    states: [&'static str; lanes::STATES],
    heads: &'a [&'static str],
    rows: Vec<[String; crate::comparison::COLUMNS]>,
    /// Buckets of a curve are this many to a decade, from 0.1 ms.
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
    /// A page of runs of this workload, `window` in seconds.
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

    /// Begins a run: the events it hands to the recorder are shown. Runs of one policy follow one another.
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

    /// Adds up the last policy's run, which is over.
    fn close_run(&mut self) {
        let Some(last) = self.policies.last_mut() else { return };
        if let Some(other) = last.other.take() {
            last.all.merge(&other.curve());
        }
    }

    /// The page, complete in itself.
    ///
    /// # Errors
    /// [`serde_json::Error`]: never for what simulations hold.
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

/// Puts the parts into the template, each at its mark. What comes from files is in the data only, and cannot
/// end the element that holds it.
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
