//! Checks of a workload's values against their bounds. An error names the field and the allowed values.

use crate::file::{
    Arrival, Bursts, Class, Closed, MAX_CLASSES, MAX_DURATION_S, MAX_PREFIXES, MAX_REQUESTS,
    MAX_STREAMS, Poisson, Pool, Prefix, Sampling, Workload,
};
use crate::length::{Length, Uniform};
use tiercel_device::Tier;

/// Maximum number of KV blocks in the device pool, and in the host pool, of a simulated engine.
const MAX_POOL_BLOCKS: u32 = 10_000_000;

impl Workload {
    /// Returns the name of the workload's first invalid field and what is wrong with its value, or `None` if the
    /// workload is usable.
    pub fn problem(&self) -> Option<(String, String)> {
        let top = |field: &str, problem: String| Some((field.to_owned(), problem));
        if self.name.is_empty() || self.name.len() > 100 {
            return top("name", "must have 1 to 100 characters".into());
        }
        if !(self.duration_s > 0.0 && self.duration_s <= MAX_DURATION_S) {
            return top("duration_s", allowed(self.duration_s, "above 0, at most 86400"));
        }
        if !(0.0..self.duration_s).contains(&self.warmup_s) {
            return top("warmup_s", allowed(self.warmup_s, "0 to less than duration_s"));
        }
        if !(0.0..self.duration_s - self.warmup_s).contains(&self.cooldown_s) {
            let range = "0 to less than duration_s - warmup_s";
            return top("cooldown_s", allowed(self.cooldown_s, range));
        }
        if !(0.0..=3600.0).contains(&self.drain_s) {
            return top("drain_s", allowed(self.drain_s, "0 to 3600"));
        }
        if let Some((field, problem)) = self.simulation.problem() {
            return Some((format!("simulation.{field}"), problem));
        }
        if self.classes.is_empty() || self.classes.len() > MAX_CLASSES {
            return top("class", format!("must appear 1 to {MAX_CLASSES} times"));
        }
        for (index, class) in self.classes.iter().enumerate() {
            if let Some((field, problem)) = class.problem(self.duration_s) {
                return Some((format!("class[{index}].{field}"), problem));
            }
        }
        if let Some(wrong) = self.trace_problem() {
            return Some(wrong);
        }
        if self.classes.iter().map(Class::streams).sum::<u32>() > MAX_STREAMS {
            return top("class", format!("ask for more than {MAX_STREAMS} closed streams in all"));
        }
        let expected: f64 =
            (0..self.classes.len()).map(|class| self.expected_arrivals(class)).sum();
        if expected > MAX_REQUESTS as f64 {
            return top("class", format!("ask for more than {MAX_REQUESTS} requests in all"));
        }
        None
    }

    /// Returns the number of requests that a traffic class is expected to send, or an upper bound of it if its rate has
    /// bursts or its requests are recorded; 0 for a closed-loop class.
    fn expected_arrivals(&self, class: usize) -> f64 {
        let Class { arrival, start_s, .. } = &self.classes[class];
        let recorded = self.trace_of(class).map_or(0.0, |trace| trace.entries.len() as f64);
        match arrival {
            Arrival::Poisson(poisson) => {
                // Upper bound of the expected requests of a Poisson class: as if the whole time were one burst.
                let factor = poisson.bursts.map_or(1.0, |bursts| bursts.factor.max(1.0));
                poisson.rate_per_s * factor * (self.duration_s - start_s)
            }
            Arrival::Trace(_) => recorded,
            Arrival::Share(share) => share * recorded,
            Arrival::Closed(_) => 0.0,
        }
    }
}

impl Pool {
    fn problem(&self) -> Option<(&'static str, String)> {
        let blocks = |blocks: Option<u32>, least| {
            blocks.is_some_and(|blocks| !(least..=MAX_POOL_BLOCKS).contains(&blocks))
        };
        if blocks(self.device_blocks, 1) {
            return Some(("device_blocks", format!("must be 1 to {MAX_POOL_BLOCKS}")));
        }
        if blocks(self.host_blocks, 0) {
            return Some(("host_blocks", format!("must be 0 to {MAX_POOL_BLOCKS}")));
        }
        let counts = [
            ("max_num_seqs", self.max_num_seqs.map(u64::from)),
            ("max_num_batched_tokens", self.max_num_batched_tokens.map(u64::from)),
            ("max_requests", self.max_requests.map(u64::from)),
            ("max_queued_requests_per_tier", self.max_queued_requests_per_tier.map(u64::from)),
            ("max_queued_tokens_per_tier", self.max_queued_tokens_per_tier),
        ];
        let (field, _) = counts.into_iter().find(|(_, count)| *count == Some(0))?;
        Some((field, "must be at least 1".into()))
    }
}

impl Poisson {
    fn problem(&self) -> Option<(&'static str, String)> {
        let Poisson { rate_per_s, bursts } = *self;
        if !(1e-6..=10_000.0).contains(&rate_per_s) {
            return Some(("rate_per_s", allowed(rate_per_s, "0.000001 to 10000")));
        }
        let Bursts { factor, length_s, period_s } = bursts?;
        if !(0.0..=1000.0).contains(&factor) {
            return Some(("bursts.factor", allowed(factor, "0 to 1000")));
        }
        if !(0.1..=MAX_DURATION_S).contains(&period_s) {
            return Some(("bursts.period_s", allowed(period_s, "0.1 to 86400")));
        }
        let wrong = !(length_s >= 0.01 && length_s < period_s);
        wrong.then(|| ("bursts.length_s", allowed(length_s, "0.01 to less than period_s")))
    }
}

