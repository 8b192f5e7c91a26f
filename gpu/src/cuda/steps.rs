//! Steps in flight on a GPU, at most two. Each has its own memory for uploaded data, which its launches read, and for
//! the tokens that it draws. The next step may take these tokens as its inputs before the host has seen them.

use super::driver::{CudaError, DevicePtr, Driver, SLOT_BYTES, SLOTS};
use super::ops::CudaOps;
use super::words::Words;
use crate::Drawn;
use std::collections::VecDeque;
use tiercel_device::{StepError, StepId};

/// Token id that the sampling kernel writes for a row without a usable logit.
const NO_TOKEN: u32 = u32::MAX;

/// The submitted steps of a GPU, and the step under construction.
#[derive(Debug)]
pub(super) struct Steps {
    slots: [Slot; SLOTS],
    /// Index (0 or 1) of the buffers that the step under construction uses.
    current: usize,
    /// Indices, among the sampled rows of the step under construction, of the rows from whose logits the GPU draws
    /// tokens.
    rows: Vec<usize>,
    under_way: VecDeque<UnderWay>,
    /// Device time of the latest finished step, us.
    last_us: Option<u64>,
}

#[derive(Debug)]
struct Slot {
    words: Words,
    /// Device address of the tokens that a step draws, indexed by sampled row.
    drawn: DevicePtr,
}

/// A step that was submitted to the GPU and whose results were not taken yet.
#[derive(Debug)]
struct UnderWay {
    slot: usize,
    rows: Vec<usize>,
    fault: Option<CudaError>,
}

impl Steps {
    pub(super) fn new<D: Driver>(driver: &mut D) -> Result<Steps, CudaError> {
        let mut slot =
            || Ok(Slot { words: Words::new(driver)?, drawn: driver.allocate(SLOT_BYTES)? });
        let slots = [slot()?, slot()?];
        Ok(Steps { slots, current: 0, rows: Vec::new(), under_way: VecDeque::new(), last_us: None })
    }

    /// Uploads 32-bit words for the step under construction and returns their device address.
    pub(super) fn put<D: Driver>(
        &mut self,
        driver: &mut D,
        words: &[u32],
    ) -> Result<DevicePtr, CudaError> {
        self.slots[self.current].words.put(driver, words)
    }

    /// Assigns a device address to 32-bit words of the step under construction, for a later upload together with other
    /// words; `None` if there is no room.
    pub(super) fn defer(&mut self, words: &[u32]) -> Option<DevicePtr> {
        self.slots[self.current].words.defer(words)
    }

    /// Uploads all deferred words of the step under construction in one copy.
    pub(super) fn upload_deferred<D: Driver>(&mut self, driver: &mut D) -> Result<(), CudaError> {
        self.slots[self.current].words.upload_deferred(driver)
    }

    /// Records that the step under construction draws a token from each row of a logits tensor whose number `rows`
    /// yields. Row 0 of the tensor is sampled row number `first` of the step, so row `row` is recorded as sampled row
    /// `first + row`. Returns the device address at which the token of sampled row `first` will be; those of the next
    /// sampled rows follow it.
    pub(super) fn draws(&mut self, first: usize, rows: impl Iterator<Item = usize>) -> DevicePtr {
        self.rows.extend(rows.map(|row| first + row));
        self.slots[self.current].drawn.offset(first * 4)
    }

    /// Returns the time on the device of the step that was finished last, us.
    pub(super) fn last_us(&self) -> Option<u64> {
        self.last_us
    }

    /// Returns the device address of the tokens that the last submitted step draws.
    pub(super) fn drawn_before(&self) -> DevicePtr {
        self.slots[(self.current + SLOTS - 1) % SLOTS].drawn
    }
}

impl<D: Driver> CudaOps<D> {
    /// Marks the beginning of the step under construction on the GPU.
    pub(super) fn begin_step(&mut self, step: StepId) {
        if let Err(error) = self.driver.begin_step(self.steps.current, step) {
            self.fault.get_or_insert(error);
        }
    }

    /// Submits the step under construction to the GPU.
    pub(super) fn submit_step(&mut self) {
        self.replay();
        let steps = &mut self.steps;
        assert!(steps.under_way.len() < SLOTS, "more steps than there are slots");
        let (slot, rows) = (steps.current, std::mem::take(&mut steps.rows));
        steps.current = (slot + 1) % SLOTS;
        let bytes = rows.iter().max().map_or(0, |last| (last + 1) * 4);
        let mut fault = self.fault.take();
        // Requests the return of the tokens also after a fault, because work launched before the fault may still be
        // using the activations.
        let sent = self.driver.send_back(slot, steps.slots[slot].drawn, bytes);
        fault = fault.or(sent.err());
        steps.under_way.push_back(UnderWay { slot, rows, fault });
    }

    /// Whether the oldest submitted step has ended or has a fault; true if no submitted step is left to finish.
    pub(super) fn step_has_ended(&mut self) -> bool {
        let oldest = self.steps.under_way.front();
        oldest.is_none_or(|step| step.fault.is_some() || self.driver.has_arrived(step.slot))
    }

    /// Waits for the oldest submitted step and returns the tokens that it drew. If there is none, or it has a fault,
    /// waits for all requested work.
    pub(super) fn finish_step(&mut self) -> Result<Vec<Drawn>, StepError> {
        self.steps.last_us = None;
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
            // Waits for all work if the step has a fault, because its tokens may not have been sent back.
            Some(fault) => self.driver.wait().and(Err(fault)),
            None => self.driver.receive(slot, &mut bytes),
        };
        self.steps.slots[slot].words.clear();
        ended?;
        self.steps.last_us = self.driver.step_us(slot)?;
        let token = |row: usize| {
            let [a, b, c, d] = [0, 1, 2, 3].map(|byte| bytes[row * 4 + byte]);
            Some(u32::from_ne_bytes([a, b, c, d])).filter(|token| *token != NO_TOKEN)
        };
        Ok(rows.into_iter().map(|row| (row, token(row))).collect())
    }
}
