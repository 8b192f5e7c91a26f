//! Decode steps as CUDA graphs. Steps of single tokens that have the same layout (numbers of rows, spans and
//! block-table entries) make the same launches; only the uploaded data differ. The first step of a layout is launched
//! as any other step, and a graph is made of the second. From the second step on, a step of the layout uploads its data
//! and replays the graph: one call of the host instead of hundreds.

use super::batch::Layout;
use super::driver::{CudaError, DevicePtr, Driver, Work};
use super::layouts::{Known, Layouts};
use super::ops::CudaOps;
use crate::AttentionShape;
use tiercel_device::BlockId;

/// Most rows of a step that may become a CUDA graph. In larger steps the host's part of the time is small.
const ROWS_MAX: usize = 256;

/// CUDA graphs of decode steps by the layouts of the steps, and how the step under construction uses them.
#[derive(Debug)]
pub(super) struct GraphCache {
    /// KV block that padding rows, which belong to no sequence, write to. `None` disables CUDA graphs.
    scratch: Option<BlockId>,
    layouts: Layouts<Key>,
    /// What happens to GPU work of the step under construction when the work is requested: it is launched at once,
    /// collected for a new CUDA graph, or ignored because an existing graph contains it.
    mode: Mode,
}

/// Layout of a step: what determines its launches, given the model. Steps with equal layouts can replay the same CUDA
/// graph.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct Key {
    rows: usize,
    spans: usize,
    table_words: usize,
    /// Device address of the step's uploaded data. It differs between the two steps in flight, and so tells which
    /// buffers the step draws its tokens into and takes the tokens of the step before from.
    words: DevicePtr,
    /// Whether the graph also draws the tokens. Otherwise, the draws are launched after the graph.
    draws: bool,
}

/// How the requested work of a step is handled.
#[derive(Debug)]
enum Mode {
    /// The step uses no CUDA graph: its work is launched as soon as it is requested.
    Launch,
    /// The step may use a CUDA graph, but its layout is not known yet: its work is launched as soon as it is requested.
    Undecided {
        /// Whether the graph is to draw the tokens too.
        draws: bool,
    },
    /// The step's work is collected, for a CUDA graph that is made at the end of the step.
    Record(Key, Vec<Work>),
    /// The step's work is ignored when it is requested, because the CUDA graph of this number contains it and is
    /// replayed at the end of the step.
    Replay(usize),
}

impl GraphCache {
    pub(super) fn new(scratch: Option<BlockId>) -> GraphCache {
        GraphCache { scratch, layouts: Layouts::new(), mode: Mode::Launch }
    }

    /// Returns the number of rows that a step of `rows` single tokens is padded to for a CUDA graph, at most `most`,
    /// and the KV block that padding rows write to; `None` if the step cannot use a graph. With `flushed`, the draws of
    /// the step are not part of the graph.
    pub(super) fn pad(
        &mut self,
        rows: usize,
        most: usize,
        flushed: bool,
    ) -> Option<(usize, BlockId)> {
        let scratch = self.scratch?;
        let unit = match rows {
            0 => return None,
            1..=8 => rows.next_power_of_two(),
            9..=64 => 8,
            _ => 16,
        };
        let filled = rows.next_multiple_of(unit);
        (filled <= most.min(ROWS_MAX)).then(|| {
            self.mode = Mode::Undecided { draws: !flushed };
            (filled, scratch)
        })
    }

    /// Logs the error and disables CUDA graphs for all later steps.
    fn give_up(&mut self, error: &CudaError) {
        tracing::warn!(%error, "decode steps no longer run as CUDA graphs, but kernel by kernel");
        self.scratch = None;
    }

    /// Whether the layouts of the step under construction are padded to powers of two, because the step may use a CUDA
    /// graph.
    pub(super) fn fills(&self) -> bool {
        !matches!(self.mode, Mode::Launch)
    }

    /// Whether the data of the step under construction may be uploaded together at its end, because only a CUDA graph
    /// that runs then reads it.
    pub(super) fn defers(&self) -> bool {
        matches!(self.mode, Mode::Record(..) | Mode::Replay(_))
    }

    /// Whether it is certain that the step under construction uses no CUDA graph. Otherwise the host must not read
    /// results before the end of the step, because the work may not run until a graph runs then.
    pub(super) fn is_plain(&self) -> bool {
        matches!(self.mode, Mode::Launch)
    }
}

impl<D: Driver> CudaOps<D> {
    /// Decides by the first layout of a step whether the step is launched, made into a CUDA graph, or replayed.
    /// `shapes` are the attention shapes of the layers that use the layout.
    pub(super) fn look_up(
        &mut self,
        layout: &Layout,
        rows: usize,
        words: DevicePtr,
        shapes: &[AttentionShape],
    ) {
        let Mode::Undecided { draws } = self.graphs.mode else { return };
        self.graphs.mode = Mode::Launch;
        // Uses no CUDA graph for a step with several span groups, since each group is a further launch, nor if the
        // model's layers differ in their sliding windows, since the last layer has a layout of its own then.
        let [group] = &layout.groups[..] else { return };
        if shapes.windows(2).any(|pair| pair[0].sliding_window != pair[1].sliding_window) {
            return;
        }
        let table_words = layout.words.len() - layout.tables;
        let key = Key { rows, spans: group.spans, table_words, words, draws };
        self.graphs.mode = match self.graphs.layouts.note(key) {
            Known::Nothing => Mode::Launch,
            Known::Seen => Mode::Record(key, Vec::new()),
            Known::Graph(graph) => Mode::Replay(graph),
        };
    }

    /// Handles an operation of the step under construction: launches it, collects it for a new CUDA graph, or ignores
    /// it because a graph contains it.
    pub(super) fn work(&mut self, work: Work) {
        match &mut self.graphs.mode {
            Mode::Record(_, list) => list.push(work),
            Mode::Replay(_) => {}
            Mode::Launch | Mode::Undecided { .. } => self.attempt(|driver| driver.request(&work)),
        }
    }

    /// Launches what the step under construction has collected: uploads its deferred data, makes a CUDA graph if one is
    /// due, and replays the step's graph. If no graph can be made, the collected operations are launched instead. Later
    /// operations of the step are launched as soon as they are requested.
    pub(super) fn replay(&mut self) {
        let steps = &mut self.steps;
        if self.fault.is_none() {
            self.fault = steps.upload_deferred(&mut self.driver).err();
        }
        match std::mem::replace(&mut self.graphs.mode, Mode::Launch) {
            Mode::Launch | Mode::Undecided { .. } => {}
            Mode::Replay(graph) => self.replay_graph(graph),
            Mode::Record(..) if self.fault.is_some() => {}
            Mode::Record(key, list) => match self.driver.graph(&list) {
                Ok(graph) => {
                    if let Some(unused) = self.graphs.layouts.keep(key, graph) {
                        self.driver.forget_graph(unused);
                    }
                    self.replay_graph(graph);
                }
                Err(error) => {
                    self.graphs.give_up(&error);
                    self.attempt(|driver| list.iter().try_for_each(|work| driver.request(work)));
                }
            },
        }
    }

    /// Replays a CUDA graph. If the driver refuses the replay, the step fails and CUDA graphs are disabled, so that the
    /// retried step launches its kernels one by one.
    fn replay_graph(&mut self, graph: usize) {
        if self.fault.is_some() {
            return;
        }
        if let Err(error) = self.driver.replay(graph) {
            self.graphs.give_up(&error);
            self.fault = Some(error);
        }
    }
}
