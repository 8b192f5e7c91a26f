//! The command `tiercel trace`: shows and compares traces of simulations.

use crate::cli::failure::Failure;
use clap::{Args, Subcommand};
use std::fs::File;
use std::io::{BufWriter, ErrorKind, Write};
use std::path::{Path, PathBuf};
use tiercel_device::{SeqId, Timestamp};
use tiercel_simulation::trace::{
    Difference, Entry, Event, Found, Item, TraceReader, diff, entry_line, section_line,
};
use tiercel_workload::{MAX_DURATION_S, seconds};

/// Print or compare traces that `tiercel simulate --trace` has written.
#[derive(Debug, Args)]
pub(crate) struct Trace {
    #[command(subcommand)]
    command: TraceCommand,
}

#[derive(Debug, Subcommand)]
enum TraceCommand {
    Show(Show),
    Diff(Diff),
}

/// Print a trace, a line for each event.
#[derive(Debug, Args)]
#[command(after_help = "\
A line holds the time of the event in seconds, its kind, and its values. The line of a step names the slice of
each sequence, such as seq3:prefill@0+512>0: it computes 512 prompt tokens from position 0 on and samples
output token 0.

Example:
  tiercel trace show run.trace --request 17 --from 30 --to 40
  tiercel trace show run.trace --kind preempt,resume,resumed,ended | grep -w seq17")]
pub(crate) struct Show {
    /// Trace file
    file: PathBuf,
    /// Print only events of the request with this number
    #[arg(long, value_name = "N")]
    request: Option<u64>,
    /// Print only events from this time on, seconds
    #[arg(long, value_name = "S", value_parser = moment)]
    from: Option<Timestamp>,
    /// Print only events before this time, seconds
    #[arg(long, value_name = "S", value_parser = moment)]
    to: Option<Timestamp>,
    /// Print only events of these kinds; `step` stands for step-submitted and step-ended, and so on
    #[arg(long, value_name = "KIND,...", value_delimiter = ',', value_parser = kind)]
    kind: Vec<String>,
}

/// Compare two traces: print that they are equal, or their first difference (exit code 1).
#[derive(Debug, Args)]
pub(crate) struct Diff {
    /// First trace file
    first: PathBuf,
    /// Second trace file
    second: PathBuf,
}

impl Trace {
    pub(crate) fn run(self) -> Result<(), Failure> {
        let mut out = BufWriter::new(std::io::stdout().lock());
        let done = match self.command {
            TraceCommand::Show(show) => show.run(&mut out),
            TraceCommand::Diff(diff) => diff.run(&mut out),
        };
        match done.and_then(|failure| out.flush().map(|()| failure).map_err(Stop::Print)) {
            Ok(None) => Ok(()),
            Ok(Some(failure)) | Err(Stop::Failed(failure)) => Err(failure),
            // A closed pipe is no error: the reader of the output, such as `head`, wants no more lines.
            Err(Stop::Print(error)) if error.kind() == ErrorKind::BrokenPipe => Ok(()),
            Err(Stop::Print(error)) => {
                Err(Failure::new(format!("cannot print the trace: {error}")))
            }
        }
    }
}

/// Reason why printing or comparing traces ended early: a trace cannot be read, or the output cannot be written.
enum Stop {
    Failed(Failure),
    Print(std::io::Error),
}

impl From<std::io::Error> for Stop {
    fn from(error: std::io::Error) -> Stop {
        Stop::Print(error)
    }
}

impl Show {
    fn run(&self, out: &mut impl Write) -> Result<Option<Failure>, Stop> {
        let mut reader = open(&self.file).map_err(Stop::Failed)?;
        let only = self.request.map(SeqId);
        loop {
            match reader.next_item() {
                Ok(None) => return Ok(None),
                Ok(Some(Item::Section(section))) => writeln!(out, "{}", section_line(&section))?,
                Ok(Some(Item::Entry(entry))) if self.wants(&entry) => {
                    writeln!(out, "{}", entry_line(&entry, only))?;
                }
                Ok(Some(Item::Entry(_))) => {}
                // Report the error of a damaged trace only after the events before the damage have been printed.
                Err(error) => return Ok(Some(unreadable(&self.file, &error))),
            }
        }
    }

