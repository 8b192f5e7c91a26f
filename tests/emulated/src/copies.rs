//! Block copies between device and host memory on the emulated GPU: a copy stream for each direction, with its own
//! emulated time. Each call of `has_ended` advances a stream a little, as a copy engine goes on while the host does
//! other work.
#![expect(unsafe_code, reason = "device memory is memory of the host, known by its address")]

use crate::fault::Fault;
use crate::time::{BYTES_PER_US, Shared};
use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tiercel_device::{COPIES_IN_FLIGHT, CopyDirection, StepId};
use tiercel_gpu::cuda::{CopyDriver, CudaError, DevicePtr, HostPlan, PinHost};

/// Bytes that a copy stream copies at each call of `has_ended`.
const BYTES_PER_CALL: usize = 4 << 10;

/// Memory of the host pool of the emulated GPU, which its copy side and the thread that pins more of it share.
pub struct EmulatedHost {
    plan: HostPlan,
    /// Pinned part of the pool's memory.
    pinned: Pinned,
    /// Number of pieces that can be pinned.
    pieces_max: usize,
}

/// Pinned part of a host pool's memory, shared.
#[derive(Clone, Default)]
struct Pinned(Arc<Mutex<Vec<u8>>>);

impl Pinned {
    fn bytes(&self) -> MutexGuard<'_, Vec<u8>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl EmulatedHost {
    /// Makes a host pool of which nothing is pinned yet, and its copy side.
    pub(crate) fn new(
        plan: HostPlan,
        shared: Shared,
        fault: Option<Fault>,
    ) -> (EmulatedCopies, EmulatedHost) {
        let pieces_max = match fault {
            Some(Fault::Pinning(pieces)) => pieces,
            _ => usize::MAX,
        };
        let host = Pinned::default();
        let pinned = host.clone();
        let copies =
            EmulatedCopies { host, shared, directions: Default::default(), added: 0, fault };
        (copies, EmulatedHost { plan, pinned, pieces_max })
    }
}

impl PinHost for EmulatedHost {
    fn pin(&mut self, piece: usize) -> Result<(), CudaError> {
        let bytes = self.plan.blocks_of(piece) as usize * self.plan.block_bytes;
        if piece >= self.pieces_max {
            let why = "a made-up fault".to_owned();
            return Err(CudaError::Memory { bytes, what: "pinned host", why });
        }
        let mut pinned = self.pinned.bytes();
        assert_eq!(pinned.len(), piece * self.plan.piece_bytes(), "pieces are pinned in order");
        let held = pinned.len() + bytes;
        pinned.resize(held, 0xff);
        Ok(())
    }
}

/// Copy side of the emulated GPU: copies blocks between the memory of the host pool and the emulated device memory.
pub struct EmulatedCopies {
    host: Pinned,
    shared: Shared,
    directions: [DirectionState; 2],
    /// Number of copies added so far, in both directions.
    added: usize,
    fault: Option<Fault>,
}

/// Copy stream of one direction.
#[derive(Default)]
struct DirectionState {
    batches: VecDeque<Batch>,
    /// Bytes that the stream has copied so far: its emulated time.
    copied: usize,
}

/// A batch of copies in flight.
struct Batch {
    /// Steps, with their result slots, that must end before the copies begin.
    held_by: Vec<(usize, StepId)>,
    copies: VecDeque<Copy>,
    closed: bool,
    /// Bytes that the stream had copied when the copies of the batch began.
    begun: Option<usize>,
}

/// A copy, or the rest of a copy that has begun.
struct Copy {
    number: usize,
    device: DevicePtr,
    host: usize,
    bytes: usize,
}

impl EmulatedCopies {
    fn alive(&self) -> Result<(), CudaError> {
        if self.shared.state().lost {
            Err(CudaError::Lost("a made-up fault".to_owned()))
        } else {
            Ok(())
        }
    }

