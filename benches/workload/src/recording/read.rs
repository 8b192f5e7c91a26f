//! Reads a recording from its file and checks it.

use crate::file::{Arrival, Class, MAX_DURATION_S, Pool, Sampling, Workload, WorkloadError};
use crate::length::MAX_TOKENS;
use crate::recording::form::{MAX_RECORDED, RECORDING_FORMAT, RecordedRequest, RecordingHeader};
use crate::recording::{lengths, texts};
use crate::trace::lines::{self, Fault, Lines};
use crate::trace::{Trace, TraceEntry};
use std::io::Read;
use std::path::Path;
use std::sync::Arc;
use tiercel_device::Tier;

/// Maximum length of a line, bytes: enough for the pace of a day in the header's profile.
const MAX_LINE_BYTES: u64 = 1 << 20;
/// First characters of every recording.
const BEGIN: &str = "{\"tiercel_recording\":";

/// A recording of a server's live traffic.
#[derive(Debug, Clone)]
pub struct Recording {
    /// What the server was.
    pub header: RecordingHeader,
    /// Recorded sequences, in the order of arrival.
    pub requests: Vec<Arc<RecordedRequest>>,
    /// The recorded sequences as a workload, with a class for each tier that has any. Outputs of sequences that did not
    /// complete have a length that is a guess.
    pub workload: Workload,
}

/// Whether a file is a recording, by its first characters. False for a file that cannot be read.
pub(crate) fn is_recording(path: &Path) -> bool {
    let mut begin = [0; BEGIN.len()];
    let read = std::fs::File::open(path).and_then(|mut file| file.read_exact(&mut begin));
    read.is_ok() && begin == *BEGIN.as_bytes()
}

impl Recording {
    /// Reads and checks a recording.
    ///
    /// # Errors
    /// [`WorkloadError`], which names the line that is wrong and what is wrong in it.
    pub fn load(path: &Path) -> Result<Recording, WorkloadError> {
        let failed = |source| WorkloadError::Read { path: path.to_owned(), source };
        let lines = lines::open(path).map_err(failed)?;
        Recording::read(lines.up_to(MAX_LINE_BYTES)).map_err(|fault| match fault {
            Fault::Read(source) => failed(source),
            Fault::Line(line, problem) => WorkloadError::Invalid {
                path: path.to_owned(),
                field: format!("line {line}"),
                problem,
            },
        })
    }

    fn read<R: Read>(mut lines: Lines<R>) -> Result<Recording, Fault> {
        let mut header = match lines.next()? {
            Some((_, line)) => header(line).map_err(|problem| Fault::Line(1, problem))?,
            None => return Err(Fault::Line(1, format!("is missing; allowed: {BEGIN}"))),
        };
        let mut requests: Vec<RecordedRequest> = Vec::new();
        let mut last = 1;
        while let Some((number, line)) = lines.next()? {
            last = number;
            let request = request(line, &header, &requests);
            requests.push(request.map_err(|problem| Fault::Line(number, problem))?);
        }
        let (stated, found) = (header.sequences, requests.len());
        if stated as usize != found {
            let problem = format!("is the last; the header states {stated} sequences, not {found}");
            return Err(Fault::Line(last, problem));
        }
        if found == 0 {
            return Err(Fault::Line(1, "states no sequences: nothing arrived".into()));
        }
        let lengths = lengths::lengths(&requests);
        header.prefixes_cut |= !texts::fill(&mut requests, &lengths);
        let requests: Vec<_> = requests.into_iter().map(Arc::new).collect();
        let workload = workload(&header, &requests, &lengths);
        match workload.problem() {
            None => Ok(Recording { header, requests, workload }),
            Some((field, problem)) => {
                Err(Fault::Line(1, format!("gives a {field} that {problem}")))
            }
        }
    }
}

