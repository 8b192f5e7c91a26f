//! Steps under way. Each has words of its own, which its launches read, and a place for the tokens it draws, which the
//! step after it may take as its inputs without the host having seen them.

use super::driver::{CudaError, DevicePtr, Driver, SLOT_BYTES, SLOTS};
use super::ops::CudaOps;
use super::words::Words;
use crate::ops::Drawn;
use std::collections::VecDeque;
use tiercel_device::StepError;

/// What the kernel answers where no logit can be used.
const NO_TOKEN: u32 = u32::MAX;

/// The steps that were submitted, and the one whose list is being made.
#[derive(Debug)]
pub(super) struct Steps {
    slots: [Slot; SLOTS],
    /// The slot of the one whose list is being made.
    current: usize,
    /// Sampled rows that it draws from.
    rows: Vec<usize>,
    under_way: VecDeque<UnderWay>,
}

#[derive(Debug)]
struct Slot {
    words: Words,
    /// Tokens, by sampled row.
    drawn: DevicePtr,
}

/// A step that was submitted.
#[derive(Debug)]
struct UnderWay {
    slot: usize,
    rows: Vec<usize>,
    fault: Option<CudaError>,
}

impl Steps {
    /// Bytes that [`Steps::new`] allocates.
    pub(super) const BYTES: usize = SLOTS * (Words::BYTES_AT_FIRST + SLOT_BYTES);

    pub(super) fn new<D: Driver>(driver: &mut D) -> Result<Steps, CudaError> {
        let mut slot =
            || Ok(Slot { words: Words::new(driver)?, drawn: driver.allocate(SLOT_BYTES)? });
        let slots = [slot()?, slot()?];
        Ok(Steps { slots, current: 0, rows: Vec::new(), under_way: VecDeque::new() })
    }

    /// Uploads words for the step whose list is being made.
    pub(super) fn put<D: Driver>(
        &mut self,
        driver: &mut D,
        words: &[u32],
    ) -> Result<DevicePtr, CudaError> {
        self.slots[self.current].words.put(driver, words)
    }

    /// Gives words of that step a place, to be uploaded with others; `None` if there is no room.
    pub(super) fn defer(&mut self, words: &[u32]) -> Option<DevicePtr> {
        self.slots[self.current].words.defer(words)
    }

    /// Uploads at once all that was deferred.
    pub(super) fn upload_deferred<D: Driver>(&mut self, driver: &mut D) -> Result<(), CudaError> {
        self.slots[self.current].words.upload_deferred(driver)
    }

    /// Where the step whose list is being made keeps the token of a sampled row, to be drawn from the `rows` given.
    pub(super) fn draws(&mut self, first: usize, rows: impl Iterator<Item = usize>) -> DevicePtr {
        self.rows.extend(rows.map(|row| first + row));
        self.slots[self.current].drawn.offset(first * 4)
    }

    /// Where the step submitted last keeps the tokens it draws.
    pub(super) fn drawn_before(&self) -> DevicePtr {
        self.slots[(self.current + SLOTS - 1) % SLOTS].drawn
    }
}

impl<D: Driver> CudaOps<D> {
    /// Ends the list that is being made.
    pub(super) fn submit_step(&mut self) {
        self.replay();
        let steps = &mut self.steps;
        assert!(steps.under_way.len() < SLOTS, "more steps than there are slots");
        let (slot, rows) = (steps.current, std::mem::take(&mut steps.rows));
        steps.current = (slot + 1) % SLOTS;
        let bytes = rows.iter().max().map_or(0, |last| (last + 1) * 4);
        let mut fault = self.fault.take();
        // Also after a fault: what was launched before it still uses the activations.
        let sent = self.driver.send_back(slot, steps.slots[slot].drawn, bytes);
        fault = fault.or(sent.err());
        steps.under_way.push_back(UnderWay { slot, rows, fault });
    }

    /// Whether the oldest step that was submitted has ended.
    pub(super) fn step_has_ended(&mut self) -> bool {
        let oldest = self.steps.under_way.front();
        oldest.is_none_or(|step| step.fault.is_some() || self.driver.has_arrived(step.slot))
    }

    /// Waits for the oldest step that was submitted, or for everything if there is none.
    pub(super) fn finish_step(&mut self) -> Result<Vec<Drawn>, StepError> {
        let Some(UnderWay { slot, rows, fault }) = self.steps.under_way.pop_front() else {
            let ended = self.driver.wait();
            self.steps.rows.clear();
            self.steps.slots[self.steps.current].words.clear();
            return match ended.err().or(self.fault.take()) {
                None => Ok(Vec::new()),
                Some(error) => Err(error.into()),
            };
        };
        let mut bytes = vec![0; rows.iter().max().map_or(0, |last| (last + 1) * 4)];
        let ended = match fault {
            // It may not have been sent back.
            Some(fault) => self.driver.wait().and(Err(fault)),
            None => self.driver.receive(slot, &mut bytes),
        };
        self.steps.slots[slot].words.clear();
        ended?;
        let token = |row: usize| {
            let [a, b, c, d] = [0, 1, 2, 3].map(|byte| bytes[row * 4 + byte]);
            Some(u32::from_ne_bytes([a, b, c, d])).filter(|token| *token != NO_TOKEN)
        };
        Ok(rows.into_iter().map(|row| (row, token(row))).collect())
    }
}
