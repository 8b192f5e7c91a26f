//! KV state of a sequence in the scheduler: valid tokens, block table, and what preemptions took.

use crate::scheduler::pipeline::progress::InFlightProgress;
use std::sync::Arc;
use tiercel_device::{BlockId, Epoch, Timestamp};

/// KV state of a sequence in the scheduler: valid tokens, block table, and what preemptions took.
#[derive(Debug)]
pub(crate) struct Kv {
    /// Epoch: number of preemptions of the sequence that took effect. A message that carries an older epoch is stale.
    pub(crate) epoch: Epoch,
    /// Number of tokens whose KV is valid; at most the known tokens.
    pub(crate) computed: u32,
    /// Tokens of the sequence that steps in flight compute and sample.
    pub(crate) in_flight: InFlightProgress,
    /// Block table as the block store last sent it; empty while the sequence holds no blocks, and from an opening by
    /// copies until the block store's first answer after them.
    pub(crate) block_table: Arc<[BlockId]>,
    /// Number of tokens with valid KV when the sequence was preempted; 0 if it was not preempted since it last got its
    /// blocks.
    pub(crate) computed_before: u32,
    /// Whether a preemption saved blocks of the sequence in the host pool, since it last got its blocks.
    pub(crate) saved: bool,
    /// Number of host blocks that are pinned for the preempted sequence until it has its blocks again.
    pub(crate) on_host: u32,
    /// Number of tokens in the blocks that the preempted sequence retains on the device.
    pub(crate) retained_tokens: u32,
    /// Serial number of the last time that the sequence got its blocks (start or resume), counted over all sequences.
    pub(crate) opened_number: u64,
    /// Number of known tokens when the sequence last got its blocks (start or resume).
    pub(crate) len_at_open: u32,
    /// Time of the last step for which the block store denied the sequence's want to grow; `None` once the sequence is
    /// granted a step again or is preempted.
    pub(crate) denied_at: Option<Timestamp>,
    /// Whether victims are being copied out for the denied want, so that blocks for it come free later.
    pub(crate) promised: bool,
    /// Number of prompt tokens found in the prefix cache when the sequence started; `None` before its start.
    pub(crate) cached_tokens: Option<u32>,
}

impl Default for Kv {
    fn default() -> Kv {
        Kv {
            epoch: Epoch(0),
            computed: 0,
            in_flight: InFlightProgress::default(),
            block_table: Arc::from([]),
            computed_before: 0,
            saved: false,
            on_host: 0,
            retained_tokens: 0,
            opened_number: 0,
            len_at_open: 0,
            denied_at: None,
            promised: false,
            cached_tokens: None,
        }
    }
}

impl Kv {
    /// Records that a preemption took the blocks, except those of the first `retained_tokens` tokens; `saved` says
    /// whether any were saved in the host pool. The sequence needs a new block table to run again.
    pub(crate) fn close(&mut self, saved: bool, retained_tokens: u32) {
        self.saved = saved;
        self.retained_tokens = retained_tokens;
        (self.denied_at, self.promised) = (None, false);
        self.computed_before = self.computed;
        self.computed = 0;
        self.in_flight.lose_blocks();
        self.block_table = Arc::from([]);
        self.epoch.0 += 1;
    }
}
