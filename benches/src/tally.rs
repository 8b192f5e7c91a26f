//! Adds up the measurements of the load client's requests per tier.

use crate::measurement::{Latency, output_tokens};
use crate::report::TierReport;
use crate::request::{Outcome, Record};
use tiercel_workload::{Compliance, Summary, Targets};

/// Counts and latency samples of the requests of one tier. Each latency has at most [`tiercel_workload::MAX_REQUESTS`]
/// samples.
#[derive(Debug, Clone, Default)]
pub(crate) struct Tally {
    sent: u64,
    completed: u64,
    refused: u64,
    failed: u64,
    timed_out: u64,
    unfinished: u64,
    not_sent: u64,
    other_tier: u64,
    ttft_ms: Vec<f64>,
    tpot_ms: Vec<f64>,
    e2e_ms: Vec<f64>,
    max_gap_ms: Vec<f64>,
    send_lag_ms: Vec<f64>,
    prompt_tokens: f64,
    output_tokens: f64,
    compliance: Option<Compliance>,
}

impl Tally {
    /// Adds the measurements of an ended request. `counted` says that the request was due in the measured window; of
    /// other requests, only the tokens that arrived in the window are added, for the throughput. `first_in_window` says
    /// that the first token arrived in the window.
    pub(crate) fn add(
        &mut self,
        record: &Record,
        counted: bool,
        first_in_window: bool,
        targets: Option<&Targets>,
    ) {
        self.add_tokens(record, first_in_window);
        if !counted {
            return;
        }
        match record.outcome {
            Outcome::Completed => self.completed += 1,
            Outcome::Refused(_) => self.refused += 1,
            Outcome::Failed(_) => self.failed += 1,
            Outcome::TimedOut(_) => {
                self.failed += 1;
                self.timed_out += 1;
            }
            Outcome::Unfinished => self.unfinished += 1,
            Outcome::NotSent => self.not_sent += 1,
        }
        if record.outcome != Outcome::NotSent {
            self.sent += 1;
            self.send_lag_ms.push(record.sent.since_ms(record.due));
        }
        self.other_tier += u64::from(record.other_tier);
        let Latency { with_targets: latencies, max_gap_ms } = Latency::of(record);
        self.ttft_ms.extend(latencies.ttft_ms);
        self.tpot_ms.extend(latencies.tpot_ms);
        self.e2e_ms.extend(latencies.e2e_ms);
        self.max_gap_ms.extend(max_gap_ms);
        if let Some(targets) = targets {
            let completed = record.outcome == Outcome::Completed;
            let targets = targets.of_prompt(record.planned.prompt_tokens);
            self.compliance.get_or_insert_default().add(completed, &latencies, &targets);
        }
    }

    fn add_tokens(&mut self, record: &Record, first_in_window: bool) {
        if first_in_window {
            let prompt = record.usage.map_or(record.planned.prompt_tokens, |u| u.prompt_tokens);
            self.prompt_tokens += f64::from(prompt);
        }
        if record.chunks > 0 {
            // An event of the response stream may hold several tokens. Assume that the output tokens are spread evenly
            // over the events, to estimate how many arrived in the measured window.
            let share = record.chunks_in_window as f64 / record.chunks as f64;
            self.output_tokens += share * output_tokens(record);
        }
    }

    /// Adds the counts and latency samples of another tier's tally, to get the total of all tiers.
    pub(crate) fn merge(&mut self, other: Tally) {
        self.sent += other.sent;
        self.completed += other.completed;
        self.refused += other.refused;
        self.failed += other.failed;
        self.timed_out += other.timed_out;
        self.unfinished += other.unfinished;
        self.not_sent += other.not_sent;
        self.other_tier += other.other_tier;
        self.ttft_ms.extend(other.ttft_ms);
        self.tpot_ms.extend(other.tpot_ms);
        self.e2e_ms.extend(other.e2e_ms);
        self.max_gap_ms.extend(other.max_gap_ms);
        self.send_lag_ms.extend(other.send_lag_ms);
        self.prompt_tokens += other.prompt_tokens;
        self.output_tokens += other.output_tokens;
        if let Some(compliance) = other.compliance {
            self.compliance.get_or_insert_default().merge(compliance);
        }
    }

