//! Compute side of a GPU: CUDA stream, device memory, kernels, graphs, and matrix products of steps.
#![expect(unsafe_code, reason = "bindings to the CUDA driver")]

use super::calls::driver::{DriverError, memory};
use super::calls::work::{kernel, stream};
use super::compile::KernelCache;
use super::context::{Context, is_lost, lost};
use super::copies::CudaCopies;
use super::graphs::Graphs;
use super::moves::{MOVE_WORDS, Moves};
use super::pinned_host::PinnedHost;
use super::products::{Products, WORKSPACE_BYTES};
use super::results::Results;
use super::staging::Staging;
use crate::cuda::{
    CudaError, DevicePtr, Driver, HostPlan, KernelShape, Launch, Product, SPAN, Work,
};
use cudarc::driver::sys::{CUfunction, CUmodule, CUstream};
use std::collections::HashMap;
use std::ffi::c_void;
use tiercel_device::StepId;

/// Dynamic shared memory that a thread block may use without an explicit request to the driver, bytes: 48 KiB.
const PLAIN_SHARED_BYTES: u32 = 48 << 10;

/// Driver of a real GPU: CUDA stream of the steps, device memory, kernels, graphs, and matrix products.
pub struct CudaDriver {
    // Fields are declared in the order in which they must be dropped: users of the CUDA context before the context.
    products: Products,
    staging: Staging,
    results: Results,
    graphs: Graphs,
    stream: CUstream,
    moves: Moves,
    cache: KernelCache,
    modules: Vec<CUmodule>,
    kernels: HashMap<&'static str, CUfunction>,
    memory: Vec<DevicePtr>,
    context: Context,
}

// SAFETY: every field may be used from any thread, and one thread at a time uses the driver; `Context::enter` makes the
// context current in that thread first.
unsafe impl Send for CudaDriver {}

impl CudaDriver {
    /// Opens GPU number `ordinal` with a CUDA stream for steps.
    ///
    /// # Errors
    /// [`CudaError::Unavailable`], or [`CudaError::Memory`] if not even the first few megabytes can be allocated.
    pub fn open(ordinal: u32, cache: KernelCache) -> Result<CudaDriver, CudaError> {
        let context = Context::open(ordinal)?;
        context.enter()?;
        let staging = Staging::new(&context)?;
        let results = Results::new(&context)?;
        let workspace = allocate(WORKSPACE_BYTES)?;
        let products = Products::new(workspace)?;
        // Gives the compute stream the greatest priority, so that steps go before copies where both need the same units
        // of the GPU.
        let (_, greatest) = stream::get_priority_range().map_err(lost)?;
        let stream = stream::create_with_priority(greatest);
        let stream = stream.map_err(lost)?;
        Ok(CudaDriver {
            context,
            stream,
            moves: Moves::new(stream),
            staging,
            results,
            graphs: Graphs::default(),
            products,
            cache,
            modules: Vec::new(),
            kernels: HashMap::new(),
            memory: vec![workspace],
        })
    }

    fn load_unit(&mut self, code: &[u8], kernels: &[&'static str]) -> Result<(), CudaError> {
        let failed = |kernel: &str, error: DriverError| CudaError::Launch {
            kernel: kernel.to_owned(),
            why: error.words(),
        };
        // SAFETY: the machine code comes from the compiler, or from a cache file. `compile::keep` writes a cache file
        // under a temporary name and then renames the file, so every cache file is a complete cubin unless another
        // program damages the file. `is_machine_code` checks only the length and the magic number, and NVIDIA's driver
        // checks the rest. NVIDIA's driver copies the machine code.
        let module = unsafe { kernel::load(code) };
        let module = module.map_err(|error| failed("a unit", error))?;
        self.modules.push(module);
        for name in kernels {
            // SAFETY: the module of kernels stays loaded as long as the driver lives.
            let function = unsafe { kernel::find(module, name) };
            let function = function.map_err(|error| failed(name, error))?;
            self.kernels.insert(name, function);
            if *name == MOVE_WORDS {
                self.moves.use_kernel(function);
            }
        }
        Ok(())
    }
}

impl Driver for CudaDriver {
    type Copies = CudaCopies;
    type Host = PinnedHost;

    fn name(&self) -> String {
        self.context.name()
    }

    fn free_bytes(&mut self) -> Result<u64, CudaError> {
        self.context.free_bytes()
    }

    fn host_pool(&mut self, plan: HostPlan) -> Result<(CudaCopies, PinnedHost), CudaError> {
        let host = PinnedHost::new(&self.context, plan);
        Ok((CudaCopies::new(&self.context, self.results.events(), host.clone())?, host))
    }

    fn span(&self) -> usize {
        SPAN
    }

    fn load(&mut self, shape: KernelShape) -> Result<(), CudaError> {
        self.context.enter()?;
        let arch = self.context.architecture();
        for unit in shape.units() {
            let options = shape.options(&unit);
            let (code, kept) = self.cache.get(&unit, &options, &arch)?;
            match self.load_unit(&code, unit.kernels) {
                // Compiles the source once more if the driver refuses cached machine code, which may come from an older
                // driver or be damaged.
                Err(error) if kept => {
                    tracing::warn!(
                        unit = unit.name, %error,
                        "the driver refused cached kernels; compiling them again"
                    );
                    self.cache.forget(&unit, &options, &arch);
                    let (code, _) = self.cache.get(&unit, &options, &arch)?;
                    self.load_unit(&code, unit.kernels)?;
                }
                loaded => loaded?,
            }
        }
        Ok(())
    }