    fn wants(&self, Entry { at, event }: &Entry) -> bool {
        let kind = event.kind();
        let of_kind = |wanted: &String| is_of(kind, wanted);
        let of_request = |only: u64| match event {
            Event::StepSubmitted { slices, .. } => slices.iter().any(|slice| slice.seq.0 == only),
            other => other.seq() == Some(SeqId(only)),
        };
        self.from.is_none_or(|from| *at >= from)
            && self.to.is_none_or(|to| *at < to)
            && (self.kind.is_empty() || self.kind.iter().any(of_kind))
            && self.request.is_none_or(of_request)
    }
}

impl Diff {
    fn run(&self, out: &mut impl Write) -> Result<Option<Failure>, Stop> {
        let mut first = open(&self.first).map_err(Stop::Failed)?;
        let mut second = open(&self.second).map_err(Stop::Failed)?;
        let found = diff(&mut first, &mut second).map_err(|found| {
            let file = if found.second { &self.second } else { &self.first };
            Stop::Failed(unreadable(file, &found.error))
        })?;
        match found {
            Found::Equal { runs, events } => {
                writeln!(out, "equal: {runs} runs, {events} events")?;
                Ok(None)
            }
            Found::Different(difference) => {
                show_difference(&difference, out)?;
                let files = (self.first.display(), self.second.display());
                let at = difference.number;
                let what = format!("{} and {} differ from record {at} on", files.0, files.1);
                Ok(Some(Failure::new(what)))
            }
        }
    }
}

/// Prints the first difference of two traces: the last equal records before it, then the record of each trace at that
/// place.
fn show_difference(difference: &Difference, out: &mut impl Write) -> std::io::Result<()> {
    for item in &difference.before {
        writeln!(out, "  {}", line(Some(item)))?;
    }
    writeln!(out, "- {}", line(difference.first.as_ref()))?;
    writeln!(out, "+ {}", line(difference.second.as_ref()))
}

fn line(item: Option<&Item>) -> String {
    match item {
        None => "(the trace ends here)".to_owned(),
        Some(Item::Section(section)) => section_line(section),
        Some(Item::Entry(entry)) => entry_line(entry, None),
    }
}

fn open(path: &Path) -> Result<TraceReader<File>, Failure> {
    let file = File::open(path).map_err(|error| unreadable(path, &error))?;
    TraceReader::new(file).map_err(|error| unreadable(path, &error))
}

/// Makes the failure for a trace that cannot be read. Its exit code is 2, because exit code 1 means that two traces
/// differ.
fn unreadable(path: &Path, error: &dyn std::fmt::Display) -> Failure {
    Failure::usage(format!("{}: {error}", path.display()))
}

/// Returns whether an event's kind matches the kind that the user asked for, exactly or up to a hyphen: `step` stands
/// for `step-submitted` and `step-ended`.
fn is_of(kind: &str, wanted: &str) -> bool {
    kind.strip_prefix(wanted).is_some_and(|rest| rest.is_empty() || rest.starts_with('-'))
}

fn kind(text: &str) -> Result<String, String> {
    let known = Event::KINDS.iter().any(|kind| is_of(kind, text));
    let all = || format!("no such kind; there are: {}", Event::KINDS.join(", "));
    known.then(|| text.to_owned()).ok_or_else(all)
}

fn moment(text: &str) -> Result<Timestamp, String> {
    let parsed = text.parse().ok().filter(|s| (0.0..=MAX_DURATION_S).contains(s));
    let wrong = || format!("expected a time in seconds, 0 to {MAX_DURATION_S}");
    parsed.map(|s| Timestamp(seconds(s))).ok_or_else(wrong)
}
