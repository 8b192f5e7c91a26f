//! Files that a simulation writes about the events of its runs: the trace and the HTML page.

use crate::cli::failure::Failure;
use crate::cli::report_file::ReportFile;
use clap::Args;
use std::fs::File;
use std::ops::Range;
use std::path::PathBuf;
use std::rc::Rc;
use tiercel_simulation::trace::{Record, TraceWriter};
use tiercel_simulation::{Comparison, Experiment, MAX_PAGE_POLICIES, Page};
use tiercel_workload::{MAX_DURATION_S, Workload};

/// Files that a simulation writes beside its table.
#[derive(Debug, Args)]
pub(crate) struct RecordingArgs {
    /// Write every event of the runs to this file, for `tiercel trace`
    #[arg(long, value_name = "FILE")]
    trace: Option<PathBuf>,
    /// Write an HTML page to this file that shows the runs: requests over time, memory, times to first token
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
    /// Span of the run whose requests the page shows one by one, seconds; by default the 20 s after the
    /// workload's warm-up
    #[arg(long, value_name = "A..B", requires = "html", value_parser = window)]
    html_window: Option<Range<f64>>,
}

/// Trace file and HTML page that a simulation is writing.
pub(crate) struct Recording {
    trace: Option<(ReportFile, Rc<TraceWriter<File>>)>,
    page: Option<(ReportFile, Page)>,
}

impl RecordingArgs {
    /// Opens trace file and HTML page, so that a file that cannot be written is reported before any run.
    pub(crate) fn begin(&self, workload: &Workload, policies: usize) -> Result<Recording, Failure> {
        if self.html.is_some() && policies > MAX_PAGE_POLICIES {
            let problem = format!("--html shows at most {MAX_PAGE_POLICIES} policies");
            return Err(Failure::usage(problem));
        }
        let open = |path: &PathBuf| ReportFile::create(path.clone());
        let trace = self.trace.as_ref().map(open).transpose()?;
        let trace = trace.map(|file| Ok::<_, Failure>((file.writer()?, file))).transpose()?;
        let page = self.html.as_ref().map(open).transpose()?;
        Ok(Recording {
            trace: trace.map(|(out, file)| (file, Rc::new(TraceWriter::new(out)))),
            page: page.map(|file| (file, Page::new(workload, self.html_window.as_ref()))),
        })
    }
}

impl Recording {
    /// Begins a simulated run in the trace and on the HTML page. Returns the recorders that receive the run's events.
    pub(crate) fn run(
        &mut self,
        experiment: &Experiment,
        policy: &str,
    ) -> Result<Vec<Rc<dyn Record>>, Failure> {
        let section = experiment.section(policy);
        let mut recorders: Vec<Rc<dyn Record>> = Vec::new();
        if let Some((file, writer)) = &self.trace {
            writer.section(&section).map_err(|error| file.failure(&error))?;
            recorders.push(Rc::clone(writer) as Rc<dyn Record>);
        }
        if let Some((_, page)) = &mut self.page {
            recorders.push(page.run(&section));
        }
        Ok(recorders)
    }

    /// Completes and keeps the trace file after a simulated run has failed, because the trace shows how the failure
    /// came about. Returns the failure with a note about the trace.
    pub(crate) fn failed(&mut self, failure: Failure) -> Failure {
        let Some((file, writer)) = self.trace.take() else { return failure };
        let kept = writer.finish().map_err(|error| file.failure(&error)).and_then(|()| file.keep());
        let about = match kept {
            Ok(()) => "the trace up to the failure is written".to_owned(),
            Err(Failure { message, .. }) => message,
        };
        Failure { message: format!("{}; {about}", failure.message), ..failure }
    }

    /// Completes the trace file and the HTML page after the last run.
    pub(crate) fn finish(self, comparison: &Comparison) -> Result<(), Failure> {
        if let Some((file, writer)) = self.trace {
            writer.finish().map_err(|error| file.failure(&error))?;
            file.keep()?;
        }
        if let Some((file, page)) = self.page {
            let html = page.html(comparison).map_err(|error| file.failure(&error))?;
            file.write_text(&html)?;
        }
        Ok(())
    }
}

fn window(text: &str) -> Result<Range<f64>, String> {
    let parsed = text.split_once("..").and_then(|(from, to)| {
        let range: Range<f64> = from.parse().ok()?..to.parse().ok()?;
        (range.start >= 0.0 && range.end <= MAX_DURATION_S && !range.is_empty()).then_some(range)
    });
    parsed.ok_or_else(|| format!("expected A..B with A below B, 0 to {MAX_DURATION_S} s"))
}
