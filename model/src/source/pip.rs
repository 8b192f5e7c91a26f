//! Runs `python3 -m pip download` and explains its failures.

use super::error::one_line;
use super::{SourceError, Stop};
use std::ffi::OsString;
use std::fs;
use std::io::{self, Read};
use std::path::Path;
use std::process::{Command, ExitStatus, Stdio};
use std::sync::mpsc::{RecvTimeoutError, sync_channel};
use std::time::Duration;

/// Interval at which the progress of a download (its bytes on disk) is reported and a request to stop is noticed.
const REPORT_EVERY: Duration = Duration::from_millis(200);

/// Runner of pip: the Python interpreter to use and the handle to stop it.
#[derive(Debug, Clone, Copy)]
pub(super) struct Pip<'a> {
    /// Command of the Python interpreter: program and leading arguments.
    pub(super) python: &'a [OsString],
    /// Handle with which another thread can end pip early.
    pub(super) stop: &'a Stop,
}

impl Pip<'_> {
    /// Downloads the Python package `requirement` into `dir`, without its dependencies. Calls `report` with the bytes
    /// on disk at intervals.
    pub(super) fn download(
        self,
        requirement: &'static str,
        dir: &Path,
        report: impl Fn(u64),
    ) -> Result<(), SourceError> {
        let command = self.python.join(&OsString::from(" ")).to_string_lossy().into_owned();
        let ended = self.run(requirement, dir, report);
        let (status, said) =
            ended.map_err(|source| SourceError::NoPython { command: command.clone(), source })?;
        if self.stop.is_asked() {
            return Err(SourceError::Stopped);
        }
        if status.success() {
            return Ok(());
        }
        Err(explain(requirement, command, &status.to_string(), &String::from_utf8_lossy(&said)))
    }

    /// Runs `pip download` until it ends or is stopped. Returns its exit status and its standard error output.
    fn run(
        self,
        requirement: &str,
        dir: &Path,
        report: impl Fn(u64),
    ) -> io::Result<(ExitStatus, Vec<u8>)> {
        let (program, leading) =
            self.python.split_first().expect("a resolver names an interpreter");
        let mut child = Command::new(program)
            .args(leading)
            .args(["-m", "pip", "download", "--no-deps", "--only-binary=:all:", "--no-input"])
            .args(["--disable-pip-version-check", "--progress-bar=off", "--retries=2"])
            .arg("--dest")
            .arg(dir)
            .arg(requirement)
            // Make pip unpack into `dir` instead of the system's temporary directory: its files are then counted as
            // progress and removed with `dir`.
            .env("TMPDIR", dir)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()?;
        let mut stderr = child.stderr.take().expect("it is piped");
        let (done, finished) = sync_channel(1);
        std::thread::scope(|scope| {
            // A thread reads pip's error output until pip ends. The channel has room for its only message, so that it
            // never blocks.
            scope.spawn(move || {
                let mut said = Vec::new();
                done.send(stderr.read_to_end(&mut said).map(|_| said))
            });
            loop {
                match finished.recv_timeout(REPORT_EVERY) {
                    Ok(said) => return Ok((child.wait()?, said?)),
                    Err(RecvTimeoutError::Timeout) if self.stop.is_asked() => {
                        child.kill()?;
                        return Ok((child.wait()?, Vec::new()));
                    }
                    Err(RecvTimeoutError::Timeout) => report(bytes_in(dir, 3)),
                    Err(RecvTimeoutError::Disconnected) => {
                        return Err(io::Error::other("the thread that listens to pip ended"));
                    }
                }
            }
        })
    }
}

/// Returns the total size, bytes, of the files below `dir`, at most `depth` directories deep.
fn bytes_in(dir: &Path, depth: u32) -> u64 {
    let entries = fs::read_dir(dir).into_iter().flatten().flatten();
    entries
        .filter_map(|entry| Some((entry.path(), entry.metadata().ok()?)))
        .map(|(path, metadata)| match metadata.is_dir() {
            true if depth > 0 => bytes_in(&path, depth - 1),
            true => 0,
            false => metadata.len(),
        })
        .sum()
}

/// Turns pip's error output into an error. Before pip's last line is taken as the reason, a network failure is searched
/// for, because the last line then says "no matching distribution".
fn explain(requirement: &'static str, command: String, status: &str, said: &str) -> SourceError {
    if said.contains("No module named pip") {
        return SourceError::NoPip { command };
    }
    let lines = || said.lines().map(str::trim).filter(|line| !line.is_empty());
    if let Some(line) = lines().rfind(|line| line.contains("connection broken by")) {
        let detail = line.split("connection broken by").last().unwrap_or(line);
        return SourceError::NoNetwork { detail: one_line(detail) };
    }
    let last = lines().rfind(|line| line.starts_with("ERROR:"));
    let last = last.or_else(|| lines().rfind(|line| !line.starts_with("[notice]")));
    let detail = one_line(last.unwrap_or_default());
    SourceError::Pip { requirement, status: status.to_owned(), detail }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(said: &str) -> String {
        explain("x==1", "python3".into(), "exit status: 1", said).to_string()
    }

    #[test]
    fn a_network_failure_is_named_and_not_hidden_by_its_consequence() {
        let said = "WARNING: Retrying (Retry(total=0)) after connection broken by \
            'NewConnectionError(\"Failed to resolve\")': /simple/x/\n\
            ERROR: Could not find a version that satisfies the requirement x==1 (from versions: none)\n\
            ERROR: No matching distribution found for x==1\n";
        let message = message(said);
        assert!(
            message.contains("no network") && message.contains("Failed to resolve"),
            "{message}"
        );
    }

    #[test]
    fn the_last_meaningful_line_is_kept() {
        let message = message("noise\nERROR: no space\n[notice] upgrade pip\n");
        assert!(message.contains("ERROR: no space") && !message.contains("notice"), "{message}");
        assert!(self::message("/usr/bin/python3: No module named pip").contains("python3-pip"));
        assert!(self::message("").contains("no message"));
    }
}
