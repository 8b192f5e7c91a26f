//! What a workload sends and when: a pure function of the workload. Two runs of one file send the same
//! requests, whatever the server does (a closed stream sends the same sequence, at its own pace).

use crate::random::Random;
use crate::workload::{Arrival, Class, Workload};

/// One request of the plan.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Planned {
    /// Index of its class.
    pub class: usize,
    /// Stream of a closed class; 0 for open ones.
    pub stream: u32,
    /// Number within its class and stream, from 0.
    pub number: u64,
    /// When it is due, us after the start; for a closed stream only its first request has a due time.
    pub at_us: u64,
    /// Length of its prompt.
    pub prompt_tokens: u32,
    /// Length of its output.
    pub output_tokens: u32,
}

/// The requests of an open class (Poisson or trace) in order of time; empty for a closed class.
pub fn arrivals(workload: &Workload, class: usize) -> impl Iterator<Item = Planned> + '_ {
    let spec = &workload.classes[class];
    let mut gaps = Random::stream(workload.seed, &[class as u64, u64::MAX]);
    let mut at_s = spec.start_s;
    (0u64..)
        .map_while(move |number| {
            let lengths = match &spec.arrival {
                Arrival::Poisson(poisson) => {
                    at_s += gaps.exponential(poisson.rate_per_s);
                    lengths(workload.seed, spec, class, 0, number)
                }
                Arrival::Trace(trace) => {
                    let entry = trace.entries.get(number as usize)?;
                    at_s = spec.start_s + entry.at_s;
                    (entry.prompt_tokens, entry.output_tokens)
                }
                Arrival::Closed(_) => return None,
            };
            Some(planned(class, 0, number, at_s, lengths))
        })
        .take_while(|planned| planned.at_us < seconds(workload.duration_s))
}

/// Request `number` of a stream of a closed class.
pub fn closed_request(workload: &Workload, class: usize, stream: u32, number: u64) -> Planned {
    let spec = &workload.classes[class];
    let lengths = lengths(workload.seed, spec, class, stream, number);
    planned(class, stream, number, spec.start_s, lengths)
}

/// Microseconds of a time in seconds.
pub(crate) fn seconds(s: f64) -> u64 {
    (s * 1e6).round() as u64
}

fn planned(
    class: usize,
    stream: u32,
    number: u64,
    at_s: f64,
    (prompt_tokens, output_tokens): (u32, u32),
) -> Planned {
    Planned { class, stream, number, at_us: seconds(at_s), prompt_tokens, output_tokens }
}

fn lengths(seed: u64, spec: &Class, class: usize, stream: u32, number: u64) -> (u32, u32) {
    let mut random = Random::stream(seed, &[class as u64, u64::from(stream), number]);
    // A class that isn't a trace has both lengths (`Workload::problem`); 1 keeps this total.
    let mut draw = |length: Option<crate::Length>| length.map_or(1, |l| l.draw(&mut random));
    (draw(spec.prompt_tokens), draw(spec.output_tokens))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Closed, Length, LogNormal, Poisson, Sampling, Trace, TraceEntry};
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
            drain_s: 0.0,
            classes: vec![Class {
                tier: Tier::Premium,
                arrival,
                start_s: 100.0,
                prompt_tokens: lengths.then(|| log_normal(128.0, 512)),
                output_tokens: lengths.then(|| log_normal(72.0, 150)),
                ignore_eos: true,
                sampling: Sampling::default(),
                targets: None,
            }],
        }
    }

    fn poisson(seed: u64) -> Workload {
        workload(Arrival::Poisson(Poisson { rate_per_s: 14.4 }), seed)
    }

    #[test]
    fn the_plan_is_a_function_of_the_seed() {
        let plan = |seed| arrivals(&poisson(seed), 0).collect::<Vec<_>>();
        assert_eq!(plan(7), plan(7));
        assert_ne!(plan(7), plan(8));
        let first = plan(7)[0];
        assert_eq!((first.at_us, first.prompt_tokens, first.output_tokens), FIRST_OF_SEED_7);
    }

    // Written down once: a change of the generator would silently change every workload.
    const FIRST_OF_SEED_7: (u64, u32, u32) = (100_050_418, 146, 55);

    #[test]
    fn poisson_arrivals_have_the_rate_start_and_end_of_the_class() {
        let workload = poisson(3);
        let plan: Vec<Planned> = arrivals(&workload, 0).collect();
        // 900 s at 14.4/s: 12,960 expected, standard deviation 114.
        assert!((plan.len() as f64 - 12_960.0).abs() < 4.0 * 114.0, "{}", plan.len());
        assert!(plan.is_sorted_by_key(|planned| planned.at_us));
        assert!(plan[0].at_us >= 100_000_000);
        assert!(plan.last().unwrap().at_us < 1_000_000_000);
        // The gaps of a Poisson process are as wide as their mean.
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
        let entry = |at_s| TraceEntry { at_s, prompt_tokens: 3, output_tokens: 4 };
        let entries = vec![entry(0.0), entry(0.5), entry(900.0)];
        let workload = workload(Arrival::Trace(Trace { file: "t.csv".into(), entries }), 5);
        let plan: Vec<Planned> = arrivals(&workload, 0).collect();
        assert_eq!(plan.iter().map(|p| p.at_us).collect::<Vec<_>>(), [100_000_000, 100_500_000]);
        assert_eq!((plan[1].prompt_tokens, plan[1].output_tokens), (3, 4));
    }
}
