//! Decode steps as CUDA graphs. Steps of single tokens that have the same layout make the same launches; only the
//! uploaded words differ. The first step of a layout is launched as any other step, and a graph is made of the second.
//! From then on a step of the layout uploads its words and replays the graph: one call of the host instead of hundreds.

use super::batch::Layout;
use super::driver::{CudaError, DevicePtr, Driver, Launch, Work};
use super::ops::CudaOps;
use crate::AttentionShape;
use std::collections::HashMap;
use tiercel_device::BlockId;

/// Most step layouts that are remembered. At the limit, layouts that occurred once are forgotten; if there are none,
/// all layouts and graphs are.
const MOST_KNOWN: usize = 192;
/// Most rows of a step that may become a graph. In larger steps the host's part of the time is small.
const MOST_ROWS: usize = 256;

/// Layouts of the steps that may be replayed as graphs, and the state of the current step.
#[derive(Debug)]
pub(super) struct Repeats {
    /// KV block that padding rows, which belong to no sequence, write to. `None` disables graphs.
    scratch: Option<BlockId>,
    known: HashMap<Key, Known>,
    /// How the work of the step under construction is handled.
    now: Now,
}

/// Properties of a step that determine its launches, given the model. Steps with equal keys can use the same graph.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct Key {
    rows: usize,
    spans: usize,
    table_words: usize,
    /// Address of the step's words. It identifies the slot of the step, and so the addresses of the tokens that the
    /// step draws and of the tokens drawn by the step before.
    words: DevicePtr,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Known {
    /// A step of this layout has run once, without a graph.
    Seen,
    /// Number of the graph made for this layout.
    Graph(usize),
}

#[derive(Debug)]
enum Now {
    /// Work is launched as soon as it is requested.
    Plain,
    /// The step may use a graph, but its layout is not known yet. Work is launched as soon as it is requested.
    Asked,
    /// Work is collected, for a graph that is made at the end of the step.
    Keeps(Key, Vec<Work>),
    /// Requested work is ignored, because the graph of this number contains it and is replayed at the end of the step.
    Replays(usize),
}

impl Repeats {
    pub(super) fn new(scratch: Option<BlockId>) -> Repeats {
        Repeats { scratch, known: HashMap::new(), now: Now::Plain }
    }

    /// Returns the number of rows that a step of `rows` single tokens is padded to, at most `most`, and the KV block
    /// that padding rows write to; `None` if the step cannot use a graph.
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

    /// Logs the error and disables graphs for all later steps.
    fn give_up(&mut self, error: &CudaError) {
        tracing::warn!(%error, "decode steps no longer run as CUDA graphs, but kernel by kernel");
        self.scratch = None;
    }

    /// Whether the layouts of the current step are rounded up to powers of two, because the step may use a graph.
    pub(super) fn fills(&self) -> bool {
        !matches!(self.now, Now::Plain)
    }

    /// Whether the words of the current step may be uploaded together at its end, because only a graph that runs then
    /// reads them.
    pub(super) fn defers(&self) -> bool {
        matches!(self.now, Now::Keeps(..) | Now::Replays(_))
    }

    /// Whether the work of the current step is launched at once. Otherwise the host cannot read results before the end
    /// of the step, when a graph runs.
    pub(super) fn is_plain(&self) -> bool {
        matches!(self.now, Now::Plain)
    }
}

impl<D: Driver> CudaOps<D> {
    /// Decides by the first layout of a step whether the step is launched, made into a graph, or replayed. `shapes` are
    /// the attention shapes of the layers that use the layout.
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
        // A step uses no graph if it has several span groups, since each group is a further launch, or if the model's
        // layers differ in their sliding windows, since the last layer has a layout of its own then.
        let [group] = &layout.groups[..] else { return };
        if shapes.windows(2).any(|pair| pair[0].sliding_window != pair[1].sliding_window) {
            return;
        }
        let table_words = layout.words.len() - layout.tables;
        let key = Key { rows, spans: group.spans, table_words, words };
        if self.repeats.known.len() >= MOST_KNOWN && !self.repeats.known.contains_key(&key) {
            // Layouts that occurred once may never occur again.
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

    /// Launches an operation, collects it for a new graph, or ignores it because a graph contains it.
    pub(super) fn work(&mut self, work: Work) {
        match &mut self.repeats.now {
            Now::Keeps(_, list) => list.push(work),
            Now::Replays(_) => {}
            Now::Plain | Now::Asked => self.attempt(|driver| now(driver, &work)),
        }
    }

    /// Completes the current step: uploads its deferred words, makes a graph if one is due, and replays the step's
    /// graph. If no graph can be made, the collected operations are launched instead.
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
    /// Replays a graph. If the driver refuses it, the step fails and graphs are disabled, so that the step is retried
    /// with launches.
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
