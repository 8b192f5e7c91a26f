//! Formats events of a trace as lines of text: the time in seconds, the kind of event, then named values.

use super::{Entry, Event, Section, Slice};
use std::fmt::Write;
use tiercel_device::SeqId;

/// Formats the header of a simulation run as a line of text, which stands before the lines of its events.
pub fn section_line(section: &Section) -> String {
    let Section { policy, seed, workload, profile, .. } = section;
    let Section { block_size, device_blocks, host_blocks, end_us, .. } = section;
    // Escape the names of policy, workload and device, which come from files, so that they break neither the line nor
    // the terminal.
    format!(
        "# run policy={} seed={seed} workload={} device={} block_size={block_size} \
         device_blocks={device_blocks} host_blocks={host_blocks} end={}",
        policy.escape_debug(),
        workload.escape_debug(),
        profile.escape_debug(),
        time(*end_us)
    )
}

/// Formats an event of a trace as a line of text. With `only`, the line of a step shows that sequence's slice alone.
pub fn entry_line(entry: &Entry, only: Option<SeqId>) -> String {
    let Entry { at, event } = entry;
    format!("{:>13} {:<17} {}", time(at.0), event.kind(), details(event, only))
}

/// Formats a time as seconds with six decimals.
fn time(us: u64) -> String {
    format!("{}.{:06}", us / 1_000_000, us % 1_000_000)
}

fn details(event: &Event, only: Option<SeqId>) -> String {
    match event {
        Event::Arrived { seq, tier, prompt, max_tokens } => {
            format!("{seq} tier={tier} prompt={prompt} max_tokens={max_tokens}")
        }
        Event::Planned { step, wants, denied, device_free, host_free } => format!(
            "{step} wants={wants} denied={denied} device_free={device_free} host_free={host_free}"
        ),
        Event::StepSubmitted { step, slices } => {
            let tokens: u64 = slices.iter().map(|slice| u64::from(slice.tokens)).sum();
            let mut line = format!("{step} tokens={tokens} slices={}", slices.len());
            let shown = slices.iter().filter(|slice| only.is_none_or(|only| slice.seq == only));
            shown.for_each(|slice| push_slice(&mut line, slice));
            line
        }
        Event::StepEnded { step, ok, duration_us } => {
            format!("{step} {} duration_us={duration_us}", ok_or_failed(*ok))
        }
        Event::FirstToken { seq } => seq.to_string(),
        Event::PreemptFreed { seq, blocks, on_host } | Event::GaveMore { seq, blocks, on_host } => {
            format!("{seq} blocks={blocks} on_host={on_host}")
        }
        Event::PreemptCopying { seq, blocks } | Event::ResumeCopying { seq, blocks } => {
            format!("{seq} blocks={blocks}")
        }
        Event::PreemptCommitted { seq, copied, failed }
        | Event::PreemptAborted { seq, copied, failed } => {
            format!("{seq} copied={copied} failed={failed}")
        }
        Event::Resumed { seq, computed, copied, failed } => {
            format!("{seq} computed={computed} copied={copied} failed={failed}")
        }
        Event::Ended { seq, ending, tokens, preemptions } => {
            format!("{seq} {} tokens={tokens} preemptions={preemptions}", ending.name())
        }
        Event::Command { seq, text, known } => {
            let whom = seq.map_or_else(|| "engine".to_owned(), |seq| seq.to_string());
            format!("{whom} {} known={known}", text.escape_debug())
        }
        Event::CopyStarted { copy, out, blocks } => {
            format!("{copy} {} blocks={blocks}", if *out { "out" } else { "in" })
        }
        Event::CopyEnded { copy, ok, duration_us } => {
            format!("{copy} {} duration_us={duration_us}", ok_or_failed(*ok))
        }
    }
}

/// Appends one sequence's slice of a step (the tokens that are computed) to the line. Examples: `seq3:prefill@0+512` is
/// a chunk of 512 tokens from position 0; `seq3:prefill@0+512>0` also samples output token 0; `seq3:decode@512>1`
/// decodes output token 1.
fn push_slice(line: &mut String, slice: &Slice) {
    let Slice { seq, first_pos, tokens, sample } = slice;
    let written = match (slice.is_decode(), sample) {
        (true, Some(output)) => write!(line, " {seq}:decode@{first_pos}>{output}"),
        (_, Some(output)) => write!(line, " {seq}:prefill@{first_pos}+{tokens}>{output}"),
        (_, None) => write!(line, " {seq}:prefill@{first_pos}+{tokens}"),
    };
    written.expect("a string takes every text");
}

fn ok_or_failed(ok: bool) -> &'static str {
    if ok { "ok" } else { "failed" }
}
