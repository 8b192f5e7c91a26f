//! Compute side of the emulated GPU: device memory, kernel launches, matrix products and CUDA graphs.
#![expect(unsafe_code, reason = "device memory is memory of the host, known by its address")]

use crate::copies::{EmulatedCopies, EmulatedHost};
use crate::fault::Fault;
use crate::kernels::{SPAN, launch};
use crate::time::{LAUNCH_US, Mark, Shared};
use half::bf16;
use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use tiercel_device::StepId;
use tiercel_gpu::cuda::{
    CudaError, DevicePtr, Driver, HostPlan, KernelShape, LargestLaunch, Launch, Product,
    SLOT_BYTES, SLOTS, Work,
};

/// Most threads of a thread block on any GPU.
const GPU_THREADS_MAX: u32 = 1024;

/// An emulated GPU whose device memory is host memory. Submitted work runs only when a caller waits for it, which is
/// allowed: a real GPU need not have run it earlier either.
pub struct EmulatedDriver {
    /// Queue of work that was submitted and has not run yet.
    asked: VecDeque<Asked>,
    slots: [Slot; SLOTS],
    graphs: HashMap<usize, Vec<Work>>,
    made: usize,
    kept: Arc<AtomicUsize>,
    replayed: Arc<AtomicUsize>,
    memory: Vec<Box<[Line]>>,
    memory_bytes: usize,
    limit_bytes: usize,
    shape: KernelShape,
    /// Largest launches of the loaded kernels.
    largest: Vec<LargestLaunch>,
    launches: usize,
    fault: Option<Fault>,
    shared: Shared,
    /// Time of the compute stream, us.
    now_us: u64,
}

/// One item of work in the emulated GPU's queue.
enum Asked {
    Write { to: DevicePtr, bytes: Vec<u8> },
    Launch { launch: Launch, number: usize },
    Multiply(Product),
    BeginStep { slot: usize },
    Send { slot: usize, from: DevicePtr, bytes: usize },
}

/// Result slot: the bytes that a step sent back to the host, such as sampled tokens. Each step in flight has its own.
#[derive(Default)]
struct Slot {
    bytes: Vec<u8>,
    arrived: bool,
    /// Whether `has_arrived` was called for the result slot. The first call returns false (unless the bytes are there
    /// or the device is lost), as on a real GPU that is still busy; later calls return true, and `receive` then runs
    /// the work.
    asked: bool,
}

/// Allocation unit of emulated device memory: 256 bytes, aligned as by a GPU's allocator.
#[derive(Clone, Copy)]
#[repr(align(256))]
struct Line {
    _bytes: [u8; LINE_BYTES],
}

const LINE_BYTES: usize = 256;

impl EmulatedDriver {
    /// Makes an emulated GPU with `limit_bytes` bytes of device memory.
    pub fn new(limit_bytes: usize) -> EmulatedDriver {
        EmulatedDriver {
            asked: VecDeque::new(),
            slots: Default::default(),
            graphs: HashMap::new(),
            made: 0,
            kept: Arc::default(),
            replayed: Arc::default(),
            memory: Vec::new(),
            memory_bytes: 0,
            limit_bytes,
            shape: KernelShape { head_dim: 0, queries: 0, q8: false },
            largest: Vec::new(),
            launches: 0,
            fault: None,
            shared: Shared::default(),
            now_us: 0,
        }
    }

    /// Sets the fault that the emulated GPU makes on purpose.
    #[must_use]
    pub fn with_fault(mut self, fault: Fault) -> EmulatedDriver {
        self.fault = Some(fault);
        self
    }

    /// Returns the number of CUDA graphs that exist, which changes with them.
    pub fn kept(&self) -> Arc<AtomicUsize> {
        Arc::clone(&self.kept)
    }

    /// Returns the counter of replayed CUDA graphs.
    pub fn replayed(&self) -> Arc<AtomicUsize> {
        Arc::clone(&self.replayed)
    }

    /// Panics unless the `bytes` bytes from address `at` on lie inside one allocation of the emulated device memory.
    fn check(&self, at: DevicePtr, bytes: usize) {
        let held = self.memory.iter().any(|memory| {
            let start = memory.as_ptr() as u64;
            at.0 >= start && at.0 + bytes as u64 <= start + size_of_val(&**memory) as u64
        });
        assert!(held, "{bytes} bytes at {at:?} are not of this device");
    }

    fn alive(&self) -> Result<(), CudaError> {
        if self.shared.state().lost {
            Err(CudaError::Lost("a made-up fault".to_owned()))
        } else {
            Ok(())
        }
    }

