//! Interface between the op set and a GPU: memory, launches, matrix products, and waiting.
//! [`CudaDriver`](super::CudaDriver) implements it for a real GPU; tests run the same launches on an emulator.

use super::copier::CopyDriver;
use super::host_pool::{HostPlan, HostPool, PinHost};
use tiercel_device::{StepError, StepId};

/// Address in the memory of a GPU.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct DevicePtr(pub u64);

impl DevicePtr {
    /// Returns the device address `bytes` bytes after this address.
    #[must_use]
    pub fn offset(self, bytes: usize) -> DevicePtr {
        DevicePtr(self.0 + bytes as u64)
    }
}

/// Argument of a GPU kernel.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Arg {
    /// Kernel argument that is a pointer to device memory; `DevicePtr(0)` is the null pointer.
    Ptr(DevicePtr),
    /// Kernel argument of the C++ type `u32`.
    U32(u32),
    /// Kernel argument of the C++ type `u64`.
    U64(u64),
    /// Kernel argument of the C++ type `float`.
    F32(f32),
}

impl Arg {
    /// Returns the bytes of a kernel argument. A kernel reads an argument shorter than 8 bytes from the start of the
    /// array.
    pub fn bytes(self) -> [u8; 8] {
        match self {
            Arg::Ptr(DevicePtr(value)) | Arg::U64(value) => value.to_ne_bytes(),
            Arg::U32(value) => u64::from(value).to_le().to_ne_bytes(),
            Arg::F32(value) => u64::from(value.to_bits()).to_le().to_ne_bytes(),
        }
    }
}

/// Launch of a GPU kernel: which kernel, how many threads, and its arguments.
#[derive(Debug, Clone, PartialEq)]
pub struct Launch {
    /// Name of the launched kernel in its source.
    pub kernel: &'static str,
    /// Grid of the launch: thread blocks in x and y; neither is 0, y is at most 65,535.
    pub grid: (u32, u32),
    /// Threads per thread block, a multiple of the warp size.
    pub threads: u32,
    /// Dynamic shared memory of a thread block, bytes.
    pub shared_bytes: u32,
    /// Arguments of the kernel, in the order of its source.
    pub args: Vec<Arg>,
}

/// One operation of a step: launched when it is requested, or part of a CUDA graph and run at each replay of the graph.
#[derive(Debug, Clone, PartialEq)]
pub enum Work {
    /// Operation that launches a kernel.
    Launch(Launch),
    /// Operation that computes a matrix product.
    Multiply(Product),
}

/// Matrix product `out = x · wᵀ`: `w` is `[n, k]`, `x` is `[m, k]`, both bf16 and row-major, `out` is `[m, n]`
/// and may be columns of a wider matrix. Sums are f32.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Product {
    /// Device address of the weight matrix `w` of a product `x · wᵀ`.
    pub w: DevicePtr,
    /// Device address of the activation matrix `x` of a product `x · wᵀ`.
    pub x: DevicePtr,
    /// Device address of the result matrix `out` of a product `x · wᵀ`.
    pub out: DevicePtr,
    /// Number of rows of the activations `x` and of the result `out` of a product; at least 1.
    pub m: usize,
    /// Number of output features of a product: rows of the weights `w` and columns of the result `out`.
    pub n: usize,
    /// Number of input features of a product: columns of the weights `w` and of the activations `x`.
    pub k: usize,
    /// Whether the result of the matrix product stays f32; otherwise it is rounded to bf16.
    pub wide: bool,
    /// Distance from one row of the result `out` of a product to the next, elements; at least `n`.
    pub stride: usize,
}

/// The numbers of a model's attention shape, and the format of its KV cache, that the attention kernels are compiled
/// for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct KernelShape {
    /// Width of an attention head, elements.
    pub head_dim: usize,
    /// Number of query heads that share a key head.
    pub queries: usize,
    /// Whether the KV cache is in 8 bits with scales; otherwise it is in bf16.
    pub q8: bool,
}

/// Number of result slots: buffers through which the tokens drawn by a step come back to the host, one for each step in
/// flight.
pub const SLOTS: usize = 2;
/// Capacity of a result slot (buffer through which a step's tokens come back to the host), bytes: 4096 tokens.
pub const SLOT_BYTES: usize = 16 << 10;

