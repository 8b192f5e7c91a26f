//! Use of recorded traffic (trace files) by a workload.

use crate::file::{Arrival, Workload};
use crate::trace::{Part, ROUNDING, Trace, TraceEntry, shares_before};

/// Share of the time up to the end of the measured window that recorded traffic should last. If the last request comes
/// earlier, the results carry a note. Applies only if the traffic's pace or time window was changed.
const NEARLY_ALL: f64 = 0.95;

impl Workload {
    /// Returns the recorded traffic from which a class sends all requests or a share, or `None` if its requests are not
    /// recorded.
    pub(crate) fn trace_of(&self, class: usize) -> Option<&Trace> {
        match &self.classes[class].arrival {
            Arrival::Trace(trace) => Some(trace),
            Arrival::Share(_) => self.trace.as_ref(),
            Arrival::Poisson(_) | Arrival::Closed(_) => None,
        }
    }

    /// Returns all recorded traffic of the workload, the one that classes share only once.
    fn traces(&self) -> impl Iterator<Item = &Trace> {
        let own = self.classes.iter().filter_map(|class| match &class.arrival {
            Arrival::Trace(trace) => Some(trace),
            Arrival::Share(_) | Arrival::Poisson(_) | Arrival::Closed(_) => None,
        });
        self.trace.iter().chain(own)
    }

    pub(crate) fn traces_mut(&mut self) -> impl Iterator<Item = &mut Trace> {
        let own = self.classes.iter_mut().filter_map(|class| match &mut class.arrival {
            Arrival::Trace(trace) => Some(trace),
            Arrival::Share(_) | Arrival::Poisson(_) | Arrival::Closed(_) => None,
        });
        self.trace.iter_mut().chain(own)
    }

    /// Returns the first invalid field of the recorded traffic and of the classes' shares of it, with the problem,
    /// without reading the trace files.
    pub(crate) fn trace_problem(&self) -> Option<(String, String)> {
        let within = |field: String, trace: &Trace| {
            trace.problem().map(|(name, problem)| (format!("{field}.{name}"), problem))
        };
        if let Some(wrong) = self.trace.as_ref().and_then(|trace| within("trace".into(), trace)) {
            return Some(wrong);
        }
        let mut used = false;
        for (index, class) in self.classes.iter().enumerate() {
            let field = |name: &str| format!("class[{index}].arrival.{name}");
            match &class.arrival {
                Arrival::Poisson(_) | Arrival::Closed(_) => {}
                Arrival::Trace(trace) => {
                    if let Some(wrong) = within(field("trace"), trace) {
                        return Some(wrong);
                    }
                }
                Arrival::Share(share) => {
                    used = true;
                    if let Some(problem) = self.share_problem(index, *share) {
                        return Some((field("share"), problem));
                    }
                }
            }
        }
        let idle = self.trace.is_some() && !used;
        idle.then(|| {
            ("trace".into(), "is sent by no class; one needs arrival = { share = 1 }".into())
        })
    }

    fn share_problem(&self, class: usize, share: f64) -> Option<String> {
        if !(share > 0.0 && share <= 1.0) {
            return Some(format!("is {share}; allowed: above 0, at most 1"));
        }
        if self.trace.is_none() {
            return Some("is of no trace; the workload needs [trace] with a file".into());
        }
        let sum = shares_before(self, class) + share;
        (sum > 1.0 + ROUNDING)
            .then(|| format!("makes the sum of the shares {sum}; allowed: at most 1"))
    }

    /// Returns the recorded requests that a class sends, each with its due time in seconds after the class starts.
    pub(crate) fn recorded(&self, class: usize) -> impl Iterator<Item = (&TraceEntry, f64)> {
        let part = match self.classes[class].arrival {
            Arrival::Share(share) => Some(Part::of(self, class, share)),
            Arrival::Trace(_) | Arrival::Poisson(_) | Arrival::Closed(_) => None,
        };
        self.trace_of(class).into_iter().flat_map(move |trace| {
            let part = part.clone();
            let own = move |entry: &&TraceEntry| part.as_ref().is_none_or(|part| part.has(entry));
            let entries = trace.entries.iter().filter(own);
            entries.map(|entry| (entry, entry.at_s * trace.time_factor))
        })
    }

    /// Returns the longest output that a request of the workload may have, tokens; 0 if there is no request.
    pub fn longest_output(&self) -> u32 {
        let drawn = self.classes.iter().filter_map(|class| class.output_tokens);
        let recorded = self.traces().flat_map(|trace| trace.entries.iter());
        let lengths = drawn.map(|length| length.longest());
        lengths.chain(recorded.map(|entry| entry.output_tokens)).max().unwrap_or(0)
    }

    /// Whether several prompts of the workload may begin with the same text, because a class has shared prefixes or
    /// recorded traffic names its prompt blocks.
    pub fn shares_text(&self) -> bool {
        let named = |trace: &Trace| trace.entries.iter().any(|entry| entry.blocks.is_some());
        self.classes.iter().any(|class| class.prefix.is_some()) || self.traces().any(named)
    }

    /// Returns notes about the recorded traffic for readers of the results, one line per note: requests skipped, or
    /// traffic that ends early.
    pub fn notes(&self) -> Vec<String> {
        let mut notes = Vec::new();
        for trace in self.traces().filter(|trace| trace.skipped > 0) {
            let (file, skipped) = (trace.file.display(), trace.skipped);
            notes.push(format!("{file}: {skipped} rows without prompt or output tokens left out"));
        }
        let end_s = self.window_s().end;
        for (index, class) in self.classes.iter().enumerate() {
            let Some(trace) = self.trace_of(index).filter(|trace| trace.is_adjusted()) else {
                continue;
            };
            let last_s = class.start_s + trace.last_s();
            let note = format!(
                "{}: the last request is due at {last_s:.1} s, the measured window ends at {end_s} s",
                trace.file.display()
            );
            if last_s < NEARLY_ALL * end_s && !notes.contains(&note) {
                notes.push(note);
            }
        }
        notes
    }
}