    /// Lets a copy stream copy up to `budget` bytes of its oldest batch. Returns whether the batch has ended.
    fn go_on(&mut self, direction: CopyDirection, mut budget: usize) -> bool {
        let state = &mut self.directions[direction.index()];
        let batch = state.batches.front_mut().expect("a batch is in flight");
        {
            let state = self.shared.state();
            if state.lost {
                return true;
            }
            if !batch.held_by.iter().all(|step| state.has_ended(*step)) {
                return false;
            }
        }
        batch.begun.get_or_insert(state.copied);
        while let Some(copy) = batch.copies.front_mut()
            && budget > 0
        {
            if self.fault == Some(Fault::LostCopy(copy.number)) {
                self.shared.state().lost = true;
                return true;
            }
            let bytes = copy.bytes.min(budget);
            let at = copy.host..copy.host + bytes;
            move_bytes(direction, copy.device, &mut self.host.bytes()[at]);
            state.copied += bytes;
            budget -= bytes;
            copy.device = copy.device.offset(bytes);
            (copy.host, copy.bytes) = (copy.host + bytes, copy.bytes - bytes);
            if copy.bytes == 0 {
                batch.copies.pop_front();
            }
        }
        batch.closed && batch.copies.is_empty()
    }
}

fn move_bytes(direction: CopyDirection, device: DevicePtr, host: &mut [u8]) {
    let device = device.0 as *mut u8;
    // SAFETY: the copier checks that the blocks exist on both sides, and no other code uses them until the copy is
    // answered; the caller keeps the device, and so its memory, alive.
    unsafe {
        match direction {
            CopyDirection::Out => {
                std::ptr::copy_nonoverlapping(device, host.as_mut_ptr(), host.len());
            }
            CopyDirection::In => std::ptr::copy_nonoverlapping(host.as_ptr(), device, host.len()),
        }
    }
}

impl CopyDriver for EmulatedCopies {
    fn begin(&mut self, direction: CopyDirection, after: StepId) -> Result<(), CudaError> {
        self.alive()?;
        let held_by = self.shared.state().unended(after);
        let batches = &mut self.directions[direction.index()].batches;
        assert!(batches.len() < COPIES_IN_FLIGHT, "more batches than may be in flight");
        let copies = VecDeque::new();
        batches.push_back(Batch { held_by, copies, closed: false, begun: None });
        Ok(())
    }

    fn add(
        &mut self,
        direction: CopyDirection,
        device: DevicePtr,
        host: usize,
        bytes: usize,
    ) -> Result<(), CudaError> {
        self.alive()?;
        let number = self.added;
        self.added += 1;
        if self.fault == Some(Fault::Copy(number)) {
            return Err(CudaError::Copy("a made-up fault".to_owned()));
        }
        let held = self.host.bytes().len();
        assert!(host + bytes <= held, "{bytes} bytes at {host} of {held} of the host pool");
        let batch =
            self.directions[direction.index()].batches.back_mut().expect("a batch was begun");
        batch.copies.push_back(Copy { number, device, host, bytes });
        Ok(())
    }

    fn close(&mut self, direction: CopyDirection) -> Result<(), CudaError> {
        self.alive()?;
        let batch =
            self.directions[direction.index()].batches.back_mut().expect("a batch was begun");
        batch.closed = true;
        Ok(())
    }

    fn has_ended(&mut self, direction: CopyDirection) -> bool {
        self.go_on(direction, BYTES_PER_CALL)
    }

    fn end(&mut self, direction: CopyDirection) -> Result<u64, CudaError> {
        while !self.go_on(direction, usize::MAX) {
            // The batch waits for a step, which runs when the thread of the steps waits for it.
            std::thread::yield_now();
        }
        let state = &mut self.directions[direction.index()];
        let batch = state.batches.pop_front().expect("a batch is in flight");
        let bytes = state.copied - batch.begun.unwrap_or(state.copied);
        self.alive()?;
        Ok((bytes / BYTES_PER_US) as u64)
    }
}