impl Class {
    /// Whether the requests of the traffic class are replayed from recorded traffic.
    fn is_recorded(&self) -> bool {
        matches!(self.arrival, Arrival::Trace(_) | Arrival::Share(_))
    }

    fn streams(&self) -> u32 {
        match &self.arrival {
            Arrival::Closed(closed) => closed.streams,
            Arrival::Poisson(_) | Arrival::Trace(_) | Arrival::Share(_) => 0,
        }
    }

    fn problem(&self, duration_s: f64) -> Option<(String, String)> {
        let field = |name: &str, problem: String| Some((name.to_owned(), problem));
        if self.tier == Tier::System {
            let problem = "is system, the server's own; allowed: premium, standard, background";
            return field("tier", problem.into());
        }
        if !(0.0..duration_s).contains(&self.start_s) {
            return field("start_s", allowed(self.start_s, "0 to less than duration_s"));
        }
        match &self.arrival {
            Arrival::Poisson(poisson) => {
                if let Some((name, problem)) = poisson.problem() {
                    return field(&format!("arrival.poisson.{name}"), problem);
                }
            }
            Arrival::Closed(Closed { streams }) => {
                if !(1..=MAX_STREAMS).contains(streams) {
                    let problem = format!("is {streams}; allowed: 1 to {MAX_STREAMS}");
                    return field("arrival.closed.streams", problem);
                }
            }
            Arrival::Trace(_) | Arrival::Share(_) => {
                if self.prompt_tokens.is_some() || self.output_tokens.is_some() {
                    let problem =
                        "takes its lengths from a trace: leave out prompt_tokens and output_tokens";
                    return field("arrival", problem.into());
                }
            }
        }
        self.length_problem().or_else(|| self.prefix_problem()).or_else(|| self.request_problem())
    }

    fn prefix_problem(&self) -> Option<(String, String)> {
        let Prefix { share, count, zipf, min, max } = self.prefix?;
        if self.is_recorded() {
            let problem = "is not for a trace, which states its own lengths";
            return Some(("prefix".into(), problem.into()));
        }
        let field = |name: &str, problem: String| Some((format!("prefix.{name}"), problem));
        if !(0.0..=1.0).contains(&share) {
            return field("share", allowed(share, "0 to 1"));
        }
        if !(1..=MAX_PREFIXES).contains(&count) {
            return field("count", format!("is {count}; allowed: 1 to {MAX_PREFIXES}"));
        }
        if !(0.0..=10.0).contains(&zipf) {
            return field("zipf", allowed(zipf, "0 to 10"));
        }
        let lengths = Length::Uniform(Uniform { min, max }).problem();
        lengths.and_then(|(name, problem)| field(name.trim_start_matches("uniform."), problem))
    }

    fn length_problem(&self) -> Option<(String, String)> {
        if self.is_recorded() {
            return None;
        }
        let lengths =
            [("prompt_tokens", self.prompt_tokens), ("output_tokens", self.output_tokens)];
        lengths.into_iter().find_map(|(name, length)| match length {
            None => Some((
                name.to_owned(),
                "is missing; allowed: { fixed = N }, { uniform = { min, max } }, \
                 { log_normal = { mean or p50, sigma, min, cap } }, { mixture = { share, some, others } }"
                    .to_owned(),
            )),
            Some(length) => {
                length.problem().map(|(field, problem)| (format!("{name}.{field}"), problem))
            }
        })
    }

    fn request_problem(&self) -> Option<(String, String)> {
        let Sampling { temperature, top_p, .. } = self.sampling;
        if !(0.0..=100.0).contains(&temperature) {
            return Some(("sampling.temperature".into(), allowed(temperature, "0 to 100")));
        }
        if let Some(top_p) = top_p
            && !(top_p > 0.0 && top_p <= 1.0)
        {
            return Some(("sampling.top_p".into(), allowed(top_p, "above 0, at most 1")));
        }
        let targets = self.targets.unwrap_or_default();
        for (name, per_token) in [
            ("ttft_ms_per_token", targets.ttft_ms_per_token),
            ("ttft_ms_per_token_fewer", targets.ttft_ms_per_token_fewer),
        ] {
            if !(0.0..=1e6).contains(&per_token) {
                return Some((format!("targets.{name}"), allowed(per_token, "0 to 1000000")));
            }
        }
        [("ttft_ms", targets.ttft_ms), ("tpot_ms", targets.tpot_ms), ("e2e_ms", targets.e2e_ms)]
            .into_iter()
            .find_map(|(name, target)| {
                let ms = target?;
                let wrong = !(ms > 0.0 && ms.is_finite());
                wrong.then(|| (format!("targets.{name}"), allowed(ms, "above 0")))
            })
            .or_else(|| {
                let per_token = targets.ttft_ms_per_token_fewer;
                let limit = "less than ttft_ms / ttft_prompt_tokens";
                let wrong = targets.of_prompt(0).ttft_ms.is_some_and(|ms| ms <= 0.0);
                wrong.then(|| ("targets.ttft_ms_per_token_fewer".into(), allowed(per_token, limit)))
            })
    }
}

fn allowed(value: f64, range: &str) -> String {
    format!("is {value}; allowed: {range}")
}
