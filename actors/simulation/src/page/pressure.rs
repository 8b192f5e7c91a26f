//! Use of KV blocks over a range of time, and the number of preemptions, as the HTML page of a simulation charts them.

use serde::Serialize;
use std::ops::Range;
use tiercel_device::Timestamp;

/// Number of equal buckets of time that a chart of memory use has.
const BUCKETS: usize = 500;

/// Chart data: use of KV blocks, and number of preemptions, over a range of time.
#[derive(Debug, Clone, Serialize)]
pub(super) struct Pressure {
    from_us: u64,
    to_us: u64,
    /// Maximum number of device blocks in use, by bucket of time; `None` where no step was planned.
    device: Vec<Option<u32>>,
    /// Maximum number of host blocks in use, by bucket of time; `None` where no step was planned.
    host: Vec<Option<u32>>,
    /// Number of preemptions, by bucket of time.
    preempted: Vec<u32>,
}

impl Pressure {
    pub(super) fn new(range: Range<Timestamp>) -> Pressure {
        Pressure {
            from_us: range.start.0,
            to_us: range.end.0,
            device: vec![None; BUCKETS],
            host: vec![None; BUCKETS],
            preempted: vec![0; BUCKETS],
        }
    }

    pub(super) fn in_use(&mut self, at: Timestamp, device: u32, host: u32) {
        if let Some(bucket) = self.bucket(at) {
            let most = |slot: &mut Option<u32>, value| *slot = Some(slot.unwrap_or(0).max(value));
            most(&mut self.device[bucket], device);
            most(&mut self.host[bucket], host);
        }
    }

    pub(super) fn preempted(&mut self, at: Timestamp) {
        if let Some(bucket) = self.bucket(at) {
            self.preempted[bucket] += 1;
        }
    }

    fn bucket(&self, at: Timestamp) -> Option<usize> {
        let span = self.to_us.checked_sub(self.from_us).filter(|span| *span > 0)?;
        let past = at.0.checked_sub(self.from_us).filter(|past| *past < span)?;
        Some((u128::from(past) * BUCKETS as u128 / u128::from(span)) as usize)
    }
}
