//! Decode steps as graphs. A step of single tokens is the same launches each time, but for what is in its words: where the
//! layout is the same, the first is done as any, of the second a graph is made, and from then on only words are uploaded
//! and the graph is replayed, which takes the host one call instead of hundreds.

use super::batch::Layout;
use super::driver::{CudaError, DevicePtr, Driver, Launch, Work};
use super::ops::CudaOps;
use crate::AttentionShape;
use std::collections::HashMap;
use tiercel_device::BlockId;

/// Most layouts that are remembered; beyond it those that came once are forgotten, or all.
const MOST_KNOWN: usize = 192;
/// Most rows of a step that is repeated: of more, the host's part is small.
const MOST_ROWS: usize = 256;

/// What is known of steps that may be repeated.
#[derive(Debug)]
pub(super) struct Repeats {
    /// A block that rows without a sequence write; without one, nothing is repeated.
    scratch: Option<BlockId>,
    known: HashMap<Key, Known>,
    /// The step whose list is being made.
    now: Now,
}

/// All that the launches of a step depend on, beside the model.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct Key {
    rows: usize,
    spans: usize,
    table_words: usize,
    /// Where its words are, which also tells where it keeps its tokens and finds those of the step before.
    words: DevicePtr,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Known {
    /// It was done once.
    Seen,
    /// Its graph.
    Graph(usize),
}

#[derive(Debug)]
enum Now {
    /// Launches are launched.
    Plain,
    /// It may be repeated, and its layout is not known yet.
    Asked,
    /// Launches become a graph.
    Keeps(Key, Vec<Work>),
    /// Launches are in a graph.
    Replays(usize),
}

impl Repeats {
    pub(super) fn new(scratch: Option<BlockId>) -> Repeats {
        Repeats { scratch, known: HashMap::new(), now: Now::Plain }
    }

    /// How many rows a step of `rows` single tokens is to have.
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

    /// Nothing is repeated from now on.
    fn give_up(&mut self, error: &CudaError) {
        tracing::warn!(%error, "decode steps are launched from now on, and not replayed as graphs");
        self.scratch = None;
    }

    /// Whether layouts are to be filled up.
    pub(super) fn fills(&self) -> bool {
        !matches!(self.now, Now::Plain)
    }

    /// Whether words may wait for each other: nothing reads them before a graph does.
    pub(super) fn defers(&self) -> bool {
        matches!(self.now, Now::Keeps(..) | Now::Replays(_))
    }

    /// Whether the host may read what has been asked for: not before a graph is replayed.
    pub(super) fn is_plain(&self) -> bool {
        matches!(self.now, Now::Plain)
    }
}

impl<D: Driver> CudaOps<D> {
    /// The first layout of a step tells whether it is known; it is that of layers with these `shapes`.
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
        // More spans than there is memory for at once are more launches, and where layers see differently far the last
        // one has a layout of its own.
        let [group] = &layout.groups[..] else { return };
        if shapes.windows(2).any(|pair| pair[0].sliding_window != pair[1].sliding_window) {
            return;
        }
        let table_words = layout.words.len() - layout.tables;
        let key = Key { rows, spans: group.spans, table_words, words };
        if self.repeats.known.len() >= MOST_KNOWN && !self.repeats.known.contains_key(&key) {
            // What came once may never come again.
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

    /// Does something, or leaves it to a graph.
    pub(super) fn work(&mut self, work: Work) {
        match &mut self.repeats.now {
            Now::Keeps(_, list) => list.push(work),
            Now::Replays(_) => {}
            Now::Plain | Now::Asked => self.attempt(|driver| now(driver, &work)),
        }
    }

    /// The list of the step is whole: what was left to a graph is done.
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
    /// A graph that is refused fails its step; that is done again as launches.
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
