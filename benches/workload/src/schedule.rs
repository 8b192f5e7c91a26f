//! Computes the requests of a workload and their due times, as a pure function of the workload. Two runs of one
//! workload file send the same open-loop requests, whatever the server does. In a closed loop, each stream (simulated
//! user) sends requests of the same sequence, but how many and when depends on the server.

use crate::file::{Arrival, Bursts, Class, Poisson, Prefix, Workload};
use crate::random::Random;
use crate::recording::RecordedRequest;
use crate::trace::TraceEntry;
use std::sync::Arc;

/// One request that a workload sends, computed ahead of the run.
#[derive(Debug, Clone, PartialEq)]
pub struct Planned {
    /// Index of the request's traffic class in the workload.
    pub class: usize,
    /// Number of the closed-loop stream (simulated user) that sends the request; 0 in other classes.
    pub stream: u32,
    /// Number of the request within its traffic class and closed-loop stream, from 0.
    pub number: u64,
    /// Time at which the request is due, us after the start of the run. For a closed-loop stream it is the start of the
    /// class: later requests are due when the one before has ended.
    pub at_us: u64,
    /// Shared prefix that the prompt begins with, if any.
    pub prefix: Option<SharedPrefix>,
    /// Content hashes of the prompt's blocks, if recorded traffic names them ([`TraceEntry::blocks`]).
    pub blocks: Option<Arc<[u64]>>,
    /// The sequence of a [`Recording`](crate::Recording) that the request replays, if it does.
    pub recorded: Option<Arc<RecordedRequest>>,
    /// Length of the prompt, shared prefix included, tokens.
    pub prompt_tokens: u32,
    /// Length of the output, tokens.
    pub output_tokens: u32,
}

impl Planned {
    /// Whether the request counts in results. A recorded sequence that was live when the recording began does not: only
    /// its load matters.
    pub fn counts(&self) -> bool {
        self.recorded.as_ref().is_none_or(|recorded| recorded.before.is_none())
    }
}

/// Shared prefix of several prompts, like a system prompt.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SharedPrefix {
    /// Index of the shared prefix in order of popularity, from 0 for the most popular.
    pub number: u32,
    /// Length of the shared prefix, tokens.
    pub tokens: u32,
}

/// Returns the requests of an open-loop class (Poisson or recorded traffic) that are due within the workload's
/// duration, in order of time. Empty for a closed-loop class.
pub fn arrivals(workload: &Workload, class: usize) -> impl Iterator<Item = Planned> + '_ {
    let spec = &workload.classes[class];
    let mut gaps = Random::stream(workload.seed, &[class as u64, u64::MAX]);
    let mut at_s = spec.start_s;
    let mut recorded = workload.recorded(class);
    (0u64..)
        .map_while(move |number| match &spec.arrival {
            Arrival::Poisson(poisson) => {
                at_s = next_arrival(at_s, poisson, gaps.exponential(1.0), workload.duration_s);
                let drawn = draw(workload.seed, spec, class, 0, number);
                Some(planned(class, 0, number, at_s, drawn))
            }
            Arrival::Trace(_) | Arrival::Share(_) => {
                let (entry, at_s) = recorded.next()?;
                let TraceEntry { prompt_tokens, output_tokens, .. } = *entry;
                let drawn = (None, prompt_tokens, output_tokens);
                let planned = planned(class, 0, number, spec.start_s + at_s, drawn);
                let (blocks, recorded) = (entry.blocks.clone(), entry.recorded.clone());
                Some(Planned { blocks, recorded, ..planned })
            }
            Arrival::Closed(_) => None,
        })
        .take_while(|planned| planned.at_us < seconds(workload.duration_s))
}

/// Returns the arrival time of the next request of a Poisson class, seconds. `wait` is the integral of the arrival rate
/// up to that request, an exponential draw with mean 1; each stretch of time uses up its rate times its length. Once
/// the time reaches `end_s`, any time from `end_s` on may be returned.
fn next_arrival(mut at_s: f64, poisson: &Poisson, mut wait: f64, end_s: f64) -> f64 {
    let Poisson { rate_per_s, bursts } = *poisson;
    let Some(Bursts { factor, length_s, period_s }) = bursts else {
        return at_s + wait / rate_per_s;
    };
    while at_s < end_s {
        let phase_s = at_s.rem_euclid(period_s);
        let calm_s = period_s - length_s;
        let (rate_per_s, left_s) = if phase_s < calm_s {
            (rate_per_s, calm_s - phase_s)
        } else {
            (rate_per_s * factor, period_s - phase_s)
        };
        if wait <= rate_per_s * left_s {
            return at_s + wait / rate_per_s;
        }
        wait -= rate_per_s * left_s;
        // Advance by at least 1 ns to the next border of a burst: otherwise rounding could keep the loop at one border
        // for ever.
        at_s += left_s.max(1e-9);
    }
    at_s
}