/// Interface of a GPU with one compute stream: all work runs in the order in which it was requested. Device memory
/// lives as long as the driver.
pub trait Driver: Send + 'static {
    /// Type of the copy streams of the driver.
    type Copies: CopyDriver;
    /// Type of the driver's memory of a host pool.
    type Host: PinHost;
    /// Returns the name of the device in logs and metrics.
    fn name(&self) -> String;
    /// Returns how much device memory can still be allocated, bytes.
    ///
    /// # Errors
    /// [`CudaError::Lost`].
    fn free_bytes(&mut self) -> Result<u64, CudaError>;
    /// Makes the copy side of the GPU, and the memory of a host pool, of which nothing is pinned yet. Copies may touch
    /// what is pinned. When the driver is dropped, no batch of copies may be in flight, because the driver frees the
    /// device memory.
    ///
    /// # Errors
    /// [`CudaError::Lost`].
    fn host_pool(&mut self, plan: HostPlan) -> Result<(Self::Copies, Self::Host), CudaError>;
    /// Makes the copy side of the GPU, with `host_bytes` bytes of pinned host memory, as [`Driver::host_pool`] does.
    ///
    /// # Errors
    /// [`CudaError::Memory`].
    fn copies(&mut self, host_bytes: usize) -> Result<Self::Copies, CudaError> {
        let blocks = u32::from(host_bytes > 0);
        let plan = HostPlan { block_bytes: host_bytes, blocks, piece_blocks: 1 };
        let (copies, memory) = self.host_pool(plan)?;
        HostPool::start(memory, plan)?;
        Ok(copies)
    }
    /// Returns the length of an attention span, positions: the part of a row's keys that one thread block sums up. The
    /// kernels are compiled for this length.
    fn span(&self) -> usize;
    /// Returns the size of the buffer into which quantized matrices are decoded strip by strip, bytes. A strip of the
    /// fewest possible output features may be larger.
    fn strip_bytes(&self) -> usize {
        64 << 20
    }
    /// Compiles the kernels for a model's attention shape, or loads them from the cache.
    ///
    /// # Errors
    /// [`CudaError::Compile`] with the compiler's log; [`CudaError::Launch`] if the driver refuses the compiled
    /// kernels.
    fn load(&mut self, shape: KernelShape) -> Result<(), CudaError>;
    /// Allocates device memory, aligned to 256 bytes. Its content is undefined.
    ///
    /// # Errors
    /// [`CudaError::Memory`].
    fn allocate(&mut self, bytes: usize) -> Result<DevicePtr, CudaError>;
    /// Sets a range of device memory to zero.
    ///
    /// # Errors
    /// [`CudaError::Lost`].
    fn clear(&mut self, at: DevicePtr, bytes: usize) -> Result<(), CudaError>;
    /// Copies `bytes` from the host to device memory, in the order of the requested work. The caller may reuse `bytes`
    /// as soon as the call returns.
    ///
    /// # Errors
    /// [`CudaError::Lost`] or [`CudaError::Copy`].
    fn upload(&mut self, to: DevicePtr, bytes: &[u8]) -> Result<(), CudaError>;
    /// Waits for all requested work, then copies from device memory to `bytes`.
    ///
    /// # Errors
    /// [`CudaError::Lost`] or [`CudaError::Copy`].
    fn download(&mut self, from: DevicePtr, bytes: &mut [u8]) -> Result<(), CudaError>;
    /// Marks the beginning of a step on the device, after all work requested earlier. The tokens of the step will be
    /// sent back through the result slot `slot`, whose last content must have been received.
    ///
    /// # Errors
    /// [`CudaError::Lost`].
    fn begin_step(&mut self, slot: usize, step: StepId) -> Result<(), CudaError>;
    /// Requests a copy of `bytes` bytes at `from` to a result slot, after all work requested earlier, marks the end of
    /// the step that began with the slot, and returns without waiting. `bytes` is at most [`SLOT_BYTES`]. `slot` is
    /// below [`SLOTS`], and the slot's last content must have been received.
    ///
    /// # Errors
    /// [`CudaError::Lost`] or [`CudaError::Copy`].
    fn send_back(&mut self, slot: usize, from: DevicePtr, bytes: usize) -> Result<(), CudaError>;
    /// Whether the last [`Driver::send_back`] into the result slot and all work requested before it have completed or
    /// failed.
    fn has_arrived(&mut self, slot: usize) -> bool;
    /// Waits until the last [`Driver::send_back`] into the result slot has completed, but not for work requested after
    /// it; then copies the slot's content to `bytes`.
    ///
    /// # Errors
    /// [`CudaError::Lost`] if some of the work that was waited for failed.
    fn receive(&mut self, slot: usize, bytes: &mut [u8]) -> Result<(), CudaError>;
    /// Returns the time on the device from the beginning of a step to its end, us. The content of its result slot
    /// `slot` must have been received. `None` if the driver cannot measure it.
    ///
    /// # Errors
    /// [`CudaError::Lost`].
    fn step_us(&mut self, slot: usize) -> Result<Option<u64>, CudaError>;
    /// Launches a kernel that [`Driver::load`] has loaded for the model.
    ///
    /// # Errors
    /// [`CudaError::Launch`] if the driver does not accept the request.
    fn launch(&mut self, launch: &Launch) -> Result<(), CudaError>;
    /// Starts a matrix product on the GPU, in order after the work requested before.
    ///
    /// # Errors
    /// [`CudaError::Launch`] if the driver does not accept the request.
    fn multiply(&mut self, product: Product) -> Result<(), CudaError>;
    /// Launches the kernel or starts the matrix product that `work` describes.
    ///
    /// # Errors
    /// [`CudaError::Launch`] if the driver does not accept the request.
    fn request(&mut self, work: &Work) -> Result<(), CudaError> {
        match work {
            Work::Launch(launch) => self.launch(launch),
            Work::Multiply(product) => self.multiply(*product),
        }
    }
    /// Makes a CUDA graph that runs `work` in order, without running it yet, and returns the graph's number, which no
    /// other graph of the driver gets. The graph lives until [`Driver::forget_graph`].
    ///
    /// # Errors
    /// [`CudaError::Launch`] if no graph can be made of `work`.
    fn graph(&mut self, work: &[Work]) -> Result<usize, CudaError>;
    /// Runs all operations of a CUDA graph.
    ///
    /// # Errors
    /// [`CudaError::Launch`] if the driver does not accept the request.
    fn replay(&mut self, graph: usize) -> Result<(), CudaError>;
    /// Destroys a CUDA graph, which is not replayed any more. If it is running, it still runs to its end.
    fn forget_graph(&mut self, graph: usize);
    /// Waits until all work requested of the GPU has completed.
    ///
    /// # Errors
    /// [`CudaError::Lost`] if some of the work that was waited for failed.
    fn wait(&mut self) -> Result<(), CudaError>;
}