    fn allocate(&mut self, bytes: usize) -> Result<DevicePtr, CudaError> {
        self.context.enter()?;
        let memory = allocate(bytes)?;
        self.memory.push(memory);
        Ok(memory)
    }

    fn clear(&mut self, at: DevicePtr, bytes: usize) -> Result<(), CudaError> {
        self.context.enter()?;
        // SAFETY: the memory was allocated by this driver for the caller; the call is on the driver's stream, so later
        // launches follow it.
        unsafe { memory::clear(at.0, bytes, self.stream) }.map_err(lost)
    }

    fn upload(&mut self, to: DevicePtr, bytes: &[u8]) -> Result<(), CudaError> {
        self.context.enter()?;
        self.staging.upload(to, bytes, self.moves)
    }

    fn download(&mut self, from: DevicePtr, bytes: &mut [u8]) -> Result<(), CudaError> {
        self.context.enter()?;
        self.staging.download(from, bytes, self.moves)
    }

    fn begin_step(&mut self, slot: usize, step: StepId) -> Result<(), CudaError> {
        self.context.enter()?;
        self.results.events().begin(slot, step, self.stream)
    }

    fn send_back(&mut self, slot: usize, from: DevicePtr, bytes: usize) -> Result<(), CudaError> {
        self.context.enter()?;
        self.results.send(slot, from, bytes, self.moves)
    }

    fn has_arrived(&mut self, slot: usize) -> bool {
        self.context.enter().is_err() || self.results.events().has_ended(slot)
    }

    fn receive(&mut self, slot: usize, bytes: &mut [u8]) -> Result<(), CudaError> {
        self.context.enter()?;
        self.results.receive(slot, bytes)
    }

    fn step_us(&mut self, slot: usize) -> Result<Option<u64>, CudaError> {
        self.context.enter()?;
        self.results.events().elapsed_us(slot)
    }

    fn launch(&mut self, launch: &Launch) -> Result<(), CudaError> {
        let Launch { kernel: name, grid, threads, shared_bytes, ref args } = *launch;
        let failed = |why: String| CudaError::Launch { kernel: name.to_owned(), why };
        self.context.enter()?;
        let function = *self.kernels.get(name).ok_or_else(|| failed("not loaded".to_owned()))?;
        if shared_bytes > PLAIN_SHARED_BYTES {
            // SAFETY: the kernel belongs to a module that stays loaded.
            unsafe { kernel::allow_shared(function, shared_bytes) }
                .map_err(|error| failed(error.words()))?;
        }
        let mut values: Vec<[u8; 8]> = args.iter().map(|arg| arg.bytes()).collect();
        let mut places: Vec<*mut c_void> =
            values.iter_mut().map(|value| value.as_mut_ptr().cast()).collect();
        // SAFETY: each element of `places` points to eight bytes that start with the argument, which the driver copies
        // before it returns. The callers of `launch` pass the number and types of arguments that the kernel has; tests
        // on the emulator check this. Device memory that arguments point to lives as long as the driver.
        let launched = unsafe {
            kernel::launch(function, grid, threads, shared_bytes, self.stream, &mut places)
        };
        launched.map_err(|error| if is_lost(error) { lost(error) } else { failed(error.words()) })
    }

    fn multiply(&mut self, product: Product) -> Result<(), CudaError> {
        self.context.enter()?;
        self.products.multiply(product, self.stream)
    }

    fn graph(&mut self, work: &[Work]) -> Result<usize, CudaError> {
        self.context.enter()?;
        let graph =
            Graphs::capture(self.stream, || work.iter().try_for_each(|work| self.request(work)))?;
        Ok(self.graphs.keep(graph))
    }

    fn replay(&mut self, graph: usize) -> Result<(), CudaError> {
        self.context.enter()?;
        self.graphs.replay(graph, self.stream)
    }

    fn forget_graph(&mut self, graph: usize) {
        if self.context.enter().is_ok() {
            self.graphs.forget(graph);
        }
    }

    fn wait(&mut self) -> Result<(), CudaError> {
        self.context.enter()?;
        // SAFETY: the CUDA stream of the steps belongs to this driver.
        unsafe { stream::synchronize(self.stream) }.map_err(lost)
    }
}

impl Drop for CudaDriver {
    fn drop(&mut self) {
        // Frees memory and graphs only if the device still works; NVIDIA's driver frees the memory of a lost device by
        // itself.
        if self.wait().is_ok() {
            self.graphs.forget_all();
            // SAFETY: modules, memory and CUDA stream were made by this driver, are freed once, and no work on the GPU
            // uses them any more.
            unsafe {
                for module in &self.modules {
                    let _ = kernel::unload(*module);
                }
                for allocated in &self.memory {
                    let _ = memory::free(allocated.0);
                }
                let _ = stream::destroy(self.stream);
            }
        }
    }
}

fn allocate(bytes: usize) -> Result<DevicePtr, CudaError> {
    memory::allocate(bytes).map(DevicePtr).map_err(|error| CudaError::Memory {
        bytes,
        what: "device",
        why: error.words(),
    })
}