/// Returns request `number` of one closed-loop stream (simulated user) of a class.
pub fn closed_request(workload: &Workload, class: usize, stream: u32, number: u64) -> Planned {
    let spec = &workload.classes[class];
    let drawn = draw(workload.seed, spec, class, stream, number);
    planned(class, stream, number, spec.start_s, drawn)
}

/// Converts a time from seconds to microseconds, rounded.
pub fn seconds(s: f64) -> u64 {
    (s * 1e6).round() as u64
}

/// Random values drawn for a request: shared prefix, prompt length without the prefix, output length, both in tokens.
type Drawn = (Option<SharedPrefix>, u32, u32);

fn planned(
    class: usize,
    stream: u32,
    number: u64,
    at_s: f64,
    (prefix, prompt, output_tokens): Drawn,
) -> Planned {
    let prompt_tokens = prompt + prefix.map_or(0, |prefix| prefix.tokens);
    Planned {
        class,
        stream,
        number,
        at_us: seconds(at_s),
        prefix,
        blocks: None,
        recorded: None,
        prompt_tokens,
        output_tokens,
    }
}

fn draw(seed: u64, spec: &Class, class: usize, stream: u32, number: u64) -> Drawn {
    let mut random = Random::stream(seed, &[class as u64, u64::from(stream), number]);
    // A class without recorded traffic has distributions of both lengths (`Workload::problem` checks it). The default
    // length of 1 only avoids a panic.
    let mut length = |length: Option<crate::Length>| length.map_or(1, |l| l.draw(&mut random));
    let (prompt, output) = (length(spec.prompt_tokens), length(spec.output_tokens));
    (spec.prefix.and_then(|prefix| shared(seed, &prefix, &mut random)), prompt, output)
}

