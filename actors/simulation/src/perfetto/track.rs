//! Writing of trace events: tracks with slices, marks and counters, in Chrome's JSON format.

use serde::Serialize;
use serde_json::Value;
use tiercel_device::Timestamp;

/// Process of the engine's tracks.
pub(super) const ENGINE: u32 = 1;
/// Process of the requests' lanes.
pub(super) const REQUESTS: u32 = 2;
/// Tracks of the process of the engine.
pub(super) const STEPS: u64 = 1;
pub(super) const COPIES_OUT: u64 = 2;
pub(super) const COPIES_IN: u64 = 3;
pub(super) const OPERATORS: u64 = 4;

/// A track: its process and its number there.
pub(super) type Track = (u32, u64);

/// Writer of a file of trace events. Times in the file count from the begin of the capture.
pub(super) struct Tracks {
    out: Vec<u8>,
    began: Timestamp,
    is_first: bool,
}

/// A trace event. Fields that its kind does not have are left out.
#[derive(Default, Serialize)]
struct TraceEvent<'a> {
    name: &'a str,
    /// Kind: `X` a slice, `i` a mark, `C` a counter, `M` a name.
    ph: &'static str,
    pid: u32,
    tid: u64,
    /// Begin, us.
    ts: u64,
    /// Duration, us.
    #[serde(skip_serializing_if = "Option::is_none")]
    dur: Option<u64>,
    /// Scope of a mark: `t` its track, `g` the whole file.
    #[serde(skip_serializing_if = "Option::is_none")]
    s: Option<&'static str>,
    #[serde(skip_serializing_if = "Value::is_null")]
    args: Value,
}

impl Tracks {
    pub(super) fn new(began: Timestamp) -> serde_json::Result<Tracks> {
        let out = br#"{"displayTimeUnit":"ms","traceEvents":["#.to_vec();
        let mut tracks = Tracks { out, began, is_first: true };
        tracks.process(REQUESTS, "requests")?;
        Ok(tracks)
    }

    /// Whether a moment is not before the begin of the capture.
    pub(super) fn covers(&self, at: Timestamp) -> bool {
        at >= self.began
    }

    /// Names a process.
    pub(super) fn process(&mut self, pid: u32, name: &str) -> serde_json::Result<()> {
        self.meta("process_name", (pid, 0), serde_json::json!({"name": name}))
    }

    /// Names a track, and states its place in the order of tracks.
    pub(super) fn thread(
        &mut self,
        track: Track,
        name: &str,
        place: u64,
    ) -> serde_json::Result<()> {
        self.meta("thread_name", track, serde_json::json!({"name": name}))?;
        self.meta("thread_sort_index", track, serde_json::json!({"sort_index": place}))
    }

    fn meta(&mut self, name: &str, (pid, tid): Track, args: Value) -> serde_json::Result<()> {
        self.push(&TraceEvent { name, ph: "M", pid, tid, args, ..TraceEvent::default() })
    }

    /// Writes a slice of a track.
    pub(super) fn slice(
        &mut self,
        (pid, tid): Track,
        name: &str,
        (from, to): (Timestamp, Timestamp),
        args: Value,
    ) -> serde_json::Result<()> {
        let (ts, dur) = (from.since_us(self.began), Some(to.since_us(from.max(self.began))));
        self.push(&TraceEvent { name, ph: "X", pid, tid, ts, dur, s: None, args })
    }

    /// Writes a mark on a track.
    pub(super) fn instant(
        &mut self,
        (pid, tid): Track,
        name: &str,
        at: Timestamp,
    ) -> serde_json::Result<()> {
        let (ts, s) = (at.since_us(self.began), Some("t"));
        self.push(&TraceEvent { name, ph: "i", pid, tid, ts, s, ..TraceEvent::default() })
    }

    /// Writes a mark over the whole file.
    pub(super) fn mark(&mut self, name: &str, at: Timestamp) -> serde_json::Result<()> {
        let (ts, s) = (at.since_us(self.began), Some("g"));
        let (pid, tid) = (ENGINE, STEPS);
        self.push(&TraceEvent { name, ph: "i", pid, tid, ts, s, ..TraceEvent::default() })
    }

    /// Writes the values of a counter.
    pub(super) fn counter(
        &mut self,
        name: &str,
        at: Timestamp,
        args: Value,
    ) -> serde_json::Result<()> {
        let ts = at.since_us(self.began);
        self.push(&TraceEvent { name, ph: "C", pid: ENGINE, ts, args, ..TraceEvent::default() })
    }

    fn push(&mut self, event: &TraceEvent<'_>) -> serde_json::Result<()> {
        if !std::mem::replace(&mut self.is_first, false) {
            self.out.push(b',');
        }
        serde_json::to_writer(&mut self.out, event)
    }

    /// Completes the file with facts about it.
    pub(super) fn finish(mut self, facts: &Value) -> serde_json::Result<Vec<u8>> {
        self.out.extend_from_slice(br#"],"otherData":"#);
        serde_json::to_writer(&mut self.out, facts)?;
        self.out.push(b'}');
        Ok(self.out)
    }
}