fn header(line: &str) -> Result<RecordingHeader, String> {
    if !line.starts_with(BEGIN) {
        return Err(format!("begins no recording; allowed: {BEGIN}"));
    }
    #[derive(serde::Deserialize)]
    struct Form {
        tiercel_recording: u32,
    }
    let malformed = |error: serde_json::Error| format!("is malformed: {error}");
    let Form { tiercel_recording: form } = serde_json::from_str(line).map_err(malformed)?;
    if form != RECORDING_FORMAT {
        return Err(format!(
            "is of a recording of form {form}; this program reads form {RECORDING_FORMAT}"
        ));
    }
    let header: RecordingHeader = serde_json::from_str(line).map_err(malformed)?;
    if !(header.length_s > 0.0 && header.length_s <= MAX_DURATION_S) {
        return Err(format!(
            "has the length_s {}; allowed: above 0, at most 86400",
            header.length_s
        ));
    }
    if header.sequences > MAX_RECORDED {
        return Err(format!("states more than {MAX_RECORDED} sequences"));
    }
    header.profile.check().map_err(|error| format!("has a bad profile: {error}"))?;
    Ok(header)
}

fn request(
    line: &str,
    header: &RecordingHeader,
    before: &[RecordedRequest],
) -> Result<RecordedRequest, String> {
    let mut request: RecordedRequest =
        serde_json::from_str(line).map_err(|error| format!("is malformed: {error}"))?;
    let number = before.len() as u32;
    if number >= header.sequences {
        return Err("is more than the header states (sequences)".into());
    }
    if request.tier == Tier::System {
        return Err("has the tier system; allowed: premium, standard, background".into());
    }
    for (name, tokens) in
        [("prompt_tokens", request.prompt_tokens), ("max_tokens", request.max_tokens)]
    {
        if !(1..=MAX_TOKENS).contains(&tokens) {
            return Err(format!("has the {name} {tokens}; allowed: 1 to {MAX_TOKENS}"));
        }
    }
    if request.seen.output_tokens > MAX_TOKENS {
        return Err(format!("has more than {MAX_TOKENS} output tokens"));
    }
    if !(0.01..=100.0).contains(&request.share) {
        return Err(format!("has the share {}; allowed: 0.01 to 100", request.share));
    }
    let last_us = before.last().map_or(0, |last| last.at_us);
    if request.at_us < last_us || request.at_us as f64 > header.length_s * 1e6 {
        return Err("is not between the line before and the end of the recording (at_us)".into());
    }
    if let Some((like, tokens)) = request.begins_like {
        let earlier = before.get(like as usize).map_or(0, |earlier| earlier.prompt_tokens);
        if tokens > earlier.min(request.prompt_tokens) {
            let problem = "the number of a line before, and not more tokens than either has";
            return Err(format!("has the begins_like [{like},{tokens}]; allowed: {problem}"));
        }
    }
    request.number = number;
    Ok(request)
}

/// Makes a workload of the recorded sequences: a class for each tier.
fn workload(
    header: &RecordingHeader,
    requests: &[Arc<RecordedRequest>],
    lengths: &[u32],
) -> Workload {
    let entry = |(request, length): (&Arc<RecordedRequest>, &u32)| TraceEntry {
        line: request.number + 2,
        at_s: request.at_us as f64 / 1e6,
        prompt_tokens: request.sent_prompt_tokens(),
        output_tokens: *length,
        blocks: None,
        recorded: Some(request.clone()),
    };
    let mut classes = Vec::new();
    for tier in Tier::ALL {
        let of_tier = requests.iter().zip(lengths).filter(|(request, _)| request.tier == tier);
        let entries: Vec<TraceEntry> = of_tier.map(entry).collect();
        if !entries.is_empty() {
            classes.push(Class {
                tier,
                arrival: Arrival::Trace(Trace::of(entries)),
                start_s: 0.0,
                prefix: None,
                prompt_tokens: None,
                output_tokens: None,
                ignore_eos: true,
                sampling: Sampling::default(),
                targets: header.targets.get(&tier).copied(),
            });
        }
    }
    Workload {
        name: "recording".into(),
        seed: 1,
        duration_s: header.length_s,
        warmup_s: 0.0,
        cooldown_s: 0.0,
        drain_s: 0.0,
        simulation: Pool::default(),
        trace: None,
        classes,
    }
}