/// Draws the shared prefix of a request, or `None` for a request without one. The length of prefix n depends only on
/// the seed, n and the limits, so that it is the same in all requests.
fn shared(seed: u64, prefix: &Prefix, random: &mut Random) -> Option<SharedPrefix> {
    if random.unit() >= prefix.share {
        return None;
    }
    let weight = |number: u32| f64::from(number + 1).powf(-prefix.zipf);
    let mut left = random.unit() * (0..prefix.count).map(weight).sum::<f64>();
    let number = (0..prefix.count).find(|number| {
        left -= weight(*number);
        left < 0.0
    });
    // Because of rounding, the remaining weight `left` may stay above 0 after all prefixes. Take the last prefix then.
    let number = number.unwrap_or(prefix.count - 1);
    let mut lengths = Random::stream(seed, &[u64::MAX, u64::from(number)]);
    let Prefix { min, max, .. } = *prefix;
    let tokens = crate::Length::Uniform(crate::Uniform { min, max }).draw(&mut lengths);
    Some(SharedPrefix { number, tokens })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Closed, Length, LogNormal, Poisson, Sampling, Trace};
    use tiercel_device::Tier;

    fn workload(arrival: Arrival, seed: u64) -> Workload {
        let log_normal = |mean, cap| {
            Length::LogNormal(LogNormal { mean: Some(mean), p50: None, sigma: 0.6, min: 16, cap })
        };
        let lengths = !matches!(arrival, Arrival::Trace(_));
        Workload {
            name: "test".into(),
            seed,
            duration_s: 1000.0,
            warmup_s: 0.0,
            cooldown_s: 0.0,
            drain_s: 0.0,
            simulation: crate::Pool::default(),
            trace: None,
            classes: vec![Class {
                tier: Tier::Premium,
                arrival,
                start_s: 100.0,
                prefix: None,
                prompt_tokens: lengths.then(|| log_normal(128.0, 512)),
                output_tokens: lengths.then(|| log_normal(72.0, 150)),
                ignore_eos: true,
                sampling: Sampling::default(),
                targets: None,
            }],
        }
    }

    fn poisson(seed: u64) -> Workload {
        workload(Arrival::Poisson(Poisson { rate_per_s: 14.4, bursts: None }), seed)
    }

    #[test]
    fn the_plan_is_a_function_of_the_seed() {
        let plan = |seed| arrivals(&poisson(seed), 0).collect::<Vec<_>>();
        assert_eq!(plan(7), plan(7));
        assert_ne!(plan(7), plan(8));
        let first = &plan(7)[0];
        assert_eq!((first.at_us, first.prompt_tokens, first.output_tokens), FIRST_OF_SEED_7);
    }

    // First request that seed 7 gives, recorded once. If the test fails, the random generator has changed, and with it
    // the traffic of every workload.
    const FIRST_OF_SEED_7: (u64, u32, u32) = (100_050_418, 146, 55);

    #[test]
    fn poisson_arrivals_have_the_rate_start_and_end_of_the_class() {
        let workload = poisson(3);
        let plan: Vec<Planned> = arrivals(&workload, 0).collect();
        // Expected Poisson arrivals: 900 s * 14.4/s = 12,960, with a standard deviation of 114.
        assert!((plan.len() as f64 - 12_960.0).abs() < 4.0 * 114.0, "{}", plan.len());
        assert!(plan.is_sorted_by_key(|planned| planned.at_us));
        assert!(plan[0].at_us >= 100_000_000);
        assert!(plan.last().unwrap().at_us < 1_000_000_000);
        // In a Poisson process, the standard deviation of the gaps between arrivals equals their mean.
        let gaps: Vec<f64> =
            plan.windows(2).map(|pair| (pair[1].at_us - pair[0].at_us) as f64).collect();
        let mean = gaps.iter().sum::<f64>() / gaps.len() as f64;
        let variance = gaps.iter().map(|gap| (gap - mean).powi(2)).sum::<f64>() / gaps.len() as f64;
        assert!((variance.sqrt() / mean - 1.0).abs() < 0.05);
        assert!(plan.iter().all(|p| (16..=512).contains(&p.prompt_tokens)));
        assert!(plan.iter().all(|p| (16..=150).contains(&p.output_tokens)));
    }

    #[test]
    fn closed_streams_have_their_own_sequences() {
        let workload = workload(Arrival::Closed(Closed { streams: 2 }), 5);
        assert_eq!(arrivals(&workload, 0).count(), 0);
        let sequence = |stream| -> Vec<u32> {
            (0..50).map(|n| closed_request(&workload, 0, stream, n).prompt_tokens).collect()
        };
        assert_eq!(sequence(0), sequence(0));
        assert_ne!(sequence(0), sequence(1));
        assert_eq!(closed_request(&workload, 0, 1, 0).at_us, 100_000_000);
    }

    #[test]
    fn a_trace_is_replayed_from_the_start_of_its_class_to_the_end_of_the_run() {
        let entries = vec![entry(1, 0.0), entry(2, 0.5), entry(3, 900.0)];
        let workload = workload(Arrival::Trace(Trace::of(entries)), 5);
        let plan: Vec<Planned> = arrivals(&workload, 0).collect();
        assert_eq!(plan.iter().map(|p| p.at_us).collect::<Vec<_>>(), [100_000_000, 100_500_000]);
        assert_eq!((plan[1].prompt_tokens, plan[1].output_tokens), (3, 4));
    }

    fn entry(line: u32, at_s: f64) -> TraceEntry {
        TraceEntry { line, at_s, prompt_tokens: 3, output_tokens: 4, blocks: None, recorded: None }
    }

    #[test]
    fn bursts_multiply_the_rate_at_the_end_of_every_period() {
        let bursts = Some(Bursts { factor: 5.0, length_s: 3.0, period_s: 33.0 });
        let mut workload = workload(Arrival::Poisson(Poisson { rate_per_s: 10.0, bursts }), 11);
        (workload.classes[0].start_s, workload.duration_s) = (0.0, 3300.0);
        let (mut inside, mut outside) = (0.0, 0.0);
        for planned in arrivals(&workload, 0) {
            let in_burst = planned.at_us % 33_000_000 >= 30_000_000;
            *(if in_burst { &mut inside } else { &mut outside }) += 1.0;
        }
        // Expected arrivals: 300 s * 50/s in bursts and 3000 s * 10/s outside of bursts, with standard deviations of
        // 122 and 173.
        assert!((inside - 15_000.0_f64).abs() < 4.0 * 122.0, "{inside}");
        assert!((outside - 30_000.0_f64).abs() < 4.0 * 173.0, "{outside}");
    }

    #[test]
    fn shared_prefixes_are_the_same_for_every_class_and_popular_by_their_number() {
        let prefix = Prefix { share: 0.6, count: 20, zipf: 1.1, min: 512, max: 2048 };
        let mut workload = poisson(5);
        workload.classes[0].prefix = Some(prefix);
        workload.classes.push(workload.classes[0].clone());
        let mut lengths = std::collections::BTreeMap::new();
        let mut shares = [0.0_f64; 2];
        let mut first = 0.0;
        for class in [0, 1] {
            let plan: Vec<Planned> = arrivals(&workload, class).collect();
            for planned in &plan {
                let Some(SharedPrefix { number, tokens }) = planned.prefix else { continue };
                assert_eq!(*lengths.entry(number).or_insert(tokens), tokens);
                assert!((512..=2048).contains(&tokens) && planned.prompt_tokens > tokens);
                shares[class] += 1.0 / plan.len() as f64;
                first += f64::from(u8::from(number == 0));
            }
        }
        assert_eq!(lengths.len(), 20);
        assert!(shares.iter().all(|share| (share - 0.6).abs() < 0.02), "{shares:?}");
        // The most popular of 20 shared prefixes has the Zipf probability 1 / (sum of n^-1.1) = 31 %: about 4,850 of
        // some 15,500 draws.
        assert!((first - 4_850.0).abs() < 350.0, "{first}");
    }
}