    fn multiply_now(&mut self, product: Product) {
        let Product { w, x, out, m, n, k, wide, stride } = product;
        let (w, x) = (self.values(w, n * k), self.values(x, m * k));
        for (row, x) in x.chunks_exact(k).enumerate() {
            let mut bytes = Vec::with_capacity(n * 4);
            for w in w.chunks_exact(k) {
                let sum: f32 = x.iter().zip(w).map(|(x, w)| x * w).sum();
                match wide {
                    true => bytes.extend(sum.to_ne_bytes()),
                    false => bytes.extend(bf16::from_f32(sum).to_ne_bytes()),
                }
            }
            self.write(out.offset(row * stride * if wide { 4 } else { 2 }), &bytes);
        }
    }

    fn values(&self, at: DevicePtr, len: usize) -> Vec<f32> {
        let mut bytes = vec![0; len * 2];
        self.read(at, &mut bytes);
        bytes.chunks_exact(2).map(|b| bf16::from_ne_bytes([b[0], b[1]]).to_f32()).collect()
    }

    /// Runs the queued work in order: up to the copy into result slot `until`, or all of it. A loss of the device that
    /// a test made up is reported only after that work, as on a real GPU.
    fn catch_up(&mut self, until: Option<usize>) -> Result<(), CudaError> {
        while let Some(asked) = self.asked.pop_front() {
            match asked {
                Asked::Write { to, bytes } => self.write(to, &bytes),
                Asked::Launch { launch: asked, number } => {
                    self.now_us += LAUNCH_US;
                    self.shared.state().lost |= self.fault == Some(Fault::Lost(number));
                    launch(&asked, self.shape, number % 2 == 1)?;
                }
                Asked::Multiply(product) => {
                    self.now_us += LAUNCH_US;
                    self.multiply_now(product);
                }
                Asked::BeginStep { slot } => {
                    self.shared.state().steps[slot].begun_us = self.now_us;
                }
                Asked::Send { slot, from, bytes } => {
                    let mut sent = vec![0; bytes];
                    self.read(from, &mut sent);
                    self.slots[slot] = Slot { bytes: sent, arrived: true, asked: false };
                    self.shared.state().steps[slot].ended_us = Some(self.now_us);
                    if until == Some(slot) {
                        break;
                    }
                }
            }
        }
        self.alive()
    }

    fn read(&self, from: DevicePtr, bytes: &mut [u8]) {
        self.check(from, bytes.len());
        // SAFETY: the source is inside an allocation that `self` holds, and no other code writes it now: kernels have
        // ended when `launch` returns, and the engine does not let copies touch memory that is being read.
        unsafe {
            std::ptr::copy_nonoverlapping(from.0 as *const u8, bytes.as_mut_ptr(), bytes.len());
        }
    }

    fn write(&mut self, to: DevicePtr, bytes: &[u8]) {
        self.check(to, bytes.len());
        // SAFETY: the destination is inside an allocation that `self` holds, and no other code uses it now: kernels
        // have ended when `launch` returns, and the engine does not let copies touch memory that is being written.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), to.0 as *mut u8, bytes.len()) }
    }
}

impl Driver for EmulatedDriver {
    type Copies = EmulatedCopies;
    type Host = EmulatedHost;

    fn name(&self) -> String {
        "emulated".to_owned()
    }

    fn free_bytes(&mut self) -> Result<u64, CudaError> {
        Ok((self.limit_bytes - self.memory_bytes) as u64)
    }

    fn host_pool(&mut self, plan: HostPlan) -> Result<(EmulatedCopies, EmulatedHost), CudaError> {
        Ok(EmulatedHost::new(plan, self.shared.clone(), self.fault))
    }

    fn span(&self) -> usize {
        SPAN
    }

    fn strip_bytes(&self) -> usize {
        // Small, so that the matrices of tests have several strips.
        16 << 10
    }

    fn load(&mut self, shape: KernelShape) -> Result<(), CudaError> {
        self.shape = shape;
        self.largest = shape.units().iter().flat_map(|unit| shape.largest_launches(unit)).collect();
        Ok(())
    }

    fn allocate(&mut self, bytes: usize) -> Result<DevicePtr, CudaError> {
        if self.memory_bytes + bytes > self.limit_bytes {
            let why = format!("{} of {} are taken", self.memory_bytes, self.limit_bytes);
            return Err(CudaError::Memory { bytes, what: "device", why });
        }
        self.memory_bytes += bytes;
        // Fill new memory with 0xff instead of zeros, so that a kernel that reads memory nobody wrote gives a wrong
        // result.
        let lines = vec![Line { _bytes: [0xff; LINE_BYTES] }; bytes.div_ceil(LINE_BYTES)]
            .into_boxed_slice();
        let at = DevicePtr(lines.as_ptr() as u64);
        self.memory.push(lines);
        Ok(at)
    }

