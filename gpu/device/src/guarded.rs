//! Calls of a device's code by a thread of its own, where a panic counts as a loss of the device.

use crate::{CopyError, StepError};
use std::panic::{AssertUnwindSafe, catch_unwind};

/// Error of a call that can report the loss of the device.
pub(crate) trait DeviceError {
    /// Makes the error that reports a lost device.
    fn device_lost(why: String) -> Self;
    /// Returns the reason for which the device is lost, if the error reports a loss.
    fn loss(&self) -> Option<&str>;
}

impl DeviceError for StepError {
    fn device_lost(why: String) -> StepError {
        StepError::DeviceLost(why)
    }

    fn loss(&self) -> Option<&str> {
        match self {
            StepError::DeviceLost(why) => Some(why),
            _ => None,
        }
    }
}

impl DeviceError for CopyError {
    fn device_lost(why: String) -> CopyError {
        CopyError::DeviceLost(why)
    }

    fn loss(&self) -> Option<&str> {
        match self {
            CopyError::DeviceLost(why) => Some(why),
            CopyError::Failed(_) => None,
        }
    }
}

/// Step side or copy side of a device. After a loss of the device, the reason of the loss is in `lost`.
pub(crate) struct Guarded<D> {
    side: D,
    lost: Option<String>,
}

impl<D> Guarded<D> {
    pub(crate) fn new(side: D) -> Guarded<D> {
        Guarded { side, lost: None }
    }

    /// Calls the device's code, unless the device is lost. If the call panics or reports the loss of the device, all
    /// later calls fail with that loss: after a panic, the device may still write to blocks.
    pub(crate) fn call<T, E: DeviceError>(
        &mut self,
        code: impl FnOnce(&mut D) -> Result<T, E>,
    ) -> Result<T, E> {
        if let Some(why) = &self.lost {
            return Err(E::device_lost(why.clone()));
        }
        let side = &mut self.side;
        // Catches a panic; otherwise the engine would wait forever for an answer.
        let result = catch_unwind(AssertUnwindSafe(|| code(side)))
            .unwrap_or_else(|panic| Err(E::device_lost(panic_text(panic.as_ref()))));
        if let Err(error) = &result {
            self.lost = error.loss().map(str::to_owned);
        }
        result
    }
}

fn panic_text(panic: &(dyn std::any::Any + Send)) -> String {
    panic
        .downcast_ref::<&str>()
        .map(|text| (*text).to_owned())
        .or_else(|| panic.downcast_ref::<String>().cloned())
        .unwrap_or_else(|| "panic without a message".to_owned())
}
