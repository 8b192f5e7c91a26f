//! Use of KV memory over a range of time, and the times of preemptions.

use serde::Serialize;
use std::ops::Range;
use tiercel_device::Timestamp;

/// Number of buckets that a range of time is divided into.
const BUCKETS: usize = 500;

/// Use of KV memory and preemptions in a range of time.
#[derive(Debug, Clone, Serialize)]
pub(super) struct Pressure {
    from_us: u64,
    to_us: u64,
    /// Maximum number of device blocks in use, by bucket; `None` where no step was planned.
    device: Vec<Option<u32>>,
    /// Maximum number of host blocks in use, by bucket; `None` where no step was planned.
    host: Vec<Option<u32>>,
    /// Number of preemptions, by bucket.
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