    fn clear(&mut self, at: DevicePtr, bytes: usize) -> Result<(), CudaError> {
        self.upload(at, &vec![0; bytes])
    }

    fn upload(&mut self, to: DevicePtr, bytes: &[u8]) -> Result<(), CudaError> {
        self.alive()?;
        self.check(to, bytes.len());
        self.asked.push_back(Asked::Write { to, bytes: bytes.to_vec() });
        Ok(())
    }

    fn download(&mut self, from: DevicePtr, bytes: &mut [u8]) -> Result<(), CudaError> {
        self.catch_up(None)?;
        self.read(from, bytes);
        Ok(())
    }

    fn begin_step(&mut self, slot: usize, step: StepId) -> Result<(), CudaError> {
        self.alive()?;
        self.shared.state().steps[slot] = Mark { step, ..Mark::default() };
        self.asked.push_back(Asked::BeginStep { slot });
        Ok(())
    }

    fn send_back(&mut self, slot: usize, from: DevicePtr, bytes: usize) -> Result<(), CudaError> {
        self.alive()?;
        assert!(bytes <= SLOT_BYTES, "{bytes} bytes in one slot");
        self.slots[slot] = Slot::default();
        self.asked.push_back(Asked::Send { slot, from, bytes });
        self.shared.state().steps[slot].submitted = true;
        Ok(())
    }

    fn has_arrived(&mut self, slot: usize) -> bool {
        let lost = self.shared.state().lost;
        let slot = &mut self.slots[slot];
        lost || slot.arrived || std::mem::replace(&mut slot.asked, true)
    }

    fn receive(&mut self, slot: usize, bytes: &mut [u8]) -> Result<(), CudaError> {
        if !self.slots[slot].arrived {
            self.catch_up(Some(slot))?;
        }
        bytes.copy_from_slice(&self.slots[slot].bytes);
        self.alive()
    }

    fn step_us(&mut self, slot: usize) -> Result<Option<u64>, CudaError> {
        let mark = self.shared.state().steps[slot];
        Ok(mark.ended_us.map(|ended_us| ended_us - mark.begun_us))
    }

    fn launch(&mut self, launch: &Launch) -> Result<(), CudaError> {
        if launch.threads > GPU_THREADS_MAX {
            let why = format!("{} threads", launch.threads);
            return Err(CudaError::Launch { kernel: launch.kernel.to_owned(), why });
        }
        let number = self.launches;
        self.launches += 1;
        let largest = self.largest.iter().find(|largest| largest.kernel == launch.kernel);
        let fits = largest.is_some_and(|largest| {
            launch.threads <= largest.threads && launch.shared_bytes <= largest.shared_bytes
        });
        assert!(fits, "{launch:?} is larger than the largest launch, {largest:?}");
        if let Some(Fault::LateMemory(bytes)) = self.fault
            && number == 0
        {
            self.memory_bytes += bytes;
        }
        if self.fault == Some(Fault::Launch(number)) {
            let why = "a made-up fault".to_owned();
            return Err(CudaError::Launch { kernel: launch.kernel.to_owned(), why });
        }
        self.asked.push_back(Asked::Launch { launch: launch.clone(), number });
        Ok(())
    }

    fn multiply(&mut self, product: Product) -> Result<(), CudaError> {
        self.asked.push_back(Asked::Multiply(product));
        Ok(())
    }

    fn graph(&mut self, work: &[Work]) -> Result<usize, CudaError> {
        if self.fault == Some(Fault::Graphs) {
            let why = "a made-up fault".to_owned();
            return Err(CudaError::Launch { kernel: "a graph".to_owned(), why });
        }
        self.made += 1;
        self.graphs.insert(self.made, work.to_vec());
        self.kept.store(self.graphs.len(), Ordering::Relaxed);
        Ok(self.made)
    }

    fn replay(&mut self, graph: usize) -> Result<(), CudaError> {
        self.replayed.fetch_add(1, Ordering::Relaxed);
        self.graphs[&graph].clone().iter().try_for_each(|work| self.request(work))
    }

    fn forget_graph(&mut self, graph: usize) {
        assert!(self.graphs.remove(&graph).is_some(), "there is no graph {graph}");
        self.kept.store(self.graphs.len(), Ordering::Relaxed);
    }

    fn wait(&mut self) -> Result<(), CudaError> {
        self.catch_up(None)
    }
}

impl Drop for EmulatedDriver {
    fn drop(&mut self) {
        // Run the rest of the work, because a real driver also waits for pending work. Ignore an error: either an
        // earlier call has reported the error, or no caller is left to report it to.
        let _ = self.catch_up(None);
    }
}
