//! Adds up the measurements of the requests of a run into its report.

use crate::report::{FailureCount, Report};
use crate::request::{Outcome, Record};
use crate::run::{Context, Progress};
use crate::tally::Tally;
use std::sync::atomic::Ordering;
use tiercel_device::Tier;
use tiercel_workload::MAX_REQUESTS;

/// Maximum number of distinct failure reasons that a report lists; further reasons count as `other reasons`.
const MAX_REASONS: usize = 16;

/// Measurements of all requests that have ended so far.
#[derive(Default)]
pub(crate) struct Collected {
    tiers: [Tally; Tier::ALL.len()],
    failures: Vec<FailureCount>,
    ended: u64,
    unsuccessful: u64,
}

impl Collected {
    pub(crate) fn add(&mut self, context: &Context, record: &Record) {
        let class = &context.workload.classes[record.planned.class];
        let counted = context.in_window(record.due);
        let first_in_window = record.first.is_some_and(|first| context.in_window(first));
        self.tiers[class.tier.index()].add(
            record,
            counted,
            first_in_window,
            class.targets.as_ref(),
        );
        self.ended += 1;
        self.unsuccessful += u64::from(record.outcome != Outcome::Completed);
        match &record.outcome {
            Outcome::Failed(reason) => self.add_failure(reason),
            Outcome::TimedOut(reason) => self.add_failure(reason),
            _ => {}
        }
    }

    fn add_failure(&mut self, reason: &str) {
        let full = self.failures.len() >= MAX_REASONS;
        let known = |reason: &str| self.failures.iter().position(|known| known.reason == reason);
        let reason = if known(reason).is_none() && full { "other reasons" } else { reason };
        match known(reason) {
            Some(index) => self.failures[index].count += 1,
            None => self.failures.push(FailureCount { reason: reason.to_owned(), count: 1 }),
        }
    }

    pub(crate) fn progress(&self, context: &Context) -> Progress {
        let sent = context.begun.load(Ordering::Relaxed).min(MAX_REQUESTS);
        Progress {
            elapsed_s: context.clock.now().since_us(context.start) as f64 / 1e6,
            sent,
            in_flight: sent.saturating_sub(self.ended),
            unsuccessful: self.unsuccessful,
        }
    }

    pub(crate) fn report(
        self,
        context: &Context,
        server: Option<String>,
        url: String,
        started_unix_s: u64,
    ) -> Report {
        let workload = &context.workload;
        let window = workload.window_s();
        let window_s = window.end - window.start;
        let mut total = Tally::default();
        let mut tiers = Vec::new();
        for (tier, tally) in Tier::ALL.into_iter().zip(self.tiers) {
            if workload.classes.iter().any(|class| class.tier == tier) {
                total.merge(tally.clone());
                tiers.push(tally.report(tier.name(), window_s));
            }
        }
        Report {
            client_version: env!("CARGO_PKG_VERSION").to_owned(),
            server,
            url,
            model: context.model.clone(),
            prompt_form: context.vocabulary.form(),
            started_unix_s,
            salt: context.salt,
            window_s,
            elapsed_s: context.clock.now().since_us(context.start) as f64 / 1e6,
            truncated: context.begun.load(Ordering::Relaxed) > MAX_REQUESTS,
            tiers,
            total: total.report("total", window_s),
            failures: self.failures,
            workload: workload.clone(),
        }
    }
}
