//! The KV of a sequence: valid tokens, blocks, and what preemptions took.

use crate::scheduler::pipeline::progress::InFlightProgress;
use std::sync::Arc;
use tiercel_device::{BlockId, Epoch};

/// KV of a sequence: valid tokens, blocks, and what preemptions took.
#[derive(Debug)]
pub(crate) struct Kv {
    /// Number of preemptions that were committed.
    pub(crate) epoch: Epoch,
    /// Tokens whose KV is valid; at most the known tokens.
    pub(crate) computed: u32,
    /// Progress that steps in flight add to the sequence.
    pub(crate) in_flight: InFlightProgress,
    /// Block table as of the last grant; empty while the sequence holds no blocks.
    pub(crate) table: Arc<[BlockId]>,
    /// Tokens that were valid when a preemption took the blocks; 0 if none did since the sequence last opened.
    pub(crate) lost: u32,
    /// Whether blocks were saved in the host pool when a preemption took them.
    pub(crate) saved: bool,
    /// Tokens in retained blocks.
    pub(crate) retained: u32,
    /// Number of the sequence's last open, in the count of the opens of all sequences.
    pub(crate) opened_number: u64,
    /// Known tokens at the last open.
    pub(crate) len_at_open: u32,
    /// Whether the block store denied the last want to grow.
    pub(crate) denied: bool,
    /// Whether victims are being copied out for the denied want to grow, so that their blocks come free later.
    pub(crate) promised: bool,
    /// Prompt tokens found in the prefix cache at the start of the sequence; `None` before the start.
    pub(crate) cached_tokens: Option<u32>,
}

impl Default for Kv {
    fn default() -> Kv {
        Kv {
            epoch: Epoch(0),
            computed: 0,
            in_flight: InFlightProgress::default(),
            table: Arc::from([]),
            lost: 0,
            saved: false,
            retained: 0,
            opened_number: 0,
            len_at_open: 0,
            denied: false,
            promised: false,
            cached_tokens: None,
        }
    }
}

impl Kv {
    /// Marks the blocks as taken, `saved` in the host pool or not, except those of the first `retained` tokens. The
    /// sequence must open again.
    pub(crate) fn close(&mut self, saved: bool, retained: u32) {
        self.saved = saved;
        self.retained = retained;
        self.promised = false;
        self.lost = self.computed;
        self.computed = 0;
        self.in_flight.lose_blocks();
        self.table = Arc::from([]);
        self.epoch.0 += 1;
    }
}