    /// Turns the counts and latency samples into the report of a tier. `window_s` is the length of the measured window,
    /// s.
    pub(crate) fn report(self, tier: &str, window_s: f64) -> TierReport {
        TierReport {
            tier: tier.to_owned(),
            sent: self.sent,
            completed: self.completed,
            refused: self.refused,
            failed: self.failed,
            timed_out: self.timed_out,
            unfinished: self.unfinished,
            not_sent: self.not_sent,
            other_tier: self.other_tier,
            ttft_ms: Summary::of(self.ttft_ms),
            tpot_ms: Summary::of(self.tpot_ms),
            e2e_ms: Summary::of(self.e2e_ms),
            max_gap_ms: Summary::of(self.max_gap_ms),
            send_lag_ms: Summary::of(self.send_lag_ms),
            prompt_tokens_per_s: self.prompt_tokens / window_s,
            output_tokens_per_s: self.output_tokens / window_s,
            compliance: self.compliance,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::request::Usage;
    use tiercel_device::Timestamp;
    use tiercel_workload::Planned;

    fn record(outcome: Outcome, first_ms: Option<u64>, chunks: u64) -> Record {
        let planned = Planned {
            prefix: None,
            blocks: None,
            recorded: None,
            class: 0,
            stream: 0,
            number: 0,
            at_us: 0,
            prompt_tokens: 10,
            output_tokens: 11,
        };
        let due = Timestamp(1_000_000);
        let mut record = Record::new(planned, due, due + 500);
        record.outcome = outcome;
        record.first = first_ms.map(|ms| due + ms * 1000);
        record.last = due + 300_000;
        record.ended = due + 310_000;
        record.max_gap_us = 40_000;
        record.chunks = chunks;
        record.chunks_in_window = chunks / 2;
        record
    }

    fn report(records: &[Record], targets: Option<&Targets>) -> TierReport {
        let mut tally = Tally::default();
        for record in records {
            tally.add(record, true, record.first.is_some(), targets);
        }
        tally.report("premium", 2.0)
    }

    #[test]
    fn a_completed_request_gives_every_latency() {
        let mut done = record(Outcome::Completed, Some(100), 10);
        done.usage = Some(Usage { prompt_tokens: 12, completion_tokens: 21 });
        let report = report(&[done], None);
        let only = |summary: Option<Summary>| summary.map(|s| (s.count, s.p50, s.max));
        assert_eq!(only(report.ttft_ms), Some((1, 100.0, 100.0)));
        assert_eq!(only(report.tpot_ms), Some((1, 10.0, 10.0)));
        assert_eq!(only(report.e2e_ms), Some((1, 310.0, 310.0)));
        assert_eq!(only(report.max_gap_ms), Some((1, 40.0, 40.0)));
        assert_eq!(only(report.send_lag_ms), Some((1, 0.5, 0.5)));
        // Throughput counts half of the output tokens, because half of the text arrived in the measured window of 2 s.
        assert_eq!((report.prompt_tokens_per_s, report.output_tokens_per_s), (6.0, 5.25));
        assert_eq!(report.compliance, None);
    }

    #[test]
    fn what_did_not_complete_is_counted_and_misses_its_targets() {
        let targets = Targets { ttft_ms: Some(150.0), e2e_ms: Some(300.0), ..Targets::default() };
        let records = [
            record(Outcome::Completed, Some(100), 10),
            record(Outcome::Unfinished, Some(100), 10),
            record(Outcome::Unfinished, None, 0),
            record(Outcome::Refused(None), None, 0),
            record(Outcome::Failed("x".into()), None, 0),
            record(Outcome::NotSent, None, 0),
        ];
        let report = report(&records, Some(&targets));
        assert_eq!(
            (report.sent, report.completed, report.unfinished, report.refused, report.failed),
            (5, 1, 2, 1, 1)
        );
        assert_eq!(report.not_sent, 1);
        let ttft = report.ttft_ms.unwrap();
        assert_eq!(
            (ttft.count, ttft.max),
            (3, 310.0),
            "the waiting one counts as long as it waited"
        );
        let compliance = report.compliance.unwrap();
        assert_eq!((compliance.requests, compliance.ttft_met), (6, 1));
        assert_eq!((compliance.e2e_met, compliance.all_met), (0, 0));
    }

    #[test]
    fn what_was_cut_short_counts_with_the_time_it_had_waited() {
        let silent = Outcome::TimedOut("silence");
        for outcome in [Outcome::Unfinished, silent] {
            let mut waiting = record(outcome.clone(), None, 0);
            waiting.ended = waiting.due + 900_000;
            let mut starved = record(outcome.clone(), Some(100), 4);
            starved.ended = starved.due + 2_100_000;
            let report = report(&[waiting, starved], None);
            assert_eq!(report.failed + report.unfinished, 2);
            let all = |summary: Option<Summary>| summary.map(|s| (s.count, s.p50, s.max));
            assert_eq!(all(report.ttft_ms), Some((2, 100.0, 900.0)), "{outcome:?}");
            assert_eq!(all(report.e2e_ms), Some((2, 900.0, 2100.0)));
            assert_eq!(
                all(report.tpot_ms),
                Some((1, 500.0, 500.0)),
                "2 s for four tokens and no fifth"
            );
            assert_eq!(all(report.max_gap_ms), Some((1, 1800.0, 1800.0)), "since the last token");
        }
    }

    #[test]
    fn requests_outside_the_window_give_tokens_only() {
        let mut tally = Tally::default();
        tally.add(&record(Outcome::Completed, Some(100), 10), false, true, None);
        let report = tally.report("premium", 1.0);
        assert_eq!((report.sent, report.completed, report.ttft_ms), (0, 0, None));
        assert_eq!((report.prompt_tokens_per_s, report.output_tokens_per_s), (10.0, 5.0));
    }
}