/// Errors of a GPU, its driver or its libraries.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CudaError {
    /// There is no usable GPU, a library is missing or newer than the driver, or the threads of the host could not be
    /// started.
    #[error("{0}")]
    Unavailable(String),
    /// The CUDA kernels do not support the model's attention shape.
    #[error("the CUDA kernels cannot run this model: {0}; use --device cpu")]
    Shape(String),
    /// Device memory or pinned host memory is exhausted.
    #[error(
        "{bytes} bytes of {what} memory could not be allocated ({why}); lower kv.cache_mib or kv.host_mib"
    )]
    Memory {
        /// Size of the allocation that failed, bytes.
        bytes: usize,
        /// Kind of memory: `"device"` or `"pinned host"`.
        what: &'static str,
        /// Explanation of the CUDA driver why the memory could not be allocated.
        why: String,
    },
    /// A source file of CUDA kernels could not be compiled.
    #[error("the kernels of {unit} could not be compiled for {arch}: {log}")]
    Compile {
        /// Name of the kernels' source file that did not compile.
        unit: String,
        /// GPU architecture that the kernels were compiled for, such as `sm_90`.
        arch: String,
        /// Log of the kernel compiler.
        log: String,
    },
    /// The CUDA driver did not accept a launch. Work launched earlier is not affected.
    #[error("{kernel} could not be launched: {why}")]
    Launch {
        /// Name of the kernel or operation that was refused.
        kernel: String,
        /// Text with which the CUDA driver explains the refusal.
        why: String,
    },
    /// The CUDA driver refused to start a copy.
    #[error("a copy could not be started: {0}")]
    Copy(String),
    /// Work that the CUDA driver had accepted failed, so the device is lost: nothing on it can be used any more.
    #[error("{0}")]
    Lost(String),
}

impl From<CudaError> for StepError {
    fn from(error: CudaError) -> StepError {
        match error {
            CudaError::Lost(why) => StepError::DeviceLost(why),
            other => StepError::Failed(other.to_string()),
        }
    }
}
