//! Decode steps as CUDA graphs. Steps of single tokens that have the same layout (numbers of rows, spans and
//! block-table entries) make the same launches; only the uploaded data differ. The first step of a layout is launched
//! as any other step, and a graph is made of the second. From then on a step of the layout uploads its data and replays
//! the graph: one call of the host instead of hundreds.

use super::batch::Layout;
use super::driver::{CudaError, DevicePtr, Driver, Launch, Work};
use super::ops::CudaOps;
use crate::AttentionShape;
use std::collections::HashMap;
use tiercel_device::BlockId;

/// Most step layouts that are remembered for CUDA graphs. At the limit, layouts that occurred once are forgotten; if
/// there are none, all layouts and graphs are.
const MOST_KNOWN: usize = 192;
/// Most rows of a step that may become a CUDA graph. In larger steps the host's part of the time is small.
const MOST_ROWS: usize = 256;

/// Layouts of the steps that may be replayed as CUDA graphs, and the state of the step under construction.
#[derive(Debug)]
pub(super) struct Repeats {
    /// KV block that padding rows, which belong to no sequence, write to. `None` disables CUDA graphs.
    scratch: Option<BlockId>,
    known: HashMap<Key, Known>,
    /// How requested work of the step under construction is handled: launched at once, collected for a CUDA graph, or
    /// left to a graph.
    now: Now,
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
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Known {
    /// A step of this layout has run once, without a CUDA graph.
    Seen,
    /// Number of the CUDA graph that was made for this layout.
    Graph(usize),
}

#[derive(Debug)]
enum Now {
    /// The step uses no CUDA graph: its work is launched as soon as it is requested.
    Plain,
    /// The step may use a CUDA graph, but its layout is not known yet: its work is launched as soon as it is requested.
    Asked,
    /// The step's work is collected, for a CUDA graph that is made at the end of the step.
    Keeps(Key, Vec<Work>),
    /// The step's work is ignored when it is requested, because the CUDA graph of this number contains it and is
    /// replayed at the end of the step.
    Replays(usize),
}

impl Repeats {
    pub(super) fn new(scratch: Option<BlockId>) -> Repeats {
        Repeats { scratch, known: HashMap::new(), now: Now::Plain }
    }

    /// Returns the number of rows that a step of `rows` single tokens is padded to for a CUDA graph, at most `most`,
    /// and the KV block that padding rows write to; `None` if the step cannot use a graph.
    pub(super) fn ask(&mut self, rows: usize, most: usize) -> Option<(usize, BlockId)> {
        let scratch = self.scratch?;
        let unit = match rows {
            0 => return None,
            1..=8 => rows.next_power_of_two(),
            9..=64 => 8,
            _ => 16,
        };
        let filled = rows.next_multiple_of(unit);
        (filled <= most.min(MOST_ROWS)).then(|| {
            self.now = Now::Asked;
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
        !matches!(self.now, Now::Plain)
    }

    /// Whether the data of the step under construction may be uploaded together at its end, because only a CUDA graph
    /// that runs then reads it.
    pub(super) fn defers(&self) -> bool {
        matches!(self.now, Now::Keeps(..) | Now::Replays(_))
    }

    /// Whether the work of the step under construction is launched at once. Otherwise the host cannot read results
    /// before the end of the step, when a CUDA graph runs.
    pub(super) fn is_plain(&self) -> bool {
        matches!(self.now, Now::Plain)
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
        if !matches!(self.repeats.now, Now::Asked) {
            return;
        }
        self.repeats.now = Now::Plain;
        // Uses no CUDA graph for a step with several span groups, since each group is a further launch, nor if the
        // model's layers differ in their sliding windows, since the last layer has a layout of its own then.
        let [group] = &layout.groups[..] else { return };
        if shapes.windows(2).any(|pair| pair[0].sliding_window != pair[1].sliding_window) {
            return;
        }
        let table_words = layout.words.len() - layout.tables;
        let key = Key { rows, spans: group.spans, table_words, words };
        if self.repeats.known.len() >= MOST_KNOWN && !self.repeats.known.contains_key(&key) {
            // Forgets step layouts that occurred once, because they may never occur again.
            self.repeats.known.retain(|_, known| *known != Known::Seen);
        }
        if self.repeats.known.len() >= MOST_KNOWN && !self.repeats.known.contains_key(&key) {
            self.repeats.known.clear();
            self.driver.forget_graphs();
        }
        self.repeats.now = match self.repeats.known.get(&key) {
            None => {
                self.repeats.known.insert(key, Known::Seen);
                Now::Plain
            }
            Some(Known::Seen) => Now::Keeps(key, Vec::new()),
            Some(Known::Graph(graph)) => Now::Replays(*graph),
        };
    }

    /// Handles an operation of the step under construction: launches it, collects it for a new CUDA graph, or ignores
    /// it because a graph contains it.
    pub(super) fn work(&mut self, work: Work) {
        match &mut self.repeats.now {
            Now::Keeps(_, list) => list.push(work),
            Now::Replays(_) => {}
            Now::Plain | Now::Asked => self.attempt(|driver| now(driver, &work)),
        }
    }

    /// Completes the step under construction: uploads its deferred data, makes a CUDA graph if one is due, and replays
    /// the step's graph. If no graph can be made, the collected operations are launched instead.
    pub(super) fn replay(&mut self) {
        let steps = &mut self.steps;
        if self.fault.is_none() {
            self.fault = steps.upload_deferred(&mut self.driver).err();
        }
        match std::mem::replace(&mut self.repeats.now, Now::Plain) {
            Now::Plain | Now::Asked => {}
            Now::Replays(graph) => self.replay_graph(graph),
            Now::Keeps(..) if self.fault.is_some() => {}
            Now::Keeps(key, list) => match self.driver.graph(&list) {
                Ok(graph) => {
                    self.repeats.known.insert(key, Known::Graph(graph));
                    self.replay_graph(graph);
                }
                Err(error) => {
                    self.repeats.give_up(&error);
                    self.attempt(|driver| list.iter().try_for_each(|work| now(driver, work)));
                }
            },
        }
    }
}

impl<D: Driver> CudaOps<D> {
    /// Replays a CUDA graph. If the driver refuses it, the step fails and graphs are disabled, so that the step is
    /// retried with launches.
    fn replay_graph(&mut self, graph: usize) {
        if self.fault.is_some() {
            return;
        }
        if let Err(error) = self.driver.replay(graph) {
            self.repeats.give_up(&error);
            self.fault = Some(error);
        }
    }
}

fn now<D: Driver>(driver: &mut D, work: &Work) -> Result<(), CudaError> {
    match work {
        Work::Launch(kernel, grid, threads, shared_bytes, args) => driver.launch(Launch {
            kernel,
            grid: *grid,
            threads: *threads,
            shared_bytes: *shared_bytes,
            args,
        }),
        Work::Multiply(product) => driver.multiply(*product),
    }
}
